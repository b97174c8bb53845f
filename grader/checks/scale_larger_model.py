"""The larger size: opened by the gates, worth no points, asked for with `--scale`."""

from __future__ import annotations

from typing import Any

import pytest

from grader.asking.submission import Submission
from grader.base.settings import Settings, enlarged
from grader.checks.gate_4_greedy_accuracy import describe, train
from grader.gates import learned, sequences, training
from grader.gates.influence import Findings
from grader.model.draws import Draws


def grow(
    submission: Submission,
    rng: Draws,
    lab: Settings,
    findings: Findings,
    task: str,
) -> dict[str, Any]:
    """Train the larger model on one task and decode held-out rows."""
    larger = enlarged(lab, task)
    data = sequences.draw(rng, larger)
    attempts = train(submission, data)
    best = max(attempts, key=lambda made: made.exact_match)
    evidence = describe(best, attempts)
    if best.exact_match < larger.accuracy.exact_match:
        if best is not attempts[-1]:
            training.restore(submission, data, best)
        seen = learned.read(submission, best, data)
        learned.explain(best, data, seen, findings, evidence)
    return evidence


@pytest.mark.gate("scale_reverse")
@pytest.mark.slow
def test_larger_model_reverses(
    submission: Submission, rng: Draws, lab: Settings, findings: Findings
) -> dict[str, Any]:
    """A model of twice the width and two layers reverses rows of up to 15 tokens."""
    return grow(submission, rng, lab, findings, "reverse")


@pytest.mark.gate("scale_copy")
@pytest.mark.slow
def test_larger_model_copies(
    submission: Submission, rng: Draws, lab: Settings, findings: Findings
) -> dict[str, Any]:
    """A model of twice the width and two layers copies rows of up to 15 tokens."""
    return grow(submission, rng, lab, findings, "copy")
