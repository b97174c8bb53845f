"""Gate 3: every parameter gets a finite and right gradient."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from grader.asking.submission import Question, call, handle
from grader.base.settings import Settings
from grader.base.student_error import StudentError
from grader.gates import gradients, invariance
from grader.gates.gradients import ORDINARY, Found, Learning, Moves, Share, schedule
from grader.gates.influence import Findings
from grader.gates.invariance import Batch, Bench, Model
from grader.gates.model_pool import Benches, Pair
from grader.model.draws import BOS, EOS, PAD, Draws, Ids

# Lengths of source and target rows.
SHORT = ((1, 1, 1), (1, 1, 1))
MOSTLY_PADDING = ((13, 1, 2), (11, 2, 1))
LARGE_LOGITS = 1e3
# Moves of all parameters together: along their own gradients, and along drawn directions.
JOINT_MOVES, DRAWN_MOVES = 2, 1
# A prime, so that a drawn direction repeats itself in no row or column of a matrix.
DRAWN = 4093
ROWS_MOVED = (4, 9)
LONGEST, SHORTER = 6, 3
MOST_PARAMETERS = 512


@dataclass(frozen=True)
class Asked:
    """What one bench is asked: the lessons, and moves along the gradients."""

    lessons: list[dict[str, Any]]
    moves: Moves


def lessons(rng: Draws, bench: Bench, batches: Pair) -> list[dict[str, Any]]:
    """Return the calls that `CALLS` names: the ordinary ones first, then the extreme ones."""
    extreme = [draw_of(rng, bench, *lengths) for lengths in (SHORT, MOSTLY_PADDING)]
    large = lesson(batches[1]) | {"logit_factor": LARGE_LOGITS}
    return [*map(lesson, [*batches, *extreme]), large]


def lesson(batch: Batch) -> dict[str, Any]:
    """Return the call that asks for a batch's loss: every target row ends with EOS."""
    rows, width = batch.target.shape
    targets = np.full((rows, width), PAD, dtype=np.int64)
    for row, length in enumerate(batch.target_lengths):
        targets[row, : length - 1] = batch.target[row, 1:length]
        targets[row, length - 1] = EOS
    return batch.arguments() | {"targets": targets}


def draw_of(rng: Draws, bench: Bench, source: tuple[int, ...], target: tuple[int, ...]) -> Batch:
    """Draw a batch of rows of these lengths."""
    ids = rng.child(f"target {target}").ids(target, bench.config.vocab_size)
    ids[:, 0] = BOS
    if bench.kind == "decoder_only":
        return Batch(None, (), ids, target, padded=True)
    read = rng.child(f"source {source}").ids(source, bench.config.vocab_size)
    return Batch(read, source, ids, target, padded=True)


def moves_of(rng: Draws, bench: Bench, lab: Settings) -> Moves:
    """Ask for the loss after a few moves of all parameters together.

    Over the benches, with and without padding and in both modes.
    """
    deep = bench.config.num_layers > 1
    rows = int(rng.child("rows").integers((), *ROWS_MOVED))
    lengths = (LONGEST, *[LONGEST if bench.turn else SHORTER] * (rows - 1))
    signs = 2.0 * rng.child("signs").integers((JOINT_MOVES, MOST_PARAMETERS), 0, 2) - 1.0
    drawn = rng.child("directions").uniform((DRAWN_MOVES, DRAWN), -1.0, 1.0)
    lesson_moved = lesson(draw_of(rng.child("moved"), bench, lengths, lengths))
    return Moves(
        bench.models[0], lesson_moved, invariance.MODES[not deep], lab.gradients.step, signs, drawn
    )


@pytest.mark.gate("finite_gradients")
def test_every_parameter_gets_a_right_gradient(
    benches: Benches, rng: Draws, lab: Settings, findings: Findings
) -> dict[str, Any]:
    """Loss and gradients are finite, reach every parameter, and agree with finite differences."""
    seen: dict[str, Any] = {"smallest_gradient": np.inf, "largest_error": 0.0, "repeated": []}
    stacks: dict[str, dict[int, int]] = {}

    def ask(bench: Bench, batches: Pair) -> tuple[Asked, dict[Model, list[Question]]]:
        every = lessons(rng, bench, batches)
        asked = Asked(every, moves_of(rng, bench, lab))
        questions: dict[Model, list[Question]] = {model: [] for model in bench.models}
        for part in schedule(bench):
            questions[part.model].append(part.question(bench, every))
        questions[asked.moves.model].append(asked.moves.question(bench))
        return asked, questions

    try:
        for given in benches.rounds(ask, seen):
            bench, answers = given.bench, {m: iter(found) for m, found in given.answers.items()}
            for part in schedule(bench):
                learning = Learning(benches.submission, lab, findings, seen, stacks)
                found = judge(rng, bench, part, given.asked, next(answers[part.model]), learning)
            gradients.judge_growth(bench, found, learning)
            losses = next(answers[given.asked.moves.model])
            gradients.judge_moves(bench, given.asked.moves, found.names, losses, learning)
    except StudentError as error:
        gradients.explain_error(error)
        raise
    return seen


def judge(
    rng: Draws, bench: Bench, share: Share, asked: Asked, answer: dict[str, Any],
    learning: Learning,
) -> Found:  # fmt: skip
    """Fail on a number that is not finite, then on a parameter that no ordinary batch teaches."""
    found = gradients.read(bench, share.model, share.mode, answer, share.calls)
    gradients.judge_finite(found)
    if share.model.sharpened:
        # A softmax this sharp may send back exactly 0.
        return found
    silent = gradients.silent(found, bench)
    if len(silent) == len(found.names):
        gradients.judge_silent(found, bench, silent, learning)
    if silent:
        learning.seen["repeated"] = sorted({*learning.seen["repeated"], *silent})
        repeated = again(rng, bench, share, asked, learning)
        found = gradients.read(bench, share.model, share.mode, repeated, ORDINARY)
        gradients.judge_finite(found)
        gradients.judge_silent(found, bench, gradients.silent(found, bench), learning)
    learning.seen.setdefault("gradient_norms", found.table(0))
    smallest = min(learning.seen["smallest_gradient"], found.smallest())
    learning.seen["smallest_gradient"] = smallest
    return found


def again(
    rng: Draws, bench: Bench, share: Share, asked: Asked, learning: Learning
) -> dict[str, Any]:
    """Ask once more after a few of the student's own steps: a layer may start at 0."""
    steps = learning.lab.gradients.steps_until_zero_counts
    drawn = [
        invariance.draw_batch(rng.child(f"step {step}"), bench, padded=False)
        for step in range(steps)
    ]
    batches = [
        {"$batch": {"source": batch.source, "answers": answers_of(batch.target)}} for batch in drawn
    ]
    recipe = {"$recipe": {"steps": steps, "batch_size": len(drawn[0].target)}}
    train = call("training.train", handle(share.model.handle), batches, recipe, dtype=bench.dtype)
    question = replace(share, calls=ORDINARY).question(bench, asked.lessons)
    _, answer = learning.submission.ask(train, question)
    return dict(answer)


def answers_of(target: Ids) -> list[list[int]]:
    """Return the rows of decoder inputs without their BOS, as plain lists."""
    return [[int(i) for i in row[1:] if i != PAD] for row in target]
