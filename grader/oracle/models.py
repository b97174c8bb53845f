"""The two models, from token ids to logits."""

from __future__ import annotations

from grader.oracle.attention import padding_mask
from grader.oracle.layers import sinusoidal_positions, t5_bias, token_embedding
from grader.oracle.scope import Array, Ids, Mask, Scope
from grader.oracle.stacks import causal_stack, decoder, encoder


def add_positions(scope: Scope, x: Array) -> Array:
    """Add to each vector of x (B, T, D) what its position adds, if the scheme adds any."""
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
    """Encode the source (B, S) and score the target (B, T): logits (B, T, V)."""
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
    """Compare x (B, T, D) with a vector per id: the embedding's own if tied."""
    table = (tied_to or scope.child("output_projection"))["weight"]  # (V, D)
    logits: Array = x @ table.T
    return logits
