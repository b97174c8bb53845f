"""Tasks 6.1 and 6.2: what the model is asked, and how its answer is judged."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from grader.compare import Suspect, fail, judge
from grader.draws import BOS, EOS, PAD, Draws
from grader.expectations import Ask
from grader.parts import ask, must_raise, returned
from grader.submission import Question, Submission, call, tensor

Answers = list[list[int]]
Rows = list[tuple[list[int], list[int]]]
# Of some mistakes only the targets can be told.
SlipRows = list[tuple[list[int] | None, list[int]]]

LAB_IDS = {"bos_id": BOS, "eos_id": EOS, "pad_id": PAD}
# With other names for the special tokens, the lab's own are data like any other.
OTHER_IDS = {"bos_id": 7, "eos_id": 9, "pad_id": 11}
CASES: dict[str, tuple[Answers, dict[str, int]]] = {
    "answers of lengths 3, 1, 5 and 2": ([[4, 9, 3], [8], [5, 5, 7, 3, 6], [10, 4]], LAB_IDS),
    "one answer": ([[6, 3, 8]], LAB_IDS),
    "an empty answer among others": ([[5, 3], [], [4]], LAB_IDS),
    "one empty answer": ([[]], LAB_IDS),
    "nine answers of up to 41 tokens": ([[3 + i] * (5 * i + 1) for i in range(9)], LAB_IDS),
    "answers of one length": ([[3, 4], [5, 6], [7, 8]], LAB_IDS),
    "other ids for BOS, EOS and PAD": ([[1, 0], [2, 13, 0, 2], [12]], OTHER_IDS),
}
FORCING_ADVICE = "Write both rows for one short answer on paper and compare."


@dataclass(frozen=True)
class Slip:
    """What a known mistake makes of one answer: what is read, and what is to be answered."""

    code: str
    cause: str
    advice: str


NOT_SHIFTED = Slip("target_not_shifted", "the targets are what the decoder reads at the same "
                   "position: it could answer by copying its input.",
                   "Look at the shift between the two rows.")  # fmt: skip
BY_TWO = Slip("target_shifted_by_two", "each target is the token after the next one.",
              "Look at how far the two rows are apart.")  # fmt: skip
NO_EOS = Slip("eos_missing", "EOS does not follow the answers in the targets: a model that learns "
              "this never stops.", "Look at the end of the targets.")  # fmt: skip
NO_BOS = Slip("bos_missing", "the decoder inputs do not begin with BOS: the model would have to "
              "know the first token.", "Look at the start of the decoder inputs.")  # fmt: skip
SWAPPED = Slip("rows_exchanged", "decoder inputs and targets are exchanged.",
               "Look at the order in which both are returned.")  # fmt: skip
BOS_TARGET = Slip("bos_in_targets", "BOS stands in the targets, where nobody has to predict it.",
                  "Look at the start of the targets.")  # fmt: skip
EOS_FILLS = Slip("eos_fills_targets", "EOS, not PAD, fills the shorter targets: filler would "
                 "count as answer.", "Look at what fills the shorter rows.")  # fmt: skip
LATE_EOS = Slip("eos_after_padding", "in shorter rows EOS stands at the end of the row, not at the "
                "end of the answer.", "Look at what comes first, EOS or padding.")  # fmt: skip
OWN_IDS = Slip("own_ids", "it uses the lab's ids where others were given.",
               "Use the arguments bos_id, eos_id and pad_id.")  # fmt: skip
REVERSED = Slip("answers_reversed", "the answers stand backwards in it.",
                "The answers come as they are to be written.")  # fmt: skip


def slips(answers: Answers, ids: dict[str, int]) -> Iterator[tuple[Slip, SlipRows]]:
    """Yield what known mistakes make of the answers, without filler."""
    bos, eos, pad = ids["bos_id"], ids["eos_id"], ids["pad_id"]
    longest = max(map(len, answers))
    yield NOT_SHIFTED, [([bos, *a, eos], [bos, *a, eos]) for a in answers]
    yield NOT_SHIFTED, [([bos, *a], [bos, *a]) for a in answers]
    yield NOT_SHIFTED, [([*a, eos], [*a, eos]) for a in answers]
    yield BY_TWO, [([bos, *a][: len(a)], [*a, eos][1:]) for a in answers]
    yield NO_EOS, [([bos, *a][: len(a)], a) for a in answers]
    yield NO_BOS, [(a, [*a, eos][1:]) for a in answers]
    yield SWAPPED, [([*a, eos], [bos, *a]) for a in answers]
    yield BOS_TARGET, [([bos, *a], [bos, *a, eos][: len(a) + 1]) for a in answers]
    yield EOS_FILLS, [(None, [*a] + [eos] * (longest + 1 - len(a))) for a in answers]
    yield LATE_EOS, [(None, [*a, *[pad] * (longest - len(a)), eos]) for a in answers]
    yield OWN_IDS, [(None, [*a, EOS] + [PAD] * (longest - len(a))) for a in answers]
    yield REVERSED, [([bos, *a[::-1]], [*a[::-1], eos]) for a in answers]


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


def compare_forcing(what: str, answers: Answers, ids: dict[str, int], value: Any) -> None:
    """Fail unless both rows of every answer are right, whatever fills the shorter inputs."""
    pair = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(pair, list) or len(pair) != 2:
        fail("no_tensor", "training", f"{what}: expected two tensors.", FORCING_ADVICE)
    names = ("decoder_inputs", "targets")
    batch = len(answers)
    shape = (batch, 1 + max(map(len, answers)))
    for name, rows in zip(names, pair, strict=True):
        # Another width is told below, with what stands in it.
        width = rows.shape[1] if isinstance(rows, np.ndarray) and rows.ndim == 2 else shape[1]
        tensor(rows, (batch, width), f"{what}: {name}", "training", "i")
    inputs, targets = pair
    right = [([ids["bos_id"], *a], [*a, ids["eos_id"]]) for a in answers]
    got = real_rows(inputs, targets, ids["pad_id"])
    if got != right:
        explain_forcing(what, answers, ids, got, right)
    for name, rows in zip(names, pair, strict=True):
        tensor(rows, shape, f"{what}: {name}", "training", "i")
        if rows.dtype != np.int64:
            fail("wrong_dtype", "training", f"{what}: expected {name} in int64, got {rows.dtype}.",
                 "Ids are int64 in this package.")  # fmt: skip
    # EOS that a shorter row reads after its end harms nobody: what follows it is not asked.
    filler = set(inputs[targets == ids["pad_id"]].tolist())
    if filler - {ids["pad_id"], ids["eos_id"]}:
        fail("filler_unexpected", "training",
             f"{what}: shorter decoder inputs are filled with {sorted(filler)}, not with PAD "
             f"({ids['pad_id']}).", "Look at what fills the shorter rows.")  # fmt: skip


def explain_forcing(
    what: str, answers: Answers, ids: dict[str, int], got: Rows, right: Rows
) -> None:
    """Fail with the first known mistake that would give these rows."""
    row = next(i for i, (a, b) in enumerate(zip(got, right, strict=True)) if a != b)
    witness = {"answer": answers[row], "decoder_inputs": got[row][0], "targets": got[row][1],
               "expected": {"decoder_inputs": right[row][0], "targets": right[row][1]}}  # fmt: skip
    for slip, rows in slips(answers, ids):
        if same(got, rows, (ids["pad_id"], ids["eos_id"])):
            fail(slip.code, "training", f"{what}: {slip.cause}", slip.advice, witness)
    if sorted(map(str, got)) == sorted(map(str, right)):
        fail("rows_reordered", "training", f"{what}: the rows came in another order.",
             "Row b must belong to answer b.", witness)  # fmt: skip
    fail(
        "values_differ", "training",
        f"{what}: for the answer {answers[row]} expected inputs {right[row][0]} and targets "
        f"{right[row][1]}, got {got[row][0]} and {got[row][1]}.", FORCING_ADVICE, witness,
    )  # fmt: skip


@pytest.mark.part("6.1")
def test_teacher_forcing_shifts_by_one(submission: Submission) -> dict[str, Any]:
    """teacher_forcing lets the decoder read BOS and the answer, and ask for the answer and EOS."""
    questions = [
        Question("teacher_forcing", {"answers": answers, "ids": ids if ids is OTHER_IDS else {}})
        for answers, ids in CASES.values()
    ]
    found = submission.ask(*questions)
    for (what, (answers, ids)), answer in zip(CASES.items(), found, strict=True):
        compare_forcing(what, answers, ids, answer["value"])
        if answer["answers_changed"]:
            fail("input_changed", "training", f"{what}: it changed the caller's lists in place.",
                 "Build new lists: the answers are used again.")  # fmt: skip
    return {"batches": len(CASES)}


@pytest.mark.part("6.1")
def test_teacher_forcing_refuses_no_answers(submission: Submission) -> dict[str, Any]:
    """teacher_forcing raises ValueError when there is no answer."""
    (answer,) = submission.attempt(Question("teacher_forcing", {"answers": [], "ids": {}}))
    must_raise(answer, "ValueError", "teacher_forcing([])", "training")
    return {"refused": 1}


# 6.2 ---------------------------------------------------------------------------------------------

LOSS_ADVICE = "Average -log softmax(logits)[target] over the real targets of the whole batch."
PADDED = "targets that are padding count in it"


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return the logarithm of the softmax over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def loss_suspects(logits: np.ndarray, targets: np.ndarray, pad: int) -> Iterator[Suspect]:
    """Yield what known mistakes would answer."""
    real = targets != pad

    def each(scores: np.ndarray) -> np.ndarray:
        return np.asarray(-np.take_along_axis(scores, targets[..., None], -1)[..., 0])

    right = each(log_softmax(logits))
    probabilities = np.exp(log_softmax(logits))
    swapped = each(log_softmax(logits.swapaxes(0, 1).reshape(logits.shape)))
    known = [
        ("loss_counts_padding", right.mean(), f"{PADDED}.", "Look at which targets count."),
        ("loss_counts_padding", right[real].sum() / real.size, "the sum over the real targets is "
         "divided by the number of all.", "Look at what the sum is divided by."),
        ("wrong_pad_id", right[targets != PAD].mean(), "it leaves out id 0, not the given pad_id.",
         "Use the argument pad_id."),
        ("loss_summed", right[real].sum(), "it is the sum, not the mean.",
         "Divide by the number of real targets."),
        ("mean_of_means", np.mean([row[r].mean() for row, r in zip(right, real, strict=True)]),
         "it averages every row first, so that tokens of short rows weigh more.",
         "Average over all real targets of the batch at once."),
        ("softmax_twice", each(log_softmax(probabilities))[real].mean(),
         "the logits went through softmax before the loss, which takes it itself.",
         "Look at what cross-entropy expects."),
        ("loss_without_softmax", each(logits)[real].mean(),
         "it averages the logits of the targets without any softmax.",
         "Look at what turns logits into probabilities."),
        ("loss_of_probabilities", each(probabilities)[real].mean(),
         "it averages probabilities, not their logarithms.", "Look for the missing logarithm."),
        ("flattened_differently", swapped[real].mean(),
         "logits and targets are flattened in different orders.",
         "Flatten both from (B, T) the same way."),
        ("loss_in_bits", right[real].mean() / math.log(2.0), "it is in bits, not in nats.",
         "Use the natural logarithm."),
        ("loss_negative", -right[real].mean(), "its sign is turned.", "Look at the sign."),
    ]  # fmt: skip
    for code, value, cause, advice in known:
        yield Suspect(code, value, cause, advice)
    for smoothing in (0.05, 0.1, 0.2):
        smooth = (1 - smoothing) * right - smoothing * log_softmax(logits).mean(axis=-1)
        yield Suspect("label_smoothing", smooth[real].mean(),
                      f"it smooths the labels by {smoothing:g}. That is a fair way to train, and "
                      "no gate minds; this function is to be the plain mean.",
                      "Smooth in train, if you like.")  # fmt: skip


@pytest.mark.part("6.2")
def test_masked_cross_entropy_averages_over_real_targets(
    submission: Submission, rng: Draws, expected: Ask
) -> dict[str, Any]:
    """masked_cross_entropy is the mean of -log p(target) over all real targets, in nats."""
    cases = loss_cases(rng)
    asked = [call("training.masked_cross_entropy", logits, targets, pad_id=pad)
             for _, logits, targets, pad in cases]  # fmt: skip
    answers, tolerance = ask(submission, *asked)
    largest = 0.0
    for (what, logits, targets, pad), answer in zip(cases, answers, strict=True):
        want = expected("masked_cross_entropy", logits=logits, targets=targets, pad_id=pad)
        got = tensor(returned(answer, what, "training"), (), what, "training")
        found = judge(got, want["value"], what=what, part="training", advice=LOSS_ADVICE,
                      suspects=loss_suspects(logits, targets, pad),
                      tolerance=tolerance)  # fmt: skip
        largest = max(largest, found["largest_difference"])
    return {"largest_difference": largest, "tolerance": tolerance}


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


@pytest.mark.part("6.2")
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
    asked = [call("training.masked_cross_entropy", logits, given) for _, given in wrong]
    for (what, _), answer in zip(wrong, submission.attempt(*asked), strict=True):
        must_raise(answer, "ValueError", f"masked_cross_entropy with {what}", "training")
    return {"refused": len(wrong)}
