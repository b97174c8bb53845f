"""Greedy decoding with and without the cache, as a whole and token by token."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
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
        rounds = list(whole(3, batch_size, tokens))
        median = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
        yield {"tokens": tokens} | {n: 1e3 * seconds / tokens for n, seconds in median.items()}


def by_token(rounds: int, batch_size: int) -> Iterator[dict[str, float]]:
    """Yield the seconds of an early and of a late token, what attention has of them, and bytes."""
    torch.manual_seed(0)
    model = DecoderOnlyTransformer(CONFIG).eval()
    for _ in range(rounds):
        seconds, peak, cache = decode(model, batch_size, LATE + WINDOW)
        found: dict[str, float] = {"peak_bytes": peak, "shape_bytes": needed(batch_size)}
        for name, position in (("early", EARLY), ("late", LATE)):
            found[name] = statistics.median(seconds[position - 1 : position - 1 + WINDOW])
            found[f"{name}_row"] = attention_row(cache, position)
        yield found


@torch.no_grad()
def decode(
    model: DecoderOnlyTransformer, batch_size: int, tokens: int
) -> tuple[list[float], int, DecodingCache]:
    """Write `tokens` tokens; return the seconds of each, the cache's peak bytes, and the cache."""
    cache = DecodingCache(model.config.num_layers, tokens)
    new = torch.full((batch_size, 1), BOS)
    seconds, peak = [], 0
    held: dict[int, int] = {}
    for _ in range(tokens):
        began = time.perf_counter()
        new = model(new, cache=cache)[:, -1:].argmax(dim=-1).clamp(min=FIRST_DATA_ID)
        seconds.append(time.perf_counter() - began)
        now = storages(cache)
        # While storage is exchanged for larger storage, both are there.
        peak = max(peak, sum((held | now).values()))
        held = now
    return seconds, peak, cache


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


@torch.no_grad()
def attention_row(cache: DecodingCache, length: int, repeats: int = 50) -> float:
    """Return the seconds that one query over `length` keys takes in all layers together."""
    held = cache.slots[0].held
    assert held is not None
    key, value = held.key[:, :, :length], held.value[:, :, :length]
    mask = held.valid[:, None, None, :length]
    query = torch.randn_like(key[:, :, :1])
    taken = interleave(
        {"row": lambda: scaled_dot_product_attention(query, key, value, mask)}, repeats
    )
    return len(cache.slots) * statistics.median(r["row"] for r in taken)


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
