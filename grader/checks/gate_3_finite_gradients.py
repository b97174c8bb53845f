"""Gate 3: the loss teaches every parameter, and the gradients are right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from grader import gradients, invariance
from grader.draws import BOS, EOS, PAD, Draws, Ids
from grader.expectations import Ask
from grader.gradients import Learning
from grader.influence import Findings
from grader.invariance import Batch, Bench, Model
from grader.settings import Settings
from grader.submission import Question, StudentError, Submission, call, handle

# Rows of length 1, rows that are mostly padding, logits in the thousands.
SHORT = ((1, 1, 1), (1, 1, 1))
MOSTLY_PADDING = ((13, 1, 2), (11, 2, 1))
LARGE_LOGITS = 1e3


def lesson(batch: Batch, **options: Any) -> dict[str, Any]:
    """Return the call that asks for a batch's loss: every target row ends with EOS."""
    rows, width = batch.target.shape
    targets = np.full((rows, width), PAD, dtype=np.int64)
    for row, length in enumerate(batch.target_lengths):
        targets[row, : length - 1] = batch.target[row, 1:length]
        targets[row, length - 1] = EOS
    return batch.arguments() | {"targets": targets} | options


def draw_of(
    rng: Draws, bench: Bench, source: tuple[int, ...], target: tuple[int, ...]
) -> Batch:
    """Draw a batch of rows of these lengths."""
    ids = rng.child(f"target {target}").ids(target, bench.config.vocab_size)
    ids[:, 0] = BOS
    if bench.kind == "decoder_only":
        return Batch(None, (), ids, target, padded=True)
    read = rng.child(f"source {source}").ids(source, bench.config.vocab_size)
    return Batch(read, source, ids, target, padded=True)


def lessons(rng: Draws, bench: Bench) -> list[dict[str, Any]]:
    """Return the two ordinary calls, unpadded and padded, then the extreme ones."""
    ordinary = [invariance.draw_batch(rng, bench, padded=p) for p in (False, True)]
    extreme = [draw_of(rng, bench, *lengths) for lengths in (SHORT, MOSTLY_PADDING)]
    return [
        *map(lesson, [*ordinary, *extreme]),
        lesson(ordinary[1], logit_factor=LARGE_LOGITS),
    ]


@pytest.mark.gate(3, "finite_gradients")
def test_every_parameter_gets_a_right_gradient(
    submission: Submission, rng: Draws, expected: Ask, lab: Settings, findings: Findings
) -> dict[str, Any]:
    """Loss and gradients are finite, reach every parameter, and agree with finite differences."""
    seen: dict[str, Any] = {"smallest_gradient": np.inf, "largest_error": 0.0, "repeated": []}
    learning = Learning(submission, lab, findings, seen)

    def ask(bench: Bench) -> tuple[list[Batch], list[Question]]:
        return [invariance.draw_batch(rng, bench, padded=True)], questions(rng, bench, lab)

    try:
        for bench, batches, answers in invariance.rounds(submission, rng, expected, lab, ask):
            invariance.judge_determinism(bench, batches[-1], answers[:2], seen)
            answered = iter(answers[2:])
            for model in bench.models:
                for mode in invariance.MODES:
                    judge(rng, bench, model, mode, next(answered), learning)
            gradients.judge_differences(bench, answers[2], next(answered), learning)
    except StudentError as error:
        gradients.explain_error(error)
        raise
    return seen


def questions(rng: Draws, bench: Bench, lab: Settings) -> list[Question]:
    """Ask every model in both modes for its gradients, and the first for finite differences."""
    calls = lessons(rng, bench)
    asked = [
        Question(
            "gradients",
            {"model": model.handle, "calls": calls, "mode": mode, "dtype": bench.dtype},
        )
        for model in bench.models
        for mode in invariance.MODES
    ]
    first = {"model": bench.models[0].handle, "call": calls[1], "step": lab.gradients.step}
    return [*asked, Question("directional_losses", first | {"mode": "train", "dtype": bench.dtype})]


def judge(
    rng: Draws, bench: Bench, model: Model, mode: str, answer: dict[str, Any], learning: Learning
) -> None:
    """Fail on a number that is not finite, then on a parameter that no ordinary batch teaches."""
    found = gradients.read(bench, model, mode, answer, len(lessons(rng, bench)))
    gradients.judge_finite(found)
    if model.sharpened:
        # A softmax this sharp may send back exactly 0.
        return
    silent = gradients.silent(found, bench)
    if silent:
        learning.seen["repeated"] = sorted({*learning.seen["repeated"], *silent})
        found = gradients.read(bench, model, mode, again(rng, bench, model, mode, learning), 2)
        gradients.judge_finite(found)
        gradients.judge_silent(found, bench, gradients.silent(found, bench), learning)
    learning.seen["smallest_gradient"] = min(
        learning.seen["smallest_gradient"], found.smallest(bench)
    )


def again(
    rng: Draws, bench: Bench, model: Model, mode: str, learning: Learning
) -> dict[str, Any]:
    """Ask once more after a few of the student's own steps: a layer may start at 0."""
    steps = learning.lab.gradients.steps_until_zero_counts
    batches = [
        {"$batch": {"source": batch.source, "answers": answers_of(batch.target)}}
        for batch in (
            invariance.draw_batch(rng.child(f"step {step}"), bench, padded=False)
            for step in range(steps)
        )
    ]
    recipe = {"$recipe": {"steps": steps, "batch_size": len(batches[0]["$batch"]["answers"])}}
    train = call("training.train", handle(model.handle), batches, recipe, dtype=bench.dtype)
    asked = {"model": model.handle, "calls": lessons(rng, bench)[:2]}
    _, answer = learning.submission.ask(
        train, Question("gradients", asked | {"mode": mode, "dtype": bench.dtype})
    )
    return dict(answer)


def answers_of(target: Ids) -> list[list[int]]:
    """Return the rows of decoder inputs without their BOS, as plain lists."""
    return [[int(i) for i in row[1:] if i != PAD] for row in target]
