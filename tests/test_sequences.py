"""What gate 4 teaches and asks, and how the referee reads what was decoded."""

from __future__ import annotations

import numpy as np

from grader.base import settings
from grader.gates import sequences
from grader.gates.decoding import Decoded, disagreements, exact
from grader.model.draws import BOS, EOS, PAD, Draws
from grader.model.parameters import ProbeConfig, parameter_shapes
from grader.oracle.models import seq2seq
from grader.oracle.scope import Scope

LAB = settings.load()
DATA = sequences.draw(Draws(7, "gate 4"), LAB)


def test_training_never_sees_a_held_out_row():
    held_out, look = set(DATA.held_out), set(DATA.look)
    assert len(held_out) == LAB.accuracy.held_out_rows
    assert len(look) == LAB.accuracy.look_rows and not look & held_out
    batches = [DATA.batch(0, step) for step in range(LAB.recipe.steps)]
    assert [len(rows) for rows in batches] == [LAB.recipe.batch_size] * LAB.recipe.steps
    assert not any(row in held_out | look for rows in batches for row in rows)


def test_rows_are_of_every_length():
    for rows in (DATA.held_out, DATA.look, DATA.batch(0, 0)):
        assert {len(row) for row in rows} == {3, 4, 5, 6, 7}


def test_a_draw_gives_every_row_its_ids_and_whole_columns_of_padding():
    rows = [(3, 5, 11), (4, 9, 3, 15, 8, 7, 6)]
    given = sequences.reply(rows, DATA.answers(rows))
    assert given["source"].shape == (2, 8) and given["answers"] == DATA.answers(rows)
    assert [tuple(row[row != PAD].tolist()) for row in given["source"]] == rows


def test_another_attempt_draws_other_batches():
    assert DATA.batch(0, 3) == DATA.batch(0, 3)
    assert DATA.batch(0, 3) not in (DATA.batch(1, 3), DATA.batch(0, 4))


def test_answers_are_renamed_reversals():
    (answer,) = DATA.answers([(3, 5, 11)])
    assert answer == [int(DATA.permutation[i]) for i in (11, 5, 3)]
    assert DATA.plain_answers([(3, 5, 11)]) == [[11, 5, 3]]


def test_names_of_special_ids_stay():
    for names in (DATA.permutation, DATA.disguise):
        assert names[:3].tolist() == [PAD, BOS, EOS]
        assert sorted(names.tolist()) == list(range(LAB.model.vocab_size))


def test_teacher_forcing_shifts_by_one():
    inputs, targets = sequences.forced([[5, 7], [3]], 4)
    assert inputs.tolist() == [[BOS, 5, 7, PAD], [BOS, 3, PAD, PAD]]
    assert targets.tolist() == [[5, 7, EOS, PAD], [3, EOS, PAD, PAD]]


def test_renamed_weights_give_renamed_logits():
    config = ProbeConfig(d_model=6, num_heads=2, d_ff=7, max_len=11)
    weights = Draws(1, "w").weights(parameter_shapes(config, "seq2seq"))
    disguise = Draws(1, "names").permutation_of_data_ids(config.vocab_size)
    source, target = np.array([[3, 9, 4], [5, 15, PAD]]), np.array([[BOS, 8], [BOS, 6]])
    plain = seq2seq(Scope(config, weights), source=source, target=target)
    other = sequences.renamed(weights, disguise)
    named = seq2seq(Scope(config, other), source=disguise[source], target=disguise[target])
    np.testing.assert_allclose(named[:, :, disguise], plain, rtol=0, atol=1e-12)


def test_scrambling_keeps_the_entries_and_not_their_places():
    values = {"a.weight": np.arange(35.0).reshape(5, 7)}
    (mixed,) = sequences.scrambled(values, Draws(1, "mix")).values()
    assert sorted(mixed.ravel().tolist()) == list(range(35))
    assert not np.array_equal(mixed, values["a.weight"])


def test_a_row_is_exact_up_to_its_eos():
    tokens = np.array([[5, 7, EOS, 9], [5, 7, EOS, EOS], [5, 7, 7, EOS], [5, EOS, 7, EOS]])
    assert exact(tokens, [[5, 7]] * 4).tolist() == [True, True, False, False]


def test_decodings_may_part_at_a_tie():
    decoded = Decoded(np.array([[5, 7], [5, 7], [5, 7]]), np.zeros((3, 2), bool))
    other = np.array([[5, 7], [5, 8], [6, 7]])
    decoded.tied[1, 1] = decoded.tied[2, 1] = True
    assert disagreements(decoded, other) == [2]
