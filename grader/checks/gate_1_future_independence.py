"""Gate 1: no logit depends on a later target token."""

from __future__ import annotations

from typing import Any

import pytest

from grader import independence, invariance
from grader.benches import Benches, Pair
from grader.draws import Draws
from grader.independence import Changes, Trial, changes
from grader.influence import Findings
from grader.invariance import Batch, Bench, Model
from grader.submission import Question

Asked = list[tuple[Batch, Changes]]


@pytest.mark.gate(1, "future_independence")
def test_logits_do_not_depend_on_future_tokens(
    benches: Benches, rng: Draws, findings: Findings
) -> dict[str, Any]:
    """No logit moves when a later target token changes, and every earlier token can move it."""
    seen: dict[str, Any] = {"largest_forbidden": 0.0, "smallest_allowed": float("inf"), "calls": 0}

    def ask(bench: Bench, batches: Pair) -> tuple[Asked, dict[Model, list[Question]]]:
        asked = [(b, changes(rng, b, bench.config.vocab_size)) for b in batches]
        return asked, {
            model: [
                independence.question(bench, model, mode, *pair)
                for pair in asked
                for mode in invariance.modes_of(model)
            ]
            for model in bench.models
        }

    for found in benches.rounds(ask, seen):
        answers = {model: iter(given) for model, given in found.answers.items()}
        for batch, changed in found.asked:
            for model in found.bench.models:
                trial = Trial(found.submission(model), findings, seen)
                for mode in invariance.modes_of(model):
                    outputs = next(answers[model])["outputs"]
                    independence.judge(trial, found.bench, model, mode, batch, changed, outputs)
    return seen
