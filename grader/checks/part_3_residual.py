"""Task 3: the residual branch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from grader import causes
from grader.compare import Suspect, judge
from grader.draws import Draws
from grader.expectations import Ask
from grader.parameters import ProbeConfig, parameter_shapes
from grader.parts import ask, returned, sure
from grader.submission import Submission, build, config, forward, tensor

TARGET = "residual.ResidualBranch"
WIDTH = 7
BASE = ProbeConfig(d_model=WIDTH, num_heads=1)
SHAPE = (2, 5, WIDTH)  # B, T, D
PLACEMENTS, NORMS = ("pre", "post"), ("layernorm", "rmsnorm")
ADVICE = "Follow x from the start to the sum: what is added to what, and what is normalised?"


@pytest.mark.part("3.1")
def test_residual_branch_adds_the_sublayer_to_its_input(
    submission: Submission, rng: Draws, expected: Ask
) -> dict[str, Any]:
    """ResidualBranch returns x + f(norm(x)) before, norm(x + f(x)) after; f may answer 0."""
    x = rng.child("x").uniform(SHAPE, -2.0, 2.0)
    matrix = rng.child("sublayer").uniform((WIDTH, WIDTH), -1.0, 1.0)
    calls: list[tuple[str, tuple[str, ...], np.ndarray, np.ndarray, str]] = [
        ("", NORMS, x, matrix, "eval"),
        (", around a sub-layer that answers 0", NORMS, x, 0.0 * matrix, "eval"),
        (", with a single token", NORMS[:1], x[:1, :1], matrix, "eval"),
        (", in train()", NORMS[:1], x, matrix, "train"),
    ]
    largest, tolerance = 0.0, 0.0
    for words, norms, given, sublayer, mode in calls:
        for placement, norm in product(PLACEMENTS, norms):
            shape = replace(BASE, placement=placement, norm=norm)
            weights = rng.child(norm).weights(parameter_shapes(shape, "residual_branch"))
            inputs = {"config": shape, "weights": weights, "x": given, "matrix": sublayer}
            want = expected("residual_branch", **inputs)["value"]
            (built, answer), tolerance = ask(
                submission,
                build("branch", TARGET, config(**shape.given()), weights=weights),
                forward("branch", {"args": [given, {"$linear": sublayer}]}, mode=mode),
            )
            sure(built)
            what = f'placement "{placement}", {norm}{words}'
            got = tensor(returned(answer, what, "residual"), want.shape, what, "residual")
            found = judge(got, want, what=what, part="residual", advice=ADVICE,
                          suspects=branch_suspects(expected, inputs),
                          tolerance=tolerance)  # fmt: skip
            largest = max(largest, found["largest_difference"])
    return {"largest_difference": largest, "tolerance": tolerance}


def branch_suspects(expected: Ask, inputs: dict[str, Any]) -> Iterator[Suspect]:
    """Yield what a branch with each of the slips would return."""
    for slip, (cause, advice) in causes.BRANCH.items():
        value = expected("wrong_residual_branch", **inputs, slip=slip)["value"]
        yield Suspect(slip, value, cause, advice)
