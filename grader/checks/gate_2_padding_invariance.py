"""Gate 2: padding changes nothing that is real."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from grader.asking.submission import Question, Submission, forward
from grader.gates import influence, invariance, padding
from grader.gates.influence import Findings
from grader.gates.invariance import ROUNDING, Batch, Bench, Model, logits_of
from grader.gates.model_pool import Benches, Pair
from grader.model.draws import BOS, PAD, Draws, Ids

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

    @property
    def overwrites(self) -> bool:
        """Whether the padding's embedding is another one in this call."""
        return "embedding_row" in self.call


@dataclass(frozen=True)
class Case:
    """A batch, its forms, and its controls: masks that hide a real token.

    The first draw's ordinary weights are asked every form alone in eval(), and the controls in both
    modes: a sharp softmax may hide them. Everything else is asked forms that combine several; later
    draws for the padded batch, and one of its last two forms, in turns.
    """

    batch: Batch
    first: tuple[Form, ...]
    later: tuple[Form, ...]
    controls: tuple[tuple[str, dict[str, Any]], ...]
    turn: int

    def forms(self, model: Model, mode: str) -> tuple[Form, ...]:
        """Return what a model is asked, the batch as it is first."""
        if model.draw == 0:
            return self.first if mode == "eval" and not model.sharpened else self.later
        if not self.batch.padded:
            return ()
        *several, alone, explicit = self.later
        return (*several, explicit if model.draw % 2 != self.turn else alone)

    def controls_of(self, model: Model) -> tuple[tuple[str, dict[str, Any]], ...]:
        """Return what must matter to a model."""
        return () if model.draw or model.sharpened else self.controls

    def calls(self, model: Model, mode: str) -> list[dict[str, Any]]:
        """Return every call to a model in order."""
        forms = [form.call for form in self.forms(model, mode)]
        return forms + [call for _, call in self.controls_of(model)]


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


def make_case(rng: Draws, bench: Bench, batch: Batch) -> Case:
    """Write down a batch's forms and controls."""
    source, target = batch.source, batch.target
    wide = None if source is None else widen(source)
    values = rng.child("pad embedding").uniform((bench.config.d_model,), -3.0, 3.0)
    other = {"embedding_row": [PAD, values]}
    plain = Form("as it is", call(bench, source, target))
    columns = [Form("target columns", call(bench, source, widen(target)))]
    if source is not None:
        columns.insert(0, Form("source columns", call(bench, wide, target)))
    every = Form("columns, with the embedding of PAD overwritten",
                 call(bench, wide, widen(target)) | other)  # fmt: skip
    alone = [row_alone(bench, batch, row) for row in ((1, 2) if batch.padded else (1,))]
    overwritten = Form("embedding of PAD overwritten", plain.call | other)
    explicit, controls = explicit_masks(rng, bench, batch, plain) if batch.padded else ((), ())
    return Case(
        batch,
        (plain, *columns, *alone, *explicit, overwritten),
        (plain, every, *(alone[1:]), *explicit),
        controls,
        bench.turn,
    )


def row_alone(bench: Bench, batch: Batch, row: int) -> Form:
    """Ask one row of the batch without its padding."""
    length = batch.target_lengths[row]
    source = batch.source
    own = None if source is None else source[row : row + 1, : batch.source_lengths[row]]
    one = call(bench, own, batch.target[row : row + 1, :length])
    return Form("row alone", one, (row,), length, with_loss=False)


def explicit_masks(
    rng: Draws, bench: Bench, batch: Batch, plain: Form
) -> tuple[tuple[Form, ...], tuple[tuple[str, dict[str, Any]], ...]]:
    """Return arbitrary ids under an explicit validity mask, and masks that hide a real token."""
    source, target, size = batch.source, batch.target, bench.config.vocab_size
    real = batch.real()
    real_source = None if source is None else source != PAD
    junk = rng.child("junk").integers(target.shape, BOS, size)
    junk_source = None
    if source is not None and real_source is not None:
        noise = rng.child("junk source").integers(source.shape, BOS, size)
        junk_source = np.where(real_source, source, noise)
    replaced = call(bench, junk_source, np.where(real, target, junk), (real_source, real))
    replaced["targets"] = plain.call["targets"]
    hidden = real.copy()
    hidden[:, 1] = False
    controls = [("target", call(bench, source, target, (real_source, hidden)))]
    if source is not None and real_source is not None:
        hidden_source = real_source.copy()
        hidden_source[:2, 1] = False
        controls.append(("source", call(bench, source, target, (hidden_source, real))))
    return (Form("ids under an explicit mask", replaced),), tuple(controls)


@pytest.mark.gate("padding_invariance")
def test_padding_changes_no_real_logit(
    benches: Benches, rng: Draws, findings: Findings
) -> dict[str, Any]:
    """Padding columns, their content and their embedding leave real logits and the loss alone."""
    seen: dict[str, Any] = {"largest_difference": 0.0, "smallest_response": float("inf")}

    def ask(bench: Bench, batches: Pair) -> tuple[list[Case], dict[Model, list[Question]]]:
        cases = [make_case(rng, bench, batch) for batch in batches]
        return cases, {
            model: [
                forward(
                    model.handle,
                    *(one for case in cases for one in case.calls(model, mode)),
                    mode=mode,
                    dtype=bench.dtype,
                )
                for mode in invariance.modes_of(model)
            ]
            for model in bench.models
        }

    for found in benches.rounds(ask, seen):
        for model, given in found.answers.items():
            for mode, answer in zip(invariance.modes_of(model), given, strict=True):
                answers = iter(answer["outputs"]), iter(answer["losses"])
                for case in found.asked:
                    judge(benches.submission, found.bench, model, mode, case, answers,
                          seen, findings)  # fmt: skip
    return seen


def judge(
    submission: Submission, bench: Bench, model: Model, mode: str, case: Case,
    answers: tuple[Iterator[Any], Iterator[Any]], seen: dict[str, Any], findings: Findings,
) -> None:  # fmt: skip
    """Fail on a form that moved a real logit or the loss, or on a control that moved nothing."""
    batch = case.batch
    if not (forms := case.forms(model, mode)):
        return
    plain, *others = forms
    outputs, losses = answers
    base = base_logits(bench, batch, next(outputs))
    loss = next(losses, None)
    scale = max(1.0, float(np.abs(base).max()))
    bound = bench.tolerance * scale
    circumstances = bench.describe(model, mode, batch.padded)
    for form in others:
        gap = difference(bench, batch, form, next(outputs), base)
        moved_loss = next(losses, None)
        seen["largest_difference"] = max(seen["largest_difference"], float(gap.max()) / scale)
        witness = circumstances | {"form": form.name, "tolerance": bound}
        if gap.max() > bound and not (
            gap.max() <= ROUNDING * bound
            and only_rounds(submission, bench, model, mode, form, batch, bound)
        ):
            row, place = (int(i) for i in np.unravel_index(gap.argmax(), gap.shape))
            witness |= {
                "row": form.rows[row], "position": place, "largest_difference": float(gap.max()),
                "ratio": float(gap.max() / bound), "difference_per_position": gap.max(axis=0),
                "target": batch.target[form.rows[row]],
            }  # fmt: skip
            influence.require_repeatable(submission, bench, model, mode, batch)
            if form.overwrites and form.call["args"] is plain.call["args"]:
                padding.explain_embedding(witness, findings)
            padding.explain(submission, bench, model, mode, plain.call, form, batch,
                            witness, findings)  # fmt: skip
        # The loss of a tied model sees the embedding of PAD as the weights of one of its classes.
        if form.with_loss and not (form.overwrites and tied(bench)):
            allowed = 2.0 * float(gap.max())  # a cross-entropy moves by no more than that
            padding.compare_losses(loss, moved_loss, bench, allowed, witness, findings)
    for what, _ in case.controls_of(model):
        moved = difference(bench, batch, plain, next(outputs), base)
        next(losses, None)
        rows = moved[:2].max(axis=1)
        seen["smallest_response"] = min(seen["smallest_response"], float(rows.min()) / scale)
        if rows.min() < RESPONDS * scale:
            padding.explain_silence(
                what,
                circumstances | {"moved": float(rows.min()), "expected_at_least": RESPONDS * scale},
                findings,
            )


def tied(bench: Bench) -> bool:
    """Tell whether the lab's model of this kind writes with its embedding."""
    return bench.kind == "decoder_only"


def base_logits(bench: Bench, batch: Batch, value: Any) -> np.ndarray:
    """Return the batch's own logits."""
    rows, length = batch.target.shape
    return logits_of(value, rows, length, bench, batch.real())


def difference(bench: Bench, batch: Batch, form: Form, value: Any, base: np.ndarray) -> np.ndarray:
    """Return (rows, T) how far each real logit is from the batch as it is."""
    got = real_logits(bench, batch, form, value)
    return distance(bench, got, base[list(form.rows), : got.shape[1]], form.overwrites)


def real_logits(bench: Bench, batch: Batch, form: Form, value: Any) -> np.ndarray:
    """Return (rows, T, V) the logits of a form at the batch's own columns, 0 at padding."""
    columns, width = batch.target.shape[1], form.call["args"][-1].shape[1]
    real = np.zeros((len(form.rows), width), bool)
    real[:, :columns] = batch.real()[list(form.rows), :width]
    got = logits_of(value, len(form.rows), width, bench, real)
    return got[:, : form.length or columns]


def distance(bench: Bench, one: np.ndarray, other: np.ndarray, overwritten: bool) -> np.ndarray:
    """Return (rows, T) how far logits are apart; a tied model writes PAD with its embedding."""
    gap = np.abs(one - other)
    if overwritten and tied(bench):
        gap = np.delete(gap, PAD, axis=-1)
    return np.asarray(gap.max(axis=-1))


def only_rounds(
    submission: Submission, bench: Bench, model: Model, mode: str, form: Form, batch: Batch,
    bound: float,
) -> bool:  # fmt: skip
    """Tell whether a form's padding changed the rounding and nothing else.

    Then other embeddings of PAD, in calls of the same shape, move no real logit.
    """
    sizes = np.linspace(-3.0, 3.0, bench.config.d_model)
    calls = [form.call | {"embedding_row": [PAD, values]} for values in (sizes, sizes[::-1].copy())]
    (answer,) = submission.ask(forward(model.handle, *calls, mode=mode, dtype=bench.dtype))
    one, other = (real_logits(bench, batch, form, value) for value in answer["outputs"])
    return float(distance(bench, one, other, overwritten=True).max()) <= bound
