"""Gates 1 and 2 ask no more than they need, and leave no kind of weights or mode unasked."""

from grader import independence, invariance
from grader.draws import Draws
from grader.invariance import MODES, Model
from grader.settings import load

LAB = load()
BENCH = invariance.first_choice(LAB, "seq2seq", 1)


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


def test_prefixes_are_asked_once_of_ordinary_and_once_of_sharpened_weights():
    asked_in = {}
    for padded in (False, True):
        batch = invariance.draw_batch(Draws(1, "test"), BENCH, padded=padded)
        for sharpened in (False, True):
            for mode in MODES:
                model = Model("m", 0, sharpened)
                asked_in[sharpened, padded, mode] = independence.prefixes(batch, model, mode)
    every = list(range(batch.target.shape[1], 0, -1))
    asked = {circumstances for circumstances, lengths in asked_in.items() if lengths}
    assert asked == {(False, True, "eval"), (True, False, "train")}
    assert all(asked_in[circumstances] == every for circumstances in asked)
