"""The position-wise feed-forward layer, plain or gated."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from .config import ModelConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
    "gelu_tanh": partial(nn.functional.gelu, approximate="tanh"),
    "swiglu": nn.functional.silu,
    "geglu": nn.functional.gelu,
}
GATED = ("swiglu", "geglu")


class FeedForward(nn.Module):
    """Transform every token by itself: widen to F, activate, return to D.

    The gated kinds multiply the widened token by an activated second projection of it.

    Args:
        config: ffn, d_model, d_ff, bias and dropout are read.

    Source: Vaswani et al. 2017, eq. 2, arxiv.org/abs/1706.03762; Shazeer 2020 for the gated
    kinds, arxiv.org/abs/2002.05202.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.ffn]
        self.input_projection = nn.Linear(config.d_model, config.d_ff, bias=config.bias)
        self.gate_projection = (
            nn.Linear(config.d_model, config.d_ff, bias=config.bias)
            if config.ffn in GATED
            else None
        )
        self.output_projection = nn.Linear(config.d_ff, config.d_model, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, T, D) to (B, T, D)."""
        hidden = self.input_projection(x)  # (B, T, F)
        if self.gate_projection is None:
            hidden = self.activation(hidden)
        else:
            hidden = self.activation(self.gate_projection(x)) * hidden
        out: Tensor = self.dropout(self.output_projection(self.dropout(hidden)))
        return out
