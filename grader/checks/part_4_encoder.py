"""Task 4: the encoder block and the encoder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from grader import block_causes, causes
from grader.draws import Draws, Weights
from grader.expectations import Ask
from grader.parameters import ProbeConfig, parameter_shapes
from grader.parts import Case, Findings, Trial, built_on
from grader.submission import Submission
from grader.trials import silenced, try_modules

# Which GELU a feed-forward takes is its own business, and nothing to do with blocks.
BASE = ProbeConfig(d_model=6, num_heads=2, d_ff=7, ffn="relu")
BATCH, LENGTH = 2, 5
VALID = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)
EARLIER = ("1.2", "1.3", "2.1", "2.2", "2.3", "3.1")
BRANCHES = ("attention_branch", "feed_forward_branch")
INSIDE = ("self_attention", "attention_branch", "feed_forward", "feed_forward_branch")
BLOCK_ADVICE = "Compare the two branches with the hints in the docstring."
STACK_ADVICE = "Compare the loop, and what follows it, with the hints in the docstring."


def tokens(rng: Draws, name: str) -> np.ndarray:
    """Draw (B, S, D)."""
    return rng.child(name).uniform((BATCH, LENGTH, BASE.d_model), -1.7, 1.7)


def bias(rng: Draws) -> np.ndarray:
    """Draw (1, H, S, S)."""
    return rng.child("bias").uniform((1, BASE.num_heads, LENGTH, LENGTH), -2.0, 2.0)


def draw_weights(rng: Draws) -> Weights:
    """Draw an encoder block's weights, which are the same in both placements."""
    return rng.child("weights").weights(parameter_shapes(BASE, "encoder_block"))


def block(weights: Weights, placement: str, *cases: Case, mode: str = "eval") -> Trial:
    """Return an encoder block with these weights."""
    config = replace(BASE, placement=placement)
    return Trial("encoder_block", "encoder.EncoderBlock", config, weights, cases,
                 sublayers=INSIDE, mode=mode)  # fmt: skip


@pytest.mark.part("4.1")
def test_encoder_block_is_attention_and_feed_forward_in_residual_branches(
    submission: Submission, rng: Draws, expected: Ask, findings: Findings
) -> dict[str, Any]:
    """EncoderBlock attends both ways, then feeds forward, each around a residual path."""
    x = tokens(rng, "x")
    branches = block_causes.in_branches(*BRANCHES)
    weights = draw_weights(rng)
    trials = []
    for placement in ("pre", "post"):
        what = f"the {placement}-norm block"
        inputs = {"x": x, "score_bias": bias(rng)}
        speaking = Case(what, inputs, causes=causes.ENCODER_BLOCK | branches)
        trials.append(block(weights, placement, speaking, mode="train"))
    silent = Case("the pre-norm block with silent sub-layers", {"x": x}, causes=branches)
    trials.append(silenced(block(weights, "pre", silent)))
    with built_on("encoder", findings, *EARLIER):
        return try_modules(submission, expected, BLOCK_ADVICE, *trials)


@pytest.mark.part("4.1")
def test_encoder_block_hides_padding(
    submission: Submission, rng: Draws, expected: Ask, findings: Findings
) -> dict[str, Any]:
    """EncoderBlock hides padded keys, and returns exactly 0 at padded positions."""
    x = tokens(rng, "x")
    x[~VALID] *= 10.0
    one_row = np.array([[1, 1, 1, 1, 0], [0, 0, 0, 0, 0]], bool)
    slips = block_causes.in_branches(*BRANCHES) | causes.ENCODER_BLOCK
    padded = Case("the block with padding", {"x": x, "valid": VALID}, VALID, slips)
    empty = Case("the block with a row of padding only", {"x": x, "valid": one_row}, one_row)
    last = {"x": x[-1:], "valid": VALID[-1:]}
    alone = Case("the block with one row, which is padded", last, VALID[-1:], slips)
    weights = draw_weights(rng)
    with built_on("encoder", findings, *EARLIER):
        return try_modules(submission, expected, BLOCK_ADVICE,
                           block(weights, "pre", padded, empty, alone),
                           block(weights, "post", padded, mode="train"))  # fmt: skip


@pytest.mark.part("4.2")
def test_encoder_runs_every_block_in_order(
    submission: Submission, rng: Draws, expected: Ask, findings: Findings
) -> dict[str, Any]:
    """Encoder runs every block in order, then the final norm; padding ends at exactly 0."""
    slips = {k: v for k, v in causes.STACK.items() if not k.startswith("score_bias")}
    plain = Case("the pre-norm encoder", {"x": tokens(rng, "x")}, None, slips)
    masked = {"x": tokens(rng, "x"), "valid": VALID, "score_bias": bias(rng)}
    last = {name: value[-1:] for name, value in masked.items()}
    alone = Case("the pre-norm encoder with one row, which is padded", last, VALID[-1:], slips)
    trials = []
    whole = replace(BASE, placement="pre", num_layers=3)
    drawn = rng.child("weights").weights(parameter_shapes(whole, "encoder"))
    for placement in ("pre", "post"):
        config = replace(whole, placement=placement)
        weights = {name: drawn[name] for name in parameter_shapes(config, "encoder")}
        case = Case(f"the {placement}-norm encoder with padding and score_bias", masked, VALID,
                    causes.ENCODER)  # fmt: skip
        cases = (plain, case, alone) if placement == "pre" else (case,)
        trials.append(Trial("encoder", "encoder.Encoder", config, weights, cases,
                            sublayers=("blocks.0", "blocks.1", "blocks.2")))  # fmt: skip
    with built_on("encoder", findings, *EARLIER, "4.1"):
        return try_modules(submission, expected, STACK_ADVICE, *trials)
