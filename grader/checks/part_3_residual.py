"""Task 3: the residual branch."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from grader.asking.expectations import Ask
from grader.asking.submission import Submission
from grader.model.draws import Draws
from grader.model.parameters import ProbeConfig, parameter_shapes
from grader.parts import causes
from grader.parts.judging import Case, Trial
from grader.parts.trials import try_modules

WIDTH = 7
ADVICE = "Follow x from the start to the sum: what is added to what, and what is normalised?"


@pytest.mark.part("3.1")
def test_residual_branch_adds_the_sublayer_to_its_input(
    submission: Submission, rng: Draws, expected: Ask
) -> dict[str, Any]:
    """ResidualBranch returns x + f(norm(x)) before, norm(x + f(x)) after; f may answer 0."""
    x = rng.child("x").uniform((2, 5, WIDTH), -2.0, 2.0)  # (B, T, D)
    speaking = {"x": x, "matrix": rng.child("sublayer").uniform((WIDTH, WIDTH), -1.0, 1.0)}
    calls = {
        "": speaking,
        ", around a sub-layer that answers 0": speaking | {"matrix": 0.0 * speaking["matrix"]},
    }
    trials, alone = [], []
    for norm, placement in product(("layernorm", "rmsnorm"), ("pre", "post")):
        config = ProbeConfig(d_model=WIDTH, num_heads=1, placement=placement, norm=norm)
        weights = rng.child(norm).weights(parameter_shapes(config, "residual_branch"))
        cases = tuple(
            Case(f'placement "{placement}", {norm}{words}', inputs, None, causes.BRANCH)
            for words, inputs in calls.items()
        )
        trial = Trial("residual_branch", "residual.ResidualBranch", config, weights, cases)
        in_train = replace(cases[0], what=f"{cases[0].what}, in train()")
        trials += [trial, replace(trial, cases=(in_train,), mode="train")]
        token = speaking | {"x": x[:1, :1]}
        single = replace(cases[0], what=f"{cases[0].what}, with a single token", inputs=token)
        alone.append(replace(trial, cases=(single,)))
    found = try_modules(submission, expected, ADVICE, *trials)
    # One token alone makes different mistakes look alike: it is asked where the others are right.
    try_modules(submission, expected, ADVICE, *alone)
    return found
