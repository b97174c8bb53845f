"""Masks, rotary positions and attention, one row and one head at a time."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from grader.oracle.layers import linear
from grader.oracle.scope import Array, Ids, Mask, Scope


class Attended(NamedTuple):
    """Result of attention: context (B, H, T, K) and weights (B, H, T, S)."""

    context: Array
    weights: Array


def padding_mask(ids: Ids, pad_id: int | None) -> Mask:
    """Mark the real tokens of `ids` (B, S): True where the id is not `pad_id`."""
    return np.ones(ids.shape, dtype=bool) if pad_id is None else ids != pad_id


def causal_mask(num_queries: int, num_keys: int, offset: int = 0) -> Mask:
    """Let query t, which stands at position t + offset, see the keys s <= t + offset: (T, S)."""
    positions = np.arange(num_queries)[:, None] + offset  # (T, 1)
    return np.asarray(np.arange(num_keys) <= positions)


def combine_masks(
    attention_mask: Mask | None = None, key_valid: Mask | None = None, causal: Mask | None = None
) -> Mask | None:
    """Allow what every given mask allows.

    Args:
        attention_mask: (T, S), (B, T, S) or (B or 1, H or 1, T, S).
        key_valid: (B, S), True = real key.
        causal: (T, S).

    Returns:
        (B or 1, H or 1, T, S), or None when no mask is given.
    """
    masks = []
    if attention_mask is not None:
        if attention_mask.ndim == 3:
            attention_mask = attention_mask[:, None]  # (B, 1, T, S)
        masks.append(attention_mask)
    if key_valid is not None:
        masks.append(key_valid[:, None, None, :])  # (B, 1, 1, S)
    if causal is not None:
        masks.append(causal)
    if not masks:
        return None
    combined = masks[0]
    for mask in masks[1:]:
        combined = combined & mask
    return combined.reshape((1,) * (4 - combined.ndim) + combined.shape)


def attention_scores(query: Array, key: Array) -> Array:
    """Scaled dot product of every query (B, H, T, K) with every key (B, H, S, K): (B, H, T, S)."""
    scores: Array = np.einsum("bhtk,bhsk->bhts", query, key) / math.sqrt(query.shape[-1])
    return scores


def average_values(
    scores: Array, value: Array, mask: Mask | None = None, score_bias: Array | None = None
) -> Attended:
    """Average the values with the softmax of the scores over the allowed keys.

    Args:
        scores: (B, H, T, S).
        value: (B, H, S, K).
        mask: Bool that broadcasts to (B, H, T, S); None = every key is allowed.
        score_bias: Added to the scores; broadcasts to (B, H, T, S).

    Raises:
        ValueError: A query has no allowed key.
    """
    if score_bias is not None:
        scores = scores + score_bias
    allowed = np.broadcast_to(True if mask is None else mask, scores.shape)
    empty = np.argwhere(~allowed.any(axis=-1))
    if empty.size:
        row, head, query = empty[0]
        raise ValueError(f"query {query} of row {row}, head {head} has no allowed key")
    seen = np.where(allowed, scores, -math.inf)
    exponentials = np.exp(seen - seen.max(axis=-1, keepdims=True))
    weights = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return Attended(np.einsum("bhts,bhsk->bhtk", weights, value), weights)


def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Mask | None = None,
    score_bias: Array | None = None,
) -> Attended:
    """Average the values, weighted by softmax(Q K^T / sqrt(K) + bias) over the allowed keys.

    Source: Vaswani et al. 2017, eq. 1, arxiv.org/abs/1706.03762.
    """
    return average_values(attention_scores(query, key), value, mask, score_bias)


def split_heads(x: Array, num_heads: int) -> Array:
    """Cut the features of x (B, T, H * K) into consecutive heads (B, H, T, K)."""
    return np.stack(np.split(x, num_heads, axis=-1), axis=1)


def merge_heads(x: Array) -> Array:
    """Lay the heads of x (B, H, T, K) side by side: (B, T, H * K)."""
    return np.concatenate([x[:, h] for h in range(x.shape[1])], axis=-1)


def repeat_kv_heads(x: Array, num_heads: int) -> Array:
    """Give each group of consecutive query heads its key/value head: (B, H, S, K)."""
    group_size = num_heads // x.shape[1]
    return np.stack([x[:, h // group_size] for h in range(num_heads)], axis=1)


def rotate_pairs(x: Array) -> Array:
    """Turn every adjacent pair (a, b) of features by a quarter: (-b, a)."""
    turned = np.zeros(x.shape)
    turned[..., 0::2] = -x[..., 1::2]
    turned[..., 1::2] = x[..., 0::2]
    return turned


def apply_rope(x: Array, offset: int, base: float) -> Array:
    """Turn pair i of the vector at position p by the angle p * base^(-2i / K).

    Args:
        x: (B, H, T, K); vector t stands at position t + offset.
        offset: First position.
        base: Slowest angle is about 1 / base per position.

    Source: Su et al. 2021, section 3.2, arxiv.org/abs/2104.09864.
    """
    length, width = x.shape[2:]
    pairs = np.arange(width) // 2
    angles = (np.arange(length)[:, None] + offset) * base ** (-2 * pairs / width)  # (T, K)
    cosines, sines = np.cos(angles), np.sin(angles)
    return np.asarray(x * cosines + rotate_pairs(x) * sines)


def zero_padding(x: Array, valid: Mask | None) -> Array:
    """Set the padded positions of x (B, T, D) to 0; valid (B, T), None = nothing is padding."""
    if valid is None:
        return x
    return np.where(valid[:, :, None], x, 0.0)


def multi_head_attention(
    scope: Scope,
    query: Array,
    key_value: Array | None = None,
    *,
    rope: bool = False,
    attention_mask: Mask | None = None,
    key_valid: Mask | None = None,
    query_valid: Mask | None = None,
    causal: bool = False,
    query_offset: int = 0,
    key_offset: int = 0,
    score_bias: Array | None = None,
) -> Array:
    """Attend from query to key_value with every head, and mix the heads.

    Args:
        scope: q_proj, k_proj, v_proj, out_proj.
        query: (B, T, D).
        key_value: (B, S, D); None = the query itself (self-attention).
        rope: Turn queries and keys by their positions.
        attention_mask: (T, S), (B, T, S) or (B or 1, H or 1, T, S).
        key_valid: (B, S), True = real key.
        query_valid: (B, T), True = real query; the output of the others is 0.
        causal: Hide the keys that stand after the query.
        query_offset: Position of the first query.
        key_offset: Position of the first key.
        score_bias: (1 or B, H, T, S), added to the scaled scores.

    Returns:
        (B, T, D).
    """
    config = scope.config
    source = query if key_value is None else key_value
    q = split_heads(linear(scope.child("q_proj"), query), config.num_heads)  # (B, H, T, K)
    k = split_heads(linear(scope.child("k_proj"), source), config.kv_heads)  # (B, G, S, K)
    v = split_heads(linear(scope.child("v_proj"), source), config.kv_heads)  # (B, G, S, K)
    if rope:
        q = apply_rope(q, query_offset, config.rope_base)
        k = apply_rope(k, key_offset, config.rope_base)
    k, v = repeat_kv_heads(k, config.num_heads), repeat_kv_heads(v, config.num_heads)

    scores = _traced(scope, attention_scores(q, k))  # (B, H, T, S)
    earlier = None
    if causal:
        earlier = causal_mask(q.shape[2], k.shape[2], query_offset - key_offset)
    mask = combine_masks(attention_mask, key_valid, earlier)
    if query_valid is not None and mask is not None:
        # A padded query may attend to anything: its output is replaced by 0 below.
        mask = mask | ~query_valid[:, None, :, None]
    context = merge_heads(average_values(scores, v, mask, score_bias).context)  # (B, T, D)
    return scope.record(zero_padding(linear(scope.child("out_proj"), context), query_valid))


def _traced(scope: Scope, scores: Array) -> Array:
    """Scale the scores to the trace's peak if it has one, and record them."""
    trace = scope.trace
    if trace.peak is not None:
        largest = float(np.abs(scores).max())
        if largest == 0.0:
            raise ValueError(f"scores of {scope.name} are all 0 and cannot reach {trace.peak:g}")
        trace.factors[scope.name] = trace.peak / largest
        scores = scores * trace.factors[scope.name]
    trace.scores[scope.name] = scores
    return scores
