"""Attention, blocks and stacks with one slip each: what a known mistake would return.

These values never decide a verdict: they only name the mistake behind a difference that the oracle
has found.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from grader.oracle.attention import (
    Attended,
    causal_mask,
    combine_masks,
    multi_head_attention,
    zero_padding,
)
from grader.oracle.layers import feed_forward, linear, norm
from grader.oracle.models import decoder_block, encoder_block
from grader.oracle.scope import Array, Mask, Scope

Layer = Callable[[Array], Array]

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


def _softmax(scores: Array, axis: int) -> Array:
    exponentials = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=axis, keepdims=True))


def wrong_scaled_dot_product_attention(
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
    batch, heads, _, width = query.shape
    scores = query @ key.swapaxes(2, 3)
    scale = {
        "no_scale": 1.0,
        "scaled_by_width": 1.0 / width,
        "scale_inverted": math.sqrt(width),
        "scaled_by_model_width": 1.0 / math.sqrt(width * heads),
    }.get(slip, 1.0 / math.sqrt(width))
    bias = np.zeros(1) if score_bias is None or slip == "bias_ignored" else score_bias
    scores = (scores + bias) * scale if slip == "bias_scaled" else scores * scale + bias
    allowed = np.broadcast_to(True if mask is None else mask, scores.shape)
    if slip == "mask_flipped":
        allowed = ~allowed
    if slip == "zero_scores_hidden":
        allowed = allowed & (scores != 0.0)
    if slip == "mask_of_other_rows":
        # The masks are repeated head by head, although the (row, head) pairs run row by row.
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
    source = query if key_value is None or slip == "key_value_ignored" else key_value
    sources = {"q_proj": query, "k_proj": source, "v_proj": source}
    sources |= {
        "keys_from_queries": {"k_proj": query},
        "values_from_queries": {"v_proj": query},
        "queries_from_source": {"q_proj": source},
    }.get(slip, {})
    used = PROJECTIONS.get(slip, {})
    q, k, v = (
        _split(linear(scope.child(used.get(name, name)), source), heads, slip)
        for name, source in sources.items()
    )
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    offset = {
        "offset_ignored": 0,
        "key_offset_ignored": query_offset,
        "offsets_added": query_offset + key_offset,
    }.get(slip, query_offset - key_offset)
    masks = {
        "attention_mask": combine_masks(attention_mask),
        "key_valid": combine_masks(key_valid=key_valid),
        "causal": combine_masks(causal_mask(q.shape[2], k.shape[2], offset)) if causal else None,
    }
    if slip == "key_valid_on_queries" and key_valid is not None:
        masks["key_valid"] = key_valid[:, None, :, None]
    if slip == "causal_lost_with_padding" and key_valid is not None:
        masks["causal"] = None
    if slip == "key_valid_lost_with_causal" and causal:
        masks["key_valid"] = None
    given = [m for name, m in masks.items() if m is not None and slip != f"{name}_ignored"]
    mask = reduce(operator.or_ if slip == "masks_or" else operator.and_, given) if given else None
    if query_valid is not None and mask is not None:
        mask = mask | ~query_valid[:, None, :, None]
    if slip == "attends_between_heads":
        q, k, v = q.swapaxes(1, 2), k.swapaxes(1, 2), v.swapaxes(1, 2)  # (B, T, H, K)
        context = wrong_scaled_dot_product_attention(q, k, v, slip=slip).context.swapaxes(1, 2)
    else:
        context = wrong_scaled_dot_product_attention(q, k, v, mask, score_bias, slip=slip).context
    merged = _merge(context, slip)
    if slip != "no_output_projection":
        merged = linear(scope.child("out_proj"), merged)
    return zero_padding(merged, query_valid)


def wrong_residual_branch(
    scope: Scope, x: Array, sublayer: Layer, *, slip: str, stream: Array | None = None
) -> Array:
    """Add a sub-layer to the stream as `residual_branch` does, but for one slip.

    Args:
        scope: norm.
        x: (B, T, D).
        sublayer: Maps (B, T, D) to (B, T, D).
        slip: Name of the mistake; an unknown name is none.
        stream: What is added to the branch in place of x.
    """

    def normed(y: Array) -> Array:
        return norm(scope.child("norm"), y)

    if slip == "branch_skipped":
        return x
    if slip == "residual_after_norm":
        return normed(x) + sublayer(normed(x))
    if slip == "norm_on_branch":
        return x + normed(sublayer(x))
    if slip == "norm_on_residual":
        return normed(x) + sublayer(x)
    pre = (scope.config.placement == "pre") != (slip == "other_placement")
    stream = x if stream is None else stream
    branch = sublayer(normed(x) if pre and slip != "norm_skipped" else x)
    if slip == "branch_twice":
        branch = sublayer(branch)
    total = {
        "residual_omitted": branch,
        "residual_doubled": stream + stream + branch,
        "residual_multiplied": stream * branch,
        "residual_subtracted": stream - branch,
        "branch_added_to_itself": branch + branch,
    }.get(slip, stream + branch)
    if slip == "normed_twice":
        return normed(total) if pre else normed(x + sublayer(normed(x)))
    return total if pre or slip == "norm_skipped" else normed(total)


def wrong_block(
    scope: Scope,
    x: Array,
    memory: Array | None = None,
    *,
    valid: Mask | None = None,
    target_valid: Mask | None = None,
    memory_valid: Mask | None = None,
    score_bias: Array | None = None,
    causal: bool,
    slip: str,
) -> Array:
    """Run `encoder_block`, `causal_block` or, with a memory, `decoder_block`, but for one slip.

    Inputs have the same names as there; a slip in one branch is `<slip>:<branch>`.
    """
    valid = valid if memory is None else target_valid
    start = x
    looked_back: list[Array] = []
    own, cross = {
        "attentions_exchanged": ("cross_attention", "self_attention"),
        "self_attention_used_twice": ("self_attention", "self_attention"),
    }.get(slip, ("self_attention", "cross_attention"))

    def attend(y: Array) -> Array:
        ignored = slip in ("valid_ignored", "target_valid_ignored")
        context = multi_head_attention(
            scope.child(own),
            y,
            key_valid=None if ignored else valid,
            query_valid=valid,
            causal=causal != (slip in ("future_visible", "future_hidden")),
            score_bias=None if slip == "score_bias_ignored" else score_bias,
        )
        looked_back.append(context)
        return context

    def look_at_memory(y: Array) -> Array:
        return multi_head_attention(
            scope.child(cross),
            looked_back[-1] if slip == "cross_query_bypass" else y,
            {"cross_reads_target": y, "cross_reads_block_input": start}.get(slip, memory),
            key_valid=None if slip == "memory_valid_ignored" else memory_valid,
            query_valid=valid,
            causal=slip == "memory_hidden",
            score_bias=score_bias if slip == "score_bias_on_cross" else None,
        )

    layers: dict[str, Layer] = {"attention_branch": attend}
    if memory is not None:
        layers = {"self_branch": attend, "cross_branch": look_at_memory}
    layers["feed_forward_branch"] = lambda y: feed_forward(scope.child("feed_forward"), y)
    names = list(layers)
    norms = {name: name for name in names}
    if slip == "norms_exchanged":
        norms = {name: names[(place + 1) % len(names)] for place, name in enumerate(names)}
    order = {
        "order_exchanged": names[::-1],
        "cross_before_self": [names[1], names[0], *names[2:]],
    }.get(slip, names)
    kind, _, place = slip.partition(":")
    for name in order:
        layer, stream = layers[name], x
        here = kind if name == place else ""
        if here == "starts_again":
            x = stream = start
        if here == "wrong_residual":
            stream = start
        if slip == "residual_from_memory" and name == "cross_branch" and memory is not None:
            stream = memory
        if here == "reads_block_input":
            layer = _fed_with(start, layer)
        x = wrong_residual_branch(scope.child(norms[name]), x, layer, slip=here, stream=stream)
    return zero_padding(x, valid)


def _fed_with(x: Array, layer: Layer) -> Layer:
    """Return a layer that reads x and ignores its input."""
    return lambda _: layer(x)


def wrong_stack(
    scope: Scope, x: Array, memory: Array | None = None, *, slip: str, **given: Any
) -> Array:
    """Run `encoder` or, with a memory, `decoder`, but for one slip.

    Args:
        scope: blocks and, where it is pre-norm, final_norm.
        x: (B, T, D).
        memory: (B, S, D), for the decoder's blocks.
        slip: Name of the mistake; `<input>_not_handed_on` does not pass an input to the blocks.
        given: Inputs of the blocks.
    """
    valid = given.get("valid" if memory is None else "target_valid")
    given = {name: value for name, value in given.items() if slip != f"{name}_not_handed_on"}
    layers = range(scope.config.num_layers)
    order: list[int] = {
        "first_block_only": [layers[0]],
        "input_to_every_block": [layers[-1]],
        "last_block_missing": [*layers[:-1]],
        "first_block_missing": [*layers[1:]],
        "reversed_blocks": [*layers[::-1]],
        "first_block_shared": [layers[0] for _ in layers],
        "last_block_shared": [layers[-1] for _ in layers],
    }.get(slip, [*layers])
    block: Callable[..., Array] = encoder_block if memory is None else decoder_block
    if memory is not None:
        given["memory"] = x if slip == "memory_is_target" else memory

    def finished(y: Array) -> Array:
        if scope.config.placement == "pre":
            y = norm(scope.child("final_norm"), y)
        return zero_padding(y, valid)

    for number, layer in enumerate(order):
        if slip == "memory_is_stream":
            given["memory"] = x
        if slip == "score_bias_first_block_only" and number:
            given["score_bias"] = None
        x = block(scope.child(f"blocks.{layer}"), x, **given)
        if slip == "final_norm_in_every_block":
            x = finished(x)
        if slip == "memory_replaced":
            given["memory"] = x
    if slip in ("final_norm_missing", "final_norm_in_every_block"):
        return zero_padding(x, valid)
    return finished(x)
