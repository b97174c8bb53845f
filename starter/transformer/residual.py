"""Task 3: the path around a sublayer."""

from collections.abc import Callable

from torch import Tensor, nn

from .config import ModelConfig
from .norms import make_norm


class ResidualBranch(nn.Module):
    """Add what a sublayer computes to what it was given, with one norm on the way.

    Args:
        config: placement, norm and d_model are read.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.placement = config.placement
        self.norm = make_norm(config)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply norm, sublayer and residual sum in the order that `self.placement` names.

        Args:
            x: (B, T, D) float.
            sublayer: Maps (B, T, D) to (B, T, D).

        Returns:
            (B, T, D) float. With placement "pre" the sublayer reads a normalised x while x
            itself travels on untouched; with "post" the sublayer reads x as it is, and the sum
            is normalised.

        Source: "post" is Vaswani et al. 2017, section 3.1, arxiv.org/abs/1706.03762; "pre" is
        Xiong et al. 2020, figure 1b, arxiv.org/abs/2002.04745. Task 3.1. Hints:
            1. Both placements use self.norm once and call the sublayer once.
            2. If the sublayer answered 0 everywhere, what must each placement return?
        """
        raise NotImplementedError("task 3.1: write ResidualBranch.forward in residual.py")
