"""Task 5: decoders. One attends to an encoder's memory, the other stands alone."""

from torch import Tensor, nn

from .attention import MultiHeadAttention
from .cache import CacheSlot, DecodingCache, layer_slots, memory_slot
from .config import ModelConfig
from .feedforward import FeedForward
from .masks import zero_padding
from .norms import make_norm
from .residual import ResidualBranch


class DecoderBlock(nn.Module):
    """Causal self-attention, cross-attention, feed-forward, each in a residual branch.

    Args:
        config: Read by the parts; rope_cross decides about cross-attention.

    Source: Vaswani et al. 2017, figure 1 right, arxiv.org/abs/1706.03762.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config, rope=config.positions == "rope")
        self.cross_attention = MultiHeadAttention(config, rope=config.rope_cross)
        self.feed_forward = FeedForward(config)
        self.self_branch = ResidualBranch(config)
        self.cross_branch = ResidualBranch(config)
        self.feed_forward_branch = ResidualBranch(config)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        *,
        target_valid: Tensor | None = None,
        memory_valid: Tensor | None = None,
        score_bias: Tensor | None = None,
        offset: int = 0,
        cache: CacheSlot | None = None,
    ) -> Tensor:
        """Look back at the target so far, then at the memory, then transform every token.

        Args:
            x: (B, T, D) float.
            memory: (B, S, D) float, what the encoder returned.
            target_valid: (B, T) bool, True = real token; None = every token is real.
            memory_valid: (B, S) bool, True = real token; None = every token is real.
            score_bias: (1, H, T, T) float, handed to self-attention only.
            offset: Position of the first token of x; not 0 only when earlier ones are cached.
            cache: What this layer remembers, or None.

        Returns:
            (B, T, D) float, exactly 0 at padded positions.

        Source: Vaswani et al. 2017, section 3.1, arxiv.org/abs/1706.03762. Task 5.1. Hints:
            1. Three branches, each continuing from what the one before returned.
            2. Ask of both attentions: where do queries and keys come from, and which of them
               are real? Where could a query see a later token?
            3. Hand offset on as query_offset to both attentions, cache=cache to self-attention
               and cache=memory_slot(cache) to cross-attention.
            4. End with zero_padding.
        """
        raise NotImplementedError("task 5.1: write DecoderBlock.forward in decoder.py")


class Decoder(nn.Module):
    """Decoder blocks, one after another, and a final norm in a pre-norm stack.

    Args:
        config: num_layers and placement are read, and the rest by the blocks.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(DecoderBlock(config) for _ in range(config.num_layers))
        # Post-norm blocks end with a norm already.
        self.final_norm = make_norm(config) if config.placement == "pre" else nn.Identity()

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        *,
        target_valid: Tensor | None = None,
        memory_valid: Tensor | None = None,
        score_bias: Tensor | None = None,
        offset: int = 0,
        cache: DecodingCache | None = None,
    ) -> Tensor:
        """Run x through every block, then through the final norm.

        Args:
            x: (B, T, D) float, embedded tokens.
            memory: (B, S, D) float; every block reads the same one.
            target_valid: (B, T) bool, True = real token; None = every token is real.
            memory_valid: (B, S) bool, True = real token; None = every token is real.
            score_bias: (1, H, T, T) float, the same for every block.
            offset: Position of the first token of x; not 0 only when earlier ones are cached.
            cache: What the layers remember, or None.

        Returns:
            (B, T, D) float, exactly 0 at padded positions.

        Raises:
            ValueError: The cache has another number of layers, or does not end at offset.

        Source: Vaswani et al. 2017, section 3.1, arxiv.org/abs/1706.03762. Task 5.2. Hints:
            1. layer_slots(cache, len(self.blocks), offset) (given) returns what each block is
               handed as its cache, so walk over blocks and slots together.
            2. The memory stays the same from block to block; x does not.
            3. A norm moves 0 away from 0: what has to follow it?
        """
        raise NotImplementedError("task 5.2: write Decoder.forward in decoder.py")


class CausalBlock(nn.Module):
    """Causal self-attention, then feed-forward: the block of a decoder-only model.

    Args:
        config: Read by the parts.

    Source: Radford et al. 2018, section 3.1, "Improving Language Understanding by Generative
    Pre-Training".
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config, rope=config.positions == "rope")
        self.feed_forward = FeedForward(config)
        self.attention_branch = ResidualBranch(config)
        self.feed_forward_branch = ResidualBranch(config)

    def forward(
        self,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        score_bias: Tensor | None = None,
        offset: int = 0,
        cache: CacheSlot | None = None,
    ) -> Tensor:
        """Look back at the tokens so far, then transform every token.

        Args:
            x: (B, T, D) float.
            valid: (B, T) bool, True = real token; None = every token is real.
            score_bias: (1, H, T, T) float, handed to self-attention.
            offset: Position of the first token of x; not 0 only when earlier ones are cached.
            cache: What this layer remembers, or None.

        Returns:
            (B, T, D) float, exactly 0 at padded positions.

        Source: Radford et al. 2018, section 3.1. Task 5.3. Hints:
            1. Compare with EncoderBlock: what may a token not see here?
            2. Hand offset on as query_offset, and cache=cache.
            3. End with zero_padding.
        """
        raise NotImplementedError("task 5.3: write CausalBlock.forward in decoder.py")


class CausalStack(nn.Module):
    """Causal blocks, one after another, and a final norm in a pre-norm stack (given).

    Args:
        config: num_layers and placement are read, and the rest by the blocks.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(CausalBlock(config) for _ in range(config.num_layers))
        # Post-norm blocks end with a norm already.
        self.final_norm = make_norm(config) if config.placement == "pre" else nn.Identity()

    def forward(
        self,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        score_bias: Tensor | None = None,
        offset: int = 0,
        cache: DecodingCache | None = None,
    ) -> Tensor:
        """Run x through every block, then through the final norm.

        Args:
            x: (B, T, D) float, embedded tokens.
            valid: (B, T) bool, True = real token; None = every token is real.
            score_bias: (1, H, T, T) float, the same for every block.
            offset: Position of the first token of x; not 0 only when earlier ones are cached.
            cache: What the layers remember, or None.

        Returns:
            (B, T, D) float, exactly 0 at padded positions.

        Raises:
            ValueError: The cache has another number of layers, or does not end at offset.
        """
        slots = layer_slots(cache, len(self.blocks), offset)
        for block, slot in zip(self.blocks, slots, strict=True):
            x = block(x, valid=valid, score_bias=score_bias, offset=offset, cache=slot)
        return zero_padding(self.final_norm(x), valid)
