"""Token embedding."""

import math

import torch
from torch import Tensor, nn


class TokenEmbedding(nn.Module):
    """Look a token's vector up and scale it, by sqrt(D) unless told otherwise.

    Args:
        vocab_size: V, number of rows.
        d_model: D, width of a row.
        std: Standard deviation of the table before the scaling; None means 1 / scale, which
            gives scaled vectors of unit variance.
        scaled: Whether vectors are scaled at all; published decoders mostly do without.

    Source: Vaswani et al. 2017, section 3.4, arxiv.org/abs/1706.03762.
    """

    def __init__(
        self, vocab_size: int, d_model: int, std: float | None = None, scaled: bool = True
    ) -> None:
        super().__init__()
        self.scale = math.sqrt(d_model) if scaled else 1.0
        std = 1.0 / self.scale if std is None else std
        self.output_std = std * self.scale
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model).normal_(std=std))

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (B, T) to vectors (B, T, D).

        Raises:
            ValueError: An id is negative, or not below V.
        """
        try:
            return nn.functional.embedding(ids, self.weight) * self.scale
        except IndexError:
            raise ValueError(
                f"token ids must be below vocab_size {self.weight.shape[0]} and not negative, "
                f"got ids from {int(ids.min())} to {int(ids.max())}"
            ) from None
