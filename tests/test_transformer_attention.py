"""Attention: weights, heads, masks and what is refused."""

import math
from dataclasses import replace

import pytest
import torch

from transformer.attention import (
    MultiHeadAttention,
    merge_heads,
    repeat_kv_heads,
    scaled_dot_product_attention,
    split_heads,
)
from transformer.cache import CacheSlot
from transformer.config import ModelConfig
from transformer.masks import causal_mask

B, H, T, S, K = 2, 3, 5, 7, 11
CONFIG = ModelConfig(d_model=6 * K, num_heads=6, num_kv_heads=2, d_ff=13)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(17)


def heads(length: int) -> torch.Tensor:
    return torch.randn(B, H, length, K)


def attention(**changes) -> MultiHeadAttention:
    config = replace(CONFIG, **changes)
    return MultiHeadAttention(config, rope=config.positions == "rope").eval()


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_attention_equals_the_fused_kernel(scale):
    query, key, value = scale * heads(T), scale * heads(S), heads(S)
    mask = causal_mask(T, S, 2)[None, None]
    bias = torch.randn(1, H, T, S)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, bias.masked_fill(~mask, -math.inf)
    )
    got = scaled_dot_product_attention(query, key, value, mask, bias)
    torch.testing.assert_close(got.context, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.weights @ value, got.context)
    torch.testing.assert_close(got.weights.sum(dim=-1), torch.ones(B, H, T))


def test_hidden_key_has_weight_exactly_zero_and_no_influence():
    query, key, value = 40 * heads(T), 40 * heads(S), heads(S)
    mask = torch.ones(1, 1, 1, S, dtype=torch.bool)
    mask[..., 3] = False
    before = scaled_dot_product_attention(query, key, value, mask)
    key[:, :, 3], value[:, :, 3] = 1e4, 1e4
    after = scaled_dot_product_attention(query, key, value, mask)
    assert before.weights[..., 3].abs().max() == 0.0
    torch.testing.assert_close(after.context, before.context, rtol=0, atol=0)


def test_dropout_falls_on_the_weights_that_average_but_not_on_those_returned():
    value = heads(S)
    got = scaled_dot_product_attention(heads(T), heads(S), value, dropout=torch.nn.Dropout(0.5))
    torch.testing.assert_close(got.weights.sum(dim=-1), torch.ones(B, H, T))
    assert not torch.allclose(got.weights @ value, got.context)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((B, H, T, K), (B, H, S, K + 1), (B, H, S, K)), r"\(2, 3, 7, 11\) to go with"),
        (((B, H, T, K), (B, H, S, K), (B, H, S + 1, K)), r"\(2, 3, 7, 11\) to go with"),
        (((B, H, T, K), (B, H, 0, K), (B, H, 0, K)), "at least one key"),
        (((H, T, K), (H, S, K), (H, S, K)), r"query must have shape \(B, H, T, K\)"),
    ],
)
def test_attention_refuses_tensors_that_do_not_fit(shapes, message):
    with pytest.raises(ValueError, match=message):
        scaled_dot_product_attention(*(torch.ones(shape) for shape in shapes))


def test_attention_refuses_masks_that_are_not_masks():
    tensors = heads(T), heads(S), heads(S)
    with pytest.raises(TypeError, match="mask must be bool .* got torch.float32"):
        scaled_dot_product_attention(*tensors, torch.ones(1, 1, T, S))
    for shape in ((T, S), (1, 1, T, S + 1), (B + 1, 1, T, S)):
        with pytest.raises(ValueError, match=r"must broadcast to \(2, 3, 5, 7\)"):
            scaled_dot_product_attention(*tensors, torch.ones(shape, dtype=torch.bool))
    mask = torch.ones(B, 1, T, S, dtype=torch.bool)
    mask[1, 0, 4] = False
    with pytest.raises(ValueError, match="at least one key"):
        scaled_dot_product_attention(*tensors, mask)


def test_heads_are_neighbouring_columns_and_merge_back():
    x = torch.randn(B, T, H * K)
    split = split_heads(x, H)
    for head in range(H):
        torch.testing.assert_close(split[:, head], x[:, :, head * K : (head + 1) * K])
    torch.testing.assert_close(merge_heads(split), x, rtol=0, atol=0)
    with pytest.raises(ValueError, match="divisible by num_heads, got 33 and 2"):
        split_heads(x, 2)
    with pytest.raises(ValueError, match=r"\(B, H, T, K\), got \(2, 5, 33\)"):
        merge_heads(x)


def test_repeated_heads_stand_next_to_each_other():
    x = torch.randn(B, 2, S, K)
    repeated = repeat_kv_heads(x, 6)
    for head in range(6):
        torch.testing.assert_close(repeated[:, head], x[:, head // 3], rtol=0, atol=0)
    with pytest.raises(ValueError, match="got 5 and 2"):
        repeat_kv_heads(x, 5)


def test_grouped_heads_equal_full_heads_with_repeated_projections():
    grouped, full = attention(), attention(num_kv_heads=6)
    state = grouped.state_dict()
    for name in ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"):
        state[name] = state[name].unflatten(0, (2, K)).repeat_interleave(3, 0).flatten(0, 1)
    full.load_state_dict(state)
    x = torch.randn(B, T, 6 * K)
    torch.testing.assert_close(grouped(x, causal=True), full(x, causal=True))


@pytest.mark.parametrize("num_kv_heads", [1, 2, 3])
@pytest.mark.parametrize("per_head", [False, True])
def test_one_token_attends_with_grouped_heads_without_repeating_them(
    monkeypatch, num_kv_heads, per_head
):
    layer = attention(num_kv_heads=num_kv_heads)
    query, memory = torch.randn(B, 1, 6 * K), torch.randn(B, S, 6 * K)
    mask = torch.rand(B, 6 if per_head else 1, 1, S) > 0.4
    mask[..., 2] = True
    options = {"attention_mask": mask, "score_bias": torch.randn(1, 6 if per_head else 1, 1, S)}
    # Two queries take the way that repeats the heads.
    both = {name: torch.cat((x, x), dim=2) for name, x in options.items()}
    expected = layer(torch.cat((query, query), dim=1), memory, **both)[:, :1]
    monkeypatch.setattr("transformer.attention.repeat_kv_heads", None)
    torch.testing.assert_close(layer(query, memory, **options), expected)
    queries, keys = torch.randn(B, 6, 1, K), torch.randn(B, num_kv_heads, S, K)
    attended = layer.attend(queries, keys, keys, None, None)
    assert attended.context.shape == (B, 6, 1, K) and attended.weights.shape == (B, 6, 1, S)


def test_rotary_scores_depend_on_distance_alone():
    layer, x, memory = (
        attention(positions="rope", d_model=60),
        torch.randn(B, T, 60),
        torch.randn(B, S, 60),
    )
    near = layer(x, memory, query_offset=2, key_offset=1)
    shifted = layer(x, memory, query_offset=602, key_offset=601)
    moved = layer(x, memory, query_offset=3, key_offset=1)
    torch.testing.assert_close(shifted, near, rtol=1e-4, atol=1e-4)
    assert (moved - near).abs().max() > 1e-3


def test_padded_queries_give_zero_and_never_raise():
    layer, x = attention(), torch.randn(B, T, 6 * K)
    valid = torch.tensor([[False, True, True, False, True], [True] * 5])
    out = layer(x, key_valid=valid, query_valid=valid, causal=True)
    assert out[~valid].abs().max() == 0.0
    assert out[valid].abs().min() > 0.0
    with pytest.raises(ValueError, match="at least one key"):
        layer(x, key_valid=valid, causal=True)


@pytest.mark.parametrize("dimensions", [2, 3, 4])
def test_attention_mask_of_any_rank_joins_the_others(dimensions):
    layer, x = attention(), torch.randn(B, T, 6 * K)
    mask = torch.rand(B, 6, T, T) > 0.3
    mask |= torch.eye(T, dtype=torch.bool)
    mask = {2: mask[0, 0], 3: mask[:, 0], 4: mask}[dimensions]
    expanded = {2: mask, 3: mask[:, None] if dimensions == 3 else mask, 4: mask}[dimensions]
    valid = torch.tensor([[True] * 5, [True, True, True, False, False]])
    joined = expanded & causal_mask(T, T) & valid[:, None, None]
    joined |= ~valid[:, None, :, None]
    got = layer(x, attention_mask=mask, key_valid=valid, query_valid=valid, causal=True)
    expected = layer(x, attention_mask=joined.expand(B, -1, T, T), query_valid=valid)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"query": (B, 0, 66)}, r"T at least 1, got \(2, 0, 66\)"),
        ({"query": (B, T, 65)}, r"\(B, T, 66\)"),
        ({"query": (T, 66)}, r"\(B, T, 66\)"),
        ({"key_value": (B + 1, S, 66)}, r"\(2, S, 66\), got \(3, 7, 66\)"),
        ({"key_value": (B, 0, 66)}, "at least one key"),
        ({"key_valid": (B, S)}, r"key_valid must have shape \(2, 5\), got \(2, 7\)"),
        ({"query_valid": (B, S)}, r"query_valid must have shape \(2, 5\), got \(2, 7\)"),
        ({"attention_mask": (T, S)}, r"broadcast to \(2, 6, 5, 5\)"),
        ({"query_offset": -1}, "got -1 and 0"),
        ({"key_offset": -3}, "got 0 and -3"),
    ],
)
def test_layer_refuses_what_does_not_fit(call, message):
    masks = ("key_valid", "query_valid", "attention_mask")
    given = {
        name: value
        if isinstance(value, int)
        else torch.ones(value, dtype=torch.bool if name in masks else torch.float32)
        for name, value in {"query": (B, T, 66), **call}.items()
    }
    with pytest.raises(ValueError, match=message):
        attention()(given.pop("query"), given.pop("key_value", None), **given)


@pytest.mark.parametrize("own", [6, 3])
@pytest.mark.parametrize("queries", [1, T])
@pytest.mark.parametrize("shape", [(1, 2, T, S), (1, 6, 2, S), (3, 1, 1, S), (1, 6, 1, T), (T, S)])
def test_layer_refuses_a_score_bias_and_masks_that_do_not_fit_the_scores(own, queries, shape):
    layer = attention(num_kv_heads=own)
    query, source = torch.ones(B, queries, 66), torch.ones(B, S, 66)
    scores = rf"must broadcast to \({B}, 6, {queries}, {S}\), got shape"
    with pytest.raises(ValueError, match=f"score_bias {scores}"):
        layer(query, source, score_bias=torch.ones(shape))
    if queries == 1 or len(shape) == 4:
        with pytest.raises(ValueError, match=f"mask {scores}"):
            layer(query, source, attention_mask=torch.ones(shape, dtype=torch.bool))


@pytest.mark.parametrize("shape", [(5, 1), (1, 5), (1, 1), (2, 1, 5), (1, 5, 5), (2, 1, 5, 1)])
def test_layer_refuses_attention_masks_that_do_not_name_every_query_and_key(shape):
    attention, x = MultiHeadAttention(CONFIG, rope=False), torch.randn(2, 5, CONFIG.d_model)
    with pytest.raises(ValueError, match=r"attention_mask must broadcast to \(2, 6, 5, 5\)"):
        attention(x, attention_mask=torch.ones(shape, dtype=torch.bool))


def test_mask_must_name_every_key():
    q = torch.randn(2, 3, 5, 7)
    with pytest.raises(ValueError, match="each of 5 keys, got shape"):
        scaled_dot_product_attention(q, q, q, torch.ones(2, 1, 5, 1, dtype=torch.bool))


def test_offsets_that_leave_no_key_are_named():
    attention, x = MultiHeadAttention(CONFIG, rope=False), torch.randn(2, 5, CONFIG.d_model)
    memory = torch.randn(2, 7, CONFIG.d_model)
    with pytest.raises(ValueError, match="at least one key, .*query_offset 1 and key_offset 3"):
        attention(x, memory, causal=True, query_offset=1, key_offset=3)
    # A padded query never raises.
    valid = torch.tensor([[False, False, True, True, True]] * 2)
    attention(x, memory, causal=True, query_offset=1, key_offset=3, query_valid=valid)


def test_layer_refuses_validity_that_is_not_bool():
    with pytest.raises(TypeError, match="query_valid must be bool"):
        attention()(torch.ones(B, T, 66), query_valid=torch.ones(B, T))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"query_offset": 3}, "the cached length 0, got 3"),
        ({"key_offset": 2}, "key_offset must be 0 with a cache, got 2"),
    ],
)
def test_layer_refuses_offsets_that_contradict_the_cache(call, message):
    with pytest.raises(ValueError, match=message):
        attention()(torch.ones(B, T, 66), cache=CacheSlot(), **call)


def test_layer_refuses_a_cache_while_dropout_is_at_work():
    layer = attention(dropout=0.25)
    layer(torch.ones(B, T, 66), cache=CacheSlot())
    with pytest.raises(ValueError, match="got train\\(\\) and dropout 0.25"):
        layer.train()(torch.ones(B, T, 66), cache=CacheSlot())


def test_dropout_falls_on_weights_and_output():
    layer, x = attention(dropout=0.5).train(), torch.randn(B, T, 66)
    calls = []
    layer.dropout.register_forward_hook(lambda module, given, out: calls.append(out.shape))
    layer(x)
    assert calls == [(B, 6, T, T), (B, T, 66)]
