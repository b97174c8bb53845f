"""Layer normalisation, with and without centring."""

import torch
from torch import Tensor, nn

from .config import ModelConfig


class LayerNorm(nn.Module):
    """Give every token mean 0 and variance 1, then scale and shift it.

    Args:
        width: D, size of the last axis.
        eps: Added to the variance.

    Source: Ba et al. 2016, arxiv.org/abs/1607.06450.
    """

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis of x (..., D)."""
        return nn.functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """Give every token root mean square 1, then scale it.

    Args:
        width: D, size of the last axis.
        eps: Added to the mean square.

    Source: Zhang and Sennrich 2019, arxiv.org/abs/1910.07467.
    """

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis of x (..., D)."""
        return nn.functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


def make_norm(config: ModelConfig, width: int | None = None) -> LayerNorm | RMSNorm:
    """Build the norm that the configuration names.

    Args:
        config: norm and norm_eps are read.
        width: Size of the last axis; None means D.
    """
    width = config.d_model if width is None else width
    kinds: dict[str, type[LayerNorm] | type[RMSNorm]] = {"layernorm": LayerNorm, "rmsnorm": RMSNorm}
    kind = kinds[config.norm]
    return kind(width) if config.norm_eps is None else kind(width, config.norm_eps)
