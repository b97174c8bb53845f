"""The slips: without one they are the oracle, and each of them changes what it is about."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from grader.model.draws import Draws
from grader.model.parameters import ProbeConfig, parameter_shapes
from grader.oracle.registry import ANSWERS
from grader.parts import causes

CONFIG = ProbeConfig(d_model=15, num_heads=3, d_ff=7, num_layers=3)
BATCH, LENGTH, KEYS = 2, 5, 7
VALID = np.array([[1, 1, 1, 1, 1], [1, 0, 1, 1, 0]], bool)
MEMORY_VALID = np.array([[1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 0]], bool)
RNG = Draws(0, "slips")


def tokens(name, length=LENGTH):
    return RNG.child(name).uniform((BATCH, length, CONFIG.d_model), -1.7, 1.7)


X, MEMORY, LONGER = tokens("x"), tokens("memory"), tokens("longer", KEYS)
BIAS = RNG.child("bias").uniform((1, CONFIG.num_heads, LENGTH, LENGTH), -2.0, 2.0)
MASK = RNG.child("mask").integers((BATCH, 1, LENGTH, LENGTH), 0, 2) > 0
# Every query may see the first two keys, of which row 1 pads the second.
MASK[..., :2] = True
TARGET = {"x": X, "memory": MEMORY, "target_valid": VALID, "score_bias": BIAS}
BOTH = TARGET | {"memory": LONGER, "memory_valid": MEMORY_VALID}
OWN = {"query": X, "key_valid": VALID, "query_valid": VALID}
INPUTS = {
    "multi_head_attention": OWN | {"causal": True, "attention_mask": MASK, "score_bias": BIAS},
    "encoder_block": {"x": X, "valid": VALID, "score_bias": BIAS},
    "causal_block": {"x": X, "valid": VALID, "score_bias": BIAS},
    "encoder": {"x": X, "valid": VALID, "score_bias": BIAS},
    "decoder_block": BOTH,
    "decoder": BOTH,
}
BRANCHES = ("self_branch", "cross_branch", "feed_forward_branch")
TWO_BRANCHES = ("attention_branch", "feed_forward_branch")
CROSS = {"query": X, "key_value": MEMORY}
OFFSETS = {"query": X[:, :3], "key_value": LONGER, "causal": True, "query_offset": 4,
           "key_offset": 1}  # fmt: skip
# Whose slips must show on which inputs.
EFFECTIVE = [
    ("multi_head_attention", CROSS, causes.SOURCES | causes.PROJECTIONS),
    ("multi_head_attention", INPUTS["multi_head_attention"], causes.MASKS),
    ("multi_head_attention", OFFSETS, causes.OFFSETS),
    ("encoder_block", INPUTS["encoder_block"],
     causes.ENCODER_BLOCK | causes.in_branches(*TWO_BRANCHES)),
    ("causal_block", INPUTS["causal_block"],
     causes.CAUSAL_BLOCK | causes.in_branches(*TWO_BRANCHES)),
    ("encoder", INPUTS["encoder"], causes.ENCODER),
    ("decoder_block", TARGET, causes.SAME_LENGTH | causes.in_branches(*BRANCHES)),
    ("decoder_block", BOTH, causes.DECODER_BLOCK),
    ("decoder", INPUTS["decoder"], causes.DECODER),
    ("decoder", {"x": X, "memory": LONGER}, causes.MEMORY),
]  # fmt: skip


def answers(kind, config, inputs, slip=None):
    weights = RNG.child("weights").weights(parameter_shapes(config, kind))
    name, more = (kind, {}) if slip is None else (f"wrong_{kind}", {"slip": slip})
    return ANSWERS[name](config=config, weights=weights, **inputs, **more)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("kind", INPUTS)
def test_without_a_slip_the_answer_is_the_oracles(kind, placement, norm):
    config = replace(CONFIG, placement=placement, norm=norm)
    right = answers(kind, config, INPUTS[kind])
    np.testing.assert_allclose(answers(kind, config, INPUTS[kind], ""), right, atol=1e-12)


@pytest.mark.parametrize("kind, inputs, known", EFFECTIVE)
def test_every_slip_changes_the_answer(kind, inputs, known):
    right = answers(kind, CONFIG, inputs)
    unchanged = [
        slip for slip in known if np.allclose(answers(kind, CONFIG, inputs, slip), right, atol=1e-4)
    ]
    assert unchanged == []


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_every_slip_of_a_branch_changes_the_answer(placement):
    config = replace(CONFIG, placement=placement)
    matrix = RNG.child("matrix").uniform((CONFIG.d_model, CONFIG.d_model), -1.0, 1.0)
    inputs = {"x": X, "matrix": matrix}
    right = answers("residual_branch", config, inputs)
    np.testing.assert_allclose(answers("residual_branch", config, inputs, ""), right, atol=1e-12)
    for slip in causes.BRANCH:
        assert not np.allclose(answers("residual_branch", config, inputs, slip), right), slip


def test_every_slip_of_attention_changes_the_answer():
    shape = (BATCH, CONFIG.num_heads, LENGTH, 11)
    given = {name: RNG.child(name).uniform(shape, -1.7, 1.7) for name in ("query", "key", "value")}
    given |= {"mask": MASK, "score_bias": BIAS}
    right = ANSWERS["scaled_dot_product_attention"](**given)
    wrong = ANSWERS["wrong_scaled_dot_product_attention"]
    np.testing.assert_allclose(wrong(**given, slip="").weights, right.weights, atol=1e-12)
    for slip in causes.ATTENTION:
        assert not np.allclose(wrong(**given, slip=slip).weights, right.weights), slip


def test_a_mask_read_back_from_the_scores_hides_keys_of_0():
    given = {name: RNG.child(name).uniform((2, 3, 5, 11), -1.7, 1.7)
             for name in ("query", "key", "value")}  # fmt: skip
    wrong = ANSWERS["wrong_scaled_dot_product_attention"]
    right = ANSWERS["scaled_dot_product_attention"]
    np.testing.assert_allclose(
        wrong(**given, slip="zero_scores_hidden").weights, right(**given).weights, atol=1e-12
    )
    given["key"][:, :, 2] = 0.0
    assert (wrong(**given, slip="zero_scores_hidden").weights[..., 2] == 0).all()
    assert (right(**given).weights[..., 2] > 0).all()
