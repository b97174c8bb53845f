"""Residual branches, blocks and the stacks made of them."""

from __future__ import annotations

from collections.abc import Callable

from grader.oracle.attention import multi_head_attention, zero_padding
from grader.oracle.layers import feed_forward, norm
from grader.oracle.scope import Array, Mask, Scope


def residual_branch(scope: Scope, x: Array, sublayer: Callable[[Array], Array]) -> Array:
    """Add a sub-layer to the stream: x + f(norm(x)) before it (pre), norm(x + f(x)) after (post).

    Source: Vaswani et al. 2017, section 3.1 (post); Xiong et al. 2020, arxiv.org/abs/2002.04745.
    """
    if scope.config.placement == "pre":
        return scope.record(x + sublayer(norm(scope.child("norm"), x)))
    return scope.record(norm(scope.child("norm"), x + sublayer(x)))


def encoder_block(
    scope: Scope, x: Array, valid: Mask | None = None, score_bias: Array | None = None
) -> Array:
    """Let every real position see every real position, then feed forward; padding becomes 0.

    Args:
        scope: self_attention, attention_branch, feed_forward, feed_forward_branch.
        x: (B, S, D).
        valid: (B, S), True = real; None = all.
        score_bias: (1 or B, H, S, S).

    Returns:
        (B, S, D).
    """
    return _self_attending_block(scope, x, valid, score_bias, causal=False)


def causal_block(
    scope: Scope,
    x: Array,
    *,
    valid: Mask | None = None,
    score_bias: Array | None = None,
) -> Array:
    """Let every real position see itself and what came before; otherwise an encoder block."""
    return _self_attending_block(scope, x, valid, score_bias, causal=True)


def _self_attending_block(
    scope: Scope, x: Array, valid: Mask | None, score_bias: Array | None, *, causal: bool
) -> Array:
    def attend(y: Array) -> Array:
        return _self_attention(scope, y, valid, score_bias, causal=causal)

    x = residual_branch(scope.child("attention_branch"), x, attend)
    x = _feed_forward_branch(scope, x)
    return scope.record(zero_padding(x, valid))


def _self_attention(
    scope: Scope, x: Array, valid: Mask | None, score_bias: Array | None, *, causal: bool
) -> Array:
    return multi_head_attention(
        scope.child("self_attention"),
        x,
        rope=scope.config.positions == "rope",
        key_valid=valid,
        query_valid=valid,
        causal=causal,
        score_bias=score_bias,
    )


def _feed_forward_branch(scope: Scope, x: Array) -> Array:
    widen = scope.child("feed_forward")
    return residual_branch(scope.child("feed_forward_branch"), x, lambda y: feed_forward(widen, y))


def decoder_block(
    scope: Scope,
    x: Array,
    memory: Array,
    *,
    target_valid: Mask | None = None,
    memory_valid: Mask | None = None,
    score_bias: Array | None = None,
) -> Array:
    """Look back over the target, then over the whole memory, then feed forward; padding becomes 0.

    Args:
        scope: self_attention, self_branch, cross_attention, cross_branch, feed_forward,
            feed_forward_branch.
        x: (B, T, D).
        memory: (B, S, D), the encoder's output.
        target_valid: (B, T), True = real; None = all.
        memory_valid: (B, S), True = real; None = all.
        score_bias: (1 or B, H, T, T), for the self-attention only.

    Returns:
        (B, T, D).
    """

    def look_back(y: Array) -> Array:
        return _self_attention(scope, y, target_valid, score_bias, causal=True)

    def look_at_memory(y: Array) -> Array:
        return multi_head_attention(
            scope.child("cross_attention"),
            y,
            memory,
            rope=scope.config.rope_cross,
            key_valid=memory_valid,
            query_valid=target_valid,
        )

    x = residual_branch(scope.child("self_branch"), x, look_back)
    x = residual_branch(scope.child("cross_branch"), x, look_at_memory)
    x = _feed_forward_branch(scope, x)
    return scope.record(zero_padding(x, target_valid))


def encoder(
    scope: Scope, x: Array, valid: Mask | None = None, score_bias: Array | None = None
) -> Array:
    """Run the encoder blocks one after another, then the final norm; shapes as in encoder_block."""
    for layer in range(scope.config.num_layers):
        x = encoder_block(scope.child(f"blocks.{layer}"), x, valid, score_bias)
    return _finished(scope, x, valid)


def decoder(
    scope: Scope,
    x: Array,
    memory: Array,
    *,
    target_valid: Mask | None = None,
    memory_valid: Mask | None = None,
    score_bias: Array | None = None,
) -> Array:
    """Run the decoder blocks one after another, then the final norm; shapes as in decoder_block."""
    for layer in range(scope.config.num_layers):
        x = decoder_block(
            scope.child(f"blocks.{layer}"),
            x,
            memory,
            target_valid=target_valid,
            memory_valid=memory_valid,
            score_bias=score_bias,
        )
    return _finished(scope, x, target_valid)


def causal_stack(
    scope: Scope, x: Array, *, valid: Mask | None = None, score_bias: Array | None = None
) -> Array:
    """Run the causal blocks one after another, then the final norm; shapes as in encoder_block."""
    for layer in range(scope.config.num_layers):
        x = causal_block(scope.child(f"blocks.{layer}"), x, valid=valid, score_bias=score_bias)
    return _finished(scope, x, valid)


def _finished(scope: Scope, x: Array, valid: Mask | None) -> Array:
    """Normalise what a pre-norm stack hands out (a post-norm one has just done so)."""
    if scope.config.placement == "pre":
        x = scope.child("final_norm").record(norm(scope.child("final_norm"), x))
        x = zero_padding(x, valid)
    return scope.record(x)
