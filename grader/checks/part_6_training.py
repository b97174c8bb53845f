"""Tasks 6.1 and 6.2: what the model is asked, and how its answer is judged."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np
import pytest

from grader.asking.compare import Suspect
from grader.asking.expectations import Ask
from grader.asking.submission import Question, Submission, call, tensor
from grader.model.draws import BOS, EOS, PAD, Draws
from grader.parts.causes import fail, suspect
from grader.parts.judging import Call, try_calls, try_refusals

# What is read and what is to be answered, one pair per row; of some mistakes only the latter can
# be told.
Rows = list[tuple[list[int], list[int]]]
SlipRows = list[tuple[list[int] | None, list[int]]]
Answers = list[list[int]]
Ids = dict[str, int]

LAB_IDS = {"bos_id": BOS, "eos_id": EOS, "pad_id": PAD}
# With other names for the special tokens, the lab's own are data like any other.
OTHER_IDS = {"bos_id": 7, "eos_id": 9, "pad_id": 11}
CASES: dict[str, tuple[Answers, Ids]] = {
    "answers of lengths 3, 1, 5 and 2": ([[4, 9, 3], [8], [5, 5, 7, 3, 6], [10, 4]], LAB_IDS),
    "one answer": ([[6, 3, 8]], LAB_IDS),
    "an empty answer among others": ([[5, 3], [], [4]], LAB_IDS),
    "one empty answer": ([[]], LAB_IDS),
    "nine answers of up to 41 tokens": ([[3 + i] * (5 * i + 1) for i in range(9)], LAB_IDS),
    "answers of one length": ([[3, 4], [5, 6], [7, 8]], LAB_IDS),
    "other ids for BOS, EOS and PAD": ([[1, 0], [2, 13, 0, 2], [12]], OTHER_IDS),
}


@pytest.mark.part("6.1", worker="training")
def test_teacher_forcing_shifts_by_one(submission: Submission) -> dict[str, Any]:
    """teacher_forcing lets the decoder read BOS and the answer, and ask for the answer and EOS."""
    questions = [
        Question("teacher_forcing", {"answers": answers, "ids": ids if ids is OTHER_IDS else {}})
        for answers, ids in CASES.values()
    ]
    found = submission.ask(*questions)
    for (what, (answers, ids)), answer in zip(CASES.items(), found, strict=True):
        judge_forcing(what, answers, ids, answer["value"])
        if answer["answers_changed"]:
            forcing_fails("input_changed", what)
    return {"batches": len(CASES)}


@pytest.mark.part("6.1", worker="training")
def test_teacher_forcing_refuses_no_answers(submission: Submission) -> dict[str, Any]:
    """teacher_forcing raises ValueError when there is no answer."""
    nothing = Question("teacher_forcing", {"answers": [], "ids": {}})
    return try_refusals(submission, "training", ("teacher_forcing([])", "ValueError", nothing))


def forcing_fails(
    code: str, what: str, evidence: dict[str, Any] | None = None, **details: Any
) -> NoReturn:
    """Fail with a mistake in the rows of these answers."""
    fail("training", "teacher_forcing", code, evidence, what=what, **details)


def judge_forcing(what: str, answers: Answers, ids: Ids, value: Any) -> None:
    """Fail unless both rows of every answer are right, whatever fills the shorter inputs."""
    pair = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(pair, list) or len(pair) != 2:
        forcing_fails("no_tensor", what)
    shape = (len(answers), 1 + max(map(len, answers)))
    named = dict(zip(("decoder_inputs", "targets"), pair, strict=True))
    for name, rows in named.items():
        # Another width is told below, with what stands in it.
        width = rows.shape[1] if isinstance(rows, np.ndarray) and rows.ndim == 2 else shape[1]
        tensor(rows, (shape[0], width), f"{what}: {name}", "training", "i")
    inputs, targets = pair
    right: Rows = [([ids["bos_id"], *a], [*a, ids["eos_id"]]) for a in answers]
    got = real_rows(inputs, targets, ids["pad_id"])
    if got != right:
        explain_forcing(what, answers, ids, got, right)
    for name, rows in named.items():
        tensor(rows, shape, f"{what}: {name}", "training", "i")
        if rows.dtype != np.int64:
            forcing_fails("wrong_dtype", what, name=name, dtype=rows.dtype)
    # EOS that a shorter row reads after its end does no harm: what follows it is not asked.
    filler = set(inputs[targets == ids["pad_id"]].tolist())
    if filler - {ids["pad_id"], ids["eos_id"]}:
        forcing_fails("filler_unexpected", what, filler=sorted(filler), pad=ids["pad_id"])


def explain_forcing(what: str, answers: Answers, ids: Ids, got: Rows, right: Rows) -> NoReturn:
    """Fail with the first known mistake that would give these rows."""
    row = next(i for i, (a, b) in enumerate(zip(got, right, strict=True)) if a != b)
    (inputs, targets), (wanted_inputs, wanted_targets) = got[row], right[row]
    witness = {
        "answer": answers[row],
        "decoder_inputs": inputs,
        "targets": targets,
        "expected": {"decoder_inputs": wanted_inputs, "targets": wanted_targets},
    }
    for code, rows in forcing_slips(answers, ids):
        if same(got, rows, (ids["pad_id"], ids["eos_id"])):
            forcing_fails(code, what, witness)
    if sorted(map(str, got)) == sorted(map(str, right)):
        forcing_fails("rows_reordered", what, witness)
    forcing_fails("values_differ", what, witness, answer=answers[row], inputs=inputs,
                  targets=targets, wanted_inputs=wanted_inputs,
                  wanted_targets=wanted_targets)  # fmt: skip


def forcing_slips(answers: Answers, ids: Ids) -> Iterator[tuple[str, SlipRows]]:
    """Yield what known mistakes make of the answers, without filler."""
    bos, eos, pad = ids["bos_id"], ids["eos_id"], ids["pad_id"]
    longest = max(map(len, answers))
    yield "target_not_shifted", [([bos, *a, eos], [bos, *a, eos]) for a in answers]
    yield "target_not_shifted", [([bos, *a], [bos, *a]) for a in answers]
    yield "target_not_shifted", [([*a, eos], [*a, eos]) for a in answers]
    yield "target_shifted_by_two", [([bos, *a][: len(a)], [*a, eos][1:]) for a in answers]
    yield "eos_missing", [([bos, *a][: len(a)], a) for a in answers]
    yield "bos_missing", [(a, [*a, eos][1:]) for a in answers]
    yield "rows_exchanged", [([*a, eos], [bos, *a]) for a in answers]
    yield "bos_in_targets", [([bos, *a], [bos, *a, eos][: len(a) + 1]) for a in answers]
    yield "eos_fills_targets", [(None, [*a] + [eos] * (longest + 1 - len(a))) for a in answers]
    yield "eos_after_padding", [(None, [*a, *[pad] * (longest - len(a)), eos]) for a in answers]
    yield "own_ids", [(None, [*a, EOS] + [PAD] * (longest - len(a))) for a in answers]
    yield "answers_reversed", [([bos, *a[::-1]], [*a[::-1], eos]) for a in answers]


def stripped(row: list[int], filler: tuple[int, ...]) -> list[int]:
    """Return the row without the filler at its end."""
    length = len(row)
    while length and row[length - 1] in filler:
        length -= 1
    return row[:length]


def same(got: Rows, rows: SlipRows, filler: tuple[int, ...]) -> bool:
    """Tell whether the rows are those of a slip, whatever fills the inputs."""
    return all(
        target == wanted
        and (would is None or stripped(read, filler) == stripped(would[: len(target)], filler))
        for (read, target), (would, wanted) in zip(got, rows, strict=True)
    )


def real_rows(inputs: np.ndarray, targets: np.ndarray, pad: int) -> Rows:
    """Return both rows of every answer up to the last real target, as plain lists."""
    answered = [stripped(row, (pad,)) for row in targets.tolist()]
    return [(read[: len(row)], row) for read, row in zip(inputs.tolist(), answered, strict=True)]


LOSS = "training.masked_cross_entropy"


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return the logarithm of the softmax over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def loss_suspects(logits: np.ndarray, targets: np.ndarray, pad: int) -> Iterator[Suspect]:
    """Yield what known mistakes would answer."""
    real = targets != pad

    def each(scores: np.ndarray) -> np.ndarray:
        return np.asarray(-np.take_along_axis(scores, targets[..., None], -1)[..., 0])

    logs = log_softmax(logits)
    right, probabilities = each(logs), np.exp(logs)
    swapped = each(log_softmax(logits.swapaxes(0, 1).reshape(logits.shape)))
    rows = [row[kept].mean() for row, kept in zip(right, real, strict=True)]
    yield suspect("loss", "loss_counts_padding", right.mean())
    yield suspect("loss", "loss_counts_padding", right[real].sum() / real.size,
                  entry="loss_divided_by_all")  # fmt: skip
    yield suspect("loss", "wrong_pad_id", right[targets != PAD].mean())
    yield suspect("loss", "loss_summed", right[real].sum())
    yield suspect("loss", "mean_of_means", np.mean(rows))
    yield suspect("loss", "softmax_twice", each(log_softmax(probabilities))[real].mean())
    yield suspect("loss", "loss_without_softmax", each(logits)[real].mean())
    yield suspect("loss", "loss_of_probabilities", each(probabilities)[real].mean())
    yield suspect("loss", "flattened_differently", swapped[real].mean())
    yield suspect("loss", "loss_in_bits", right[real].mean() / math.log(2.0))
    yield suspect("loss", "loss_negative", -right[real].mean())
    for smoothing in (0.05, 0.1, 0.2):
        smooth = (1 - smoothing) * right - smoothing * logs.mean(axis=-1)
        yield suspect("loss", "label_smoothing", smooth[real].mean(), smoothing=smoothing)


@pytest.mark.part("6.2", worker="training")
def test_masked_cross_entropy_averages_over_real_targets(
    submission: Submission, rng: Draws, expected: Ask
) -> dict[str, Any]:
    """masked_cross_entropy is the mean of -log p(target) over all real targets, in nats."""
    calls = []
    for what, logits, targets, pad in loss_cases(rng):
        question = call(LOSS, logits, targets, pad_id=pad)
        want = expected("masked_cross_entropy", logits=logits, targets=targets, pad_id=pad)
        calls.append(Call(what, question, want["value"], loss_suspects(logits, targets, pad)))
    advice = "Average -log softmax(logits)[target] over the real targets of the whole batch."
    return try_calls(submission, "training", advice, *calls)


def loss_cases(rng: Draws) -> list[tuple[str, np.ndarray, np.ndarray, int]]:
    """Return calls by name: logits (B, T, V), targets (B, T) and pad_id."""
    logits = rng.child("logits").uniform((3, 5, 11), -2.0, 2.0)
    targets = rng.child("targets").ids((5, 2, 3), 11, first_id=5)
    targets[[0, 1, 2], [4, 1, 2]] = EOS  # a target like any other
    wider = np.pad(targets, ((0, 0), (0, 2)), constant_values=PAD)
    junk = np.concatenate([logits, 9.0 * rng.child("junk").uniform((3, 2, 11), -1.0, 1.0)], axis=1)
    confident = np.where(np.arange(11) == targets[..., None], 40.0, 0.0)
    other = np.where(targets == PAD, 4, np.where(targets == targets[0, 0], PAD, targets))
    return [
        ("a padded batch", logits, targets, PAD),
        ("the same batch with two more columns of padding", junk, wider, PAD),
        ("logits that are all 0", np.zeros((3, 5, 11)), targets, PAD),
        ("logits that are sure and right", confident, targets, PAD),
        ("logits in the thousands", 1000.0 * logits, targets, PAD),
        ("another pad_id", logits, other, 4),
        ("one row of one token", logits[:1, :1], targets[:1, :1], PAD),
    ]


@pytest.mark.part("6.2", worker="training")
def test_masked_cross_entropy_refuses_what_has_no_mean(
    submission: Submission, rng: Draws
) -> dict[str, Any]:
    """masked_cross_entropy raises ValueError for targets that are all padding, or other shapes."""
    logits = rng.uniform((3, 5, 11), -1.0, 1.0)
    targets = rng.child("targets").ids((5, 5, 5), 11)
    wrong = [
        ("targets that are all padding", np.zeros_like(targets)),
        ("targets with a column less", targets[:, :-1]),
        ("targets with a row less", targets[:-1]),
    ]
    refused = [
        (f"masked_cross_entropy with {what}", "ValueError", call(LOSS, logits, given))
        for what, given in wrong
    ]
    return try_refusals(submission, "training", *refused)
