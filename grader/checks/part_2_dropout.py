"""Task 2: what dropout falls on inside attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from grader.checks.part_2_attention import FUNCTION, SHAPE, draw, unpack
from grader.compare import Suspect, fail, judge
from grader.draws import Draws
from grader.expectations import Ask
from grader.parts import ask, returned
from grader.submission import Question, Submission, call, handle

WHERE = "Look at what goes through dropout, and at what is returned."
RATE = 0.5


@pytest.mark.part("2.1")
def test_attention_drops_weights_out_before_they_average(
    submission: Submission, rng: Draws, expected: Ask
) -> dict[str, Any]:
    """Dropout is applied to the weights that average the values, not to those returned."""
    inputs = draw(rng)
    questions = (
        Question("dropout", {"save": "drop", "rate": 1.0}),
        call(FUNCTION, **inputs, dropout=handle("drop")),
    )
    (_, answer), tolerance = ask(submission, *questions)
    what = "attention whose dropout drops everything"
    want = expected("scaled_dot_product_attention", **inputs)
    context, weights = unpack(returned(answer, what, "attention"), want, what)
    judge(context, np.zeros_like(context), what=f"{what}, context", part="attention", suspects=[
        Suspect("dropout_ignored", want["context"], "nothing is dropped.", WHERE),
        Suspect("dropout_before_softmax", np.broadcast_to(
            inputs["value"].mean(axis=2, keepdims=True), context.shape),
            "the scores are dropped, not the weights.", WHERE)],
        advice=WHERE, tolerance=tolerance)  # fmt: skip
    judge(weights, want["weights"], what=f"{what}, weights", part="attention", suspects=[
        Suspect("weights_after_dropout", np.zeros_like(weights), "the weights returned are those "
                "after dropout.", WHERE)], advice=WHERE, tolerance=tolerance)  # fmt: skip
    return {"tolerance": tolerance}


@pytest.mark.part("2.1")
def test_attention_averages_with_the_weights_that_are_left(
    submission: Submission, rng: Draws, expected: Ask
) -> dict[str, Any]:
    """Dropout falls on each weight by itself, and what is left of them averages the values."""
    batch, heads, _, num_keys, _ = SHAPE
    inputs = {name: value[..., :num_keys] for name, value in draw(rng).items()}
    # Values that pick one key each: the context shows the very weights that averaged them.
    inputs["value"] = np.tile(np.eye(num_keys), (batch, heads, 1, 1))
    questions = (
        Question("dropout", {"save": "drop", "rate": RATE}),
        call(FUNCTION, **inputs, dropout=handle("drop")),
    )
    (_, answer), tolerance = ask(submission, *questions)
    what = f"attention with dropout {RATE:g}"
    want = expected("scaled_dot_product_attention", **inputs)
    used, _ = unpack(returned(answer, what, "attention"), want, what)
    kept = used != 0
    right = np.where(kept, want["weights"] / (1.0 - RATE), 0.0)
    judge(used, right, what=f"{what}, weights that average", part="attention", suspects=[
        Suspect("dropout_ignored", want["weights"], "nothing is dropped.", WHERE)],
        advice="Each weight is dropped or divided by 1 - rate, by dropout itself: average with "
               "what it returns.", tolerance=tolerance)  # fmt: skip
    # Which of many weights are dropped never agrees by chance; heads and rows may share it.
    for axis, whole in ((2, "every query loses the same keys, as if values were dropped"),
                        (3, "a query keeps or loses all of its keys at once")):  # fmt: skip
        if (kept == kept.take([0], axis=axis)).all():
            fail("dropout_not_on_weights", "attention", f"{what}: {whole}.", WHERE)
    return {"tolerance": tolerance}
