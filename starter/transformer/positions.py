"""Where a token stands: five schemes behind one interface.

A scheme either adds something to the token vectors (sinusoidal, learned), or a bias to the
attention scores (t5bias), or neither: "none" means it, and "rope" acts inside attention, by
rotary.py.
"""

import math

import torch
from torch import Tensor, nn

from .config import ModelConfig
from .rotary import RotaryTables as RotaryTables  # the attention.py of older releases asks here
from .tables import ComputedTables


class NoPositions(nn.Module):
    """Add nothing: the scheme "none", the outside of "rope", and base of the other schemes."""

    adds_vectors = False

    def forward(self, x: Tensor, offset: int = 0, leading: Tensor | None = None) -> Tensor:
        """Return x with positions.

        Args:
            x: (B, T, D) float.
            offset: Position of the first token.
            leading: (B,) int, how many positions of each row are padding in front of its first
                real token, which stands at position 0 then; None = of no row any.
        """
        return x

    def score_bias(self, num_queries: int, num_keys: int, offset: int = 0) -> Tensor | None:
        """Return a bias (1, H, T, S) for the attention scores, or None."""
        return None


class SinusoidalPositions(NoPositions, ComputedTables):
    """Add sines and cosines of geometrically growing wavelengths.

    Args:
        width: D, even.
        max_len: Positions computed in advance; later ones are computed when they are met.

    Source: Vaswani et al. 2017, section 3.5, arxiv.org/abs/1706.03762.
    """

    adds_vectors = True
    table: Tensor

    def __init__(self, width: int, max_len: int) -> None:
        super().__init__()
        self.width = width
        self.max_len = max_len
        self.register_tables()

    def compute_tables(self) -> dict[str, Tensor]:
        """Compute the waves, (max_len, D)."""
        return {"table": sinusoids(self.max_len, self.width)}

    def forward(self, x: Tensor, offset: int = 0, leading: Tensor | None = None) -> Tensor:
        """Return x (B, T, D) plus the vectors of positions offset to offset + T - 1."""
        end = offset + x.shape[1]
        if end > self.max_len and leading is None:
            waves = sinusoids(x.shape[1], self.width, offset)
        else:
            table = self.table if end <= self.max_len else sinusoids(end, self.width)
            waves = rows_of(table, offset, end, leading)
        return x + waves.to(x.device, x.dtype)


class LearnedPositions(NoPositions):
    """Add a trained vector per position.

    Args:
        width: D.
        max_len: Number of positions.
        std: Standard deviation of the initial table.

    Source: Gehring et al. 2017, section 3.1, arxiv.org/abs/1705.03122.
    """

    adds_vectors = True

    def __init__(self, width: int, max_len: int, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_len, width).normal_(std=std))

    def forward(self, x: Tensor, offset: int = 0, leading: Tensor | None = None) -> Tensor:
        """Return x (B, T, D) plus the vectors of positions offset to offset + T - 1.

        Raises:
            ValueError: The sequence is longer than the table.
        """
        end = offset + x.shape[1]
        if end > self.weight.shape[0]:
            raise ValueError(
                f"a sequence of length {end} does not fit max_len {self.weight.shape[0]} "
                "of the learned positions"
            )
        return x + rows_of(self.weight, offset, end, leading)


def rows_of(table: Tensor, start: int, end: int, leading: Tensor | None) -> Tensor:
    """Return the rows of a table for positions start to end - 1, less what leads in each row.

    Args:
        table: (N, D) float, one row per position.
        start: The first position, not counting what leads.
        end: One more than the last.
        leading: (B,) int, what to subtract from the positions of each row; None = nothing.

    Returns:
        (T, D) float, or (B, T, D) with leading.
    """
    if leading is None:
        return table[start:end]
    positions = torch.arange(start, end, device=leading.device) - leading[:, None]  # (B, T)
    return table[positions.clamp(min=0).to(table.device)]


class RelativeBias(NoPositions):
    """Add to every score a trained number that depends on head and distance.

    Args:
        config: num_heads, t5_buckets and t5_max_distance are read.
        bidirectional: Whether keys may come later than the query (encoder).

    Source: Raffel et al. 2020, section 2.1, arxiv.org/abs/1910.10683.
    """

    def __init__(self, config: ModelConfig, bidirectional: bool) -> None:
        super().__init__()
        self.bidirectional = bidirectional
        self.max_distance = config.t5_max_distance
        self.weight = nn.Parameter(torch.zeros(config.t5_buckets, config.num_heads))

    def score_bias(self, num_queries: int, num_keys: int, offset: int = 0) -> Tensor:
        """Return the bias (1, H, T, S); the first query stands at position offset."""
        device = self.weight.device
        queries = torch.arange(offset, offset + num_queries, device=device)
        keys = torch.arange(num_keys, device=device)
        buckets = relative_buckets(
            queries[:, None] - keys, self.weight.shape[0], self.max_distance, self.bidirectional
        )  # (T, S)
        return self.weight[buckets].permute(2, 0, 1)[None]  # (1, H, T, S)


def within_window(
    bias: Tensor | None, window: int | None, num_queries: int, num_keys: int, like: Tensor
) -> Tensor | None:
    """Hide from every query the keys that are too far behind it: their bias is -infinity.

    Args:
        bias: (1, H, T, S) float, or None.
        window: Tokens that a query reaches, itself included; None means all.
        num_queries: T; the last query stands at the last key.
        num_keys: S.
        like: Decides device and dtype.

    Returns:
        (1, H or 1, T, S) float; the bias as it came where nothing is that far behind.
    """
    if window is None or num_keys <= window:
        return bias
    keys = torch.arange(num_keys, device=like.device)
    distance = keys[num_keys - num_queries :, None] - keys  # (T, S)
    hiding = like.new_zeros(distance.shape).masked_fill(distance >= window, -math.inf)
    return hiding[None, None] if bias is None else bias + hiding


def make_positions(config: ModelConfig, embedding_std: float, bidirectional: bool) -> NoPositions:
    """Build the scheme that the configuration names.

    Args:
        config: positions and what the scheme needs are read.
        embedding_std: Standard deviation of the token vectors it meets; a learned table starts
            at the same scale.
        bidirectional: Whether keys may come later than the query (encoder).
    """
    if config.positions == "sinusoidal":
        return SinusoidalPositions(config.d_model, config.max_len)
    if config.positions == "learned":
        return LearnedPositions(config.d_model, config.max_len, embedding_std)
    if config.positions == "t5bias":
        return RelativeBias(config, bidirectional)
    return NoPositions()


def sinusoids(length: int, width: int, offset: int = 0) -> Tensor:
    """Return (T, D) for T positions from offset on: sine in even columns, cosine in odd ones."""
    position = torch.arange(offset, offset + length)[:, None]
    frequency = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    angles = position * frequency  # (T, D / 2)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


def relative_buckets(
    distance: Tensor, num_buckets: int, max_distance: int, bidirectional: bool
) -> Tensor:
    """Sort distances into buckets: half of them exact, the rest logarithmic.

    Args:
        distance: Any shape, int: position of the query minus position of the key.
        num_buckets: Number of buckets; in both directions, half of them for each.
        max_distance: Distance from which on the last bucket is used.
        bidirectional: Whether later keys have buckets of their own; otherwise they share the
            bucket of distance 0.

    Returns:
        The shape of distance, int64 in [0, num_buckets).

    Source: Raffel et al. 2020, section 2.1, arxiv.org/abs/1910.10683.
    """
    first = torch.zeros_like(distance)
    if bidirectional:
        num_buckets //= 2
        first = (distance < 0) * num_buckets
        distance = distance.abs()
    else:
        distance = distance.clamp(min=0)
    exact = num_buckets // 2
    growth = torch.log(distance.clamp(min=1) / exact) / math.log(max_distance / exact)
    logarithmic = exact + (growth * (num_buckets - exact)).long()
    logarithmic = logarithmic.clamp(max=num_buckets - 1)
    return first + torch.where(distance < exact, distance, logarithmic)
