"""Branches, blocks and stacks with one slip in them (see slips.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from grader.oracle.attention import zero_padding
from grader.oracle.layers import LAYER_NORM_EPS, RMS_NORM_EPS, feed_forward
from grader.oracle.scope import Array, Mask, Scope
from grader.oracle.slips import wrong_multi_head_attention

Layer = Callable[[Array], Array]
Block = Callable[..., Array]


def _norm(scope: Scope, x: Array) -> Array:
    if scope.config.norm == "layernorm":
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = (centred**2).mean(axis=-1, keepdims=True)
        return np.asarray(
            centred / np.sqrt(variance + LAYER_NORM_EPS) * scope["weight"] + scope["bias"]
        )
    mean_square = (x**2).mean(axis=-1, keepdims=True)
    return np.asarray(x / np.sqrt(mean_square + RMS_NORM_EPS) * scope["weight"])


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

    def norm(y: Array) -> Array:
        return _norm(scope.child("norm"), y)

    if slip == "branch_skipped":
        return x
    pre = (scope.config.placement == "pre") != (slip == "other_placement")
    if slip == "residual_after_norm":
        return norm(x) + sublayer(norm(x))
    if slip == "norm_on_branch":
        return x + norm(sublayer(x))
    if slip == "norm_on_residual":
        return norm(x) + sublayer(x)
    stream = x if stream is None else stream
    branch = sublayer(norm(x) if pre and slip != "norm_skipped" else x)
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
        return norm(total) if pre else norm(x + sublayer(norm(x)))
    return total if pre or slip == "norm_skipped" else norm(total)


def _slip_in(branch: str, slip: str) -> str:
    """Return the residual slip that `<slip>:<branch>` places in this branch, or ""."""
    kind, _, place = slip.partition(":")
    return kind if place == branch else ""


def _fed_with(layer: Layer, x: Array) -> Layer:
    """Return a layer that reads x, whatever it is handed."""
    return lambda _: layer(x)


def _run(
    scope: Scope, x: Array, layers: list[tuple[str, Layer]], valid: Mask | None, slip: str
) -> Array:
    """Run the branches in order, with the slips that concern how they are put together."""
    start = x
    names = [name for name, _ in layers]
    if slip == "norms_exchanged":
        names = [*names[1:], names[0]]
    if slip == "order_exchanged":
        layers, names = layers[::-1], names[::-1]
    for index, (name, layer) in enumerate(layers):
        own = _slip_in(name, slip)
        stream = start if own == "wrong_residual" else None
        if own == "starts_again":
            x = start
        if own == "reads_block_input":
            layer = _fed_with(layer, start)
        branch = scope.child(names[index])
        x = wrong_residual_branch(branch, x, layer, slip=own, stream=stream)
    return zero_padding(x, valid)


def _self_attention(
    scope: Scope, valid: Mask | None, score_bias: Array | None, *, causal: bool, slip: str
) -> Layer:
    """Return the block's self-attention; it passes attention's own slips on."""
    name = "cross_attention" if slip == "attentions_exchanged" else "self_attention"
    own = {
        "target_valid_ignored": "key_valid_ignored",
        "valid_ignored": "key_valid_ignored",
        "future_visible": "causal_ignored",
    }
    return lambda y: wrong_multi_head_attention(
        scope.child(name),
        y,
        key_valid=valid,
        query_valid=valid,
        causal=causal or slip == "future_hidden",
        score_bias=None if slip == "score_bias_ignored" else score_bias,
        slip=own.get(slip, slip),
    )


def wrong_encoder_block(
    scope: Scope,
    x: Array,
    valid: Mask | None = None,
    score_bias: Array | None = None,
    *,
    slip: str,
    causal: bool = False,
) -> Array:
    """Run `encoder_block`, but for one slip; a slip of one branch is `<slip>:<branch>`."""
    layers = [
        ("attention_branch", _self_attention(scope, valid, score_bias, causal=causal, slip=slip)),
        ("feed_forward_branch", lambda y: feed_forward(scope.child("feed_forward"), y)),
    ]
    return _run(scope, x, layers, valid, slip)


def wrong_causal_block(
    scope: Scope,
    x: Array,
    *,
    valid: Mask | None = None,
    score_bias: Array | None = None,
    slip: str,
) -> Array:
    """Run `causal_block`, but for one slip; a slip of one branch is `<slip>:<branch>`."""
    return wrong_encoder_block(scope, x, valid, score_bias, slip=slip, causal=True)


def wrong_decoder_block(
    scope: Scope,
    x: Array,
    memory: Array,
    *,
    target_valid: Mask | None = None,
    memory_valid: Mask | None = None,
    score_bias: Array | None = None,
    slip: str,
) -> Array:
    """Run `decoder_block`, but for one slip; a slip of one branch is `<slip>:<branch>`."""
    looked_back: list[Array] = []
    attend = _self_attention(scope, target_valid, score_bias, causal=True, slip=slip)

    def look_back(y: Array) -> Array:
        looked_back.append(attend(y))
        return looked_back[-1]

    def look_at_memory(y: Array) -> Array:
        name = "self_attention" if slip == "attentions_exchanged" else "cross_attention"
        if slip == "self_attention_used_twice":
            name = "self_attention"
        source = {"cross_reads_target": y, "cross_reads_block_input": x}.get(slip, memory)
        return wrong_multi_head_attention(
            scope.child(name),
            looked_back[-1] if slip == "cross_query_bypass" else y,
            source,
            key_valid=None if slip == "memory_valid_ignored" else memory_valid,
            query_valid=target_valid,
            causal=slip == "memory_hidden",
            score_bias=score_bias if slip == "score_bias_on_cross" else None,
            slip="",
        )

    layers: list[tuple[str, Layer]] = [
        ("self_branch", look_back),
        ("cross_branch", look_at_memory),
        ("feed_forward_branch", lambda y: feed_forward(scope.child("feed_forward"), y)),
    ]
    if slip == "cross_before_self":
        layers[:2] = layers[1::-1]
    if slip == "residual_from_memory":
        x = wrong_residual_branch(scope.child("self_branch"), x, look_back, slip="")
        branch = scope.child("cross_branch")
        x = wrong_residual_branch(branch, x, look_at_memory, slip="", stream=memory)
        layers = layers[2:]
    return _run(scope, x, layers, target_valid, slip)


def _blocks(scope: Scope, slip: str) -> Iterator[Scope]:
    """Yield the blocks that a stack with this slip runs, in its order."""
    order = list(range(scope.config.num_layers))
    order = {
        "first_block_only": order[:1],
        "last_block_only": order[-1:],
        "input_to_every_block": order[-1:],
        "last_block_missing": order[:-1],
        "first_block_missing": order[1:],
        "reversed_blocks": order[::-1],
        "first_block_shared": order[:1] * len(order),
        "last_block_shared": order[-1:] * len(order),
    }.get(slip, order)
    return (scope.child(f"blocks.{layer}") for layer in order)


def _wrong_stack(
    block: Block, scope: Scope, x: Array, *inputs: Array, valid: Mask | None, slip: str,
    handed_on: dict[str, Any],
) -> Array:  # fmt: skip
    """Run a stack, but for one slip; `<name>_not_handed_on` drops a keyword of the blocks."""
    dropped = slip.removesuffix("_not_handed_on") if slip.endswith("_not_handed_on") else None
    given = {name: value for name, value in handed_on.items() if name != dropped}
    if slip == "memory_is_target" and inputs:
        inputs = (x,)
    for layer, child in enumerate(_blocks(scope, slip)):
        if slip == "memory_is_stream" and inputs:
            inputs = (x,)
        if slip == "score_bias_first_block_only" and layer:
            given.pop("score_bias", None)
        x = block(child, x, *inputs, **given, slip="")
        if slip == "final_norm_in_every_block" and scope.config.placement == "pre":
            x = zero_padding(_norm(scope.child("final_norm"), x), valid)
        if slip == "memory_replaced" and inputs:
            inputs = (x,)
    if scope.config.placement == "pre" and slip not in (
        "final_norm_missing",
        "final_norm_in_every_block",
    ):
        x = _norm(scope.child("final_norm"), x)
    return zero_padding(x, valid)


def wrong_encoder(
    scope: Scope,
    x: Array,
    valid: Mask | None = None,
    score_bias: Array | None = None,
    *,
    slip: str,
) -> Array:
    """Run `encoder`, but for one slip."""
    handed_on = {"valid": valid, "score_bias": score_bias}
    return _wrong_stack(wrong_encoder_block, scope, x, valid=valid, slip=slip, handed_on=handed_on)


def wrong_decoder(
    scope: Scope,
    x: Array,
    memory: Array,
    *,
    target_valid: Mask | None = None,
    memory_valid: Mask | None = None,
    score_bias: Array | None = None,
    slip: str,
) -> Array:
    """Run `decoder`, but for one slip."""
    handed_on = {
        "target_valid": target_valid, "memory_valid": memory_valid, "score_bias": score_bias
    }  # fmt: skip
    return _wrong_stack(
        wrong_decoder_block, scope, x, memory, valid=target_valid, slip=slip, handed_on=handed_on
    )
