"""Heads that share keys and values, where tokens are written one by one (given)."""

from collections.abc import Callable

from torch import Tensor, nn

from .checks import check_broadcast


def attend_from_one_token(
    attention: Callable[..., tuple[Tensor, Tensor]],
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    score_bias: Tensor | None,
    dropout: nn.Module,
) -> tuple[Tensor, Tensor]:
    """Attend with one query per head, without copies of the shared keys and values.

    Heads that share keys become the rows of one head: repeated heads would copy all that is
    remembered for every token.

    Args:
        attention: scaled_dot_product_attention.
        queries: (B, H, 1, K) float.
        keys: (B, H_kv, S, K) float.
        values: (B, H_kv, S, K) float.
        mask: (B or 1, H or 1, 1, S) bool, or None.
        score_bias: (B or 1, H or 1, 1, S) float, or None.
        dropout: Applied to the weights.

    Returns:
        Context and weights: (B, H, 1, K) and (B, H, 1, S) float.

    Raises:
        ValueError: A mask that does not fit the scores.
    """
    # A mask that does not fit could fit by accident once its axes mean something else.
    check_broadcast("mask", mask, (*queries.shape[:3], keys.shape[2]))
    rows = (keys.shape[1], queries.shape[1] // keys.shape[1])

    def as_rows(x: Tensor | None) -> Tensor | None:
        if x is None or x.shape[1] == 1:
            return x
        return x.squeeze(2).unflatten(1, rows)  # (B or 1, H_kv, H / H_kv, ...)

    context, weights = attention(
        queries.squeeze(2).unflatten(1, rows),
        keys,
        values,
        as_rows(mask),
        as_rows(score_bias),
        dropout,
    )
    return context.flatten(1, 2).unsqueeze(2), weights.flatten(1, 2).unsqueeze(2)
