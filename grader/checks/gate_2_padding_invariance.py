"""Gate 2: padding changes nothing that is real."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from grader import invariance, padding
from grader.draws import BOS, PAD, Draws, Ids
from grader.expectations import Ask
from grader.influence import Findings
from grader.invariance import Batch, Bench, Model, logits_of
from grader.settings import Settings
from grader.submission import Question, Submission, forward

RESPONDS = 1e-4
EXTRA = 2


@dataclass(frozen=True)
class Form:
    """One way to add, remove or overwrite padding; every form must leave the real logits alone."""

    name: str
    call: dict[str, Any]
    rows: tuple[int, ...] = (0, 1, 2)
    length: int | None = None
    with_loss: bool = True


@dataclass
class Case:
    """A batch with its forms and its controls."""

    batch: Batch
    forms: list[Form]
    controls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def calls(self, model: Model) -> list[dict[str, Any]]:
        """Return every call in order; a sharp softmax may hide a control, so nobody asks it."""
        controls = [] if model.sharpened else [call for _, call in self.controls]
        return [f.call for f in self.forms] + controls


def widen(ids: Ids) -> Ids:
    """Add padding columns on the right."""
    return np.pad(ids, ((0, 0), (0, EXTRA)), constant_values=PAD)


def call(
    bench: Bench, source: Ids | None, target: Ids, valid: tuple[Any, Any] | None = None
) -> dict[str, Any]:
    """Call the model, with explicit validity masks where they are given."""
    arguments: list[Any] = [target] if source is None else [source, target]
    names = ["valid_tokens"] if source is None else ["source_valid", "target_valid"]
    masks = [] if valid is None else ([valid[1]] if source is None else list(valid))
    one: dict[str, Any] = {"args": arguments, "kwargs": dict(zip(names, masks, strict=False))}
    # Any targets do for the loss, as long as the padding is in the same place.
    shifted = np.roll(target, -1, axis=1)
    shifted[:, -1] = PAD
    return one | {"targets": np.where(shifted == BOS, PAD, shifted)}


def make_case(rng: Draws, bench: Bench, *, padded: bool) -> Case:
    """Draw a batch and write down its forms and controls."""
    batch = invariance.draw_batch(rng, bench, padded=padded)
    source, target = batch.source, batch.target
    forms = [Form("as it is", call(bench, source, target))]
    if source is not None:
        forms.append(Form("source columns", call(bench, widen(source), target)))
    forms.append(Form("target columns", call(bench, source, widen(target))))
    for row in (1, 2) if padded else (1,):
        length = batch.target_lengths[row]
        own = None if source is None else source[row : row + 1, : batch.source_lengths[row]]
        alone = call(bench, own, target[row : row + 1, :length])
        forms.append(Form("row alone", alone, (row,), length, with_loss=False))
    case = Case(batch, forms)
    if padded:
        add_explicit(rng, bench, case)
    return case


def add_explicit(rng: Draws, bench: Bench, case: Case) -> None:
    """Add arbitrary ids under an explicit validity mask, and masks that hide a real token."""
    batch = case.batch
    source, target, size = batch.source, batch.target, bench.config.vocab_size
    real = batch.real()
    real_source = None if source is None else source != PAD
    junk = rng.child("junk").integers(target.shape, BOS, size)
    junk_source = None
    if source is not None and real_source is not None:
        noise = rng.child("junk source").integers(source.shape, BOS, size)
        junk_source = np.where(real_source, source, noise)
    replaced = call(bench, junk_source, np.where(real, target, junk), (real_source, real))
    replaced["targets"] = case.forms[0].call["targets"]
    case.forms.append(Form("ids under an explicit mask", replaced))
    hidden = real.copy()
    hidden[:, 1] = False
    case.controls.append(("target", call(bench, source, target, (real_source, hidden))))
    if source is not None and real_source is not None:
        hidden_source = real_source.copy()
        hidden_source[:2, 1] = False
        case.controls.append(("source", call(bench, source, target, (hidden_source, real))))


@pytest.mark.gate(2, "padding_invariance")
def test_padding_changes_no_real_logit(
    submission: Submission, rng: Draws, expected: Ask, lab: Settings, findings: Findings
) -> dict[str, Any]:
    """Padding columns, their content and their embedding leave real logits and the loss alone."""
    seen: dict[str, Any] = {"largest_difference": 0.0, "smallest_response": float("inf")}
    cases: list[Case] = []

    def ask(bench: Bench) -> tuple[list[Batch], list[Question]]:
        drawn = [make_case(rng, bench, padded=p) for p in (False, True)]
        cases.extend(drawn)
        questions: list[Question] = []
        for model in bench.models:
            for mode in invariance.modes_of(model):
                questions += [
                    forward(model.handle, *case.calls(model), mode=mode, dtype=bench.dtype)
                    for case in drawn
                ]
            questions += overwritten(rng, bench, model, drawn)
        return [case.batch for case in drawn], questions

    for bench, batches, answers in invariance.rounds(submission, rng, expected, lab, ask):
        invariance.judge_determinism(bench, batches[-1], answers[:2], seen)
        drawn, cases = cases[:2], cases[2:]
        judge_bench(submission, bench, drawn, iter(answers[2:]), seen, findings)
    return seen


def judge_bench(
    submission: Submission, bench: Bench, cases: list[Case], answers: Iterator[Any],
    seen: dict[str, Any], findings: Findings,
) -> None:  # fmt: skip
    """Judge every model of a bench, in the order of asking."""
    for model in bench.models:
        plain = {}
        for mode in invariance.modes_of(model):
            for case in cases:
                answer = next(answers)
                plain[case.batch.padded] = answer
                judge(submission, bench, model, mode, case, answer, seen, findings)
        next(answers)
        for case in cases:
            judge_overwritten(
                bench, model, case, plain[case.batch.padded], next(answers), seen, findings
            )


def overwritten(rng: Draws, bench: Bench, model: Model, cases: list[Case]) -> list[Question]:
    """Overwrite the padding's embedding, then ask every batch again."""
    values = rng.child("pad embedding").uniform((bench.config.d_model,), -3.0, 3.0)
    arguments = {"model": model.handle, "row": PAD, "values": values}
    questions = [Question("overwrite_embedding_row", arguments)]
    return questions + [
        forward(model.handle, case.forms[0].call, mode=last_mode(model), dtype=bench.dtype)
        for case in cases
    ]


def last_mode(model: Model) -> str:
    """Return the mode whose answers stand beside those with the padding's embedding overwritten."""
    return invariance.modes_of(model)[-1]


def judge(
    submission: Submission, bench: Bench, model: Model, mode: str, case: Case,
    answer: dict[str, Any], seen: dict[str, Any], findings: Findings,
) -> None:  # fmt: skip
    """Fail on a form that moved a real logit or the loss, or on a control that moved nothing."""
    batch = case.batch
    base, bound = base_logits(bench, batch, answer["outputs"][0])
    circumstances = bench.describe(model, mode, batch.padded)
    for index, form in enumerate(case.forms[1:], 1):
        gap = difference(bench, batch, form, answer["outputs"][index], base)
        seen["largest_difference"] = max(seen["largest_difference"], float(gap.max()))
        witness = circumstances | {"form": form.name, "tolerance": bound}
        if gap.max() > bound:
            row, place = (int(i) for i in np.unravel_index(gap.argmax(), gap.shape))
            witness |= {
                "row": form.rows[row], "position": place, "largest_difference": float(gap.max()),
                "ratio": float(gap.max() / bound), "difference_per_position": gap.max(axis=0),
                "target": batch.target[form.rows[row]],
            }  # fmt: skip
            padding.explain(submission, bench, model, mode, case.forms[0].call, form, batch,
                            witness, findings)  # fmt: skip
        losses = answer["losses"]
        if form.with_loss:
            padding.compare_losses(losses[0], losses[index], bench, witness, findings)
    if model.sharpened:
        return
    for index, (what, _) in enumerate(case.controls, len(case.forms)):
        moved = difference(bench, batch, case.forms[0], answer["outputs"][index], base)
        rows = moved[:2].max(axis=1)
        seen["smallest_response"] = min(seen["smallest_response"], float(rows.min()))
        if rows.min() < RESPONDS * bound / bench.tolerance:
            padding.explain_silence(what, circumstances | {"moved": float(rows.min())}, findings)


def base_logits(bench: Bench, batch: Batch, value: Any) -> tuple[np.ndarray, float]:
    """Return the batch's own logits and the tolerance that belongs to their size."""
    rows, length = batch.target.shape
    base = logits_of(value, rows, length, bench, batch.real())
    return base, bench.tolerance * max(1.0, float(np.abs(base).max()))


def difference(bench: Bench, batch: Batch, form: Form, value: Any, base: np.ndarray) -> np.ndarray:
    """Return (rows, T) how far each real logit is from the batch as it is."""
    target = form.call["args"][-1]
    width = target.shape[1]
    real = np.zeros((len(form.rows), width), bool)
    real[:, : base.shape[1]] = batch.real()[list(form.rows), :width]
    got = logits_of(value, len(form.rows), width, bench, real)
    length = form.length or base.shape[1]
    gap: np.ndarray = np.abs(got[:, :length] - base[list(form.rows), :length])
    return np.asarray(gap.max(axis=-1))


def judge_overwritten(
    bench: Bench, model: Model, case: Case, before: dict[str, Any], after: dict[str, Any],
    seen: dict[str, Any], findings: Findings,
) -> None:  # fmt: skip
    """Fail when the padding's embedding reached a real logit or the loss."""
    batch = case.batch
    base, bound = base_logits(bench, batch, before["outputs"][0])
    rows, length = batch.target.shape
    got = logits_of(after["outputs"][0], rows, length, bench, batch.real())
    tied = bench.kind == "decoder_only"
    columns = np.arange(bench.config.vocab_size) != PAD if tied else slice(None)
    gap = np.abs(got - base)[:, :, columns].max(axis=-1)
    seen["largest_difference"] = max(seen["largest_difference"], float(gap.max()))
    witness = bench.describe(model, last_mode(model), batch.padded) | {
        "form": "embedding of PAD overwritten", "tolerance": bound}  # fmt: skip
    if gap.max() > bound:
        row, place = (int(i) for i in np.unravel_index(gap.argmax(), gap.shape))
        padding.explain_embedding(witness | {
            "row": row, "position": place, "target": batch.target[row],
            "largest_difference": float(gap.max()), "ratio": float(gap.max() / bound),
        }, findings)  # fmt: skip
    if not tied:
        padding.compare_losses(before["losses"][0], after["losses"][0], bench, witness, findings)
