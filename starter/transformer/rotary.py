"""Task S3: rotary positions, which turn queries and keys inside attention."""

import torch
from torch import Tensor

from .tables import ComputedTables


def rope_tables(
    length: int, width: int, offset: int = 0, base: float = 10000.0
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotary angles.

    Both columns of pair i hold the angle position * base ** (-2 i / K).

    Args:
        length: T, number of positions.
        width: K, even.
        offset: The first position.
        base: Base of the angles.

    Returns:
        Cosine and sine, (T, K) float32 each.

    Raises:
        ValueError: Odd width, negative length or negative offset.
    """
    if width < 2 or width % 2:
        raise ValueError(f"rotary positions need an even width of at least 2, got {width}")
    if length < 0 or offset < 0:
        raise ValueError(f"length and offset must not be negative, got {length} and {offset}")
    position = torch.arange(offset, offset + length, dtype=torch.float32)
    frequency = base ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = (position[:, None] * frequency).repeat_interleave(2, dim=1)  # (T, K)
    return angles.cos(), angles.sin()


def rotate_pairs(x: Tensor) -> Tensor:
    """Turn every adjacent pair of the last axis by a quarter: (a, b) becomes (-b, a).

    Args:
        x: (..., K) float, K even.

    Returns:
        (..., K) float.

    Raises:
        ValueError: K is odd.

    Source: Su et al. 2021, eq. 34, arxiv.org/abs/2104.09864. Task S3. Hint: unflatten the last
    axis into pairs.
    """
    raise NotImplementedError("task S3: write rotate_pairs in rotary.py")


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate every pair of x by the angle of its position.

    Args:
        x: (..., T, K) float.
        cos: (T, K) float32, from rope_tables.
        sin: (T, K) float32, from rope_tables.

    Returns:
        (..., T, K) in the dtype of x.

    Source: Su et al. 2021, eq. 34, arxiv.org/abs/2104.09864. Task S3. Hint: a rotation by an
    angle mixes x itself and x turned by a quarter.
    """
    raise NotImplementedError("task S3: write apply_rope in rotary.py")


class RotaryTables(ComputedTables):
    """The rotary angles of one attention layer, computed in advance.

    Args:
        width: How many of a head's K numbers rotate, from the first on; even.
        max_len: Positions computed in advance; later ones are computed when they are met.
        base: Base of the angles.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, width: int, max_len: int, base: float) -> None:
        super().__init__()
        self.width = width
        self.max_len = max_len
        self.base = base
        self.register_tables()

    def compute_tables(self) -> dict[str, Tensor]:
        """Compute cosine and sine, (max_len, width) each."""
        cos, sin = rope_tables(self.max_len, self.width, base=self.base)
        return {"cos": cos, "sin": sin}

    def forward(self, x: Tensor, offset: int) -> Tensor:
        """Rotate x (B, H, T, K), whose first token stands at position offset."""
        length = x.shape[-2]
        if offset + length <= self.max_len:
            positions = slice(offset, offset + length)
            cos, sin = self.cos[positions], self.sin[positions]
        else:
            cos, sin = rope_tables(length, self.width, offset, self.base)
        cos, sin = cos.to(x.device), sin.to(x.device)
        if x.shape[-1] == self.width:
            return apply_rope(x, cos, sin)
        turned = apply_rope(x[..., : self.width], cos, sin)
        return torch.cat((turned, x[..., self.width :]), dim=-1)
