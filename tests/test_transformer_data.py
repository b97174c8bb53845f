"""Datasets: functions of their seed, two sides without a common sequence, nothing odd accepted."""

import itertools

import pytest
import torch

from transformer.data import SequenceBatch, cyclic_batches, sequence_batches


def draw(task: str = "copy", **options) -> list[SequenceBatch]:
    options = {"steps": 3, "batch_size": 31, "seed": 7, **options}
    return list(sequence_batches(task, **options))


@pytest.mark.parametrize(("task", "step"), [("copy", 1), ("reverse", -1)])
def test_answers_are_the_sequences_or_their_reversal(task, step):
    for batch in draw(task):
        assert batch.source is not None
        rows = [[i for i in row if i != 0] for row in batch.source.tolist()]
        assert [row[::step] for row in rows] == batch.answers
        assert batch.source.shape == (31, 8)  # a multiple of 8 that holds the longest, 7
        assert batch.context == (batch.source,)


def test_every_length_and_every_data_id_occurs_and_no_other():
    answers = [a for b in draw(batch_size=499, min_length=2, max_length=6) for a in b.answers]
    assert {len(answer) for answer in answers} == {2, 3, 4, 5, 6}
    assert {i for answer in answers for i in answer} == set(range(3, 16))


def test_fixed_length_needs_no_padding():
    for batch in draw(min_length=5, max_length=5):
        assert batch.source is not None
        assert batch.source.shape == (31, 5) and (batch.source >= 3).all()


def test_dataset_is_a_function_of_its_seed():
    torch.manual_seed(1)
    first = draw()
    torch.manual_seed(2)
    second, other = draw(), draw(seed=8)
    assert [b.answers for b in first] == [b.answers for b in second]
    assert [b.answers for b in first] != [b.answers for b in other]
    assert len({str(b.answers) for b in first}) == 3


@pytest.mark.parametrize(("vocab_size", "length"), [(16, 3), (16, 2), (7, 3), (5, 9)])
def test_sides_share_no_sequence_whatever_the_seeds_and_widths(vocab_size, length):
    sides = [
        {
            tuple(answer)
            for seed, longest in itertools.product((7, 8), (length, length + 2))
            for batch in draw(
                seed=seed,
                steps=7,
                batch_size=499,
                vocab_size=vocab_size,
                min_length=length,
                max_length=longest,
                held_out=held_out,
            )
            for answer in batch.answers
            if len(answer) == length
        }
        for held_out in (False, True)
    ]
    assert min(map(len, sides)) > 5
    assert sides[0] & sides[1] == set()


def test_spaces_too_small_to_divide_are_shared():
    for held_out in (False, True):
        answers = [
            a for b in draw(vocab_size=4, max_length=4, held_out=held_out) for a in b.answers
        ]
        assert {tuple(answer) for answer in answers} == {(3, 3, 3), (3, 3, 3, 3)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "sort"}, "one of copy, reverse, got 'sort'"),
        ({"min_length": 0}, "min 0 and max 7"),
        ({"min_length": 8}, "min 8 and max 7"),
        ({"vocab_size": 3}, "above 3, .* got 3"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
    ],
)
def test_dataset_refuses_what_cannot_be_drawn_before_the_first_batch(options, message):
    with pytest.raises(ValueError, match=message):
        sequence_batches(**{"task": "copy", "steps": 1, "batch_size": 1, "seed": 1, **options})


def test_cyclic_rows_walk_round_the_pattern_from_every_start():
    (batch,) = cyclic_batches(steps=1, batch_size=97, seed=3, pattern=3, length=5)
    assert batch.source is None and batch.context == ()
    assert {tuple(a) for a in batch.answers} == {(3, 4, 5, 3, 4), (4, 5, 3, 4, 5), (5, 3, 4, 5, 3)}


@pytest.mark.parametrize("pattern", [2, 3, 5, 13])
def test_cyclic_rows_of_training_and_held_out_rows_are_disjoint(pattern):
    rows = {
        held_out: {
            tuple(answer)
            for batch in cyclic_batches(
                steps=3, batch_size=97, seed=3, pattern=pattern, length=7, held_out=held_out
            )
            for answer in batch.answers
        }
        for held_out in (None, True, False)
    }
    assert rows[True] and rows[False] and not rows[True] & rows[False]
    assert rows[None] == rows[True] | rows[False] and len(rows[None]) == pattern
    # Every step of the cycle is walked in training.
    assert {pair for row in rows[False] for pair in itertools.pairwise(row)} == {
        pair for row in rows[None] for pair in itertools.pairwise(row)
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pattern": 1}, "got 1 out of 13"),
        ({"vocab_size": 4}, "got 5 out of 1"),
        ({"vocab_size": 2}, "got 5 out of 0"),
        ({"pattern": 14}, "a pattern of 14 ids does not fit 13 data ids"),
        ({"length": 1}, "length of at least 2, got 1"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
    ],
)
def test_cyclic_dataset_refuses_what_cannot_be_drawn(options, message):
    with pytest.raises(ValueError, match=message):
        cyclic_batches(**{"steps": 1, "batch_size": 1, "seed": 1, **options})
