"""Task 1: who may look at whom.

One polarity everywhere in this package: True = may attend, False = hidden. (PyTorch's own
nn.MultiheadAttention means the opposite.)
"""

import torch
from torch import Tensor


def padding_mask(ids: Tensor, pad_id: int | None) -> Tensor:
    """Mark the real tokens of a batch.

    Args:
        ids: (B, S) token ids.
        pad_id: Id of the padding token; None means that every id is an ordinary token.

    Returns:
        (B, S) bool, True where the token is real.

    Raises:
        ValueError: ids is not 2-dimensional.

    Task 1.1. Hints:
        1. A comparison of a tensor with a number gives a bool tensor.
        2. Mind which of the two answers means "real".
        3. Without a padding id the answer has the same shape and holds only True.
    """
    raise NotImplementedError("task 1.1: write padding_mask in masks.py")


def causal_mask(
    num_queries: int, num_keys: int, offset: int = 0, device: torch.device | None = None
) -> Tensor:
    """Hide from every query the keys that come later in the sequence.

    Args:
        num_queries: T, at least 1.
        num_keys: S, at least 1.
        offset: Position of the first query minus position of the first key. It is 0 when both
            start together, and the number of earlier tokens when only the newest are queries.
        device: Where the mask is made; None is the default device.

    Returns:
        (T, S) bool, True where key s is not later than query t.

    Raises:
        ValueError: num_queries or num_keys is below 1.

    Source: Vaswani et al. 2017, section 3.2.3, arxiv.org/abs/1706.03762. Task 1.2. Hints:
        1. Write the positions of the queries as a column and those of the keys as a row.
        2. A token may attend to itself.
        3. Try num_queries=1, num_keys=4, offset=3 on paper: the newest of four tokens.
    """
    raise NotImplementedError("task 1.2: write causal_mask in masks.py")


def combine_masks(
    attention_mask: Tensor | None = None,
    key_valid: Tensor | None = None,
    causal: Tensor | None = None,
) -> Tensor | None:
    """Combine the reasons for hiding a key into one mask.

    A key may be attended only when every mask that was given allows it.

    Args:
        attention_mask: (T, S), (B, T, S) or (B or 1, H or 1, T, S) bool.
        key_valid: (B, S) bool, True = real token.
        causal: (T, S) bool.

    Returns:
        (B or 1, H or 1, T or 1, S) bool, ready to broadcast against scores of shape
        (B, H, T, S); None when no mask was given.

    Raises:
        TypeError: A mask is not bool.
        ValueError: A mask has another number of dimensions.

    Task 1.3. Hints:
        1. First give every mask four dimensions. Which axes does each of them lack?
        2. Indexing with None inserts an axis of length 1 that broadcasts.
        3. A mask that was not given forbids nothing.
    """
    raise NotImplementedError("task 1.3: write combine_masks in masks.py")


def _check_mask(name: str, mask: Tensor, dimensions: tuple[int, ...]) -> None:
    if mask.dtype != torch.bool:
        raise TypeError(f"{name} must be bool (True = may attend), got {mask.dtype}")
    if mask.dim() not in dimensions:
        raise ValueError(
            f"{name} must have {' or '.join(map(str, dimensions))} dimensions, "
            f"got shape {tuple(mask.shape)}"
        )


def zero_padding(x: Tensor, valid: Tensor | None) -> Tensor:
    """Set the padded positions to exactly 0, whatever they held.

    Args:
        x: (B, T, D) float.
        valid: (B, T) bool, True = real token; None = every token is real.

    Returns:
        (B, T, D) float.
    """
    if valid is None:
        return x
    # A product with the mask would keep NaN, which is not 0 times anything.
    return torch.where(valid[:, :, None], x, x.new_zeros(()))
