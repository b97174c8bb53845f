"""Does a logit depend on a later target token? Gate 1 asks it of drawn weights, gate 4 of trained.

All changes of a batch are stacked, so that one call asks them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from grader import influence, invariance
from grader.draws import Draws, Ids
from grader.influence import Findings
from grader.invariance import Batch, Bench, Model, logits_of
from grader.submission import Question, Submission, forward

RESPONDS = 1e-4


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


def changes(rng: Draws, batch: Batch, vocab_size: int) -> Changes:
    """Change every token alone, all tokens after every split point, and every source token."""
    rows, length = batch.target.shape
    other = rng.child("other").other_ids(batch.target, vocab_size)
    position = np.arange(length)
    masks = [position == s for s in range(length)]
    masks += [position > t for t in range(length - 1)]
    target = np.concatenate([np.where(mask, other, batch.target) for mask in masks])
    source = None
    if batch.source is not None:
        others = rng.child("other source").other_ids(batch.source, vocab_size)
        width = batch.source.shape[1]
        source = np.concatenate(
            [np.where(np.arange(width) == s, others, batch.source) for s in range(width)]
        )
        target = np.concatenate([target, invariance.tile(batch.target, rows * width)])
        unchanged = invariance.tile(batch.source, len(target) - len(source))
        source = np.concatenate([unchanged, source])
    return Changes(other, target, source)


def questions(bench: Bench, batch: Batch, changed: Changes) -> list[Question]:
    """Ask every model for the batch and its changes and, once at the first draw, for prefixes."""
    return [
        forward(
            model.handle,
            batch.arguments(),
            batch.arguments(changed.target, changed.source),
            *prefixes(batch, model, mode),
            mode=mode,
            dtype=bench.dtype,
        )
        for model in bench.models
        for mode in invariance.modes_of(model)
    ]


def prefixes(batch: Batch, model: Model, mode: str) -> list[dict[str, Any]]:
    """Ask the first draw for every prefix alone, in eval(); its sharpened model in train()."""
    if model.draw or mode != invariance.MODES[model.sharpened]:
        return []
    return [batch.arguments(batch.target[:, : t + 1]) for t in range(batch.target.shape[1] - 1)]


def judge(
    trial: Trial,
    bench: Bench,
    model: Model,
    mode: str,
    batch: Batch,
    changed: Changes,
    outputs: list[Any],
) -> None:
    """Fail on a logit that moved and must not, or did not move and must."""
    seen, findings = trial.seen, trial.findings
    rows, length = batch.target.shape
    real = batch.real()
    base = logits_of(outputs[0], rows, length, bench, real)
    repeats = len(changed.target) // rows
    stacked = logits_of(outputs[1], len(changed.target), length, bench, np.tile(real, (repeats, 1)))
    moved = np.abs(stacked.reshape(repeats, rows, *base.shape[1:]) - base).max(axis=-1)
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
        influence.explain_leak(trial.submission, bench, model, mode, batch, row, changed.other,
                               witness, findings)  # fmt: skip
    for t, output in enumerate(outputs[2:]):
        alone = logits_of(output, rows, t + 1, bench, real[:, : t + 1])
        gap = float(np.abs(alone - base[:, : t + 1]).max())
        if gap > bound:
            influence.explain_prefix(circumstances | {
                "prefix_length": t + 1, "largest_difference": gap, "tolerance": bound,
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
