"""Gate 1: no logit depends on a later target token."""

from __future__ import annotations

from typing import Any

import pytest

from grader import independence, invariance
from grader.benches import Benches, Pair
from grader.draws import Draws
from grader.independence import Changes, Trial, changes
from grader.influence import Findings
from grader.invariance import Batch, Bench
from grader.submission import Question


@pytest.mark.gate(1, "future_independence")
def test_logits_do_not_depend_on_future_tokens(
    benches: Benches, rng: Draws, findings: Findings
) -> dict[str, Any]:
    """No logit moves when a later target token changes, and every earlier token can move it."""
    seen: dict[str, Any] = {"largest_forbidden": 0.0, "smallest_allowed": float("inf"), "calls": 0}

    def ask(bench: Bench, batches: Pair) -> tuple[list[tuple[Batch, Changes]], list[Question]]:
        asked = [(b, changes(rng, b, bench.config.vocab_size)) for b in batches]
        return asked, [q for pair in asked for q in independence.questions(bench, *pair)]

    for answered in benches.rounds(ask, seen):
        trial = Trial(answered.submission, findings, seen)
        bench, answers = answered.bench, iter(answered.answers)
        for batch, changed in answered.asked:
            for model in bench.models:
                for mode in invariance.modes_of(model):
                    outputs = next(answers)["outputs"]
                    independence.judge(trial, bench, model, mode, batch, changed, outputs)
    return seen
