"""Gates 1 to 3 ask no more than they need, and leave no kind of weights, mode or batch unasked."""

from itertools import product

from grader.base.settings import load
from grader.gates import independence, invariance
from grader.gates.gradients import CALLS, schedule
from grader.gates.invariance import CLASSES, MODES, Model
from grader.model.draws import Draws

LAB = load()
BENCHES = [
    invariance.first_choice(LAB, kind, depth)
    for kind, depth in product(CLASSES, LAB.invariance.num_layers)
]
BENCH = BENCHES[0]


def asked(sharpened: bool) -> list[tuple[int, str]]:
    models = [m for m in BENCH.models if m.sharpened == sharpened]
    return [(m.draw, mode) for m in models for mode in invariance.modes_of(m)]


def test_ordinary_and_sharpened_weights_are_asked_in_both_modes_of_one_model():
    for sharpened in (False, True):
        assert {mode for draw, mode in asked(sharpened) if draw == 0} == set(MODES)


def test_every_draw_is_asked_and_the_later_ones_in_either_mode():
    draws = range(LAB.invariance.weight_draws)
    for sharpened in (False, True):
        assert {draw for draw, _ in asked(sharpened)} == set(draws)
        assert {mode for draw, mode in asked(sharpened) if draw > 0} == set(MODES)


def test_later_draws_are_asked_both_batches_over_the_benches():
    for kind in CLASSES:
        benches = [b for b in BENCHES if b.kind == kind]
        for sharpened in (False, True):
            later = Model("m", 1, sharpened)
            asked = {padded for b in benches for padded in invariance.batches_of(b, later)}
            assert asked == {False, True}
        assert invariance.batches_of(benches[0], Model("m", 0, False)) == (False, True)


def test_prefixes_are_asked_of_ordinary_or_of_sharpened_weights_in_turns():
    found = []
    for bench in BENCHES:
        asked_in = {}
        for padded in (False, True):
            batch = invariance.draw_batch(Draws(1, "test"), bench, padded=padded)
            for model, mode in product(bench.models, MODES):
                lengths = independence.prefixes(bench, batch, model, mode)
                asked_in[model.draw, model.sharpened, padded, mode] = lengths
        every = list(range(batch.target.shape[1], 0, -1))
        ((circumstances, lengths),) = [item for item in asked_in.items() if item[1]]
        assert lengths == every
        found.append(circumstances)
    ordinary, sharp = (0, False, True, "eval"), (0, True, False, "train")
    assert found == [ordinary, sharp, sharp, ordinary]


def test_every_number_of_rows_is_asked_in_both_modes_and_all_rows_are_judged_once():
    bench = BENCH
    for padded in (False, True):
        batch = invariance.draw_batch(Draws(1, "test"), bench, padded=padded)
        changed = independence.changes(Draws(1, "test"), batch, bench.config.vocab_size)
        for model, mode in product(bench.models, MODES):
            pieces = changed.pieces(batch, model, mode)
            rows = sorted(int(row) for piece in pieces for row in piece)
            assert rows == list(range(len(rows)))
            assert len(rows) >= 2 * batch.target.size
            full = not (model.draw or model.sharpened) and padded == (mode == "eval")
            assert len(pieces) == (1 if model.draw else 4 if full else 2)


def test_every_lesson_is_asked_of_ordinary_and_of_sharpened_weights():
    for bench in BENCHES:
        shares = schedule(bench)
        assert {share.model for share in shares} == set(bench.models)
        for sharpened in (False, True):
            calls = {c for s in shares if s.model.sharpened == sharpened for c in s.calls}
            assert calls == set(range(len(CALLS)))
        modes = {share.mode for share in shares if share.model == bench.models[0]}
        assert modes == set(MODES)
