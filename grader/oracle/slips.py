"""Attention with one slip in it: what a known kind of mistake would answer.

Vectorised, unlike the rest of the oracle: nothing is judged by these numbers. They only name the
mistake behind a difference that the oracle has found.
"""

from __future__ import annotations

import math

import numpy as np

from grader.oracle.attention import Attended, causal_mask, combine_masks, zero_padding
from grader.oracle.layers import linear
from grader.oracle.scope import Array, Mask, Scope

SOFTMAX_AXES = {"softmax_over_queries": 2, "softmax_over_heads": 1, "softmax_over_rows": 0}
PROJECTIONS = {
    "queries_from_key_projection": {"q_proj": "k_proj"},
    "queries_from_value_projection": {"q_proj": "v_proj"},
    "keys_from_query_projection": {"k_proj": "q_proj"},
    "keys_from_value_projection": {"k_proj": "v_proj"},
    "values_from_query_projection": {"v_proj": "q_proj"},
    "values_from_key_projection": {"v_proj": "k_proj"},
    "keys_and_values_exchanged": {"k_proj": "v_proj", "v_proj": "k_proj"},
}


def _scale(slip: str, width: int, heads: int) -> float:
    return {
        "no_scale": 1.0,
        "scaled_by_width": 1.0 / width,
        "scale_inverted": math.sqrt(width),
        "scaled_by_model_width": 1.0 / math.sqrt(width * heads),
        "scaled_twice": 1.0 / width,
    }.get(slip, 1.0 / math.sqrt(width))


def _softmax(scores: Array, axis: int) -> Array:
    exponentials = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=axis, keepdims=True))


def wrong_attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Mask | None = None,
    score_bias: Array | None = None,
    *,
    slip: str,
) -> Attended:
    """Attend as `scaled_dot_product_attention` does, but for one slip.

    Args:
        query: (B, H, T, K).
        key: (B, H, S, K).
        value: (B, H, S, K).
        mask: Bool that broadcasts to (B, H, T, S); None = every key is allowed.
        score_bias: Added to the scaled scores; broadcasts to (B, H, T, S).
        slip: Name of the mistake; an unknown name is none.
    """
    batch, heads, num_queries, width = query.shape
    scores = query @ key.swapaxes(2, 3)
    scale = _scale(slip, width, heads)
    bias = np.zeros(1) if score_bias is None or slip == "bias_ignored" else score_bias
    scores = (scores + bias) * scale if slip == "bias_scaled" else scores * scale + bias
    allowed = np.broadcast_to(True if mask is None else mask, scores.shape)
    if slip == "mask_flipped":
        allowed = ~allowed
    if slip == "mask_of_other_rows":
        # The rows' masks repeated head by head, though (row, head) pairs run row by row.
        order = np.arange(batch * heads) % batch
        allowed = allowed[order, np.arange(batch * heads) % heads].reshape(allowed.shape)
    hidden_score = 0.0 if slip == "mask_fill_zero" else -math.inf
    with np.errstate(all="ignore"):
        if slip in ("mask_ignored", "mask_after_softmax"):
            weights = _softmax(scores, 3)
        else:
            axis = SOFTMAX_AXES.get(slip, 3)
            weights = _softmax(np.where(allowed, scores, hidden_score), axis)
        if slip == "mask_after_softmax":
            weights = weights * allowed
        if slip == "no_softmax":
            weights = np.where(allowed, scores, 0.0)
        return Attended(weights @ value, weights)


def _split(x: Array, heads: int, slip: str) -> Array:
    batch, length, width = x.shape
    if slip in ("heads_split_without_transpose", "heads_chunked"):
        return x.reshape(batch, heads, length, width // heads)
    if slip == "one_head":
        return x[:, None]
    return x.reshape(batch, length, heads, width // heads).swapaxes(1, 2)


def _merge(x: Array, slip: str) -> Array:
    batch, heads, length, width = x.shape
    if slip not in ("heads_merged_without_transpose", "heads_chunked"):
        x = x.swapaxes(1, 2)
    return x.reshape(batch, length, heads * width)


def _mask(
    shape: tuple[int, int],
    attention_mask: Mask | None,
    key_valid: Mask | None,
    causal: bool,
    offsets: tuple[int, int],
    slip: str,
) -> Mask | None:
    """Combine the masks for (T, S) with a slip; offsets are those of queries and keys."""
    if slip == "attention_mask_ignored":
        attention_mask = None
    if slip == "causal_ignored" or (slip == "causal_lost_with_padding" and key_valid is not None):
        causal = False
    if slip == "key_valid_ignored" or (slip == "key_valid_lost_with_causal" and causal):
        key_valid = None
    query_offset, key_offset = offsets
    offset = {
        "offset_ignored": 0,
        "key_offset_ignored": query_offset,
        "offsets_added": query_offset + key_offset,
    }.get(slip, query_offset - key_offset)
    if slip == "causal_too_wide":
        offset += 1
    past = causal_mask(*shape, offset) if causal else None
    if slip == "key_valid_on_queries" and key_valid is not None:
        rows = key_valid[:, None, :, None]
        rest = combine_masks(attention_mask, None, past)
        return rows if rest is None else rows & rest
    given = [combine_masks(attention_mask), combine_masks(None, key_valid), combine_masks(past)]
    masks = [mask for mask in given if mask is not None]
    if not masks:
        return None
    combined = masks[0]
    for mask in masks[1:]:
        combined = combined | mask if slip == "masks_or" else combined & mask
    return combined


def wrong_multi_head_attention(
    scope: Scope,
    query: Array,
    key_value: Array | None = None,
    *,
    attention_mask: Mask | None = None,
    key_valid: Mask | None = None,
    query_valid: Mask | None = None,
    causal: bool = False,
    query_offset: int = 0,
    key_offset: int = 0,
    score_bias: Array | None = None,
    slip: str,
) -> Array:
    """Attend as `multi_head_attention` does (without rotary positions), but for one slip."""
    heads = scope.config.num_heads
    own = key_value is None or slip == "key_value_ignored"
    sources = dict.fromkeys(("q_proj", "k_proj", "v_proj"), query)
    if key_value is not None and not own:
        sources |= {"k_proj": key_value, "v_proj": key_value}
        sources |= {
            "keys_from_queries": {"k_proj": query},
            "values_from_queries": {"v_proj": query},
            "queries_from_source": {"q_proj": key_value},
        }.get(slip, {})
    used = PROJECTIONS.get(slip, {})
    q, k, v = (
        _split(linear(scope.child(used.get(name, name)), source), heads, slip)
        for name, source in sources.items()
    )
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    lengths = (q.shape[2], k.shape[2])
    offsets = (query_offset, key_offset)
    mask = _mask(lengths, attention_mask, key_valid, causal, offsets, slip)
    if query_valid is not None and mask is not None:
        mask = mask | ~query_valid[:, None, :, None]
    if slip == "attends_between_heads":
        q, k, v = q.swapaxes(1, 2), k.swapaxes(1, 2), v.swapaxes(1, 2)  # (B, T, H, K)
        context = wrong_attention(q, k, v, slip=slip).context.swapaxes(1, 2)
    else:
        context = wrong_attention(q, k, v, mask, score_bias, slip=slip).context
    merged = _merge(context, slip)
    if slip != "no_output_projection":
        merged = linear(scope.child("out_proj"), merged)
    return zero_padding(merged, query_valid)
