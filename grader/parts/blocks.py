"""Blocks and stacks with drawn weights, and what they are given: for tasks 4 and 5."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from grader.model.draws import Draws
from grader.model.parameters import ProbeConfig, parameter_shapes
from grader.parts.judging import Case, Trial

TARGETS = {
    "encoder_block": "encoder.EncoderBlock",
    "encoder": "encoder.Encoder",
    "decoder_block": "decoder.DecoderBlock",
    "decoder": "decoder.Decoder",
    "causal_block": "decoder.CausalBlock",
}
PLACEMENTS = ("pre", "post")
# Which GELU a feed-forward takes is its own business, and nothing to do with blocks.
CONFIG = ProbeConfig(d_model=6, num_heads=2, d_ff=7, ffn="relu")
BATCH, LENGTH, LAYERS = 2, 5, 3
# Earlier tasks that every block is built on.
EARLIER = ("1.2", "1.3", "2.1", "2.2", "2.3", "3.1")
BLOCK_ADVICE = "Compare the branches with the hints in the docstring."
STACK_ADVICE = "Compare the loop, and what follows it, with the hints in the docstring."


def tokens(rng: Draws, name: str, length: int = LENGTH) -> np.ndarray:
    """Draw (B, T, D)."""
    return rng.child(name).uniform((BATCH, length, CONFIG.d_model), -1.7, 1.7)


def bias(rng: Draws) -> np.ndarray:
    """Draw (1, H, T, T)."""
    return rng.child("bias").uniform((1, CONFIG.num_heads, LENGTH, LENGTH), -2.0, 2.0)


def last_row(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs of the last row of the batch alone."""
    return {name: value[-1:] for name, value in inputs.items()}


def block(rng: Draws, kind: str, placement: str, *cases: Case, mode: str = "eval") -> Trial:
    """Return a block whose weights are the same in both placements."""
    weights = rng.child("weights").weights(parameter_shapes(CONFIG, kind))
    config = replace(CONFIG, placement=placement)
    return Trial(kind, TARGETS[kind], config, weights, cases, mode=mode)


def silenced(trial: Trial) -> Trial:
    """Return the trial with sub-layers that answer 0: their last projections are 0."""
    last = ("out_proj.", "output_projection.")
    weights = {
        name: weight * 0.0 if any(part in name for part in last) else weight
        for name, weight in trial.weights.items()
    }
    return replace(trial, weights=weights)


def stack(rng: Draws, kind: str, placement: str, *cases: Case) -> Trial:
    """Return a stack; the pre-norm one has a final norm besides."""
    config = replace(CONFIG, placement=placement, num_layers=LAYERS)
    weights = rng.child("weights").weights(parameter_shapes(config, kind))
    return Trial(kind, TARGETS[kind], config, weights, cases)


def unweighted(kind: str, inputs: dict[str, Any], layers: int = 1) -> Trial:
    """Return a module with whatever weights it makes, and one call of it."""
    config = replace(CONFIG, num_layers=layers)
    return Trial(kind, TARGETS[kind], config, {}, (Case("", inputs),))
