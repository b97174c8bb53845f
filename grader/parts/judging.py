"""What the checks of parts share: asking in either precision, judging modules, placing blame."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grader.asking import compare
from grader.asking.compare import DTYPE_WORDS, Suspect, fail, judge
from grader.asking.expectations import Ask, Expected
from grader.asking.submission import Question, Submission, build, config, forward, tensor
from grader.base.result import CheckFailed, Diagnosis, Outcome
from grader.base.student_error import StudentError
from grader.model.draws import Weights
from grader.model.parameters import ProbeConfig
from grader.parts.causes import Causes, suspect

Findings = list[Outcome]

# Inputs that modules take by position, in this order; all others go by name. A matrix stands for
# the sub-layer that multiplies by it.
POSITIONAL = ("query", "key_value", "x", "memory", "matrix")
# Modules inside a block, in order of execution.
INSIDE = {
    "encoder_block": ("self_attention", "attention_branch", "feed_forward", "feed_forward_branch"),
    "causal_block": ("self_attention", "attention_branch", "feed_forward", "feed_forward_branch"),
    "decoder_block": (
        "self_attention",
        "self_branch",
        "cross_attention",
        "cross_branch",
        "feed_forward",
        "feed_forward_branch",
    ),
}


@dataclass(frozen=True)
class Case:
    """One call of a module.

    Attributes:
        what: names the call in a sentence, such as "the block under both masks".
        inputs: arguments by name, as the oracle takes them.
        valid: (B, T) bool, where the answer stands for a real token; None = everywhere.
        causes: slips that this call can tell apart, with cause and advice, the likeliest first;
            one of a residual branch is called `<slip>:<branch>`.
    """

    what: str
    inputs: dict[str, Any]
    valid: np.ndarray | None = None
    causes: Causes = field(default_factory=dict)


@dataclass(frozen=True)
class Trial:
    """A module with weights, and the calls it is judged by.

    Attributes:
        oracle: its name among the oracle's answers.
        target: the class in the package.
        weights: by name; empty = those that it makes itself.
        options: further arguments of the constructor, and of the oracle.
        mode: "eval" or "train".
    """

    oracle: str
    target: str
    config: ProbeConfig
    weights: Weights
    cases: tuple[Case, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    mode: str = "eval"

    @property
    def part(self) -> str:
        """The task file it stands in, without `.py`."""
        return self.target.split(".")[0]

    @property
    def sublayers(self) -> tuple[str, ...]:
        """Modules inside it, in order of execution, that may show where it goes wrong."""
        if self.oracle in ("encoder", "decoder"):
            return tuple(f"blocks.{layer}" for layer in range(self.config.num_layers))
        return INSIDE.get(self.oracle, ())

    def build(self) -> Question:
        """Ask for the module."""
        shape = config(**self.config.given())
        return build("module", self.target, shape, weights=self.weights or None, **self.options)

    def arguments(self, case: Case) -> dict[str, Any]:
        """Return the inputs of a call as the module takes them."""
        inputs = case.inputs
        args = [inputs[name] for name in POSITIONAL if name in inputs]
        if "matrix" in inputs:
            args[-1] = {"$linear": inputs["matrix"]}
        return {
            "args": args,
            "kwargs": {k: value for k, value in inputs.items() if k not in POSITIONAL},
        }

    def call(self, case: Case, record: Sequence[str] = ()) -> Question:
        """Ask for one of its calls."""
        return forward("module", self.arguments(case), mode=self.mode, record=list(record))

    def expect(self, expected: Ask, case: Case) -> Expected:
        """Return what every module inside is expected to answer; its own answer is called ""."""
        given = {**case.inputs, **self.options}
        name = f"{self.oracle}_activations"
        return expected(name, config=self.config, weights=self.weights, **given)

    def suspects(self, expected: Ask, case: Case) -> Iterator[Suspect]:
        """Yield what the slips of `case.causes` would answer."""
        own = {"config": self.config, "weights": self.weights, **case.inputs}
        for slip, (cause, advice) in case.causes.items():
            answer = expected(f"wrong_{self.oracle}", slip=slip, **own)
            yield Suspect(slip, real(answer["value"], case.valid), cause, advice)
        if "x" in case.inputs:
            yield suspect("module", "input_returned", real(case.inputs["x"], case.valid))


def ask(submission: Submission, *questions: Question) -> tuple[list[Any], float]:
    """Ask in float64, and again in float32 where a tree cannot run in float64.

    One that mixes precisions in float64 may be sound in the float32 it is trained in.

    Returns:
        The answers, errors among them, and the tolerance that belongs to the precision.
    """
    answers = submission.attempt(*questions)
    if not any(isinstance(a, StudentError) and _about_precision(a) for a in answers):
        return answers, compare.tolerances.tolerance
    return submission.attempt(*map(in_float32, questions)), compare.tolerances.tolerance_float32


def _about_precision(error: StudentError) -> bool:
    return error.kind == "raised" and any(word in error.message for word in DTYPE_WORDS)


def in_float32(question: Question) -> Question:
    """Return the question with float32 in place of float64."""
    if question.probe not in ("call", "build", "forward", "handed_on"):
        return question
    return Question(question.probe, _cast(question.arguments) | {"dtype": "float32"})


def _cast(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype == np.float64:
        return value.astype(np.float32)
    if isinstance(value, dict):
        return {k: _cast(v) for k, v in value.items()}
    return [_cast(v) for v in value] if isinstance(value, list) else value


def sure(answer: Any) -> Any:
    """Return the answer, or raise it if it is an error."""
    if isinstance(answer, StudentError):
        raise answer
    return answer


def returned(answer: Any, what: str, part: str) -> Any:
    """Return what a call or a single forward call returned, or fail as it deserves."""
    if sure(answer)["inputs_changed"]:
        fail("input_changed", part, f"{what}: it changed an argument in place.",
             f"Work on a new tensor in {part}.py: the caller still needs its own.")  # fmt: skip
    return answer["outputs"][0] if "outputs" in answer else answer["value"]


def must_raise(answer: Any, error: str, what: str, part: str) -> None:
    """Fail unless the answer is the error of this name."""
    if not isinstance(answer, StudentError):
        fail("error_missing", part, f"{what}: expected {error}, but it returned an answer.",
             f"Read what the docstring in {part}.py says under Raises.")  # fmt: skip
    unheard = ("not_implemented", "missing_name", "no_handle", "out_of_memory")
    if answer.kind in unheard or answer.while_importing or answer.waits_for_keyboard:
        raise answer
    if answer.type != error:
        fail("wrong_error", part, f"{what}: expected {error}, got {answer.type}: {answer.message}",
             f"Read what the docstring in {part}.py says under Raises.",
             {"type": answer.type, "message": answer.message})  # fmt: skip


@dataclass(frozen=True)
class Call:
    """One call of a function, and what it is to return.

    Attributes:
        what: names the value in a sentence, such as "causal_mask(5, 7)".
        question: asks for it.
        want: the expected array.
        suspects: what known mistakes would return, the likeliest first; run on a failure only.
    """

    what: str
    question: Question
    want: np.ndarray
    suspects: Iterable[Suspect] = ()


def try_calls(submission: Submission, part: str, advice: str, *calls: Call) -> dict[str, Any]:
    """Ask every call in one frame, and judge what each of them returns."""
    answers, tolerance = ask(submission, *[one.question for one in calls])
    largest = 0.0
    for one, answer in zip(calls, answers, strict=True):
        value = returned(answer, one.what, part)
        got = tensor(value, one.want.shape, one.what, part, one.want.dtype.kind)
        found = judge(
            got,
            one.want,
            what=one.what,
            part=part,
            advice=advice,
            suspects=one.suspects,
            tolerance=tolerance,
        )
        largest = max(largest, found["largest_difference"])
    return {"largest_difference": largest, "tolerance": tolerance, "calls": len(calls)}


def try_refusals(
    submission: Submission, part: str, *refused: tuple[str, str, Question]
) -> dict[str, Any]:
    """Fail unless every question raises the error that its docstring promises.

    Args:
        submission: the tree.
        part: the task file without `.py`.
        refused: what is asked as a sentence names it, the error's name, and the question.
    """
    answers = submission.attempt(*[question for *_, question in refused])
    for (what, error, _), answer in zip(refused, answers, strict=True):
        must_raise(answer, error, what, part)
    return {"refused": len(refused)}


@contextmanager
def built_on(part: str, findings: Findings, *stubs: str) -> Iterator[None]:
    """Blame a failure on the first of the earlier stubs that does not pass by itself.

    Where all of them pass, the code in `part` provoked what they raise; but a file that cannot be
    imported is its own fault, whoever imports it.
    """
    earlier = [o for o in findings if o.stub in stubs and o.diagnosis is not None]
    try:
        yield
    except StudentError as error:
        if not earlier and error.kind == "raised" and not error.while_importing:
            own = [i for i, f in enumerate(error.frames) if f["file"].endswith(f"/{part}.py")]
            error.frames = error.frames[: own[-1] + 1] if own else error.frames
        for outcome in earlier:
            known = outcome.diagnosis
            if known and known.code == "attended_has_no_names" and "'tuple' object" in str(error):
                raise _follows(outcome, f"{error.place()}: {error}.", {}) from None
        raise
    except CheckFailed as failure:
        for outcome in earlier:
            raise _follows(outcome, failure.diagnosis.cause, failure.evidence) from None
        raise


def _follows(outcome: Outcome, seen: str, evidence: dict[str, Any]) -> CheckFailed:
    """Return what to raise for something seen that an earlier task's failure explains."""
    known = outcome.diagnosis
    assert known is not None
    cause = (
        f"{seen} Task {outcome.stub}, which this one is built on, does not pass by itself: "
        f"{known.cause}"
    )
    advice = f"Mend task {outcome.stub} first. {known.advice}"
    found = Diagnosis("follows_from_earlier_task", known.part, cause, advice)
    return CheckFailed(found, evidence | {"built_on": outcome.stub})


def real(value: np.ndarray, valid: np.ndarray | None) -> np.ndarray:
    """Return value (B, T, D) with what stands at padded positions taken out."""
    return value if valid is None else np.where(valid[:, :, None], value, 0.0)
