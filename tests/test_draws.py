"""What the referee draws: the same for the same seed, and fit for the checks."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader.model.draws import BOS, EOS, FIRST_DATA_ID, PAD, Draws, sharpened
from grader.model.parameters import ProbeConfig, parameter_shapes
from grader.oracle.models import decoder_only, seq2seq
from grader.oracle.scope import Scope, Trace

VOCAB = 13


def test_draws_depend_on_seed_and_name_alone():
    first, other = Draws(7, "gate_1"), Draws(7, "gate_2")
    other.integers((3,), 0, 99)
    np.testing.assert_array_equal(
        first.integers((5,), 0, 10**9), Draws(7, "gate_1").integers((5,), 0, 10**9)
    )
    streams = [Draws(7, "gate_1"), Draws(8, "gate_1"), other, Draws(7, "gate_1").child("ids")]
    assert len({int(draws.integers((), 0, 2**62)) for draws in streams}) == 4


def test_draws_are_the_same_numbers_on_every_machine():
    draws = Draws("a seed", "everywhere")
    shapes = parameter_shapes(ProbeConfig(max_len=11), "seq2seq")
    state = hashlib.sha256()
    for array in draws.weights(shapes).values():
        state.update(array.tobytes())
    state.update(draws.ids(draws.lengths(5, 2, 7), VOCAB).tobytes())
    state.update(draws.permutation_of_data_ids(VOCAB).tobytes())
    assert state.hexdigest() == "dd1623b8efebc43dba5f7bf14fe42f09cf221a67dc16feb8dd670672894ba8b0"


def test_weights_do_not_depend_on_their_neighbours():
    shapes = parameter_shapes(ProbeConfig(), "seq2seq")
    name = "decoder.blocks.0.cross_attention.q_proj.weight"
    alone = Draws(1, "w").weights({name: shapes[name]})
    np.testing.assert_array_equal(alone[name], Draws(1, "w").weights(shapes)[name])


def test_weights_are_exact_in_float32():
    weights = Draws(1, "w").weights(parameter_shapes(ProbeConfig(), "decoder_only"))
    for array in weights.values():
        np.testing.assert_array_equal(array, array.astype(np.float32))


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("num_layers", [1, 2])
def test_ordinary_weights_give_logits_around_one(placement, num_layers):
    config = ProbeConfig(placement=placement, num_layers=num_layers)
    draws = Draws(2, "logits")
    ids = draws.ids(draws.lengths(5, 2, 7), config.vocab_size)
    for kind, inputs in (("seq2seq", [ids, ids]), ("decoder_only", [ids])):
        model = {"seq2seq": seq2seq, "decoder_only": decoder_only}[kind]
        logits = model(Scope(config, draws.weights(parameter_shapes(config, kind))), *inputs)
        assert 0.3 < logits[ids != PAD].std() < 3.0


@settings(deadline=None)
@given(
    rows=st.integers(1, 5), shortest=st.integers(1, 3), more=st.integers(0, 4), seed=st.integers()
)
def test_ids_are_padded_on_the_right_only(rows, shortest, more, seed):
    draws = Draws(seed, "ids")
    lengths = draws.lengths(rows, shortest, shortest + more)
    ids = draws.ids(lengths, VOCAB)
    assert max(lengths) == shortest + more and min(lengths) >= shortest
    assert rows == 1 or min(lengths) == shortest
    real = np.arange(ids.shape[1]) < lengths[:, None]
    assert np.all(ids[~real] == PAD)
    assert np.all((ids[real] >= FIRST_DATA_ID) & (ids[real] < VOCAB))


def test_ids_hold_bos_and_eos_when_asked():
    ids = Draws(3, "ids").ids([101, 103], VOCAB, first_id=BOS)
    assert set(np.unique(ids)) == {PAD, *range(BOS, VOCAB)}
    assert PAD not in ids[1]


@settings(deadline=None)
@given(seed=st.integers())
def test_other_ids_differ_at_every_real_position_and_keep_padding(seed):
    draws = Draws(seed, "other")
    ids = draws.ids([7, 3], VOCAB, first_id=BOS)
    others = draws.other_ids(ids, VOCAB)
    np.testing.assert_array_equal(others == PAD, ids == PAD)
    assert not np.any((others == ids) & (ids != PAD))
    assert others.max() < VOCAB


@settings(deadline=None)
@given(seed=st.integers())
def test_permutation_moves_data_ids_only(seed):
    permutation = Draws(seed, "permutation").permutation_of_data_ids(5)
    np.testing.assert_array_equal(permutation, [PAD, BOS, EOS, 4, 3])


def test_held_out_rows_are_unique_mixed_and_disjoint():
    draws = Draws(4, "rows")
    seen = draws.rows(300, 2, 5, VOCAB)
    held_out = draws.rows(200, 2, 5, VOCAB, exclude=seen, unique=True)
    assert len(set(held_out)) == 200
    assert not set(held_out) & set(seen)
    assert {len(row) for row in held_out} == {2, 3, 4, 5}
    assert {id_ for row in held_out for id_ in row} == set(range(FIRST_DATA_ID, VOCAB))


def test_few_rows_include_the_longest():
    rows = Draws(5, "rows").rows(7, 3, 97, VOCAB, unique=True)
    assert sum(len(row) == 97 for row in rows) >= 4


def test_every_possible_row_can_be_held_out_but_not_one_more():
    rows = Draws(6, "rows").rows(2 + 4, 1, 2, 5, unique=True)
    assert len(set(rows)) == 6
    with pytest.raises(ValueError, match="make 6, of which 1 are excluded"):
        Draws(6, "rows").rows(6, 1, 2, 5, exclude=rows[:1], unique=True)


@pytest.mark.parametrize("fields", [{}, {"num_layers": 2, "placement": "post", "num_kv_heads": 2}])
def test_sharpened_weights_bring_every_attention_to_the_peak(fields):
    config = ProbeConfig(**fields)
    draws = Draws(7, "sharp")
    weights = draws.weights(parameter_shapes(config, "seq2seq"))
    ids = [draws.ids(draws.lengths(3, 2, 7), config.vocab_size) for _ in range(2)]
    trace = Trace(peak=80.0)
    seq2seq(Scope(config, weights, trace=trace), *ids)
    sharp = Scope(config, sharpened(weights, trace.factors))
    seq2seq(sharp, *ids)
    assert len(sharp.trace.scores) == 3 * config.num_layers
    for scores in sharp.trace.scores.values():
        assert np.abs(scores).max() == pytest.approx(80.0, rel=0.01)


def test_sharpening_changes_queries_and_keys_only():
    config = ProbeConfig()
    weights = Draws(8, "w").weights(parameter_shapes(config, "multi_head_attention"))
    sharp = sharpened(weights, {"": 16.0})
    for name, array in weights.items():
        factor = 4.0 if name.startswith(("q_proj.", "k_proj.")) else 1.0
        np.testing.assert_array_equal(sharp[name], factor * array)


@pytest.mark.parametrize(
    "module", ["model.draws", "model.parameters", "asking.expectations", "oracle.registry"]
)
def test_module_never_imports_torch_or_the_package_under_test(module):
    program = (
        f"import grader.{module}, sys;"
        "print([name for name in ('torch', 'transformer') if name in sys.modules])"
    )
    command, root = [sys.executable, "-c", program], Path(__file__).parents[1]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
