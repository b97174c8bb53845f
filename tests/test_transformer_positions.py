"""Positions: five schemes, offsets, and rotary angles."""

import math
from dataclasses import replace

import pytest
import torch

from transformer.config import POSITIONS, ModelConfig
from transformer.models import DecoderOnlyTransformer, Seq2SeqTransformer
from transformer.positions import (
    RelativeBias,
    SinusoidalPositions,
    make_positions,
    relative_buckets,
    sinusoids,
)
from transformer.rotary import RotaryTables, apply_rope, rope_tables, rotate_pairs

CONFIG = ModelConfig(vocab_size=13, max_len=7, num_layers=2)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(23)


def test_sinusoids_interleave_sine_and_cosine_of_growing_wavelengths():
    expected = [
        [f(t / 10000 ** (2 * i / 6)) for i in range(3) for f in (math.sin, math.cos)]
        for t in range(5, 16)
    ]
    torch.testing.assert_close(sinusoids(11, 6, offset=5), torch.tensor(expected))


def test_sinusoidal_positions_go_on_beyond_the_table():
    short, long = SinusoidalPositions(6, max_len=4), SinusoidalPositions(6, max_len=29)
    x = torch.randn(2, 5, 6)
    for offset in (0, 2, 17):
        torch.testing.assert_close(short(x, offset), long(x, offset), rtol=0, atol=1e-6)


@pytest.mark.parametrize("scheme", ["sinusoidal", "learned"])
def test_offset_continues_where_the_first_part_ended(scheme):
    positions = make_positions(replace(CONFIG, positions=scheme), 1.0, False)
    x = torch.randn(2, 7, 32)
    parts = torch.cat((positions(x[:, :3]), positions(x[:, 3:], 3)), dim=1)
    torch.testing.assert_close(parts, positions(x), rtol=0, atol=0)


@pytest.mark.parametrize("scheme", ["t5bias", "rope", "none"])
def test_other_schemes_leave_the_tokens_alone(scheme):
    x = torch.randn(2, 7, 32)
    assert make_positions(replace(CONFIG, positions=scheme), 1.0, False)(x, 3) is x


def test_learned_table_exceeded_names_both_lengths():
    model = DecoderOnlyTransformer(CONFIG)
    model(torch.full((2, 7), 5))
    with pytest.raises(ValueError, match="length 8 does not fit max_len 7"):
        model(torch.full((2, 8), 5))


@pytest.mark.parametrize("scheme", sorted(set(POSITIONS) - {"learned"}))
def test_other_schemes_know_no_longest_sequence(scheme):
    model = Seq2SeqTransformer(replace(CONFIG, positions=scheme, rope_cross=scheme == "rope"))
    ids = torch.full((2, 11), 5)
    assert model(ids, ids).isfinite().all()


@pytest.mark.parametrize(("bidirectional", "last"), [(False, 31), (True, 15)])
def test_half_of_the_buckets_is_exact_and_the_last_one_open(bidirectional, last):
    distance = torch.arange(400)
    buckets = relative_buckets(distance, 32, 128, bidirectional)
    exact = (last + 1) // 2
    assert buckets[:exact].tolist() == list(range(exact))
    assert (buckets.diff() >= 0).all() and buckets[128:].unique().tolist() == [last]
    later = relative_buckets(-distance[1:], 32, 128, bidirectional)
    torch.testing.assert_close(later, buckets[1:] + 16 if bidirectional else 0 * distance[1:])


@pytest.mark.parametrize("bidirectional", [True, False])
def test_relative_bias_reads_the_table_by_distance(bidirectional):
    bias = RelativeBias(replace(CONFIG, t5_buckets=8, t5_max_distance=11), bidirectional)
    torch.nn.init.normal_(bias.weight)
    got = bias.score_bias(5, 9, offset=4)
    assert got.shape == (1, 4, 5, 9)
    for t in range(5):
        bucket = relative_buckets(4 + t - torch.arange(9), 8, 11, bidirectional)
        torch.testing.assert_close(got[0, :, t], bias.weight[bucket].T)


def test_one_relative_bias_serves_all_layers_of_a_stack_and_starts_at_zero():
    model = Seq2SeqTransformer(replace(CONFIG, positions="t5bias"))
    tables = {name: p for name, p in model.named_parameters() if "positions" in name}
    assert sorted(tables) == ["source_positions.weight", "target_positions.weight"]
    assert all(table.abs().max() == 0.0 for table in tables.values())
    assert model.source_positions.bidirectional and not model.target_positions.bidirectional


def test_rotation_turns_every_pair_by_its_angle():
    x = torch.randn(2, 3, 5, 6)
    cos, sin = rope_tables(5, 6, offset=7, base=100.0)
    position = torch.arange(7, 12)[:, None]
    turn = torch.polar(torch.ones(5, 3), position * 100.0 ** (-torch.arange(3) / 3))
    pairs = torch.view_as_complex(x.unflatten(-1, (3, 2))) * turn
    expected = torch.view_as_real(pairs).flatten(-2)
    torch.testing.assert_close(apply_rope(x, cos, sin), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        rotate_pairs(torch.tensor([1.0, 2, 3, 4])), torch.tensor([-2.0, 1, -4, 3])
    )


def test_rotation_keeps_norms_and_the_dtype():
    x = torch.randn(2, 3, 5, 6, dtype=torch.float64)
    rotated = RotaryTables(6, 4, 100.0)(x, offset=2)
    assert rotated.dtype == torch.float64
    torch.testing.assert_close(rotated.norm(dim=-1), x.norm(dim=-1), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5, 7), "even width of at least 2, got 7"),
        ((5, 0), "even width of at least 2, got 0"),
        ((-1, 6), "not be negative, got -1 and 0"),
        ((5, 6, -3), "not be negative, got 5 and -3"),
    ],
)
def test_rotary_tables_refuse_odd_widths_and_negative_positions(arguments, message):
    with pytest.raises(ValueError, match=message):
        rope_tables(*arguments)


def test_pairs_need_an_even_width():
    with pytest.raises(ValueError, match="even width, got 7"):
        rotate_pairs(torch.ones(2, 7))
