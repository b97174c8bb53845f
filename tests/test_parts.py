"""What the checks of parts share, against a made-up submission that answers as it is told."""

from __future__ import annotations

import numpy as np
import pytest

from grader.asking.expectations import Expectations
from grader.asking.submission import Question
from grader.base.result import CheckFailed, Diagnosis, Outcome, Status
from grader.base.settings import shipped
from grader.base.student_error import StudentError
from grader.model.draws import Draws
from grader.model.parameters import ProbeConfig, parameter_shapes
from grader.parts import causes, forwarded_arguments
from grader.parts.blocks import silenced
from grader.parts.causes import suspect
from grader.parts.judging import (
    Call,
    Case,
    Trial,
    ask,
    built_on,
    must_raise,
    returned,
    try_calls,
    try_refusals,
)
from grader.parts.trials import try_modules
from grader.run import blame
from grader.run.outcomes import Place, outcome, student_outcome

CONFIG = ProbeConfig(d_model=6, num_heads=2, d_ff=7)
VALID = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)
RNG = Draws(0, "parts")
X = RNG.child("x").uniform((2, 5, 6), -1.7, 1.7)
WEIGHTS = RNG.child("weights").weights(parameter_shapes(CONFIG, "encoder_block"))
INSIDE = ("self_attention", "attention_branch", "feed_forward", "feed_forward_branch")
CASE = Case("the block", {"x": X, "valid": VALID}, VALID, causes.ENCODER_BLOCK)
TRIAL = Trial("encoder_block", "encoder.EncoderBlock", CONFIG, WEIGHTS, (CASE,))
EXPECTED = Expectations().for_check("test")
RIGHT = TRIAL.expect(EXPECTED, CASE)
PRECISION = {"kind": "raised", "type": "RuntimeError", "message": "expected Double but got Float"}


class Answering:
    """A submission that answers one list after another and remembers what it was asked."""

    def __init__(self, *rounds):
        self.rounds = list(rounds)
        self.asked = []

    def attempt(self, *questions):
        self.asked.append(questions)
        return self.rounds.pop(0)


def answer(value, records=None, changed=()):
    records = [records or {}]
    return {"outputs": [value], "records": records, "inputs_changed": list(changed)}


def judged(*values):
    """Judge the block that gives these answers, one to each time it is asked."""
    first, *again = values
    rounds = [[{}, answer(first)], [{}, *map(answer, again)]]
    return try_modules(Answering(*rounds), EXPECTED, "Look again.", TRIAL)


def test_right_answer_passes_with_its_evidence():
    assert judged(RIGHT[""]) == {"largest_difference": 0.0, "tolerance": PARTS.tolerance}


@pytest.mark.parametrize("slip", [s for s in causes.ENCODER_BLOCK if "bias" not in s])
def test_wrong_answer_is_named_by_its_slip(slip):
    wrong = EXPECTED(
        "wrong_encoder_block", config=CONFIG, weights=WEIGHTS, **CASE.inputs, slip=slip
    )["value"]
    with pytest.raises(CheckFailed) as failure:
        judged(wrong)
    assert failure.value.diagnosis.code == slip
    assert failure.value.diagnosis.part == "encoder"


@pytest.mark.parametrize("left", [1e-30, np.nan, -np.inf])
def test_padding_must_be_exactly_zero(left):
    value = RIGHT[""].copy()
    value[1, 4, 2] = left
    with pytest.raises(CheckFailed, match="padded position 4 of row 1"):
        judged(value)


def test_constant_answer_does_not_respond():
    with pytest.raises(CheckFailed) as failure:
        judged(np.full_like(X, 0.25))
    assert failure.value.diagnosis.code == "does_not_respond"


def test_answer_that_differs_each_time_is_not_deterministic():
    with pytest.raises(CheckFailed) as failure:
        judged(RIGHT[""] + X, RIGHT[""] + X, RIGHT[""] - X)
    assert failure.value.diagnosis.code == "not_deterministic"


@pytest.mark.parametrize(
    "name, code, words",
    [
        ("attention_branch", "sublayer_misfed", "comes out of attention_branch"),
        (None, "sublayers_misjoined", "What every sub-layer returns is right"),
    ],
)
def test_first_wrong_sublayer_is_named(name, code, words):
    records = {inside: RIGHT[inside] for inside in INSIDE}
    if name is not None:
        records[name] = records[name] + X
    wrong = answer(RIGHT[""] + X, records)
    submission = Answering([{}, wrong], [{}, wrong, wrong])
    with pytest.raises(CheckFailed, match=words) as failure:
        try_modules(submission, EXPECTED, "Look again.", TRIAL)
    assert failure.value.diagnosis.code == code


def test_named_cause_speaks_before_an_earlier_difference():
    case = Case("the other block", {"x": X}, None, causes.ENCODER_BLOCK)
    inputs = {"config": CONFIG, "weights": WEIGHTS, "x": X, "slip": "order_exchanged"}
    wrong = EXPECTED("wrong_encoder_block", **inputs)["value"]
    trial = Trial("encoder_block", "encoder.EncoderBlock", CONFIG, WEIGHTS, (CASE, case))
    submission = Answering([{}, answer(RIGHT[""] + X), answer(wrong)])
    with pytest.raises(CheckFailed, match="the other block: feed-forward runs before attention"):
        try_modules(submission, EXPECTED, "Look again.", trial)


def test_silenced_trial_keeps_its_input():
    quiet = silenced(TRIAL)
    np.testing.assert_array_equal(quiet.expect(EXPECTED, Case("", {"x": X}))[""], X)


def test_tree_that_mixes_precisions_is_asked_in_float32():
    submission = Answering([StudentError(PRECISION)], [{"value": 1.0}])
    question = Question("call", {"args": [X, {"mask": VALID}], "dtype": "float64"})
    assert ask(submission, question) == ([{"value": 1.0}], PARTS.tolerance_float32)
    (again,) = submission.asked[1]
    assert again.arguments["dtype"] == "float32"
    assert again.arguments["args"][0].dtype == np.float32
    assert again.arguments["args"][1]["mask"].dtype == bool


def test_changed_argument_is_a_failure():
    with pytest.raises(CheckFailed, match="changed an argument in place"):
        returned(answer(X, changed=["0"]), "the block", "encoder")


@pytest.mark.parametrize(
    "given, code",
    [
        ({"value": 1}, "error_missing"),
        (StudentError({"kind": "raised", "type": "KeyError", "message": "x"}), "wrong_error"),
    ],
)
def test_refusal_must_be_the_error_that_is_promised(given, code):
    with pytest.raises(CheckFailed) as failure:
        must_raise(given, "ValueError", "the block", "encoder")
    assert failure.value.diagnosis.code == code
    must_raise(StudentError({"kind": "raised", "type": "ValueError"}), "ValueError", "", "")


def test_stub_is_no_refusal():
    with pytest.raises(StudentError):
        must_raise(StudentError({"kind": "not_implemented"}), "ValueError", "the block", "encoder")


def test_calls_are_judged_in_order_and_suspects_run_on_a_failure_only():
    asked = []

    def suspects():
        asked.append("suspects")
        yield suspect("offsets", "offset_ignored", np.zeros(3))

    question = Question("call", {})
    calls = [Call("first", question, np.ones(3), suspects()),
             Call("second", question, np.ones(3), suspects())]  # fmt: skip
    good, bad = ({"value": value, "inputs_changed": []} for value in (np.ones(3), np.zeros(3)))
    found = try_calls(Answering([good, good]), "masks", "Look.", *calls)
    assert found == {"largest_difference": 0.0, "tolerance": PARTS.tolerance, "calls": 2}
    assert asked == []
    with pytest.raises(CheckFailed, match="second: the causal mask ignores the offsets") as failure:
        try_calls(Answering([good, bad]), "masks", "Look.", *calls)
    assert failure.value.diagnosis.code == "offset_ignored"


def test_every_refusal_is_judged():
    error = StudentError({"kind": "raised", "type": "ValueError"})
    refused = [(what, "ValueError", Question("call", {})) for what in ("one", "two")]
    assert try_refusals(Answering([error, error]), "masks", *refused) == {"refused": 2}
    with pytest.raises(CheckFailed, match="two: expected ValueError"):
        try_refusals(Answering([error, {"value": 1}]), "masks", *refused)


def earlier(stub):
    diagnosis = Diagnosis("no_scale", "attention", "the dot products are not scaled.", "Look.")
    return Outcome("check", stub, None, Status.FAILED, "", diagnosis)


def test_failure_is_blamed_on_the_task_it_is_built_on():
    failure = CheckFailed(Diagnosis("values_differ", "encoder", "the block differs.", "Look."))
    with pytest.raises(CheckFailed) as blamed, built_on("encoder", [earlier("2.1")], "2.1"):
        raise failure
    assert blamed.value.diagnosis.part == "attention"
    assert "Task 2.1" in blamed.value.diagnosis.cause
    with pytest.raises(CheckFailed) as own, built_on("encoder", [earlier("2.1")], "3.1"):
        raise failure
    assert own.value.diagnosis.part == "encoder"


def test_error_below_tasks_that_pass_is_blamed_on_their_caller():
    frames = [{"file": f"transformer/{name}.py"} for name in ("models", "encoder", "attention")]
    for findings, part in (([], "encoder"), ([earlier("2.1")], "attention")):
        error = StudentError({"kind": "raised", "frames": frames})
        with pytest.raises(StudentError) as raised, built_on("encoder", findings, "2.1"):
            raise error
        assert raised.value.part == part


# What a block hands on --------------------------------------------------------------------------


def refused(name):
    detail = {"name": name, "expected": [6], "found": None}
    return StudentError({"kind": "constructor_changed", "message": "differs", "detail": detail})


@pytest.mark.parametrize(
    "inner, name, file",
    [
        (refused("q_proj.weight"), "self_attention.q_proj.weight", "attention.py"),
        ({"parameters": {}}, "self_attention.q_proj.weight", None),  # the block renamed it
        (refused("norm.weight"), "attention_branch.norm.weight", "residual.py"),
    ],
)
def test_changed_constructor_is_blamed_on_its_own_file(inner, name, file):
    submission = Answering([refused(name), answer(X)], [inner])
    with pytest.raises(StudentError) as failure:
        try_modules(submission, EXPECTED, "Look again.", TRIAL)
    assert failure.value.detail.get("file") == file
    (again,) = submission.asked[1]
    assert all(not key.startswith(name.split(".")[0]) for key in again.arguments["weights"])


BRANCHES = causes.in_branches("attention_branch", "feed_forward_branch")


@pytest.mark.parametrize(
    "slip, ran, words",
    [
        ("branch_skipped:attention_branch", True, "what attention_branch returned is lost"),
        ("branch_skipped:attention_branch", False, "the sub-layer is not used"),
        ("norm_skipped:attention_branch", True, "reads the block's own x, not what the branch"),
        ("norm_skipped:attention_branch", False, "attention_branch itself is not called"),
        ("reads_block_input:feed_forward_branch", True, "reads the block's input, not what"),
    ],
)
def test_branch_is_judged_by_whether_it_ran(slip, ran, words):
    case = Case("the block", {"x": X}, None, BRANCHES)
    trial = Trial("encoder_block", "encoder.EncoderBlock", CONFIG, WEIGHTS, (case,))
    inputs = {"config": CONFIG, "weights": WEIGHTS, "x": X, "slip": slip}
    wrong = answer(EXPECTED("wrong_encoder_block", **inputs)["value"])
    seen = answer(X, {"attention_branch": X} if ran else {})
    with pytest.raises(CheckFailed, match=words) as failure:
        try_modules(Answering([{}, wrong], [{}, seen]), EXPECTED, "Look again.", trial)
    assert failure.value.diagnosis.code == slip.split(":")[0]


EMPTY = {"kind": "raised", "type": "ValueError", "message": "a row of none"}


@pytest.mark.parametrize("given, named", [({}, True), ({"query_valid": VALID}, False)])
def test_padded_queries_that_nobody_is_told_of_are_named(given, named):
    calls = {"calls": [{"name": "self_attention", "given": {"key_valid": VALID} | given}]}
    submission = Answering([{}, StudentError(EMPTY)], [{}, calls])
    with pytest.raises(CheckFailed if named else StudentError, match="a row of none") as failure:
        try_modules(submission, EXPECTED, "Look again.", TRIAL)
    if named:
        assert failure.value.diagnosis.code == "query_valid_not_handed_on"
        assert "query_valid is not handed on" in failure.value.diagnosis.cause


@pytest.mark.parametrize("freely, named", [(answer(X), True), (StudentError(EMPTY), False)])
def test_padded_queries_left_without_a_key_are_named(freely, named):
    case = Case("attention", {"query": X, "key_valid": VALID, "query_valid": VALID}, VALID)
    weights = RNG.child("mha").weights(parameter_shapes(CONFIG, "multi_head_attention"))
    trial = Trial("multi_head_attention", "attention.MultiHeadAttention", CONFIG, weights, (case,))
    submission = Answering([{}, StudentError(EMPTY)], [{}, freely])
    with pytest.raises(CheckFailed if named else StudentError) as failure:
        try_modules(submission, EXPECTED, "Look again.", trial)
    if named:
        assert failure.value.diagnosis.code == "padded_queries_raise"


@pytest.mark.parametrize(
    "given, code",
    [
        ({"query_offset": 3, "cache": "slot 0"}, None),
        ({"query_offset": 0, "cache": "slot 0"}, "offset_not_handed_on"),
        ({"cache": "slot 0"}, "offset_not_handed_on"),
        ({"query_offset": 3}, "cache_not_handed_on"),
        ({"query_offset": 3, "cache": "memory slot 0"}, "cache_not_handed_on"),
        ({"query_offset": [3], "cache": "slot 0"}, "offset_not_handed_on"),
    ],
)
def test_offset_and_cache_must_reach_attention(given, code):
    calls = {"calls": [{"name": "self_attention", "given": given}]}
    submission = Answering([{}, calls])
    arguments = submission, TRIAL, "query_offset", {"self_attention": "slot 0"}
    if code is None:
        assert (
            forwarded_arguments.try_offset_and_cache(*arguments)["offset"]
            == forwarded_arguments.OFFSET
        )
        return
    with pytest.raises(CheckFailed) as failure:
        forwarded_arguments.try_offset_and_cache(*arguments)
    assert failure.value.diagnosis.code == code


def test_error_about_a_plain_tuple_follows_from_the_task_that_returned_it():
    known = Diagnosis("attended_has_no_names", "attention", "a plain tuple.", "Look.")
    outcome = Outcome("check", "2.1", None, Status.FAILED, "", known)
    text = "'tuple' object has no attribute 'context'"
    error = {"kind": "raised", "type": "AttributeError", "message": text}
    with pytest.raises(CheckFailed, match=r"Task 2\.1"), built_on("attention", [outcome], "2.1"):
        raise StudentError(error)


# From errors to outcomes ------------------------------------------------------------------------

FRAME = {"file": "transformer/attention.py", "line": 7, "function": "f", "text": "breakpoint()"}
PARTS = shipped().parts
GATE = Place(None, 1, "future_independence")


@pytest.mark.parametrize(
    "type_, message, word",
    [("BdbQuit", "", "a breakpoint()"), ("EOFError", "EOF when reading a line", "an input()")],
)
def test_what_waits_for_a_keyboard_is_named(type_, message, word):
    error = StudentError({"kind": "raised", "type": type_, "message": message, "frames": [FRAME]})
    found = student_outcome(error, Place("2.1", None, None)).diagnosis
    assert found.code == "breakpoint_left"
    assert word in found.cause and "line 7" in found.cause
    assert "`make run TASK=2.1`" in found.advice
    with pytest.raises(StudentError):
        must_raise(error, "ValueError", "attention", "attention")


@pytest.mark.parametrize("detail", [{"file": "masks.py", "name": "causal mask"}, {}])
def test_missing_name_is_read_from_the_detail(detail):
    message = "masks.py has no causal mask"
    error = StudentError({"kind": "missing_name", "message": message, "detail": detail})
    assert "no causal mask." in student_outcome(error, Place("1.2", None, None)).summary


@pytest.mark.parametrize(
    "part, cause, advice",
    [
        ("encoder", "it raised.", "Task 1.2 already fails; it may be the cause: too wide."),
        ("masks", "it raised.", "Task 1.2 already shows it: too wide."),
        ("encoder", "too wide.", "Look."),
    ],
)
def test_failed_task_is_called_the_cause_only_where_the_evidence_ties_it(part, cause, advice):
    known = Diagnosis("raised", part, cause, "Look at it.")
    earlier = Diagnosis("causal_too_wide", "masks", "too wide.", "Look.")
    parts = [Outcome("check", "1.2", None, Status.FAILED, "", earlier)]
    found = blame.traced(outcome(Status.ERROR, cause, known), GATE, parts, {}, {}).diagnosis
    assert found.advice.startswith(advice)
    assert found.part == ("masks" if cause == earlier.cause else part)


@pytest.mark.parametrize(
    ("kind", "function", "last"),
    [("IndentationError", "", "masks.py"), ("NameError", "<module>", "masks.py"),
     ("TypeError", "causal_mask", "attention.py")],
)  # fmt: skip
def test_a_file_that_cannot_be_imported_is_blamed_itself(kind, function, last):
    frames = [
        {"file": "transformer/attention.py", "line": 26, "function": "<module>", "text": "import"},
        {"file": "transformer/masks.py", "line": 31, "function": function, "text": "raise"},
    ]
    error = StudentError({"kind": "raised", "type": kind, "message": "", "frames": frames})
    with pytest.raises(StudentError) as raised, built_on("attention", [], "1.1"):
        raise error
    assert raised.value.frames[-1]["file"] == f"transformer/{last}"
