"""Task 4: the encoder block and the encoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from grader.asking.expectations import Ask
from grader.asking.submission import Submission
from grader.model.draws import Draws
from grader.parts import causes
from grader.parts.blocks import (
    BLOCK_ADVICE,
    EARLIER,
    PLACEMENTS,
    STACK_ADVICE,
    bias,
    block,
    last_row,
    silenced,
    stack,
    tokens,
)
from grader.parts.judging import Case, Findings, built_on
from grader.parts.trials import try_modules

VALID = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)
ONE_ROW = np.array([[1, 1, 1, 1, 0], [0, 0, 0, 0, 0]], bool)
BRANCHES = causes.in_branches("attention_branch", "feed_forward_branch")


@pytest.mark.part("4.1")
def test_encoder_block_is_attention_and_feed_forward_in_residual_branches(
    submission: Submission, rng: Draws, expected: Ask, findings: Findings
) -> dict[str, Any]:
    """EncoderBlock attends both ways, then feeds forward, each around a residual path."""
    x = tokens(rng, "x")
    slips = causes.ENCODER_BLOCK | BRANCHES
    trials = []
    for placement in PLACEMENTS:
        inputs = {"x": x, "score_bias": bias(rng)}
        speaking = Case(f"the {placement}-norm block", inputs, None, slips)
        trials.append(block(rng, "encoder_block", placement, speaking, mode="train"))
    silent = Case("the pre-norm block with silent sub-layers", {"x": x}, None, BRANCHES)
    trials.append(silenced(block(rng, "encoder_block", "pre", silent)))
    with built_on("encoder", findings, *EARLIER):
        return try_modules(submission, expected, BLOCK_ADVICE, *trials)


@pytest.mark.part("4.1")
def test_encoder_block_hides_padding(
    submission: Submission, rng: Draws, expected: Ask, findings: Findings
) -> dict[str, Any]:
    """EncoderBlock hides padded keys, and returns exactly 0 at padded positions."""
    inputs = {"x": tokens(rng, "x"), "valid": VALID}
    inputs["x"][~VALID] *= 10.0
    slips = BRANCHES | causes.ENCODER_BLOCK
    padded = Case("the block with padding", inputs, VALID, slips)
    empty = Case("the block with a row of padding only", inputs | {"valid": ONE_ROW}, ONE_ROW)
    alone = Case("the block with one row, which is padded", last_row(inputs), VALID[-1:], slips)
    trials = (
        block(rng, "encoder_block", "pre", padded, empty, alone),
        block(rng, "encoder_block", "post", padded, mode="train"),
    )
    with built_on("encoder", findings, *EARLIER):
        return try_modules(submission, expected, BLOCK_ADVICE, *trials)


@pytest.mark.part("4.2")
def test_encoder_runs_every_block_in_order(
    submission: Submission, rng: Draws, expected: Ask, findings: Findings
) -> dict[str, Any]:
    """Encoder runs every block in order, then the final norm; padding ends at exactly 0."""
    x = tokens(rng, "x")
    masked = {"x": x, "valid": VALID, "score_bias": bias(rng)}
    plain = Case("the pre-norm encoder", {"x": x}, None, causes.LOOP)
    alone = Case("the pre-norm encoder with one row, which is padded", last_row(masked),
                 VALID[-1:], causes.LOOP)  # fmt: skip
    full = {
        placement: Case(f"the {placement}-norm encoder with padding and score_bias", masked, VALID,
                        causes.ENCODER)
        for placement in PLACEMENTS
    }  # fmt: skip
    trials = (
        stack(rng, "encoder", "pre", plain, full["pre"], alone),
        stack(rng, "encoder", "post", full["post"]),
    )
    with built_on("encoder", findings, *EARLIER, "4.1"):
        return try_modules(submission, expected, STACK_ADVICE, *trials)
