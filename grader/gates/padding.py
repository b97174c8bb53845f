"""From a padding difference to its cause: which form moved what, and which sub-layer first."""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

import numpy as np

from grader.asking.compare import fail
from grader.asking.submission import Submission, forward, tensor
from grader.base.settings import task_files
from grader.base.student_error import StudentError
from grader.gates.influence import NOTICEABLE, PART_OF, Findings, explained, sublayers
from grader.gates.invariance import Batch, Bench, Model
from grader.link.workers import WorkerLost

ENCODER = ("self_attention", "attention_branch", "feed_forward", "feed_forward_branch")


class Shown(Protocol):
    """What of a form the diagnosis needs."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def call(self) -> dict[str, Any]:
        """Its call."""

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows of the batch that it asks about."""


def order_of_execution(bench: Bench) -> list[str]:
    """Name every sub-layer of the model in order of execution."""
    if bench.kind != "seq2seq":
        return sublayers(bench)
    layers = range(bench.config.num_layers)
    return [f"encoder.blocks.{i}.{name}" for i in layers for name in ENCODER] + sublayers(bench)


def differences(
    submission: Submission, bench: Bench, model: Model, mode: str, base: dict[str, Any],
    form: Shown, batch: Batch,
) -> tuple[str, dict[str, np.ndarray]]:  # fmt: skip
    """Return the first sub-layer that differs at a real position, "" for none, and the gaps.

    The gaps are the largest over the rows by name: (T,), or (S,) in the encoder.
    """
    names = order_of_execution(bench)
    try:
        (answer,) = submission.ask(
            forward(model.handle, base, form.call, mode=mode, record=names, dtype=bench.dtype)
        )
    except (StudentError, WorkerLost):
        return "", {}
    before, after = answer["records"]
    first = ""
    gaps: dict[str, np.ndarray] = {}
    for name in names:
        lengths = batch.source_lengths if name.startswith("encoder.") else batch.target_lengths
        a, b = before.get(name), after.get(name)
        if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)) or a.ndim != 3:
            continue
        gaps[name] = np.zeros(max(lengths))
        for index, row in enumerate(form.rows):
            length = lengths[row]
            x, y = a[row, :length], b[index, :length]
            if x.shape != y.shape:
                continue
            gap = np.abs(x - y).max(axis=-1)
            gaps[name][:length] = np.maximum(gaps[name][:length], gap)
            if not gap.max() <= NOTICEABLE * max(1.0, float(np.abs(x).max())):
                first = first or name
    return first, gaps


def explain(
    submission: Submission, bench: Bench, model: Model, mode: str, base: dict[str, Any],
    form: Shown, batch: Batch, witness: dict[str, Any], findings: Findings,
) -> NoReturn:  # fmt: skip
    """Fail gate 2 with the cause that the form and the first sub-layer show."""
    mover, gaps = differences(submission, bench, model, mode, base, form, batch)
    code, cause, part, advice = reading(form.name, mover)
    blamed = ("masks", "attention", "residual", "encoder", "decoder")
    part, advice = explained(findings, blamed, part, advice)
    where = f"; it shows first in {mover}" if mover else ""
    text = (
        f"{form.name}: logits at real position {witness['position']} moved by "
        f"{witness['largest_difference']:.3g} (at most {witness['tolerance']:.1g} allowed): "
        f"{cause}{where}."
    )
    seen = {"first_sublayer": mover, "difference_by_sublayer": gaps}
    fail(code, part, text, advice, witness | seen)


def reading(form: str, mover: str) -> tuple[str, str, str, str]:
    """Return code, cause, part and advice for a form and the sub-layer that moved first."""
    last = mover.rsplit(".", 1)[-1]
    if mover.startswith("encoder.") and last == "self_attention":
        return (
            "encoder_reads_padding",
            "the encoder's self-attention attends to padding",
            "encoder",
            "Look at what the encoder block hands to its self-attention.",
        )
    if last == "cross_attention":
        return (
            "cross_reads_padding",
            "the cross-attention attends to source padding",
            "decoder",
            "Look at what the decoder block hands to its cross-attention.",
        )
    if last == "self_attention" and form != "row alone":
        return (
            "target_padding_read",
            "the decoder's self-attention attends to padding",
            "decoder",
            "Look at what the block hands to its self-attention.",
        )
    if form == "row alone":
        return (
            "rows_mix",
            "a row alone gives other logits than the same row in a batch",
            PART_OF.get(last, "attention"),
            "Look for an operation over the batch axis, for "
            "positions taken from the batch index, and for masks laid out by batch and head "
            "in the wrong order.",
        )
    return ("padding_read", "padding reaches real positions", PART_OF.get(last, "masks"),
            "Look at where this sub-layer mixes positions.")  # fmt: skip


def explain_embedding(witness: dict[str, Any], findings: Findings) -> NoReturn:
    """Fail gate 2 because the padding's own vector reached a real logit."""
    part, _ = explained(findings, ("masks", "attention", "encoder", "decoder"), "masks", "")
    fail(
        "pad_embedding_read", part,
        f"overwriting the embedding of PAD moved logits at real position {witness['position']} by "
        f"{witness['largest_difference']:.3g}: some layer reads padded positions.",
        "Look at which keys each attention may use.", witness,
    )  # fmt: skip


def compare_losses(
    before: Any, after: Any, bench: Bench, allowed: float, witness: dict[str, Any],
    findings: Findings,
) -> None:  # fmt: skip
    """Fail when the student's loss moved by more than is `allowed`, although no real logit did."""
    values = [float(tensor(v, (), "masked_cross_entropy", "training")) for v in (before, after)]
    gap = abs(values[1] - values[0])
    allowed = max(allowed, bench.tolerance * max(1.0, abs(values[0])))
    if gap <= allowed:
        return
    fail(
        "loss_counts_padding", "training",
        f"{witness['form']}: the loss moved from {values[0]:.6g} to {values[1]:.6g} although no "
        "real logit did: padded targets count in it.",
        "Look at which targets masked_cross_entropy averages over (task 6.2).",
        witness | {"loss": values, "ratio": gap / allowed},
    )  # fmt: skip


def explain_silence(what: str, witness: dict[str, Any], findings: Findings) -> NoReturn:
    """Fail the control: hiding a real token changed nothing."""
    stack = "decoder" if what == "target" else "encoder"
    part, _ = explained(findings, tuple(task_files()), stack, "")
    fail(
        "mask_ignored", part,
        f"the model does not respond to its {what} validity mask: hiding a real token moved the "
        f"logits by {witness['moved']:.3g} only. A model that reads no mask, or no tokens, is "
        "invariant to padding for the wrong reason.",
        f"Look at whether the {what}'s validity mask reaches the attention.", witness,
    )  # fmt: skip
