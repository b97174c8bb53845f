"""Gate 1: no logit depends on a later target token."""

from __future__ import annotations

from typing import Any

import pytest

from grader import independence, invariance
from grader.draws import Draws
from grader.expectations import Ask
from grader.independence import Trial, changes
from grader.influence import Findings
from grader.invariance import Batch, Bench
from grader.settings import Settings
from grader.submission import Question, Submission


@pytest.mark.gate(1, "future_independence")
def test_logits_do_not_depend_on_future_tokens(
    submission: Submission, rng: Draws, expected: Ask, lab: Settings, findings: Findings
) -> dict[str, Any]:
    """No logit moves when a later target token changes, and every earlier token can move it."""
    seen: dict[str, Any] = {"largest_forbidden": 0.0, "smallest_allowed": float("inf"), "calls": 0}
    trial = Trial(submission, findings, seen)

    def ask(bench: Bench) -> tuple[list[Batch], list[Question]]:
        batches = [invariance.draw_batch(rng, bench, padded=p) for p in (False, True)]
        return batches, [
            question
            for batch in batches
            for question in independence.questions(
                bench, batch, changes(rng, batch, bench.config.vocab_size)
            )
        ]

    for bench, batches, answers in invariance.rounds(submission, rng, expected, lab, ask):
        invariance.judge_determinism(bench, batches[-1], answers[:2], seen)
        answered = iter(answers[2:])
        for batch in batches:
            changed = changes(rng, batch, bench.config.vocab_size)
            for model in bench.models:
                for mode in invariance.modes_of(model):
                    outputs = next(answered)["outputs"]
                    independence.judge(trial, bench, model, mode, batch, changed, outputs)
    return seen
