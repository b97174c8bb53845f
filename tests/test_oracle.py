"""The oracle against PyTorch's own functions and modules, and against what can be said by hand.

Both sides are float64; 1e-12 leaves room for another order of summation.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from grader.model.draws import Draws
from grader.model.parameters import ProbeConfig, parameter_shapes
from grader.oracle import attention, layers, models, training
from grader.oracle.scope import Scope, Trace

B, T, S, H, K = 2, 3, 5, 7, 11
D = H * K
DRAWS = Draws(0, "oracle")


def normal(name, *shape, scale=1.0):
    return scale * DRAWS.child(name).uniform(shape, -1.7, 1.7)


def scope_of(kind, **fields):
    config = ProbeConfig(d_model=D, num_heads=H, d_ff=13, num_layers=2, **fields)
    return Scope(config, DRAWS.weights(parameter_shapes(config, kind)))


def tensors(arrays):
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def assert_close(ours, theirs):
    np.testing.assert_allclose(ours, theirs.detach(), rtol=1e-12, atol=1e-12)


VALID_SOURCE = np.array([[True] * 5, [True] * 3 + [False] * 2])
VALID_TARGET = np.array([[True] * 3, [True] * 2 + [False]])


def test_padding_mask_marks_every_id_but_pad():
    ids = np.array([[3, 1, 0], [2, 0, 0]])
    expected = [[True, True, False], [True, False, False]]
    np.testing.assert_array_equal(attention.padding_mask(ids, 0), expected)
    np.testing.assert_array_equal(attention.padding_mask(ids, None), np.ones((2, 3), bool))


@pytest.mark.parametrize("offset", [0, 2])
def test_causal_mask_is_the_lower_triangle_moved_by_the_offset(offset):
    expected = torch.ones(T, S, dtype=torch.bool).tril(offset)
    np.testing.assert_array_equal(attention.causal_mask(T, S, offset), expected)


@pytest.mark.parametrize("shape", [(T, S), (B, T, S), (B, 1, T, S), (1, H, T, S)])
def test_combined_mask_allows_what_every_mask_allows(shape):
    own = DRAWS.child("mask").integers(shape, 0, 2).astype(bool)
    combined = attention.combine_masks(own, VALID_SOURCE, attention.causal_mask(T, S, 1))
    own = own[:, None] if own.ndim == 3 else own
    for b, h, t, s in np.ndindex(B, H, T, S):
        expected = np.broadcast_to(own, (B, H, T, S))[b, h, t, s]
        expected = expected and VALID_SOURCE[b, s] and s <= t + 1
        assert np.broadcast_to(combined, (B, H, T, S))[b, h, t, s] == expected


def test_combining_no_mask_gives_none_and_one_mask_gives_four_dimensions():
    assert attention.combine_masks() is None
    for name in ("attention_mask", "causal"):
        assert attention.combine_masks(**{name: np.ones((T, S), bool)}).shape == (1, 1, T, S)
    assert attention.combine_masks(key_valid=VALID_SOURCE).shape == (B, 1, 1, S)


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_attention_equals_the_fused_kernel(scale):
    query = normal("q", B, H, T, K, scale=scale)
    key, value = normal("k", B, H, S, K, scale=scale), normal("v", B, H, S, K)
    bias = normal("bias", 1, H, T, S)
    mask = DRAWS.child("mask").integers((B, H, T, S), 0, 2).astype(bool)
    mask[..., 1] = True
    ours = attention.scaled_dot_product_attention(query, key, value, mask, bias)
    additive = torch.from_numpy(np.where(mask, bias, -np.inf))
    q, k, v = (torch.from_numpy(x) for x in (query, key, value))
    assert_close(ours.context, F.scaled_dot_product_attention(q, k, v, attn_mask=additive))
    assert_close(ours.weights, torch.softmax(q @ k.mT / math.sqrt(K) + additive, dim=-1))


def test_attention_refuses_a_query_without_a_key():
    mask = np.ones((T, S), dtype=bool)
    mask[1] = False
    query, key = normal("q", B, H, T, K), normal("k", B, H, S, K)
    with pytest.raises(ValueError, match="query 1 of row 0, head 0 has no allowed key"):
        attention.scaled_dot_product_attention(query, key, key, mask)


def test_heads_split_like_a_view_and_merge_back():
    x = normal("x", B, T, D)
    split = attention.split_heads(x, H)
    assert_close(split, torch.from_numpy(x).view(B, T, H, K).transpose(1, 2))
    np.testing.assert_array_equal(attention.merge_heads(split), x)


def torch_attention(module, weights, prefix=""):
    """Load our weights into PyTorch's attention, which stacks the three projections."""
    q, k, v, out = (f"{prefix}{name}_proj" for name in ("q", "k", "v", "out"))
    state = {
        "in_proj_weight": np.concatenate([weights[f"{name}.weight"] for name in (q, k, v)]),
        "in_proj_bias": np.concatenate([weights[f"{name}.bias"] for name in (q, k, v)]),
        "out_proj.weight": weights[f"{out}.weight"],
        "out_proj.bias": weights[f"{out}.bias"],
    }
    module.double().load_state_dict(tensors(state))
    return module


def test_multi_head_attention_equals_pytorch_across_padded_sources():
    scope = scope_of("multi_head_attention")
    query, source = normal("query", B, T, D), normal("source", B, S, D)
    ours = attention.multi_head_attention(scope, query, source, key_valid=VALID_SOURCE)
    theirs = torch_attention(nn.MultiheadAttention(D, H, batch_first=True), scope.weights)
    q, kv = torch.from_numpy(query), torch.from_numpy(source)
    hidden = torch.from_numpy(~VALID_SOURCE)  # PyTorch's module marks what is hidden
    assert_close(ours, theirs(q, kv, kv, key_padding_mask=hidden, need_weights=False)[0])


def test_padded_queries_give_zero_and_need_no_key():
    scope = scope_of("multi_head_attention")
    nothing = np.zeros((B, T), dtype=bool)
    query = normal("query", B, T, D)
    output = attention.multi_head_attention(scope, query, key_valid=nothing, query_valid=nothing)
    np.testing.assert_array_equal(output, np.zeros((B, T, D)))


def test_grouped_heads_share_the_key_and_value_of_their_group():
    config = ProbeConfig(d_model=12, num_heads=6, num_kv_heads=2)
    grouped = Scope(config, DRAWS.weights(parameter_shapes(config, "multi_head_attention")))
    repeated = dict(grouped.weights)
    for name in ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"):
        by_head = np.split(repeated[name], 2)
        repeated[name] = np.concatenate([by_head[0]] * 3 + [by_head[1]] * 3)
    full = Scope(ProbeConfig(d_model=12, num_heads=6), repeated)
    x = normal("x", B, S, 12)
    ours, expected = (attention.multi_head_attention(scope, x) for scope in (grouped, full))
    np.testing.assert_array_equal(ours, expected)


def test_rope_keeps_lengths_and_makes_scores_depend_on_distance():
    query, key = normal("q", B, H, T, 12), normal("k", B, H, S, 12)
    near = [attention.apply_rope(x, 2, 10000.0) for x in (query, key)]
    far = [attention.apply_rope(x, 41, 10000.0) for x in (query, key)]
    np.testing.assert_allclose(np.linalg.norm(near[0], axis=-1), np.linalg.norm(query, axis=-1))
    np.testing.assert_allclose(
        attention.attention_scores(*near), attention.attention_scores(*far), atol=1e-12
    )


def test_norms_equal_pytorch():
    x = normal("x", B, T, D, scale=3.0)
    scope = scope_of("norm")
    weight, bias = tensors(scope.weights).values()
    theirs = F.layer_norm(torch.from_numpy(x), (D,), weight, bias, eps=1e-5)
    assert_close(layers.layer_norm(scope, x), theirs)
    assert_close(layers.rms_norm(scope, x), F.rms_norm(torch.from_numpy(x), (D,), weight, eps=1e-6))


@pytest.mark.parametrize("ffn", ["relu", "gelu", "swiglu", "geglu"])
def test_feed_forward_equals_pytorch(ffn):
    scope = scope_of("feed_forward", ffn=ffn)
    x = normal("x", B, T, D, scale=3.0)

    def project(name, value):
        weights = tensors(scope.weights)
        return F.linear(value, weights[f"{name}.weight"], weights[f"{name}.bias"])

    bend = {"relu": F.relu, "gelu": F.gelu, "swiglu": F.silu, "geglu": F.gelu}[ffn]
    hidden = project("input_projection", torch.from_numpy(x))
    if ffn in ("swiglu", "geglu"):
        hidden = bend(project("gate_projection", torch.from_numpy(x))) * hidden
    else:
        hidden = bend(hidden)
    assert_close(layers.feed_forward(scope, x), project("output_projection", hidden))


def torch_layer(module, weights, attentions, norms):
    """Load the weights of one of our blocks into PyTorch's layer of the same make."""
    module = module(D, H, 13, 0.0, "gelu", batch_first=True, norm_first=norms.pop("first")).double()
    for theirs, ours in attentions.items():
        torch_attention(getattr(module, theirs), weights, f"{ours}.")
    linears = {
        "linear1": "feed_forward.input_projection",
        "linear2": "feed_forward.output_projection",
    }
    for theirs, ours in {**linears, **norms}.items():
        state = {name: weights[f"{ours}.{name}"] for name in ("weight", "bias")}
        getattr(module, theirs).load_state_dict(tensors(state))
    return module


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_encoder_block_equals_pytorch(placement):
    scope = scope_of("encoder_block", placement=placement)
    x = normal("x", B, S, D)
    names = {"norm1": "attention_branch.norm", "norm2": "feed_forward_branch.norm"}
    theirs = torch_layer(
        nn.TransformerEncoderLayer,
        scope.weights,
        {"self_attn": "self_attention"},
        {"first": placement == "pre", **names},
    )
    output = theirs(torch.from_numpy(x), src_key_padding_mask=torch.from_numpy(~VALID_SOURCE))
    expected = output * torch.from_numpy(VALID_SOURCE)[..., None]
    assert_close(models.encoder_block(scope, x, VALID_SOURCE), expected)


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_decoder_block_equals_pytorch(placement):
    scope = scope_of("decoder_block", placement=placement)
    x, memory = normal("x", B, T, D), normal("memory", B, S, D)
    names = {"norm1": "self_branch.norm", "norm2": "cross_branch.norm"}
    theirs = torch_layer(
        nn.TransformerDecoderLayer,
        scope.weights,
        {"self_attn": "self_attention", "multihead_attn": "cross_attention"},
        {"first": placement == "pre", "norm3": "feed_forward_branch.norm", **names},
    )
    output = theirs(
        torch.from_numpy(x),
        torch.from_numpy(memory),
        tgt_mask=torch.ones(T, T, dtype=torch.bool).triu(1),
        tgt_key_padding_mask=torch.from_numpy(~VALID_TARGET),
        memory_key_padding_mask=torch.from_numpy(~VALID_SOURCE),
    )
    valid = {"target_valid": VALID_TARGET, "memory_valid": VALID_SOURCE}
    ours = models.decoder_block(scope, x, memory, **valid)
    assert_close(ours, output * torch.from_numpy(VALID_TARGET)[..., None])


def test_causal_block_answers_a_prefix_as_it_does_within_the_whole():
    scope = scope_of("causal_block")
    x = normal("x", B, T, D)
    whole = models.causal_block(scope, x)
    for end in range(1, T + 1):
        prefix = models.causal_block(scope, x[:, :end])
        np.testing.assert_allclose(whole[:, :end], prefix, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("placement", "has_final_norm"), [("pre", True), ("post", False)])
def test_stack_ends_in_a_norm_only_before_which_nothing_was_normalised(placement, has_final_norm):
    scope = scope_of("encoder", placement=placement)
    assert ("final_norm.weight" in scope) == has_final_norm
    output = models.encoder(scope, normal("x", B, S, D), VALID_SOURCE)
    last = scope.trace.activations["blocks.1"]
    expected = layers.layer_norm(scope.child("final_norm"), last) if has_final_norm else last
    np.testing.assert_array_equal(output, np.where(VALID_SOURCE[..., None], expected, 0.0))


def test_t5_buckets_are_exact_when_near_and_logarithmic_when_far():
    def bucket(distance, bidirectional):
        return layers.t5_bucket(distance, 8, 12, bidirectional=bidirectional)

    looking_back = [bucket(-steps, False) for steps in (0, 1, 3, 4, 5, 8, 12, 99)]
    assert looking_back == [0, 1, 3, 4, 4, 6, 7, 7]
    assert [bucket(distance, False) for distance in (1, 7)] == [0, 0]
    assert [bucket(-steps, True) for steps in (0, 1, 2, 5, 99)] == [0, 1, 2, 3, 3]
    assert [bucket(steps, True) for steps in (1, 2, 5, 99)] == [5, 6, 7, 7]


def test_sinusoidal_positions_interleave_sine_and_cosine():
    table = layers.sinusoidal_positions(T, 4, offset=2)
    expected = [[math.sin(p), math.cos(p), math.sin(p / 100), math.cos(p / 100)] for p in (2, 3, 4)]
    np.testing.assert_allclose(table, expected, rtol=1e-15)


def test_cross_entropy_equals_pytorch_and_leaves_padding_out():
    logits, targets = normal("logits", B, T, 13, scale=30.0), np.array([[4, 2, 0], [12, 0, 0]])
    flat = torch.from_numpy(logits).flatten(0, 1), torch.from_numpy(targets).flatten()
    theirs = F.cross_entropy(*flat, ignore_index=0)
    assert_close(training.masked_cross_entropy(logits, targets, 0), theirs)
    with pytest.raises(ValueError, match="real token"):
        training.masked_cross_entropy(logits, np.zeros_like(targets), 0)


def test_trace_brings_the_scores_of_every_attention_to_its_peak():
    drawn = scope_of("decoder")
    scope = Scope(drawn.config, drawn.weights, trace=Trace(peak=80.0))
    models.decoder(scope, normal("x", B, T, D), normal("memory", B, S, D))
    names = [f"blocks.{i}.{kind}_attention" for i in range(2) for kind in ("self", "cross")]
    assert list(scope.trace.scores) == names == list(scope.trace.factors)
    peaks = [np.abs(scores).max() for scores in scope.trace.scores.values()]
    assert peaks == pytest.approx([80.0] * 4)
