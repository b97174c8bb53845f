"""Long sequences, a few queries at a time (given)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

# All scores of a long sequence do not fit the processor's cache, those of so many queries do.
QUERIES_AT_ONCE = 64
LONG = 256


def attend_in_pieces(
    attention: Callable[..., tuple[Tensor, Tensor]],
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    score_bias: Tensor | None,
    dropout: nn.Module,
) -> tuple[Tensor, Tensor]:
    """Attend with some queries after others, each time without the keys that none of them sees.

    Causal attention sees half of the keys, so half of the work is left out. Masks become a bias
    of -infinity, whose gradient nobody needs.

    Args:
        attention: scaled_dot_product_attention.
        queries: (B, H, T, K) float.
        keys: (B, H, S, K) float.
        values: (B, H, S, K) float.
        mask: (B or 1, H or 1, T or 1, S) bool, or None.
        score_bias: (B or 1, H or 1, T, S) float, or None.
        dropout: Applied to the weights.

    Returns:
        Context (B, H, T, K), and no weights (0,): nobody looks at those of a long sequence.

    Raises:
        ValueError: A query row that may attend to no key.
    """
    pieces = []
    for start in range(0, queries.shape[2], QUERIES_AT_ONCE):
        rows = slice(start, start + QUERIES_AT_ONCE)
        bias = None if score_bias is None else score_bias[:, :, rows]
        seen = keys.shape[2]
        if mask is not None:
            allowed = mask if mask.shape[2] == 1 else mask[:, :, rows]
            hiding = hidden_by_bias(allowed, None, queries.dtype)
            if hiding.amax(dim=-1).min() < 0:
                raise ValueError("every query must be allowed at least one key, some have none")
            seen = 1 + int((hiding.amax(dim=(0, 1, 2)) == 0).nonzero()[-1])
            bias = hiding if bias is None else bias + hiding
        context, _ = attention(
            queries[:, :, rows],
            keys[:, :, :seen],
            values[:, :, :seen],
            None,
            None if bias is None else bias[..., :seen],
            dropout,
        )
        pieces.append(context)
    context = torch.cat(pieces, dim=2)
    return context, context.new_empty(0)


def hidden_by_bias(mask: Tensor, score_bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Say with a bias what a mask says: -infinity where it hides a key.

    Args:
        mask: (B or 1, H or 1, T or 1, S) bool, True = may attend.
        score_bias: What is added to the scores besides, or None.
        dtype: That of the scores.
    """
    hiding = torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -math.inf)
    return hiding if score_bias is None else score_bias + hiding
