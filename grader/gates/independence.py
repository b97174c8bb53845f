"""Does a logit depend on a later target token? Gate 1 asks it of drawn weights, gate 4 of trained.

All changes of a batch are stacked, so that one call asks them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from grader.asking.submission import Question, Submission, forward
from grader.gates import influence, invariance
from grader.gates.influence import Findings
from grader.gates.invariance import ROUNDING, Batch, Bench, Model, logits_of
from grader.model.draws import Draws, Ids

RESPONDS = 1e-4
# Which of three small pieces the first draw is asked where it is not asked all of them; which
# number it starts from is drawn.
SMALL_PIECE = {
    ("ordinary", "eval"): 0,
    ("ordinary", "train"): 1,
    ("sharpened", "eval"): 2,
    ("sharpened", "train"): 0,
}
# Of the model that has a twin: whether the batch is padded whose prefixes are asked alone, and in
# which mode.
PREFIXES = {"ordinary": (True, "eval"), "sharpened": (False, "train")}
SEVERAL = (4, 17)


@dataclass(frozen=True)
class Trial:
    """What every judgement needs; without `control` nobody asks whether a token can move a logit.

    A trained model may have learned not to read its target, drawn weights cannot.
    """

    submission: Submission
    findings: Findings
    seen: dict[str, Any]
    control: bool = True


@dataclass(frozen=True)
class Changes:
    """One batch's changed targets and sources, stacked so that one call asks them all."""

    other: Ids
    target: Ids
    source: Ids | None
    alone: int
    several: int

    def calls(self, batch: Batch, model: Model, mode: str) -> list[dict[str, Any]]:
        """Return the calls that ask a model for all that is judged of it."""
        found = []
        for rows in self.pieces(batch, model, mode):
            source = None if self.source is None else self.source[rows]
            found.append(batch.arguments(self.target[rows], source))
        return found

    def pieces(self, batch: Batch, model: Model, mode: str) -> list[np.ndarray]:
        """Return the rows that each call asks for.

        Some mistakes show at some numbers of rows only. The first draw's ordinary weights are
        asked one row alone, two together, several and the rest, in eval() with padding and in
        train() without; in all other circumstances it is asked one of these pieces and the rest.
        A sharp softmax may hide a source token: nobody asks sharpened weights for it.
        """
        rows, length = batch.target.shape
        every = np.arange(2 * length * rows if model.sharpened else len(self.target))
        if model.draw:
            return [every]
        start = self.alone
        small = [
            every[start : start + 1], every[start + 1 : start + 3],
            every[start + 3 : start + 3 + self.several],
        ]  # fmt: skip
        if model.sharpened or batch.padded != (mode == "eval"):
            which = self.several + SMALL_PIECE[model.weights, mode]
            small = [small[which % len(small)]]
        return [*small, np.setdiff1d(every, np.concatenate(small))]


def changes(rng: Draws, batch: Batch, vocab_size: int) -> Changes:
    """Leave the batch as it is, change every token, all after every split, every source token."""
    rows, length = batch.target.shape
    # A row whose changed token is not the first: it then has a past that must not move.
    several = int(rng.child("several").integers((), *SEVERAL))
    alone = int(rng.child("alone").integers((), 2 * rows, 2 * length * rows - 2 - several))
    other = rng.child("other").other_ids(batch.target, vocab_size)
    position = np.arange(length)
    masks = [position == s for s in range(length)]
    masks += [position > t for t in range(length - 1)]
    changed = [np.where(mask, other, batch.target) for mask in masks]
    target = np.concatenate([batch.target, *changed])
    source = None
    if batch.source is not None:
        others = rng.child("other source").other_ids(batch.source, vocab_size)
        width = batch.source.shape[1]
        source = np.concatenate(
            [np.where(np.arange(width) == s, others, batch.source) for s in range(width)]
        )
        source = np.concatenate([invariance.tile(batch.source, len(target)), source])
        target = np.concatenate([target, invariance.tile(batch.target, rows * width)])
    return Changes(other, target, source, alone, several)


def question(bench: Bench, model: Model, mode: str, batch: Batch, changed: Changes) -> Question:
    """Ask a model for the batch among its changes."""
    return forward(model.handle, *changed.calls(batch, model, mode), mode=mode, dtype=bench.dtype)


def prefix_question(bench: Bench, model: Model, mode: str, batch: Batch) -> Question:
    """Ask a model for the prefixes of a batch, each alone."""
    calls = [batch.arguments(batch.target[:, :t]) for t in prefixes(bench, batch, model, mode)]
    return forward(model.handle, *calls, mode=mode, dtype=bench.dtype)


def prefixes(bench: Bench, batch: Batch, model: Model, mode: str) -> list[int]:
    """Return the lengths of the prefixes that are asked alone, the whole rows first.

    Over the benches, ordinary weights are asked the padded batch in eval(), and sharpened ones the
    unpadded batch in train().
    """
    one = (model.draw, model.sharpened) == (bench.original.draw, bench.original.sharpened)
    if not one or (batch.padded, mode) != PREFIXES[model.weights]:
        return []
    return list(range(batch.target.shape[1], 0, -1))


def judge(
    trial: Trial,
    bench: Bench,
    model: Model,
    mode: str,
    batch: Batch,
    changed: Changes,
    outputs: list[Any],
    alone: list[Any],
) -> None:
    """Fail on a logit that moved and must not, or did not move and must.

    `outputs` answer `question`, and `alone` answers `prefix_question`.
    """
    seen, findings = trial.seen, trial.findings
    rows, length = batch.target.shape
    real = batch.real()
    pieces = changed.pieces(batch, model, mode)
    found = [
        logits_of(output, len(piece), length, bench, real[piece % rows])
        for piece, output in zip(pieces, outputs, strict=True)
    ]
    stacked = np.concatenate(found)[np.argsort(np.concatenate(pieces))]
    stacked = stacked.reshape(-1, rows, *stacked.shape[1:])
    base = stacked[0]
    moved = np.abs(stacked[1:] - base).max(axis=-1)
    scale = max(1.0, float(np.abs(base).max()))
    bound = bench.tolerance * scale
    single, splits = moved[:length], moved[length : 2 * length - 1]  # (change, B, T)
    position = np.arange(length)
    forbidden = np.concatenate([
        np.where(position[None, None, :] < position[:, None, None], single, 0.0),
        np.where(position[None, None, :] <= position[:-1, None, None], splits, 0.0),
    ])  # fmt: skip
    seen["largest_forbidden"] = max(seen["largest_forbidden"], float(forbidden.max()) / scale)
    seen["calls"] += 1
    if not batch.padded and "influence" not in seen:
        seen["influence"] = single[:, 0].T  # (T, s) of the first row
    circumstances = bench.describe(model, mode, batch.padded)
    if forbidden.max() > bound:
        change, row, place = (int(i) for i in np.unravel_index(forbidden.argmax(), forbidden.shape))
        witness = circumstances | {
            "changed": change if change < length else f"every token after {change - length}",
            "target": batch.target[row], "position": place,
            "largest_difference": float(forbidden.max()), "tolerance": bound,
            "ratio": float(forbidden.max() / bound),
        }  # fmt: skip
        influence.require_repeatable(trial.submission, bench, model, mode, batch)
        influence.explain_leak(trial.submission, bench, model, mode, batch, row, changed.other,
                               witness, findings)  # fmt: skip
    for t, output in zip(prefixes(bench, batch, model, mode), alone, strict=True):
        prefix = logits_of(output, rows, t, bench, real[:, :t])
        gap = float(np.abs(prefix - base[:, :t]).max())
        # In rows of one length no token leaks: of that, another length shows no more than rounding.
        if gap > bound * (ROUNDING if t < length else 1.0):
            influence.require_repeatable(trial.submission, bench, model, mode, batch)
            influence.explain_prefix(t == length, circumstances | {
                "prefix_length": t, "largest_difference": gap, "tolerance": bound,
                "ratio": gap / bound}, findings)  # fmt: skip
    if trial.control and not model.sharpened:
        respond(batch, single, moved[2 * length - 1 :], scale, circumstances, seen, findings)


def respond(
    batch: Batch,
    single: np.ndarray,
    sources: np.ndarray,
    scale: float,
    circumstances: dict[str, Any],
    seen: dict[str, Any],
    findings: Findings,
) -> None:
    """Control: every real token at or before t moves logits[t], and so does every source token."""
    real = batch.real()
    length = real.shape[1]
    allowed = (
        np.tril(np.ones((length, length), bool)).T[:, None, :] & real[None] & real.T[:, :, None]
    )
    least = np.where(allowed, single, np.inf)
    seen["smallest_allowed"] = min(seen["smallest_allowed"], float(least.min()) / scale)
    if least.min() < RESPONDS * scale:
        change, row, place = (int(i) for i in np.unravel_index(least.argmin(), least.shape))
        influence.explain_silence("target", circumstances | {
            "changed": change, "position": place, "target": batch.target[row],
            "moved": float(least.min()), "expected_at_least": RESPONDS * scale}, findings,
            single.max(axis=1).T)  # fmt: skip
    if len(sources):
        width = len(sources)
        present = invariance.padding_of(batch.source_lengths, width).T  # (S, B)
        strongest = np.where(present, (sources * real[None]).max(axis=-1), np.inf)
        seen["smallest_source"] = min(
            seen.get("smallest_source", np.inf), float(strongest.min()) / scale
        )
        if strongest.min() < RESPONDS * scale:
            change, row = (int(i) for i in np.unravel_index(strongest.argmin(), strongest.shape))
            influence.explain_silence("source", circumstances | {
                "changed": change, "target": batch.target[row], "moved": float(strongest.min()),
                "expected_at_least": RESPONDS * scale}, findings, None)  # fmt: skip
