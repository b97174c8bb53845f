"""Gradients compared with what moving the parameters does to the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from grader import gradient_causes
from grader.compare import fail
from grader.draws import PAD
from grader.gradients import Learning
from grader.influence import blamed
from grader.invariance import Bench, Model
from grader.submission import Question

# A loss in float32 is known to about 1e-7 of itself, the difference to that over the step.
FLOAT32_ALLOWANCE = 10.0


@dataclass(frozen=True)
class Moves:
    """A loss, and how the parameters it depends on are moved.

    Attributes:
        model: Whose parameters.
        call: What the loss is taken of.
        mode: "eval" or "train".
        step: Length of a move.
        signs: (R, N) of 1 and -1: R moves of all parameters together, each along its own gradient
            or against it. They see a gradient that is too long or too short.
        drawn: (R, K) numbers: R moves of all parameters together, each in a direction made of
            these. They see a gradient that points elsewhere.
    """

    model: Model
    call: dict[str, Any]
    mode: str
    step: float
    signs: np.ndarray
    drawn: np.ndarray

    def question(self, bench: Bench) -> Question:
        """Ask for all moves, every parameter taking part in each."""
        together = np.ones((1, self.signs.shape[1]))
        moves = [{"along": None, "signs": self.signs}]
        moves += [{"along": direction, "signs": together} for direction in self.drawn]
        return self._ask(bench, moves)

    def alone(self, bench: Bench, move: int) -> Question:
        """Ask for moves of one parameter each, in the directions of one of all moves."""
        along = None if move == 0 else self.drawn[move - 1]
        return self._ask(bench, [{"along": along, "signs": None}])

    def _ask(self, bench: Bench, moves: list[dict[str, Any]]) -> Question:
        return Question(
            "losses_along",
            {
                "model": self.model.handle,
                "call": self.call,
                "step": self.step,
                "moves": moves,
                "mode": self.mode,
                "dtype": bench.dtype,
            },
        )


def judge(
    bench: Bench, moves: Moves, names: Sequence[str], answer: dict[str, Any], learning: Learning
) -> None:
    """Fail when a gradient disagrees with what moving its parameter does to the loss.

    A few moves of all parameters together show that something is wrong; only then is each asked
    alone.
    """
    settings = learning.lab.gradients
    allowance = FLOAT32_ALLOWANCE if bench.dtype == "float32" else 1.0
    absolute = settings.absolute_tolerance * allowance
    for move in range(1 + len(moves.drawn)):
        signs = moves.signs if move == 0 else np.ones((1, len(names)))
        moved, products, slopes = read(answer, move, move > 0, len(names), len(signs), moves.step)
        signs = np.resize(signs, (len(signs), len(names)))[:, moved]
        share = np.sqrt(max(1, int(moved.sum())))
        gap = np.abs(slopes - signs @ products[moved] / share) * share
        learning.seen["largest_error"] = max(learning.seen["largest_error"], float(gap.max()))
        if (gap <= absolute).all():
            continue
        (alone,) = learning.submission.ask(moves.alone(bench, move))
        _, products, slopes = read(alone, 0, move > 0, len(names), len(names), moves.step)
        bound = settings.relative_tolerance * np.abs(products) + absolute
        ratio = np.nan_to_num(np.abs(slopes - products) / bound, nan=np.inf)
        if (ratio > 1.0).any():
            explain(bench, moves, list(names), products, slopes, ratio, learning)


def read(
    answer: dict[str, Any], move: int, drawn: bool, num_parameters: int, num_moves: int, step: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return who was moved (P,) bool, the slopes (P,) by the gradient, and those seen (R,).

    Along their own gradient go those that have one, in a drawn direction those of gradient 0 too.
    """
    products, ahead, behind = (answer[k] for k in ("products", "ahead", "behind"))
    norms = np.asarray(answer["norms"])
    whole = norms.shape == (num_parameters,) and move < min(map(len, (products, ahead, behind)))
    if not whole or not (
        products[move].shape == norms.shape
        and ahead[move].shape == behind[move].shape == (num_moves,)
    ):
        fail("no_tensor", "training", "the losses did not come as numbers.",
             "Return a scalar tensor from masked_cross_entropy.")  # fmt: skip
    moved = norms >= 0 if drawn else norms > 0
    return moved, products[move], (ahead[move] - behind[move]) / (2 * step)


def explain(
    bench: Bench, moves: Moves, names: list[str], products: np.ndarray, slopes: np.ndarray,
    ratio: np.ndarray, learning: Learning,
) -> NoReturn:  # fmt: skip
    """Fail with the parameter whose gradient is furthest from the finite difference."""
    worst, wrong = int(ratio.argmax()), [names[i] for i in np.flatnonzero(ratio > 1.0)]
    padded = bool((moves.call["args"][-1] == PAD).any())
    part, place = gradient_causes.of_wrong(wrong, names)
    advice = f"Look at {place}, for a tensor that goes on without part of its history."
    known = blamed(learning.findings, ("attention", "residual", "encoder", "decoder", "training"))
    if known and known.diagnosis:
        part = known.diagnosis.part
        advice = f"Task {known.stub} already shows it: {known.diagnosis.cause}"
    fail(
        "gradient_wrong", part,
        f"the gradient of {names[worst]} says the loss changes by {products[worst]:.4g} per unit "
        f"step in some direction, but it changes by {slopes[worst]:.4g}: part of the way to the "
        "loss has no history.", advice,
        bench.describe(moves.model, moves.mode, padded=padded) | {
            "parameter": names[worst], "gradient": float(products[worst]),
            "finite_difference": float(slopes[worst]), "ratio": float(ratio[worst]),
            "wrong": wrong, "right": len(names) - len(wrong),
        },
    )  # fmt: skip
