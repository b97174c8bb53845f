"""The cache never changes what is computed, and grows without copying its past."""

import itertools

import pytest
import torch

from transformer.cache import CacheSlot, DecodingCache
from transformer.config import FEED_FORWARDS, NORMS, PLACEMENTS, POSITIONS, ModelConfig
from transformer.decoder import Decoder
from transformer.kv_cache import KVCache
from transformer.models import DecoderOnlyTransformer, Seq2SeqTransformer, kv_cache_elements

B, G, N, K = 2, 3, 5, 7
COMBINATIONS = [
    {
        "positions": positions,
        "num_kv_heads": num_kv_heads,
        # Walks through the parts that a cache does not touch.
        "ffn": FEED_FORWARDS[index % 4],
        "norm": NORMS[index % 2],
        "placement": PLACEMENTS[index // 2 % 2],
        "bias": index % 3 > 0,
        "tied": (None, True, False)[index % 3],
        "rope_cross": index % 2 == 0,
    }
    for index, (positions, num_kv_heads) in enumerate(itertools.product(POSITIONS, (1, 2, 4)))
]


def columns(length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    valid = torch.rand(B, length) > 0.3
    return torch.randn(B, G, length, K), torch.randn(B, G, length, K), valid


def config(**parts) -> ModelConfig:
    return ModelConfig(vocab_size=13, num_layers=2, d_ff=11, dropout=0.1, **parts)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(19)


@torch.no_grad()
def test_appending_equals_concatenation_and_leaves_the_old_cache_alone():
    pieces = [columns(length) for length in (N, 1, 1, 2, 1, 6, 1)]
    cache, caches = KVCache(*pieces[0]), []
    for piece in pieces[1:]:
        caches.append(cache)
        cache = cache.append(*piece)
    caches.append(cache)
    for count, held in enumerate(caches, start=1):
        keys, values, valids = zip(*pieces[:count], strict=True)
        torch.testing.assert_close(held.key, torch.cat(keys, 2), rtol=0, atol=0)
        torch.testing.assert_close(held.value, torch.cat(values, 2), rtol=0, atol=0)
        torch.testing.assert_close(held.valid, torch.cat(valids, 1))


@torch.no_grad()
def test_two_continuations_of_one_cache_do_not_meet():
    root = KVCache(*columns(N)).append(*columns(1))
    first, second = columns(1), columns(1)
    left, right = root.append(*first), root.append(*second)
    torch.testing.assert_close(left.key[:, :, -1:], first[0], rtol=0, atol=0)
    torch.testing.assert_close(right.key[:, :, -1:], second[0], rtol=0, atol=0)


@torch.no_grad()
def test_growing_by_a_token_moves_the_storage_rarely():
    cache, places = KVCache(*columns(N)), set()
    for _ in range(1000):
        cache = cache.append(*columns(1))
        places.add(cache.key.untyped_storage().data_ptr())
        assert cache.room is not None and cache.room.capacity <= 2 * cache.length
    assert len(places) <= 9


@torch.no_grad()
def test_reserved_room_is_used_exactly():
    cache = KVCache(*columns(N), capacity=23)
    for _ in range(23 - N):
        cache = cache.append(*columns(1))
        assert cache.key.untyped_storage().nbytes() == B * G * 23 * K * 4


def test_gradients_flow_through_an_appended_cache():
    key, value, valid = columns(N)
    key.requires_grad_()
    cache = KVCache(key, value, valid).append(*columns(1)).append(*columns(1))
    cache.key.square().sum().backward()
    assert key.grad is not None
    torch.testing.assert_close(key.grad, 2 * key.detach())


def test_cache_refuses_shapes_that_disagree():
    key, value, valid = columns(N)
    with pytest.raises(ValueError, match=r"one shape \(B, H_kv, T, K\), got .* \(2, 3, 4, 7\)"):
        KVCache(key, value[:, :, 1:], valid)
    with pytest.raises(ValueError, match=r"\(B, T\) = \(2, 5\), got \(2, 4\)"):
        KVCache(key, value, valid[:, 1:])
    with pytest.raises(TypeError, match="valid must be bool"):
        KVCache(key, value, valid.float())


@pytest.mark.parametrize("axis", [0, 1, 3])
def test_cache_refuses_another_batch_head_count_or_width(axis):
    key, value, valid = columns(N)
    shape = [B, G, 1, K]
    shape[axis] += 1
    new = torch.ones(shape)
    with pytest.raises(ValueError, match=r"\(2, 3, 'N', 7\), got"):
        KVCache(key, value, valid).append(new, new, torch.ones(shape[0], 1, dtype=torch.bool))


def test_decoder_refuses_a_cache_of_other_depth_or_length():
    decoder = Decoder(config()).eval()
    x, memory = torch.ones(B, 1, 32), torch.ones(B, 3, 32)
    with pytest.raises(ValueError, match="a cache of 3 layers does not fit 2 layers"):
        decoder(x, memory, cache=DecodingCache(3))
    with pytest.raises(ValueError, match="a cache of 0 layers does not fit 2 layers"):
        decoder(x, memory, cache=DecodingCache(0))
    with pytest.raises(ValueError, match="offset must be the cached length 0, got 4"):
        decoder(x, memory, offset=4, cache=DecodingCache(2))
    with pytest.raises(ValueError, match="offset must be the cached length 0, got 4"):
        decoder(x, memory, offset=4)
    uneven = DecodingCache(2)
    uneven.slots[1].held = KVCache(*columns(N))
    with pytest.raises(ValueError, match=r"the same length, got \[0, 5\]"):
        decoder(x, memory, cache=uneven)


@torch.no_grad()
def test_refused_call_leaves_the_cache_as_it_was():
    model, tokens = Seq2SeqTransformer(config()).eval(), torch.tensor([[3, 4, 5], [6, 7, 0]])
    memory, cache = model.encode(tokens), DecodingCache(2)
    # Self-attention of the first layer has remembered its part when the memory is refused.
    for unfit in (memory[:1], memory[..., :3], memory[:, :0]):
        with pytest.raises(ValueError, match="key"):
            model.decode(tokens, unfit, cache=cache)
        assert cache.length == 0 and all(slot.memory is None for slot in cache.slots)
    model.decode(tokens, memory, cache=cache)
    last = model.decoder.blocks[1]
    feed_forward, last.feed_forward = last.feed_forward, None
    with pytest.raises(TypeError):
        model.decode(tokens[:, :1], memory, cache=cache)
    last.feed_forward = feed_forward
    assert [slot.memory.length for slot in cache.slots] == [3, 3]
    cached = model.decode(tokens[:, :1], memory, cache=cache)
    whole = model.decode(torch.cat((tokens, tokens[:, :1]), dim=1), memory)
    torch.testing.assert_close(cached, whole[:, -1:], rtol=0, atol=1e-5)

    alone, cache = DecoderOnlyTransformer(config()).eval(), DecodingCache(2)
    alone(tokens, cache=cache)
    with pytest.raises(ValueError, match="new keys must have shape"):
        alone(tokens[:1], cache=cache)
    assert cache.length == 3


@torch.no_grad()
def test_memory_is_remembered_once():
    block = Decoder(config()).eval().blocks[0]
    x, memory, slot = torch.ones(B, 1, 32), torch.ones(B, 3, 32), CacheSlot()
    block(x, memory, cache=slot)
    block(x, memory[:, :0], offset=1, cache=slot)
    assert slot.length == 2 and slot.memory is not None and slot.memory.length == 3
    with pytest.raises(ValueError, match="3 keys of the memory are cached already, got 3 more"):
        block(x, memory, offset=2, cache=slot)


@torch.no_grad()
@pytest.mark.parametrize(
    "parts", COMBINATIONS, ids=lambda p: f"{p['positions']}-{p['num_kv_heads']}"
)
def test_cached_decoder_only_equals_uncached_at_every_step(parts):
    model = DecoderOnlyTransformer(config(**parts)).eval()
    tokens = torch.randint(1, 13, (3, 11))
    # Prompts of unequal length: padding in the middle of what the cache holds.
    tokens[0, 2:5], tokens[1, 4:5] = 0, 0
    cache = DecodingCache(2)
    for start, end in ((0, 5), (5, 6), (6, 7), (7, 9), (9, 10), (10, 11)):
        got = model(tokens[:, start:end], cache=cache)
        torch.testing.assert_close(got, model(tokens[:, :end])[:, start:], rtol=1e-5, atol=1e-5)
    assert cache.elements == kv_cache_elements(model.config, 3, 11)


@torch.no_grad()
@pytest.mark.parametrize(
    "parts", COMBINATIONS, ids=lambda p: f"{p['positions']}-{p['num_kv_heads']}"
)
def test_cached_seq2seq_equals_uncached_at_every_step(parts):
    model = Seq2SeqTransformer(config(**parts)).eval()
    source, target = torch.randint(1, 13, (3, 7)), torch.randint(1, 13, (3, 9))
    source[0, 2:], target[1, 3:5] = 0, 0
    valid = source != 0
    memory, cache = model.encode(source), DecodingCache(2)
    for start, end in ((0, 2), (2, 3), (3, 4), (4, 6), (6, 7), (7, 9)):
        got = model.decode(target[:, start:end], memory, memory_valid=valid, cache=cache)
        expected = model(source, target[:, :end])[:, start:]
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
