"""Decoding: at every step one token, the most likely one or a drawn one, fed back as input."""

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

import torch
from torch import Tensor, nn

from .cache import DecodingCache
from .config import ModelConfig, check_at_least, check_id
from .data import BOS, EOS
from .masks import padding_mask
from .models import DecoderOnlyTransformer, Seq2SeqTransformer, require_tokens, token_validity

# For every module being evaluated: in how many places, and whether it was in train mode before.
_MODES: dict[nn.Module, tuple[int, bool]] = {}
_EVALUATING = Lock()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch a model to eval mode without gradients, and every part back afterwards.

    Several threads may evaluate one model at once: the first one in switches, the last one out
    switches back.

    Args:
        model: Its parts may be in different modes; each gets its own back.
    """
    modules = list(model.modules())
    with _EVALUATING:
        for module in modules:
            users, mode = _MODES.get(module, (0, module.training))
            _MODES[module] = (users + 1, mode)
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        with _EVALUATING:
            for module in modules:
                users, mode = _MODES.pop(module)
                if users > 1:
                    _MODES[module] = (users - 1, mode)
                else:
                    module.training = mode


def most_likely(logits: Tensor) -> Tensor:
    """Pick the most likely token of every row: logits (B, V) to ids (B,)."""
    return logits.argmax(dim=-1)


@dataclass(frozen=True)
class Sampler:
    """Draw the token of every row from its probabilities: logits (B, V) to ids (B,).

    Args:
        temperature: Above 0; logits are divided by it, so that a low one makes likely tokens
            likelier still.
        top_p: In (0, 1]; only the most likely tokens take part, as few as together reach it.
        generator: Decides what is drawn; None = torch's own.

    Raises:
        ValueError: A number out of range.

    Source: Holtzman et al. 2020, section 3.1, arxiv.org/abs/1904.09751, for top_p.
    """

    temperature: float
    top_p: float = 1.0
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.temperature < math.inf:
            raise ValueError(f"temperature must be positive and finite, got {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")

    def __call__(self, logits: Tensor) -> Tensor:
        """Draw one id per row."""
        probabilities = (logits.float() / self.temperature).softmax(dim=-1)  # (B, V)
        ordered, ids = probabilities.sort(dim=-1, descending=True)
        likelier = ordered.cumsum(dim=-1) - ordered  # what the tokens before it reach together
        ordered = ordered.masked_fill(likelier >= self.top_p, 0.0)
        drawn = torch.multinomial(ordered, 1, generator=self.generator)  # (B, 1)
        return ids.gather(1, drawn)[:, 0]


def generate_seq2seq(
    model: Seq2SeqTransformer,
    source: Tensor,
    *,
    max_new_tokens: int,
    bos_id: int = BOS,
    eos_id: int | None = EOS,
    source_valid: Tensor | None = None,
    use_cache: bool = True,
) -> Tensor:
    """Write an answer to every source.

    Args:
        model: Left in the mode it came in.
        source: (B, S) token ids.
        max_new_tokens: N, largest number of tokens written, at least 0.
        bos_id: Id that every answer begins with.
        eos_id: Id that ends an answer; None = never end.
        source_valid: (B, S) bool, True = real token; None = every id but the model's pad_id.
        use_cache: Remember keys and values instead of computing them again at every step.

    Returns:
        (B, 1 + n) int64, n at most N: BOS, the answer, EOS; a row that ended is filled with EOS.
        Decoding stops when every row has ended.

    Raises:
        TypeError: max_new_tokens or an id is not an integer.
        ValueError: max_new_tokens is negative, an id is not in the vocabulary, or the source is
            not fit for the model.
    """
    check_writing(model.config, max_new_tokens, bos_id=bos_id, eos_id=eos_id)
    with evaluating(model):
        valid = token_validity(source, source_valid, model.config.pad_id)
        source = source.long()
        memory = model.encode(source, valid)
        cache = DecodingCache(model.config.num_layers, max_new_tokens) if use_cache else None
        tokens = source.new_full((source.shape[0], 1), bos_id)
        ended = torch.zeros(source.shape[0], dtype=torch.bool, device=source.device)
        while tokens.shape[1] <= max_new_tokens and not ended.all():
            unread = tokens if cache is None else tokens[:, cache.length :]
            logits = model.decode(unread, memory, memory_valid=valid, cache=cache)
            new = logits[:, -1].argmax(dim=-1)  # (B,)
            if eos_id is not None:
                new = new.masked_fill(ended, eos_id)
                ended = ended | (new == eos_id)
            tokens = torch.cat((tokens, new[:, None]), dim=1)
    return tokens


def generate_decoder_only(
    model: DecoderOnlyTransformer,
    prompt: Tensor,
    *,
    max_new_tokens: int,
    eos_id: int | None = EOS,
    valid_prompt: Tensor | None = None,
    use_cache: bool = True,
    pick: Callable[[Tensor], Tensor] = most_likely,
) -> Tensor:
    """Continue every prompt.

    Each row is continued right after its last real token, so it gets the same continuation as
    it would alone. Rows advance side by side: where a longer prompt still has a token, that
    token is read instead of a new one.

    Args:
        model: Left in the mode it came in.
        prompt: (B, P) token ids.
        max_new_tokens: N, largest number of tokens written per row, at least 0.
        eos_id: Id that ends a continuation; None = never end.
        valid_prompt: (B, P) bool, True = real token; None = every id but the model's pad_id.
        use_cache: Remember keys and values instead of computing them again at every step.
        pick: Maps logits (B, V) to the ids (B,) to write, such as a Sampler.

    Returns:
        (B, P + n) int64, n at most N: the prompt as it came, then the new tokens of every row,
        EOS included; a row that ended is filled with EOS. Decoding stops when every row has
        ended.

    Raises:
        TypeError: max_new_tokens or eos_id is not an integer.
        ValueError: max_new_tokens is negative, eos_id is not in the vocabulary, or the prompt is
            not fit for the model.
    """
    check_writing(model.config, max_new_tokens, eos_id=eos_id)
    valid = token_validity(prompt, valid_prompt, model.config.pad_id)
    require_tokens("prompt", valid)
    batch, columns = prompt.shape
    if not batch:
        return prompt.long()
    # A row's prompt ends with its last real token; what follows is free for new ones.
    lengths = (valid * torch.arange(1, columns + 1, device=prompt.device)).amax(dim=1)  # (B,)
    prompt = prompt.long()
    written = prompt.new_full((batch, max_new_tokens), 0 if eos_id is None else eos_id)
    num_written = torch.zeros_like(lengths)
    finished = num_written >= max_new_tokens
    tokens = torch.cat((prompt, written), dim=1)
    real = torch.cat((valid, torch.ones_like(written, dtype=torch.bool)), dim=1)
    cache = DecodingCache(model.config.num_layers, tokens.shape[1]) if use_cache else None
    width = int(lengths.min())
    with evaluating(model):
        while not finished.all():
            read = slice(0 if cache is None else cache.length, width)
            logits = model.decode(tokens[:, read], real[:, read], cache, newest_only=True)
            new = pick(logits[:, -1])  # (B,)
            in_prompt = width < lengths
            writes = ~in_prompt & ~finished
            written[writes, num_written[writes]] = new[writes]
            num_written += writes
            finished = finished | (num_written >= max_new_tokens)
            if eos_id is not None:
                finished = finished | (writes & (new == eos_id))
            tokens[:, width] = torch.where(in_prompt, tokens[:, width], new)
            new_real = padding_mask(new[:, None], model.config.pad_id)[:, 0]
            real[:, width] = torch.where(in_prompt, real[:, width], new_real)
            width += 1
    return torch.cat((prompt, written[:, : int(num_written.max())]), dim=1)


def write_on(
    model: DecoderOnlyTransformer,
    prompt: Tensor,
    *,
    max_new_tokens: int,
    end_ids: Collection[int] = (),
    pick: Callable[[Tensor], Tensor] = most_likely,
    num_ids: int | None = None,
) -> Iterator[int]:
    """Continue one prompt and yield every token as soon as it is there.

    Args:
        model: Left in the mode it came in.
        prompt: (1, P) token ids.
        max_new_tokens: N, largest number of tokens written.
        end_ids: Ids that end the text; the one that does is not yielded.
        pick: Maps logits (1, V) to the id (1,) to write, such as a Sampler.
        num_ids: Ids from here on are never written: some tables have rows that stand for no
            token. None = V.
    """
    cache = DecodingCache(model.config.num_layers, prompt.shape[1] + max_new_tokens)
    unread = prompt.long()
    for _ in range(max_new_tokens):
        # The caller runs between two tokens, in whatever modes it likes.
        with evaluating(model):
            valid = torch.ones_like(unread, dtype=torch.bool)
            logits = model.decode(unread, valid, cache, newest_only=True)
            unread = pick(logits[:, -1, :num_ids])[:, None]
        new = int(unread)
        if new in end_ids:
            return
        yield new


def check_writing(config: ModelConfig, max_new_tokens: int, **ids: int | None) -> None:
    """Refuse what no writing can be limited by: a budget below 0, ids beyond the vocabulary.

    Args:
        config: vocab_size is read.
        max_new_tokens: Largest number of new tokens.
        ids: Those of the tokens that begin or end, by name; None = no such token.

    Raises:
        TypeError: One of them is not an integer.
        ValueError: One of them is out of range.
    """
    check_at_least("max_new_tokens", max_new_tokens, 0)
    for name, value in ids.items():
        if value is not None:
            check_id(name, value, config.vocab_size)
