"""Task 3: the residual branch."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from grader import causes
from grader.compare import Suspect, judge
from grader.draws import Draws
from grader.expectations import Ask
from grader.parameters import ProbeConfig, parameter_shapes
from grader.parts import post, returned, sure
from grader.submission import Submission, build, config, forward, tensor

BASE = ProbeConfig(d_model=7, num_heads=1)
SHAPE = (2, 5, 7)  # B, T, D
PLACEMENTS = [
    (placement, norm) for placement in ("pre", "post") for norm in ("layernorm", "rmsnorm")
]
ADVICE = "Follow x from the start to the sum: what is added to what, and what is normalised?"


@pytest.mark.part("3.1")
def test_residual_branch_adds_the_sublayer_to_its_input(
    submission: Submission, rng: Draws, expected: Ask
) -> dict[str, Any]:
    """ResidualBranch returns x + f(norm(x)) before, norm(x + f(x)) after; f may answer 0."""
    x = rng.child("x").uniform(SHAPE, -2.0, 2.0)
    speaking = rng.child("sublayer").uniform((7, 7), -1.0, 1.0)
    small = x[:1, :1]  # a single token
    kinds = [
        *((*kind, x, matrix, "eval") for matrix in (speaking, speaking * 0.0)
          for kind in PLACEMENTS),
        *((*kind, small, speaking, "eval") for kind in PLACEMENTS[::2]),
        *((*kind, x, speaking, "train") for kind in PLACEMENTS[::2]),
    ]  # fmt: skip
    questions, probes = [], []
    for placement, norm, given, matrix, mode in kinds:
        shape = replace(BASE, placement=placement, norm=norm)
        weights = rng.child(norm).weights(parameter_shapes(shape, "residual_branch"))
        fields = {k: v for k, v in asdict(shape).items() if v is not None}
        call = {"args": [given, {"$linear": matrix}]}
        questions += [build("branch", "residual.ResidualBranch", config(**fields), weights=weights),
                      forward("branch", call, mode=mode)]  # fmt: skip
        what = f'placement "{placement}", {norm}'
        what += "" if matrix.any() else ", around a sub-layer that answers 0"
        what += ", with a single token" if given is small else ""
        what += ", in train()" if mode == "train" else ""
        probes.append((what, {"config": shape, "weights": weights, "x": given, "matrix": matrix}))
    asked = post(submission, *questions)
    wanted = [expected("residual_branch", **inputs)["value"] for _, inputs in probes]
    answers, tolerance = asked.answers()
    largest = 0.0
    for (what, inputs), want, built, answer in zip(
        probes, wanted, answers[::2], answers[1::2], strict=True
    ):
        sure(built)
        got = tensor(returned(answer, what, "residual"), want.shape, what, "residual")
        suspects = (
            Suspect(slip, expected("wrong_residual_branch", **inputs, slip=slip)["value"], *why)
            for slip, why in causes.BRANCH.items()
        )
        found = judge(got, want, what=what, part="residual", advice=ADVICE, suspects=suspects,
                      tolerance=tolerance)  # fmt: skip
        largest = max(largest, found["largest_difference"])
    return {"largest_difference": largest, "tolerance": tolerance}
