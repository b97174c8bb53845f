"""Refusals that attention shares (given): each message says what was expected and what came."""

import torch
from torch import Tensor, nn

from .cache import CacheSlot


def check_attention_inputs(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
    """Refuse tensors that scaled_dot_product_attention cannot combine.

    Args:
        query: (B, H, T, K) float.
        key: (B, H, S, K) float.
        value: (B, H, S, K) float.
        mask: (B or 1, H or 1, T or 1, S) bool, or None.

    Raises:
        TypeError: mask is not bool.
        ValueError: Shapes that do not fit.
    """
    if query.dim() != 4:
        raise ValueError(f"query must have shape (B, H, T, K), got {tuple(query.shape)}")
    batch, heads, num_queries, width = query.shape
    num_keys = key.shape[-2]
    if num_keys < 1:
        raise ValueError(f"there must be at least one key, got shape {tuple(key.shape)}")
    expected = (batch, heads, num_keys, width)
    if key.shape != expected or value.shape != expected:
        raise ValueError(
            f"key and value must have shape {expected} to go with query {tuple(query.shape)}, "
            f"got {tuple(key.shape)} and {tuple(value.shape)}"
        )
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be bool (True = may attend), got {mask.dtype}")
    check_broadcast("mask", mask, (batch, heads, num_queries, num_keys))
    if mask.shape[-1] != num_keys:
        raise ValueError(f"mask must name each of {num_keys} keys, got shape {tuple(mask.shape)}")


def numbers_are_known() -> bool:
    """Tell whether a decision may hang on the numbers in a tensor.

    It may not while torch.compile or torch.export trace a program, which must hold for all
    numbers, nor inside torch.func.vmap, where a tensor stands for many at once. What is wrong
    with the numbers goes unnoticed there.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._functorch.peek_interpreter_stack() is None


def check_broadcast(name: str, given: Tensor | None, full: tuple[int, ...]) -> None:
    """Refuse what would not leave the shape of the scores as it is.

    Args:
        name: What it is called in the message.
        given: Four dimensions, each 1 or that of the scores; None always fits.
        full: (B, H, T, S), the shape of the scores.

    Raises:
        ValueError: Another shape.
    """
    if given is None:
        return
    if given.dim() != 4 or any(g not in (1, f) for g, f in zip(given.shape, full, strict=True)):
        raise ValueError(f"{name} must broadcast to {full}, got shape {tuple(given.shape)}")


def check_shapes(
    query: Tensor,
    key_value: Tensor | None,
    key_valid: Tensor | None,
    query_valid: Tensor | None,
    d_model: int,
) -> None:
    """Refuse what MultiHeadAttention cannot read.

    Args:
        query: (B, T, D) float.
        key_value: (B, S, D) float, or None where query is the source of keys and values.
        key_valid: (B, S) bool or None.
        query_valid: (B, T) bool or None.
        d_model: D.

    Raises:
        TypeError: A mask is not bool.
        ValueError: Shapes that do not fit.
    """
    if query.dim() != 3 or query.shape[1] < 1 or query.shape[2] != d_model:
        raise ValueError(
            f"query must have shape (B, T, {d_model}) with T at least 1, got {tuple(query.shape)}"
        )
    source = query if key_value is None else key_value
    if source.dim() != 3 or source.shape[::2] != query.shape[::2]:
        raise ValueError(
            f"key_value must have shape ({query.shape[0]}, S, {d_model}), got {tuple(source.shape)}"
        )
    for name, valid, tokens in (("key", key_valid, source), ("query", query_valid, query)):
        if valid is None:
            continue
        if valid.dtype != torch.bool:
            raise TypeError(f"{name}_valid must be bool (True = real token), got {valid.dtype}")
        expected = tuple(tokens.shape[:2])
        if valid.shape != expected:
            raise ValueError(f"{name}_valid must have shape {expected}, got {tuple(valid.shape)}")


def check_cache(
    key_value: Tensor | None,
    query_offset: int,
    key_offset: int,
    cache: CacheSlot | None,
    dropout: nn.Dropout,
) -> None:
    """Refuse negative offsets, and a cache that does not go with the rest of the call.

    Args:
        key_value: (B, S, D) float, or None in self-attention.
        query_offset: Position of the first query.
        key_offset: Position of the first key, the remembered ones included.
        cache: What this layer remembers, or None.
        dropout: The layer's dropout; it must be idle where there is a cache.

    Raises:
        ValueError: Offsets or a cache that do not fit.
    """
    if query_offset < 0 or key_offset < 0:
        raise ValueError(f"offsets must not be negative, got {query_offset} and {key_offset}")
    if cache is None:
        return
    if dropout.training and dropout.p > 0.0:
        raise ValueError(f"a cache needs eval() or dropout 0, got train() and dropout {dropout.p}")
    if key_offset != 0:
        raise ValueError(f"key_offset must be 0 with a cache, got {key_offset}")
    if key_value is None and query_offset != cache.length:
        raise ValueError(
            f"query_offset must be the cached length {cache.length}, got {query_offset}"
        )
    if key_value is not None and cache.length and key_value.shape[1]:
        raise ValueError(
            f"{cache.length} keys of the memory are cached already, "
            f"got {key_value.shape[1]} more: pass memory[:, :0]"
        )


def check_masks(
    attention_mask: Tensor | None,
    query_valid: Tensor | None,
    scores: tuple[int, int, int, int],
    causal: bool,
    query_offset: int,
    key_offset: int,
) -> None:
    """Refuse a mask that does not name every query and key, and offsets that leave no key.

    Args:
        attention_mask: (T, S), (B, T, S) or (B or 1, H or 1, T, S) bool, or None.
        query_valid: (B, T) bool, or None.
        scores: (B, H, T, S), where S counts the remembered keys too.
        causal: Whether keys that come later than the query are hidden.
        query_offset: Position of the first query.
        key_offset: Position of the first key.

    Raises:
        ValueError: Another shape, or a real query before the first key of a causal call.
    """
    shape = scores if attention_mask is None else tuple(attention_mask.shape)
    named = (scores[0], *scores[2:]) if len(shape) == 3 else scores[2:]
    if shape[-len(named) :] != named:
        raise ValueError(
            f"attention_mask must broadcast to {scores}, got shape {shape}: "
            "it must name every query and every key"
        )
    early = key_offset - query_offset
    if causal and early > 0 and numbers_are_known():
        real = torch.ones(scores[0], scores[2]) if query_valid is None else query_valid
        if real[:, :early].any():
            raise ValueError(
                f"every query must be allowed at least one key, but with query_offset "
                f"{query_offset} and key_offset {key_offset} a causal call has queries that "
                "stand before every key"
            )
