"""The two models: an encoder with a decoder, and a decoder alone."""

import torch
from torch import Tensor, nn

from .cache import DecodingCache, kept_on_error
from .checks import numbers_are_known
from .config import ModelConfig
from .decoder import CausalStack, Decoder
from .embeddings import TokenEmbedding
from .encoder import Encoder
from .masks import padding_mask
from .positions import make_positions, within_window

# An embedding table that is also the output projection starts small, so that the first logits do.
TIED_STD = 0.02


class Seq2SeqTransformer(nn.Module):
    """Read a source sequence, write a target sequence.

    Args:
        config: Every field is read. `tied` shares the target's table with the output projection.

    Source: Vaswani et al. 2017, figure 1, arxiv.org/abs/1706.03762.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        width = config.d_model
        tied_std = TIED_STD if config.tied else None
        vocab_size, scaled = config.vocab_size, config.scale_embedding
        self.source_embedding = TokenEmbedding(vocab_size, width, None, scaled)
        self.target_embedding = TokenEmbedding(vocab_size, width, tied_std, scaled)
        self.source_positions = make_positions(config, self.source_embedding.output_std, True)
        self.target_positions = make_positions(config, self.target_embedding.output_std, False)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.output_projection = None if config.tied else nn.Linear(width, vocab_size, bias=False)

    def encode(self, source: Tensor, source_valid: Tensor | None = None) -> Tensor:
        """Turn source tokens into the memory.

        Args:
            source: (B, S) token ids.
            source_valid: (B, S) bool, True = real token; None = every id but pad_id is real.

        Returns:
            (B, S, D) float, exactly 0 at padded positions.

        Raises:
            ValueError: Ids or validity of the wrong shape, or a row without a real token.
        """
        valid = token_validity(source, source_valid, self.config.pad_id)
        require_tokens("source", valid)
        length = source.shape[1]
        x = self.source_positions(self.source_embedding(source))  # (B, S, D)
        memory: Tensor = self.encoder(x, valid, self.source_positions.score_bias(length, length))
        return memory

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        *,
        memory_valid: Tensor | None = None,
        target_valid: Tensor | None = None,
        cache: DecodingCache | None = None,
    ) -> Tensor:
        """Predict after every target token the next one.

        Args:
            target: (B, T) token ids; with a cache only those that are not remembered yet.
            memory: (B, S, D) float from encode; with a cache the same one at every call.
            memory_valid: (B, S) bool, True = real token; None = every token is real.
            target_valid: (B, T) bool, True = real token; None = every id but pad_id is real.
            cache: What the decoder remembers, or None.

        Returns:
            (B, T, V) float, logits.

        Raises:
            ValueError: Ids or validity of the wrong shape, or a row without a real token.
        """
        valid = token_validity(target, target_valid, self.config.pad_id)
        offset = 0 if cache is None else cache.length
        if offset:
            # The keys and values of the memory are remembered; nothing of it is new.
            memory = memory[:, :0]
            memory_valid = None
        else:
            require_tokens("target", valid)
        length = target.shape[1]
        x = self.target_positions(self.target_embedding(target), offset)  # (B, T, D)
        bias = self.target_positions.score_bias(length, offset + length, offset)
        with kept_on_error(cache):
            x = self.decoder(
                x,
                memory,
                target_valid=valid,
                memory_valid=memory_valid,
                score_bias=within_window(bias, self.config.window, length, offset + length, x),
                offset=offset,
                cache=cache,
            )
        if self.output_projection is None:
            return nn.functional.linear(x, self.target_embedding.weight)
        logits: Tensor = self.output_projection(x)
        return logits

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_valid: Tensor | None = None,
        target_valid: Tensor | None = None,
    ) -> Tensor:
        """Encode the source and predict after every target token the next one.

        Args:
            source: (B, S) token ids.
            target: (B, T) token ids.
            source_valid: (B, S) bool, True = real token; None = every id but pad_id is real.
            target_valid: (B, T) bool, True = real token; None = every id but pad_id is real.

        Returns:
            (B, T, V) float, logits.

        Raises:
            ValueError: Ids or validity of the wrong shape, or a row without a real token.
        """
        source_valid = token_validity(source, source_valid, self.config.pad_id)
        memory = self.encode(source, source_valid)
        return self.decode(target, memory, memory_valid=source_valid, target_valid=target_valid)


class DecoderOnlyTransformer(nn.Module):
    """Predict after every token the next one.

    The first real token of a row stands at position 0, also where padding comes before it.

    Args:
        config: Every field is read; `tied` None means that the output projection is the table.

    Source: Radford et al. 2018, section 3.1.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        tied = config.tied is not False
        self.token_embedding = TokenEmbedding(
            config.vocab_size, config.d_model, TIED_STD if tied else None, config.scale_embedding
        )
        self.positions = make_positions(config, self.token_embedding.output_std, False)
        self.stack = CausalStack(config)
        self.output_projection = (
            None if tied else nn.Linear(config.d_model, config.vocab_size, bias=False)
        )

    def forward(
        self,
        tokens: Tensor,
        valid_tokens: Tensor | None = None,
        cache: DecodingCache | None = None,
    ) -> Tensor:
        """Predict after every token the next one.

        Args:
            tokens: (B, T) token ids; with a cache only those that are not remembered yet.
            valid_tokens: (B, T) bool, True = real token; None = every id but pad_id is real.
            cache: What the stack remembers, or None.

        Returns:
            (B, T, V) float, logits.

        Raises:
            ValueError: Ids or validity of the wrong shape, or a row without a real token.
        """
        valid = token_validity(tokens, valid_tokens, self.config.pad_id)
        if cache is None or not cache.length:
            require_tokens("tokens", valid)
        return self.decode(tokens, valid, cache)

    def decode(
        self,
        tokens: Tensor,
        valid: Tensor,
        cache: DecodingCache | None = None,
        newest_only: bool = False,
    ) -> Tensor:
        """Do what forward does for ids and validity that are checked already.

        Args:
            tokens: (B, T) token ids; with a cache only those that are not remembered yet.
            valid: (B, T) bool, True = real token.
            cache: What the stack remembers, or None.
            newest_only: Compute the logits of the last token only.

        Returns:
            (B, T, V) float, logits; (B, 1, V) where newest_only.
        """
        offset = 0 if cache is None else cache.length
        length = tokens.shape[1]
        leading = leading_padding(valid, cache) if self.positions.adds_vectors else None
        x = self.positions(self.token_embedding(tokens), offset, leading)  # (B, T, D)
        bias = self.positions.score_bias(length, offset + length, offset)
        with kept_on_error(cache):
            x = self.stack(
                x,
                valid=valid,
                score_bias=within_window(bias, self.config.window, length, offset + length, x),
                offset=offset,
                cache=cache,
            )
        if newest_only:
            x = x[:, -1:]
        if self.output_projection is None:
            return nn.functional.linear(x, self.token_embedding.weight)
        logits: Tensor = self.output_projection(x)
        return logits


def token_validity(ids: Tensor, valid: Tensor | None, pad_id: int | None) -> Tensor:
    """Return which tokens are real: as told, or every id but pad_id.

    Args:
        ids: (B, T) token ids.
        valid: (B, T) bool, True = real token, or None.
        pad_id: Id of the padding token, or None.

    Returns:
        (B, T) bool.

    Raises:
        TypeError: The ids are not a tensor of integers, or valid is not one of bool.
        ValueError: Ids or validity of the wrong shape.
    """
    if not isinstance(ids, Tensor):
        raise TypeError(f"token ids must be a tensor, got {type(ids).__name__}")
    if ids.dim() != 2 or ids.shape[1] < 1:
        raise ValueError(
            f"token ids must have shape (B, T) with T at least 1, got {tuple(ids.shape)}"
        )
    if ids.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"token ids must be int64 or int32, got {ids.dtype}")
    if valid is None:
        return padding_mask(ids, pad_id)
    if not isinstance(valid, Tensor) or valid.dtype != torch.bool:
        found = valid.dtype if isinstance(valid, Tensor) else type(valid).__name__
        raise TypeError(f"validity must be a bool tensor (True = real token), got {found}")
    if valid.shape != ids.shape:
        raise ValueError(
            f"validity must have the shape of the ids {tuple(ids.shape)}, got {tuple(valid.shape)}"
        )
    return valid


def leading_padding(valid: Tensor, cache: DecodingCache | None) -> Tensor | None:
    """Count the padding in front of each row's first real token.

    Args:
        valid: (B, T) bool, True = real token.
        cache: What is remembered of the tokens before, or None.

    Returns:
        (B,) int64, or None where no row has any (or nobody may look).
    """
    if not numbers_are_known():
        return None
    held = None if cache is None or not cache.slots else cache.slots[0].held
    if held is not None and held.valid.shape[0] != valid.shape[0]:
        return None  # the cache refuses another number of rows, and says so better
    seen = valid if held is None else torch.cat((held.valid, valid), dim=1)
    leading = seen.int().argmax(dim=1)
    return leading if leading.any() else None


def require_tokens(name: str, valid: Tensor) -> None:
    """Refuse a batch in which a row has no real token.

    Args:
        name: What the batch is called in the message.
        valid: (B, T) bool.

    Raises:
        ValueError: The message names the first such row.
    """
    filled = valid.any(dim=1)
    if numbers_are_known() and not filled.all():
        row = int((~filled).nonzero()[0])
        raise ValueError(f"every row of {name} must hold a real token, row {row} has none")


def count_params(model: nn.Module) -> int:
    """Return how many numbers training may change; a tied table counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def kv_cache_elements(config: ModelConfig, batch_size: int, length: int) -> int:
    """Return how many numbers self-attention remembers, all layers together.

    Args:
        config: num_layers, the number of key/value heads and their width are read.
        batch_size: B.
        length: T, number of positions remembered.
    """
    return 2 * config.num_layers * batch_size * config.kv_heads * length * config.d_head
