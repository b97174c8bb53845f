"""Residual branches, blocks, stacks, and the two models from token ids to logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grader.oracle.attention import multi_head_attention, padding_mask, zero_padding
from grader.oracle.layers import feed_forward, norm, sinusoidal_positions, t5_bias, token_embedding
from grader.oracle.scope import Array, Ids, Mask, Scope


def residual_branch(scope: Scope, x: Array, sublayer: Callable[[Array], Array]) -> Array:
    """Add a sub-layer to the stream: x + f(norm(x)) before it (pre), norm(x + f(x)) after (post).

    Source: Vaswani et al. 2017, section 3.1 (post); Xiong et al. 2020, arxiv.org/abs/2002.04745.
    """
    if scope.config.placement == "pre":
        return scope.record(x + sublayer(norm(scope.child("norm"), x)))
    return scope.record(norm(scope.child("norm"), x + sublayer(x)))


def encoder_block(
    scope: Scope,
    x: Array,
    valid: Mask | None = None,
    score_bias: Array | None = None,
    *,
    causal: bool = False,
) -> Array:
    """Let every real position see every real position, then feed forward; padding becomes 0.

    Args:
        scope: self_attention, attention_branch, feed_forward, feed_forward_branch.
        x: (B, S, D).
        valid: (B, S), True = real; None = all.
        score_bias: (1 or B, H, S, S).
        causal: Positions see themselves and what came before only.

    Returns:
        (B, S, D).
    """

    def attend(y: Array) -> Array:
        return _self_attention(scope, y, valid, score_bias, causal=causal)

    x = residual_branch(scope.child("attention_branch"), x, attend)
    x = _feed_forward_branch(scope, x)
    return scope.record(zero_padding(x, valid))


def causal_block(
    scope: Scope, x: Array, *, valid: Mask | None = None, score_bias: Array | None = None
) -> Array:
    """Let every real position see itself and what came before; otherwise an encoder block."""
    return encoder_block(scope, x, valid, score_bias, causal=True)


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
    """Attend to the earlier target, then to the whole memory, then feed forward; padding becomes 0.

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
    return _stack(scope, x, valid, lambda block, y: encoder_block(block, y, valid, score_bias))


def causal_stack(
    scope: Scope, x: Array, *, valid: Mask | None = None, score_bias: Array | None = None
) -> Array:
    """Run the causal blocks one after another, then the final norm; shapes as in encoder_block."""
    return _stack(
        scope, x, valid, lambda block, y: encoder_block(block, y, valid, score_bias, causal=True)
    )


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
    own: dict[str, Any] = {
        "target_valid": target_valid,
        "memory_valid": memory_valid,
        "score_bias": score_bias,
    }
    return _stack(scope, x, target_valid, lambda block, y: decoder_block(block, y, memory, **own))


def _stack(
    scope: Scope, x: Array, valid: Mask | None, block: Callable[[Scope, Array], Array]
) -> Array:
    """Run one block per layer; a pre-norm stack normalises its output at the end."""
    for layer in range(scope.config.num_layers):
        x = block(scope.child(f"blocks.{layer}"), x)
    if scope.config.placement == "pre":
        x = scope.child("final_norm").record(norm(scope.child("final_norm"), x))
        x = zero_padding(x, valid)
    return scope.record(x)


def add_positions(scope: Scope, x: Array) -> Array:
    """Add the position vectors to x (B, T, D), if the scheme has any."""
    length = x.shape[1]
    if scope.config.positions == "learned":
        return scope.record(x + scope["weight"][:length])
    if scope.config.positions == "sinusoidal":
        return scope.record(x + sinusoidal_positions(length, scope.config.d_model))
    return scope.record(x)


def position_bias(scope: Scope, length: int, *, bidirectional: bool) -> Array | None:
    """Score bias of the scheme, (1, H, T, T), or None."""
    if scope.config.positions != "t5bias":
        return None
    return t5_bias(scope, length, length, bidirectional=bidirectional)


def encode(scope: Scope, source: Ids, source_valid: Mask | None = None) -> Array:
    """Read source ids (B, S) into the memory (B, S, D).

    Args:
        scope: source_embedding, source_positions, encoder.
        source: (B, S).
        source_valid: (B, S), True = real; None = every id but PAD.
    """
    valid = _valid(scope, source, source_valid)
    positions = scope.child("source_positions")
    x = add_positions(positions, token_embedding(scope.child("source_embedding"), source))
    bias = position_bias(positions, source.shape[1], bidirectional=True)
    return encoder(scope.child("encoder"), x, valid, bias)


def decode(
    scope: Scope,
    target: Ids,
    memory: Array,
    *,
    memory_valid: Mask | None = None,
    target_valid: Mask | None = None,
) -> Array:
    """Score every next id: logits (B, T, V).

    Args:
        scope: target_embedding, target_positions, decoder, output_projection.
        target: (B, T).
        memory: (B, S, D).
        memory_valid: (B, S), True = real; None = all.
        target_valid: (B, T), True = real; None = every id but PAD.
    """
    valid = _valid(scope, target, target_valid)
    positions = scope.child("target_positions")
    embedding = scope.child("target_embedding")
    x = add_positions(positions, token_embedding(embedding, target))
    bias = position_bias(positions, target.shape[1], bidirectional=False)
    x = decoder(
        scope.child("decoder"),
        x,
        memory,
        target_valid=valid,
        memory_valid=memory_valid,
        score_bias=bias,
    )
    tied_to = embedding if scope.config.tied else None  # separate unless asked for
    return _logits(scope, x, tied_to)


def seq2seq(
    scope: Scope,
    source: Ids,
    target: Ids,
    source_valid: Mask | None = None,
    target_valid: Mask | None = None,
) -> Array:
    """Encode the source (B, S) and return the logits of the target (B, T): (B, T, V)."""
    valid = _valid(scope, source, source_valid)
    memory = encode(scope, source, valid)
    return decode(scope, target, memory, memory_valid=valid, target_valid=target_valid)


def decoder_only(scope: Scope, tokens: Ids, valid_tokens: Mask | None = None) -> Array:
    """Score every next id of tokens (B, T): logits (B, T, V).

    Args:
        scope: token_embedding, positions, stack, and output_projection unless tied.
        tokens: (B, T).
        valid_tokens: (B, T), True = real; None = every id but PAD.
    """
    valid = _valid(scope, tokens, valid_tokens)
    positions, embedding = scope.child("positions"), scope.child("token_embedding")
    x = add_positions(positions, token_embedding(embedding, tokens))
    bias = position_bias(positions, tokens.shape[1], bidirectional=False)
    x = causal_stack(scope.child("stack"), x, valid=valid, score_bias=bias)
    return _logits(scope, x, None if scope.config.tied is False else embedding)  # tied by default


def _valid(scope: Scope, ids: Ids, valid: Mask | None) -> Mask:
    return padding_mask(ids, scope.config.pad_id) if valid is None else valid


def _logits(scope: Scope, x: Array, tied_to: Scope | None) -> Array:
    """Multiply x (B, T, D) by one vector per id, those of the embedding if tied: (B, T, V)."""
    table = (tied_to or scope.child("output_projection"))["weight"]  # (V, D)
    logits: Array = x @ table.T
    return logits
