"""Task 2: attention, with one head and with many.

At the end, for stretch task S2: grouped heads.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .cache import CacheSlot
from .checks import (
    check_attention_inputs,
    check_broadcast,
    check_cache,
    check_masks,
    check_shapes,
    numbers_are_known,
)
from .config import ModelConfig
from .grouped import attend_from_one_token
from .kv_cache import KVCache
from .masks import causal_mask, combine_masks, zero_padding
from .norms import make_norm
from .pieces import LONG, attend_in_pieces, hidden_by_bias
from .rotary import RotaryTables


class Attended(NamedTuple):
    """What attention returns.

    Args:
        context: (B, H, T, K), the averaged values.
        weights: (B, H, T, S), the weights of the average before dropout; each row sums to 1.
    """

    context: Tensor
    weights: Tensor


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    score_bias: Tensor | None = None,
    dropout: nn.Module | None = None,
) -> Attended:
    """Average the values, weighted by softmax(Q K^T / sqrt(K)).

    Args:
        query: (B, H, T, K) float.
        key: (B, H, S, K) float.
        value: (B, H, S, K) float.
        mask: (B or 1, H or 1, T or 1, S) bool, True = may attend; None = every key.
        score_bias: (B or 1, H or 1, T, S) float, added to the scaled scores; None = nothing.
        dropout: Applied to the weights before they average the values; None = nothing.

    Returns:
        Attended(context, weights): (B, H, T, K) and (B, H, T, S) float. A hidden key has weight
        exactly 0, and each row of weights sums to 1.

    Raises:
        TypeError: mask is not bool.
        ValueError: Shapes that do not fit, or a query row that may attend to no key.

    Source: Vaswani et al. 2017, eq. 1, arxiv.org/abs/1706.03762. Task 2.1. Hints:
        1. check_attention_inputs (given) raises the errors about types and shapes; the row
           without a key is yours.
        2. Scores have one row per query and one column per key: which axis must sum to 1?
           torch's softmax works along any.
        3. To hide a key, change its score before the softmax. What score gives weight 0?
    """
    # BEGIN SOLUTION 2.1
    check_attention_inputs(query, key, value, mask)
    # Scaling the query is the same as scaling the scores, of which there are more.
    scores = query / math.sqrt(query.shape[-1]) @ key.transpose(-2, -1)  # (B, H, T, S)
    if score_bias is not None:
        scores = scores + score_bias
    if mask is not None:
        if not mask.any(dim=-1).all():
            raise ValueError("every query must be allowed at least one key, got a row of none")
        scores = scores.masked_fill(~mask, -math.inf)
    weights = scores.softmax(dim=-1)
    dropped = weights if dropout is None else dropout(weights)
    return Attended(dropped @ value, weights)  # (B, H, T, K), (B, H, T, S)
    # END SOLUTION


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Cut every token's vector into one piece per head.

    Args:
        x: (B, T, H * K) float.
        num_heads: H; must divide the width of x.

    Returns:
        (B, H, T, K) float: head 0 holds the first K numbers of every token, and so on.

    Raises:
        ValueError: The width of x is not divisible by num_heads.

    Source: Vaswani et al. 2017, section 3.2.2, arxiv.org/abs/1706.03762. Task 2.2. Hints:
        1. The K numbers of one head lie side by side in memory: which new axis comes first?
        2. Only then move the head axis in front of the time axis.
    """
    # BEGIN SOLUTION 2.2
    if x.shape[-1] % num_heads:
        raise ValueError(
            f"the width must be divisible by num_heads, got {x.shape[-1]} and {num_heads}"
        )
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)  # (B, H, T, K)
    # END SOLUTION


def merge_heads(x: Tensor) -> Tensor:
    """Put the pieces of all heads side by side again; undoes split_heads.

    Args:
        x: (B, H, T, K) float.

    Returns:
        (B, T, H * K) float.

    Raises:
        ValueError: x does not have 4 dimensions.

    Source: Vaswani et al. 2017, section 3.2.2, arxiv.org/abs/1706.03762. Task 2.2. Hint: take
    the steps of split_heads backwards, in opposite order.
    """
    # BEGIN SOLUTION 2.2
    if x.dim() != 4:
        raise ValueError(f"x must have shape (B, H, T, K), got {tuple(x.shape)}")
    return x.transpose(1, 2).flatten(2)  # (B, T, H * K)
    # END SOLUTION


class MultiHeadAttention(nn.Module):
    """Attend with several heads at once, each in its own K of the D dimensions.

    Args:
        config: d_model, dropout and the fields on heads, biases and rotation are read.
        rope: Whether queries and keys are rotated by their positions.

    Source: Vaswani et al. 2017, section 3.2.2, arxiv.org/abs/1706.03762.
    """

    def __init__(self, config: ModelConfig, *, rope: bool) -> None:
        super().__init__()
        self.d_model = config.d_model
        self.num_heads = config.num_heads
        self.num_kv_heads = config.kv_heads
        width = config.num_heads * config.d_head
        kv_width = config.kv_heads * config.d_head
        qkv_bias = config.bias if config.qkv_bias is None else config.qkv_bias
        self.q_proj = nn.Linear(config.d_model, width, bias=qkv_bias)
        self.k_proj = nn.Linear(config.d_model, kv_width, bias=qkv_bias)
        self.v_proj = nn.Linear(config.d_model, kv_width, bias=qkv_bias)
        self.out_proj = nn.Linear(width, config.d_model, bias=config.bias)
        self.query_norm = make_norm(config, config.d_head) if config.qk_norm else None
        self.key_norm = make_norm(config, config.d_head) if config.qk_norm else None
        self.dropout = nn.Dropout(config.dropout)
        rope_width = config.rope_width or config.d_head
        self.rotary = RotaryTables(rope_width, config.max_len, config.rope_base) if rope else None

    def forward(
        self,
        query: Tensor,
        key_value: Tensor | None = None,
        *,
        attention_mask: Tensor | None = None,
        key_valid: Tensor | None = None,
        query_valid: Tensor | None = None,
        causal: bool = False,
        query_offset: int = 0,
        key_offset: int = 0,
        score_bias: Tensor | None = None,
        cache: CacheSlot | None = None,
    ) -> Tensor:
        """Let every token of query gather from the tokens of key_value.

        Args:
            query: (B, T, D) float.
            key_value: (B, S, D) float, source of keys and values (cross-attention); None = query
                itself (self-attention).
            attention_mask: (T, S), (B, T, S) or (B or 1, H or 1, T, S) bool, True = may attend.
            key_valid: (B, S) bool, True = real token.
            query_valid: (B, T) bool, True = real token.
            causal: Hide the keys that come later than the query.
            query_offset: Position of the first query.
            key_offset: Position of the first key.
            score_bias: (B or 1, H or 1, T, S) float, added to the scaled scores.
            cache: What this layer remembers of earlier calls, or None.

        Returns:
            (B, T, D) float; exactly 0 where query_valid is False.

        Raises:
            TypeError: A mask is not bool.
            ValueError: Shapes or offsets that do not fit, or a real query that may attend to no
                key. A padded query never raises.

        Source: Vaswani et al. 2017, section 3.2.2, arxiv.org/abs/1706.03762. Task 2.3. Hints:
            1. self.check (given) raises the errors about shapes and offsets; its arguments are
               those of forward, in their order, without score_bias.
            2. Project (q_proj, k_proj, v_proj), then split: queries into self.num_heads, keys
               and values into self.num_kv_heads.
            3. Then two given methods, in this order: self.rotate returns queries and keys,
               self.remember keys, values and key_valid. Each returns what it was given until
               its stretch task matters, so go on with what it returns.
            4. combine_masks joins the masks. With an offset, which position does query 0 have
               when seen from key 0? Count the keys after self.remember.
            5. Let padded queries attend to anything, so that no row is empty (without any mask
               none is), and set their output to 0 at the end with zero_padding.
            6. self.attend (given) calls your scaled_dot_product_attention, with self.dropout on
               the weights.
            7. Merge the heads and apply out_proj; self.dropout belongs on the output too.
        """
        # BEGIN SOLUTION 2.3
        masks = (attention_mask, key_valid, query_valid)
        self.check(query, key_value, *masks, causal, query_offset, key_offset, cache)
        source = query if key_value is None else key_value
        queries = split_heads(self.q_proj(query), self.num_heads)  # (B, H, T, K)
        keys = split_heads(self.k_proj(source), self.num_kv_heads)  # (B, H_kv, S, K)
        values = split_heads(self.v_proj(source), self.num_kv_heads)  # (B, H_kv, S, K)
        queries, keys = self.rotate(queries, keys, query_offset, key_offset, cache)
        keys, values, key_valid = self.remember(keys, values, key_valid, cache)

        past = None
        if causal:
            past = causal_mask(
                queries.shape[2], keys.shape[2], query_offset - key_offset, query.device
            )
        mask = combine_masks(attention_mask, key_valid, past)
        if mask is not None and query_valid is not None:
            mask = mask | ~query_valid[:, None, :, None]  # (B, H or 1, T, S)
        attended = self.attend(queries, keys, values, mask, score_bias)
        output = self.dropout(self.out_proj(merge_heads(attended.context)))  # (B, T, D)
        return zero_padding(output, query_valid)
        # END SOLUTION

    def check(
        self,
        query: Tensor,
        key_value: Tensor | None,
        attention_mask: Tensor | None,
        key_valid: Tensor | None,
        query_valid: Tensor | None,
        causal: bool,
        query_offset: int,
        key_offset: int,
        cache: CacheSlot | None,
    ) -> None:
        """Refuse what forward cannot read (given); the arguments are those of forward.

        Raises:
            TypeError: A mask is not bool.
            ValueError: Shapes or offsets that do not fit.
        """
        check_shapes(query, key_value, key_valid, query_valid, self.d_model)
        check_cache(key_value, query_offset, key_offset, cache, self.dropout)
        keys = query if key_value is None else key_value
        num_keys = keys.shape[1] + (0 if cache is None else cache.length)
        scores = (query.shape[0], self.num_heads, query.shape[1], num_keys)
        check_masks(attention_mask, query_valid, scores, causal, query_offset, key_offset)

    def rotate(
        self,
        queries: Tensor,
        keys: Tensor,
        query_offset: int,
        key_offset: int,
        cache: CacheSlot | None,
    ) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys by their positions, where these are rotary (given; task S3).

        Where the configuration says so (qk_norm), both are normalised first.

        Args:
            queries: (B, H, T, K) float.
            keys: (B, H_kv, S, K) float, the new ones only.
            query_offset: Position of the first query.
            key_offset: Position of the first key, the remembered ones included.
            cache: What this layer remembers, or None.

        Returns:
            Both, in their shapes.
        """
        if self.query_norm is not None and self.key_norm is not None:
            queries, keys = self.query_norm(queries), self.key_norm(keys)
        if self.rotary is None:
            return queries, keys
        remembered = 0 if cache is None else cache.length
        return self.rotary(queries, query_offset), self.rotary(keys, key_offset + remembered)

    def remember(
        self, keys: Tensor, values: Tensor, key_valid: Tensor | None, cache: CacheSlot | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Join new keys to the remembered ones and remember them all (given; task S1).

        Args:
            keys: (B, H_kv, S, K) float.
            values: (B, H_kv, S, K) float.
            key_valid: (B, S) bool; None = every key is real.
            cache: What this layer remembers, or None.

        Returns:
            All keys, all values and their validity; without a cache just what came in.
        """
        if cache is None:
            return keys, values, key_valid
        if key_valid is None:
            key_valid = keys.new_ones(keys.shape[0], keys.shape[2], dtype=torch.bool)
        if cache.held is None:
            none = keys[:, :, :0]
            cache.held = KVCache(none, none, key_valid[:, :0], cache.capacity)
        cache.held = cache.held.append(keys, values, key_valid)
        return cache.held.key, cache.held.value, cache.held.valid

    def attend(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        score_bias: Tensor | None,
    ) -> Attended:
        """Call scaled_dot_product_attention (given); query heads may share key/value heads (S2).

        Args:
            queries: (B, H, T, K) float.
            keys: (B, H_kv, S, K) float.
            values: (B, H_kv, S, K) float.
            mask: (B or 1, H or 1, T or 1, S) bool, or None.
            score_bias: (B or 1, H or 1, T, S) float, or None.

        Returns:
            Attended(context, weights): (B, H, T, K) and (B, H, T, S) float; without weights
            where T is above 256 (pieces.py).

        Raises:
            ValueError: A mask or a score_bias that does not fit the scores.
        """
        scores = (*queries.shape[:3], keys.shape[2])
        check_broadcast("score_bias", score_bias, scores)
        check_broadcast("mask", mask, scores)
        if mask is not None and not numbers_are_known():
            # A traced program cannot stop at a row without a key.
            score_bias = hidden_by_bias(mask, score_bias, queries.dtype)
            mask = None
        if self.num_kv_heads != self.num_heads:
            if queries.shape[2] == 1:
                one_token = (queries, keys, values, mask, score_bias, self.dropout)
                return Attended(*attend_from_one_token(scaled_dot_product_attention, *one_token))
            keys = repeat_kv_heads(keys, self.num_heads)  # (B, H, S, K)
            values = repeat_kv_heads(values, self.num_heads)  # (B, H, S, K)
        if queries.shape[2] > LONG and numbers_are_known():
            many_tokens = (queries, keys, values, mask, score_bias, self.dropout)
            return Attended(*attend_in_pieces(scaled_dot_product_attention, *many_tokens))
        return scaled_dot_product_attention(queries, keys, values, mask, score_bias, self.dropout)


def repeat_kv_heads(x: Tensor, num_heads: int) -> Tensor:
    """Give every query head its key or value head: neighbours share one.

    Args:
        x: (B, H_kv, S, K) float.
        num_heads: H; H_kv must divide it.

    Returns:
        (B, H, S, K) float: the first H / H_kv heads are copies of head 0, and so on.

    Raises:
        ValueError: num_heads is not divisible by H_kv.

    Source: Ainslie et al. 2023, section 2.2, arxiv.org/abs/2305.13245. Task S2. Hint: copies of
    one head stand next to each other; they do not alternate with the others.
    """
    # BEGIN SOLUTION S2
    if num_heads % x.shape[1]:
        raise ValueError(
            f"num_heads must be divisible by the key/value heads, got {num_heads} and {x.shape[1]}"
        )
    return x.repeat_interleave(num_heads // x.shape[1], dim=1)
    # END SOLUTION
