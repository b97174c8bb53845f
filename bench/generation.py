"""Greedy decoding with and without the cache, as a whole and token by token."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from bench.options import parse
from grader.bench.rounds import interleave, tell
from transformer.attention import scaled_dot_product_attention
from transformer.cache import DecodingCache
from transformer.config import LARGER
from transformer.data import BOS, FIRST_DATA_ID
from transformer.generation import generate_decoder_only, generate_seq2seq
from transformer.models import DecoderOnlyTransformer, Seq2SeqTransformer, kv_cache_elements

TOKENS = 256
LENGTHS = (16, 32, 64, 128, 256, 512)
EARLY, LATE, WINDOW = 16, 1024, 32
CONFIG = replace(LARGER, max_len=LATE + WINDOW)


def whole(rounds: int, batch_size: int, tokens: int) -> Iterator[dict[str, float]]:
    """Yield the seconds that each model needs for `tokens` tokens, both ways."""
    torch.manual_seed(0)
    seq2seq, decoder_only = Seq2SeqTransformer(CONFIG), DecoderOnlyTransformer(CONFIG)
    source = torch.randint(FIRST_DATA_ID, CONFIG.vocab_size, (batch_size, 8))
    prompt = source[:, :1]

    continued = partial(
        generate_decoder_only, decoder_only, prompt, max_new_tokens=tokens, eos_id=None
    )
    answered = partial(generate_seq2seq, seq2seq, source, max_new_tokens=tokens, eos_id=None)
    return interleave(
        {
            "decoder_only_cached": partial(continued, use_cache=True),
            "decoder_only_again": partial(continued, use_cache=False),
            "seq2seq_cached": partial(answered, use_cache=True),
            "seq2seq_again": partial(answered, use_cache=False),
        },
        rounds,
    )


def by_length(points: int, batch_size: int) -> Iterator[dict[str, float]]:
    """Yield at every length the milliseconds per token of each model, both ways."""
    for tokens in LENGTHS[:points]:
        rounds = list(whole(3 if tokens <= 128 else 1, batch_size, tokens))
        median = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
        yield {"tokens": tokens} | {n: 1e3 * seconds / tokens for n, seconds in median.items()}


def by_token(rounds: int, batch_size: int) -> Iterator[dict[str, float]]:
    """Yield the seconds of an early and of a late token, what attention has of them, and bytes.

    All are taken in turns, so that a machine that slows down slows all of them.
    """
    torch.manual_seed(0)
    model = DecoderOnlyTransformer(CONFIG).eval()
    multi_query = DecoderOnlyTransformer(replace(CONFIG, num_kv_heads=1)).eval()
    for _ in range(rounds):
        early, late, shared = (
            Writing(m, batch_size, LATE + WINDOW) for m in (model, model, multi_query)
        )
        early.write(EARLY - 1)
        late.write(LATE - 1)
        shared.write(LATE - 1)
        subjects = {
            "early": early.token,
            "late": late.token,
            "late_multi_query": shared.token,
            "early_row": attention_row(late.cache, EARLY),
            "late_row": attention_row(late.cache, LATE),
        }
        taken = list(interleave(subjects, WINDOW))
        found = {name: statistics.median(t[name] for t in taken) for name in subjects}
        yield found | {"peak_bytes": late.peak, "shape_bytes": needed(batch_size)}


class Writing:
    """A model that writes token after token, and the most memory that its cache has held."""

    def __init__(self, model: DecoderOnlyTransformer, batch_size: int, tokens: int) -> None:
        """Begin with BOS and an empty cache that has room for `tokens`."""
        self.model = model
        self.cache = DecodingCache(model.config.num_layers, tokens)
        self.last = torch.full((batch_size, 1), BOS)
        self.peak = 0
        self.held: dict[int, int] = {}

    @torch.no_grad()
    def token(self) -> None:
        """Write one token."""
        logits = self.model(self.last, cache=self.cache)
        self.last = logits[:, -1:].argmax(dim=-1).clamp(min=FIRST_DATA_ID)

    def write(self, tokens: int) -> None:
        """Write some tokens and watch the memory."""
        for _ in range(tokens):
            self.token()
            now = storages(self.cache)
            # While storage is exchanged for larger storage, both are there.
            self.peak = max(self.peak, sum((self.held | now).values()))
            self.held = now


def storages(cache: DecodingCache) -> dict[int, int]:
    """Return the bytes of every piece of memory behind the cache, by its address."""
    tensors: list[Tensor] = []
    for slot in cache.slots:
        assert slot.held is not None
        tensors += [slot.held.key, slot.held.value, slot.held.valid]
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


def needed(batch_size: int) -> int:
    """Return the bytes of keys, values and validity at full length, by their shapes."""
    numbers = kv_cache_elements(CONFIG, batch_size, LATE + WINDOW)
    return 4 * numbers + CONFIG.num_layers * batch_size * (LATE + WINDOW)


def attention_row(cache: DecodingCache, length: int) -> Callable[[], None]:
    """Return a call that lets one query attend to `length` keys, in every layer."""
    inputs = []
    for slot in cache.slots:
        assert slot.held is not None
        key, value = slot.held.key[:, :, :length], slot.held.value[:, :, :length]
        mask = slot.held.valid[:, None, None, :length]
        inputs.append((torch.randn_like(key[:, :, :1]), key, value, mask))

    @torch.no_grad()
    def row() -> None:
        for one in inputs:
            scaled_dot_product_attention(*one)

    return row


def main() -> None:
    """Measure what the command line asks for."""
    options = parse(__doc__ or "", "whole", "token", "length", batch=8)
    torch.set_num_threads(1)
    if options.what == "whole":
        found = whole(options.rounds, options.batch, TOKENS)
    elif options.what == "token":
        found = by_token(options.rounds, options.batch)
    else:
        found = by_length(options.rounds, options.batch)
    for taken in found:
        tell(taken)


if __name__ == "__main__":
    main()
