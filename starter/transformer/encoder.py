"""Task 4: the encoder, a stack of self-attending blocks."""

from torch import Tensor, nn

from .attention import MultiHeadAttention
from .config import ModelConfig
from .feedforward import FeedForward
from .masks import zero_padding
from .norms import make_norm
from .residual import ResidualBranch


class EncoderBlock(nn.Module):
    """Self-attention, then feed-forward, each in a residual branch.

    Args:
        config: Read by the parts.

    Source: Vaswani et al. 2017, figure 1 left, arxiv.org/abs/1706.03762.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config, rope=config.positions == "rope")
        self.feed_forward = FeedForward(config)
        self.attention_branch = ResidualBranch(config)
        self.feed_forward_branch = ResidualBranch(config)

    def forward(
        self, x: Tensor, valid: Tensor | None = None, score_bias: Tensor | None = None
    ) -> Tensor:
        """Let every token see every real token, then transform it by itself.

        Args:
            x: (B, S, D) float.
            valid: (B, S) bool, True = real token; None = every token is real.
            score_bias: (1, H, S, S) float, handed to self-attention.

        Returns:
            (B, S, D) float, exactly 0 at padded positions.

        Source: Vaswani et al. 2017, section 3.1, arxiv.org/abs/1706.03762. Task 4.1. Hints:
            1. A branch takes x and a function of one argument; a lambda passes the masks along.
            2. The tokens are queries and keys at once, so `valid` says which of both are real.
            3. The second branch continues from what the first one returned.
            4. End with zero_padding.
        """
        raise NotImplementedError("task 4.1: write EncoderBlock.forward in encoder.py")


class Encoder(nn.Module):
    """Blocks, one after another, and a final norm in a pre-norm stack.

    Args:
        config: num_layers and placement are read, and the rest by the blocks.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(EncoderBlock(config) for _ in range(config.num_layers))
        # Post-norm blocks end with a norm already.
        self.final_norm = make_norm(config) if config.placement == "pre" else nn.Identity()

    def forward(
        self, x: Tensor, valid: Tensor | None = None, score_bias: Tensor | None = None
    ) -> Tensor:
        """Run x through every block, then through the final norm.

        Args:
            x: (B, S, D) float, embedded tokens.
            valid: (B, S) bool, True = real token; None = every token is real.
            score_bias: (1, H, S, S) float, the same for every block.

        Returns:
            (B, S, D) float, the memory; exactly 0 at padded positions.

        Source: Vaswani et al. 2017, section 3.1, arxiv.org/abs/1706.03762. Task 4.2. Hints:
            1. Each block reads what the block before it returned.
            2. A norm moves 0 away from 0: what has to follow it?
        """
        raise NotImplementedError("task 4.2: write Encoder.forward in encoder.py")
