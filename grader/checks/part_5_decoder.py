"""Task 5: the decoder block, the decoder, and the block of the decoder-only model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from grader import block_causes, causes, handed
from grader.draws import Draws, Weights
from grader.expectations import Ask
from grader.parameters import ProbeConfig, parameter_shapes
from grader.parts import Case, Findings, Trial, built_on
from grader.submission import Submission
from grader.trials import silenced, try_modules

# Which GELU a feed-forward takes is its own business, and nothing to do with blocks.
BASE = ProbeConfig(d_model=6, num_heads=2, d_ff=7, ffn="relu")
BATCH, LENGTH, KEYS = 2, 5, 7
# A hole among the real tokens: under a causal mask no real token sees padding at the end.
TARGET = np.array([[1, 1, 1, 1, 1], [1, 0, 1, 1, 0]], bool)
MEMORY = np.array([[1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 0]], bool)
ONE_ROW = np.array([[1, 1, 1, 1, 0], [0, 0, 0, 0, 0]], bool)
EARLIER = ("1.2", "1.3", "2.1", "2.2", "2.3", "3.1")
BRANCHES = ("self_branch", "cross_branch", "feed_forward_branch")
INSIDE = ("self_attention", "self_branch", "cross_attention", "cross_branch", "feed_forward",
          "feed_forward_branch")  # fmt: skip
CAUSAL_BRANCHES = ("attention_branch", "feed_forward_branch")
CAUSAL_INSIDE = ("self_attention", "attention_branch", "feed_forward", "feed_forward_branch")
# Each placement in a mode of its own: both modes must hide the same.
MODES = {"pre": "eval", "post": "train"}
BLOCK_ADVICE = "Compare the branches with the hints in the docstring."
STACK_ADVICE = "Compare the loop, and what follows it, with the hints in the docstring."


def tokens(rng: Draws, name: str, length: int = LENGTH) -> np.ndarray:
    """Draw (B, T, D)."""
    return rng.child(name).uniform((BATCH, length, BASE.d_model), -1.7, 1.7)


def bias(rng: Draws) -> np.ndarray:
    """Draw (1, H, T, T)."""
    return rng.child("bias").uniform((1, BASE.num_heads, LENGTH, LENGTH), -2.0, 2.0)


def draw_weights(rng: Draws) -> Weights:
    """Draw a decoder block's weights, which are the same in both placements."""
    return rng.child("weights").weights(parameter_shapes(BASE, "decoder_block"))


def block(weights: Weights, placement: str, *cases: Case, mode: str = "eval") -> Trial:
    """Return a decoder block with these weights."""
    config = replace(BASE, placement=placement)
    return Trial("decoder_block", "decoder.DecoderBlock", config, weights, cases,
                 ("x", "memory"), INSIDE, mode=mode)  # fmt: skip


def unweighted(oracle: str, target: str, case: Case) -> Trial:
    """Return a module with whatever weights it makes, of two layers where it is a stack."""
    layers = 2 if oracle == "decoder" else 1
    config = replace(BASE, num_layers=layers)
    return Trial(oracle, target, config, {}, (case,), ("x", "memory"))


@pytest.mark.part("5.1")
def test_decoder_block_looks_back_then_at_the_memory(
    submission: Submission, rng: Draws, expected: Ask, findings: Findings
) -> dict[str, Any]:
    """DecoderBlock looks back, then at the whole memory, then feeds forward, each in its branch."""
    inputs = {"x": tokens(rng, "x"), "memory": tokens(rng, "memory")}
    branches = block_causes.in_branches(*BRANCHES)
    weights = draw_weights(rng)
    trials = []
    for placement in ("pre", "post"):
        what = f"the {placement}-norm block"
        # A memory as long as the target lets mistakes run that would raise otherwise.
        speaking = Case(what, inputs | {"score_bias": bias(rng)},
                        causes=causes.SAME_LENGTH | causes.DECODER_BLOCK | branches)  # fmt: skip
        trials.append(block(weights, placement, speaking, mode="train"))
    silent = Case("the pre-norm block with silent sub-layers", inputs, causes=branches)
    trials.append(silenced(block(weights, "pre", silent)))
    with built_on("decoder", findings, *EARLIER):
        return try_modules(submission, expected, BLOCK_ADVICE, *trials)


@pytest.mark.part("5.1")
def test_decoder_block_hides_padding_on_both_sides(
    submission: Submission, rng: Draws, expected: Ask, findings: Findings
) -> dict[str, Any]:
    """DecoderBlock hides padding of target and memory, and returns exactly 0 at padded targets."""
    inputs = {"x": tokens(rng, "x"), "memory": tokens(rng, "memory", KEYS)}
    inputs["memory"][~MEMORY] *= 10.0
    both = inputs | {"target_valid": TARGET, "memory_valid": MEMORY}
    padded = Case("the block with padding on both sides", both, TARGET, causes.DECODER_BLOCK)
    nothing = {"target_valid": ONE_ROW, "memory_valid": MEMORY & ONE_ROW[:, :1]}
    empty = Case("the block with a row of padding only", both | nothing, ONE_ROW)
    last = {name: value[-1:] for name, value in both.items()}
    alone = Case("the block with one row, padded on both sides", last, TARGET[-1:],
                 causes.DECODER_BLOCK)  # fmt: skip
    same = {"memory": inputs["memory"][:, :LENGTH], "memory_valid": MEMORY[:, :LENGTH]}
    alike = Case("the block with padding and a memory as long as the target", both | same, TARGET,
                 causes.DECODER_BLOCK)  # fmt: skip
    weights = draw_weights(rng)
    with built_on("decoder", findings, *EARLIER):
        return try_modules(submission, expected, BLOCK_ADVICE,
                           block(weights, "pre", padded, empty, alone),
                           block(weights, "post", padded, alike, mode="train"))  # fmt: skip


@pytest.mark.part("5.1")
def test_decoder_block_hands_on_offset_and_cache(
    submission: Submission, rng: Draws
) -> dict[str, Any]:
    """DecoderBlock hands offset and cache on to its attentions, each its own slot."""
    inputs = {"x": tokens(rng, "x"), "memory": tokens(rng, "memory", KEYS)}
    trial = unweighted("decoder_block", "decoder.DecoderBlock", Case("", inputs))
    asked = handed.ask_with_cache(submission, trial, handed.ATTENTIONS)
    wanted = {"self_attention": "slot 0", "cross_attention": "memory slot 0"}
    with built_on("decoder", []):
        return handed.judge_offset_and_cache(asked, trial, "query_offset", wanted)


@pytest.mark.part("5.2")
def test_decoder_runs_every_block_in_order(
    submission: Submission, rng: Draws, expected: Ask, findings: Findings
) -> dict[str, Any]:
    """Decoder runs every block over the same memory, then the final norm; padding ends at 0."""
    inputs = {"x": tokens(rng, "x"), "memory": tokens(rng, "memory", KEYS)}
    masked = inputs | {"target_valid": TARGET, "memory_valid": MEMORY, "score_bias": bias(rng)}
    slips = {k: v for k, v in causes.STACK.items() if not k.startswith("score_bias")}
    plain = Case("the pre-norm decoder", inputs, None, block_causes.MEMORY | slips)
    last = {name: value[-1:] for name, value in masked.items()}
    alone = Case("the pre-norm decoder with one row, which is padded", last, TARGET[-1:], slips)
    trials = []
    whole = replace(BASE, placement="pre", num_layers=3)
    drawn = rng.child("weights").weights(parameter_shapes(whole, "decoder"))
    for placement in ("pre", "post"):
        config = replace(whole, placement=placement)
        weights = {name: drawn[name] for name in parameter_shapes(config, "decoder")}
        case = Case(f"the {placement}-norm decoder with padding and score_bias", masked, TARGET,
                    causes.DECODER)  # fmt: skip
        cases = (plain, case, alone) if placement == "pre" else (case,)
        trials.append(Trial("decoder", "decoder.Decoder", config, weights, cases, ("x", "memory"),
                            ("blocks.0", "blocks.1", "blocks.2")))  # fmt: skip
    with built_on("decoder", findings, *EARLIER, "5.1"):
        return try_modules(submission, expected, STACK_ADVICE, *trials)


@pytest.mark.part("5.2")
def test_decoder_hands_on_offset_and_cache(submission: Submission, rng: Draws) -> dict[str, Any]:
    """Decoder hands every block the offset and the cache of its layer."""
    inputs = {"x": tokens(rng, "x"), "memory": tokens(rng, "memory", KEYS)}
    trial = unweighted("decoder", "decoder.Decoder", Case("", inputs))
    wanted = {f"blocks.{layer}": f"slot {layer}" for layer in range(trial.config.num_layers)}
    asked = handed.ask_with_cache(submission, trial, [*wanted], len(wanted))
    with built_on("decoder", []):
        return handed.judge_offset_and_cache(asked, trial, "offset", wanted)


@pytest.mark.part("5.3")
def test_causal_block_looks_back_only(
    submission: Submission, rng: Draws, expected: Ask, findings: Findings
) -> dict[str, Any]:
    """CausalBlock looks back, then feeds forward; padding is hidden and ends at exactly 0."""
    x = tokens(rng, "x")
    branches = block_causes.in_branches(*CAUSAL_BRANCHES)
    slips = causes.CAUSAL_BLOCK | branches
    silent = Case("the pre-norm block with silent sub-layers", {"x": x}, None, branches)
    padded = Case("the block with padding", {"x": x, "valid": TARGET}, TARGET, slips)
    empty = Case("the block with a row of padding only", {"x": x, "valid": ONE_ROW}, ONE_ROW)
    last = {"x": x[-1:], "valid": TARGET[-1:]}
    alone = Case("the block with one row, which is padded", last, TARGET[-1:], slips)
    weights = rng.child("weights").weights(parameter_shapes(BASE, "causal_block"))
    trials = []
    for placement in ("pre", "post"):
        config = replace(BASE, placement=placement)
        inputs = {"x": x, "score_bias": bias(rng)}
        case = Case(f"the {placement}-norm block", inputs, None, slips)
        cases = (case, padded, empty, alone) if placement == "pre" else (case, padded)
        trials.append(Trial("causal_block", "decoder.CausalBlock", config, weights, cases,
                            sublayers=CAUSAL_INSIDE, mode=MODES[placement]))  # fmt: skip
    trials.append(silenced(replace(trials[0], cases=(silent,))))
    with built_on("decoder", findings, *EARLIER):
        return try_modules(submission, expected, BLOCK_ADVICE, *trials)


@pytest.mark.part("5.3")
def test_causal_block_hands_on_offset_and_cache(
    submission: Submission, rng: Draws
) -> dict[str, Any]:
    """CausalBlock hands offset and cache on to its attention."""
    trial = unweighted("causal_block", "decoder.CausalBlock", Case("", {"x": tokens(rng, "x")}))
    asked = handed.ask_with_cache(submission, trial, handed.ATTENTIONS)
    with built_on("decoder", []):
        return handed.judge_offset_and_cache(
            asked, trial, "query_offset", {"self_attention": "slot 0"}
        )
