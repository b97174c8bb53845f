"""Task 5: the decoder block, the decoder, and the block of the decoder-only model."""

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
    unweighted,
)
from grader.parts.forwarded_arguments import try_offset_and_cache
from grader.parts.judging import Case, Findings, built_on
from grader.parts.trials import try_modules

KEYS = 7
# A hole among the real tokens: under a causal mask no real token sees padding at the end.
TARGET = np.array([[1, 1, 1, 1, 1], [1, 0, 1, 1, 0]], bool)
MEMORY = np.array([[1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 0]], bool)
ONE_ROW = np.array([[1, 1, 1, 1, 0], [0, 0, 0, 0, 0]], bool)
BRANCHES = causes.in_branches("self_branch", "cross_branch", "feed_forward_branch")
CAUSAL_BRANCHES = causes.in_branches("attention_branch", "feed_forward_branch")


@pytest.mark.part("5.1")
def test_decoder_block_looks_back_then_at_the_memory(
    submission: Submission, rng: Draws, expected: Ask, findings: Findings
) -> dict[str, Any]:
    """DecoderBlock looks back, then at the whole memory, then feeds forward, each in its branch."""
    # A memory as long as the target lets mistakes run that would raise otherwise.
    inputs = {"x": tokens(rng, "x"), "memory": tokens(rng, "memory")}
    biased = inputs | {"score_bias": bias(rng)}
    slips = causes.SAME_LENGTH | causes.DECODER_BLOCK | BRANCHES
    trials = []
    for placement in PLACEMENTS:
        speaking = Case(f"the {placement}-norm block", biased, None, slips)
        trials.append(block(rng, "decoder_block", placement, speaking, mode="train"))
    silent = Case("the pre-norm block with silent sub-layers", inputs, None, BRANCHES)
    trials.append(silenced(block(rng, "decoder_block", "pre", silent)))
    with built_on("decoder", findings, *EARLIER):
        return try_modules(submission, expected, BLOCK_ADVICE, *trials)


@pytest.mark.part("5.1")
def test_decoder_block_hides_padding_on_both_sides(
    submission: Submission, rng: Draws, expected: Ask, findings: Findings
) -> dict[str, Any]:
    """DecoderBlock hides padding of target and memory, and returns exactly 0 at padded targets."""
    memory = tokens(rng, "memory", KEYS)
    memory[~MEMORY] *= 10.0
    masks = {"target_valid": TARGET, "memory_valid": MEMORY}
    both = {"x": tokens(rng, "x"), "memory": memory} | masks
    nothing = {"target_valid": ONE_ROW, "memory_valid": MEMORY & ONE_ROW[:, :1]}
    length = TARGET.shape[1]
    same = {"memory": memory[:, :length], "memory_valid": MEMORY[:, :length]}
    slips = causes.DECODER_BLOCK
    padded = Case("the block with padding on both sides", both, TARGET, slips)
    empty = Case("the block with a row of padding only", both | nothing, ONE_ROW)
    alone = Case("the block with one row, padded on both sides", last_row(both), TARGET[-1:], slips)
    alike = Case("the block with padding and a memory as long as the target", both | same, TARGET,
                 slips)  # fmt: skip
    trials = (
        block(rng, "decoder_block", "pre", padded, empty, alone),
        block(rng, "decoder_block", "post", padded, alike, mode="train"),
    )
    with built_on("decoder", findings, *EARLIER):
        return try_modules(submission, expected, BLOCK_ADVICE, *trials)


@pytest.mark.part("5.1")
def test_decoder_block_hands_on_offset_and_cache(
    submission: Submission, rng: Draws
) -> dict[str, Any]:
    """DecoderBlock hands offset and cache on to its attentions, each its own slot."""
    inputs = {"x": tokens(rng, "x"), "memory": tokens(rng, "memory", KEYS)}
    slots = {"self_attention": "slot 0", "cross_attention": "memory slot 0"}
    trial = unweighted("decoder_block", inputs)
    with built_on("decoder", []):
        return try_offset_and_cache(submission, trial, "query_offset", slots)


@pytest.mark.part("5.2")
def test_decoder_runs_every_block_in_order(
    submission: Submission, rng: Draws, expected: Ask, findings: Findings
) -> dict[str, Any]:
    """Decoder runs every block over the same memory, then the final norm; padding ends at 0."""
    inputs = {"x": tokens(rng, "x"), "memory": tokens(rng, "memory", KEYS)}
    masks = {"target_valid": TARGET, "memory_valid": MEMORY}
    masked = inputs | masks | {"score_bias": bias(rng)}
    plain = Case("the pre-norm decoder", inputs, None, causes.MEMORY | causes.LOOP)
    alone = Case("the pre-norm decoder with one row, which is padded", last_row(masked),
                 TARGET[-1:], causes.LOOP)  # fmt: skip
    full = {
        placement: Case(f"the {placement}-norm decoder with padding and score_bias", masked, TARGET,
                        causes.DECODER)
        for placement in PLACEMENTS
    }  # fmt: skip
    trials = (
        stack(rng, "decoder", "pre", plain, full["pre"], alone),
        stack(rng, "decoder", "post", full["post"]),
    )
    with built_on("decoder", findings, *EARLIER, "5.1"):
        return try_modules(submission, expected, STACK_ADVICE, *trials)


@pytest.mark.part("5.2")
def test_decoder_hands_on_offset_and_cache(submission: Submission, rng: Draws) -> dict[str, Any]:
    """Decoder hands every block the offset and the cache of its layer."""
    inputs = {"x": tokens(rng, "x"), "memory": tokens(rng, "memory", KEYS)}
    slots = {"blocks.0": "slot 0", "blocks.1": "slot 1"}
    trial = unweighted("decoder", inputs, layers=len(slots))
    with built_on("decoder", []):
        return try_offset_and_cache(submission, trial, "offset", slots, layers=len(slots))


@pytest.mark.part("5.3")
def test_causal_block_looks_back_only(
    submission: Submission, rng: Draws, expected: Ask, findings: Findings
) -> dict[str, Any]:
    """CausalBlock looks back, then feeds forward; padding is hidden and ends at exactly 0."""
    x = tokens(rng, "x")
    biased, masked = {"x": x, "score_bias": bias(rng)}, {"x": x, "valid": TARGET}
    slips = causes.CAUSAL_BLOCK | CAUSAL_BRANCHES
    pre = Case("the pre-norm block", biased, None, slips)
    post = Case("the post-norm block", biased, None, slips)
    padded = Case("the block with padding", masked, TARGET, slips)
    empty = Case("the block with a row of padding only", {"x": x, "valid": ONE_ROW}, ONE_ROW)
    alone = Case("the block with one row, which is padded", last_row(masked), TARGET[-1:], slips)
    silent = Case("the pre-norm block with silent sub-layers", {"x": x}, None, CAUSAL_BRANCHES)
    trials = (
        block(rng, "causal_block", "pre", pre, padded, empty, alone),
        # Each placement in a mode of its own: both modes must hide the same.
        block(rng, "causal_block", "post", post, padded, mode="train"),
        silenced(block(rng, "causal_block", "pre", silent)),
    )
    with built_on("decoder", findings, *EARLIER):
        return try_modules(submission, expected, BLOCK_ADVICE, *trials)


@pytest.mark.part("5.3")
def test_causal_block_hands_on_offset_and_cache(
    submission: Submission, rng: Draws
) -> dict[str, Any]:
    """CausalBlock hands offset and cache on to its attention."""
    trial = unweighted("causal_block", {"x": tokens(rng, "x")})
    with built_on("decoder", []):
        return try_offset_and_cache(submission, trial, "query_offset", {"self_attention": "slot 0"})
