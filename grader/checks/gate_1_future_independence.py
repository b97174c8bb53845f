"""Gate 1: no logit depends on a later target token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from grader.asking.submission import Question
from grader.gates import independence, invariance
from grader.gates.independence import Changes, Trial, changes
from grader.gates.influence import Findings
from grader.gates.invariance import Batch, Bench, Model
from grader.gates.model_pool import Benches, Pair
from grader.model.draws import Draws

Asked = list[tuple[Batch, Changes]]


@pytest.mark.gate("future_independence")
def test_logits_do_not_depend_on_future_tokens(
    benches: Benches, rng: Draws, findings: Findings
) -> dict[str, Any]:
    """No logit moves when a later target token changes, and every earlier token can move it."""
    seen: dict[str, Any] = {"largest_forbidden": 0.0, "smallest_allowed": float("inf"), "calls": 0}

    def ask(bench: Bench, batches: Pair) -> tuple[Asked, dict[Model, list[Question]]]:
        asked = [(b, changes(rng, b, bench.config.vocab_size)) for b in batches]
        questions: dict[Model, list[Question]] = {model: [] for model in bench.models}
        for model, mode, (batch, changed) in every(bench, asked):
            questions[model].append(independence.question(bench, model, mode, batch, changed))
        return asked, questions

    for found in benches.rounds(ask, seen):
        bench = found.bench
        answers = {model: iter(given) for model, given in found.answers.items()}
        for model, mode, (batch, changed) in every(bench, found.asked):
            trial = Trial(benches.submission, findings, seen)
            outputs, alone = next(answers[model])["outputs"], []
            if independence.prefixes(bench, batch, model, mode):
                # The twin never saw whole rows.
                question = independence.prefix_question(bench, bench.twin, mode, batch)
                alone = benches.ask_twin(bench, question)["outputs"]
            independence.judge(trial, bench, model, mode, batch, changed, outputs, alone)
    return seen


def every(bench: Bench, asked: Asked) -> Iterator[tuple[Model, str, tuple[Batch, Changes]]]:
    """Yield every model with every mode and batch in which it is asked."""
    for padded, case in enumerate(asked):
        for model in bench.models:
            for mode in invariance.modes_of(model):
                if padded in invariance.batches_of(bench, model):
                    yield model, mode, case
