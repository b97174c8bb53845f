"""Greedy decoding: at every step the most likely token, fed back as input."""

from collections.abc import Iterator
from contextlib import contextmanager
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
            new = logits[:, -1].argmax(dim=-1)  # (B,)
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
