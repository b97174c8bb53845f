"""Softmax along any axis."""

import torch
from torch import Tensor

# With fewer rows the way around costs more than it saves.
MANY_ROWS = 256


def softmax(x: Tensor, dim: int) -> Tensor:
    """Compute exp(x) / sum exp(x) along one axis: torch's softmax, faster along a short last axis.

    Args:
        x: (..., N) float.
        dim: The axis along which the results sum to 1.

    Returns:
        A tensor of the shape of x.

    Source: Goodfellow et al. 2016, equation 6.29.
    """
    register = 64 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 32  # bytes
    last = dim in (-1, x.dim() - 1) and x.shape[:-1].numel() >= MANY_ROWS
    if last and 0 < x.shape[-1] * x.element_size() < register:
        # torch takes a row that cannot fill a register number by number. With the rows side by
        # side a register holds the same column of several.
        columns = x.flatten(0, -2).t()  # (N, rows)
        return columns.softmax(dim=0).t().reshape(x.shape).contiguous()
    return x.softmax(dim=dim)
