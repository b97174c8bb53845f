"""What missing and wrong gradients have in common, read from the names of parameters."""

from __future__ import annotations

import pytest

from grader.gates import gradients
from grader.model.parameters import ProbeConfig, parameter_shapes

TWO_LAYERS = list(parameter_shapes(ProbeConfig(num_layers=2), "seq2seq"))
CROSS = "decoder.blocks.0.cross_attention"


def under(*prefixes: str) -> list[str]:
    return [name for name in TWO_LAYERS if name.startswith(prefixes)]


@pytest.mark.parametrize(
    ("names", "part", "words"),
    [
        (TWO_LAYERS, "training", "not connected"),
        (under("encoder", "source"), "decoder", "lost its history"),
        (under("encoder", "source", f"{CROSS}.k_proj"), "decoder", "not read"),
        (under("source", "encoder.blocks"), "encoder", "without its history"),
        (under("target"), "decoder", "without its history"),
        (under("encoder.blocks.0."), "encoder", "earlier blocks"),
        (under("decoder.blocks.1."), "decoder", "later blocks"),
        (under(f"{CROSS}.k_proj"), "attention", "the key projection"),
        (under(f"{CROSS}.q_proj", f"{CROSS}.k_proj"), "attention", "weights have no history"),
        (under(CROSS), "decoder", "does not reach the logits"),
        (under("encoder.blocks.0.attention_branch"), "residual", "a norm"),
        (under("decoder.blocks.0.cross_branch.norm"), "attention", "queries of the cross"),
        (under("encoder.blocks.1.feed_forward."), "encoder", "feed-forward"),
        (under("output_projection"), "models", "do not take part"),
    ],
)
def test_missing_gradients_are_read(names, part, words):
    found, cause, _ = gradients.of_missing(names, TWO_LAYERS)
    assert (found, words in cause) == (part, True)


def test_silent_sublayers_are_the_residual_branch():
    inside = [n for n in TWO_LAYERS if "attention." in n or "feed_forward." in n]
    assert gradients.of_missing(inside, TWO_LAYERS)[0] == "residual"


@pytest.mark.parametrize(
    ("names", "part"),
    [
        (TWO_LAYERS, "training"),
        (under("encoder", "source"), "decoder"),
        (under("source", "encoder", f"{CROSS}.q_proj", f"{CROSS}.k_proj"), "attention"),
        (under("decoder.blocks.1.feed_forward_branch"), "residual"),
        ([n for n in TWO_LAYERS if "v_proj.weight" in n], "attention"),
    ],
)
def test_wrong_gradients_are_read(names, part):
    assert gradients.of_wrong(names, TWO_LAYERS)[0] == part
