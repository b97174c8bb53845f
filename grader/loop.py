"""From what a spy saw of the training loop to verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from grader.compare import fail
from grader.draws import BOS

# Relative; sums over a few hundred numbers in float32 differ by 1e-6 at most.
ROUNDING = 1e-4
STEP_NUMBERS = ("fresh", "factor", "gap")
READING_ADVICE = "Look at which of the two rows goes into the model, and which into the loss."


@dataclass(frozen=True)
class Seen:
    """One run of the loop: events in order, and among them the ones that matter.

    `forwards` are the passes whose gradients were asked for; other passes are nobody's business.
    `taught` are the rows that the decoder read in them, none where they are no rows of ids.
    """

    sizes: tuple[int, ...]
    events: list[dict[str, Any]]
    forwards: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    rows: list[int]
    taught: list[list[list[int]]]
    losses: list[float] | None
    kinds: list[str]
    own_losses: list[float]
    left_training: bool

    def show(self) -> dict[str, Any]:
        """Return the events of the first two batches as words, for a person to read."""
        words = [e["what"] + (" in eval mode" if e.get("training") is False else "")
                 for e in self.events]  # fmt: skip
        return {"what_happened": words[:12], "batches": len(self.sizes), "steps": len(self.steps)}


def read(answer: dict[str, Any], sizes: Sequence[int]) -> Seen:
    """Return what the spy wrote down; anything of another form is dropped."""
    events = [
        e for e in answer["events"]
        if isinstance(e, dict) and isinstance(e.get("what"), str) and is_number(e.get("norm"))
    ]  # fmt: skip
    forwards = []
    last = None
    for event in events:
        if event["what"] == "forward":
            last = event
        elif event["what"] == "backward" and last is not None:
            forwards.append(last)
            last = None
    steps = [
        e for e in events
        if e["what"] == "step" and all(is_number(e.get(k)) for k in STEP_NUMBERS)
    ]  # fmt: skip
    rows = [v.shape[0] for v in answer["inputs"] if isinstance(v, np.ndarray) and v.ndim]
    losses = answer["losses"]
    taught = [rows_of(answer["inputs"], event.get("read")) for event in forwards]
    return Seen(
        tuple(sizes), events, forwards, steps, rows, taught,
        [float(v) if is_number(v) else math.nan for v in losses]
        if isinstance(losses, list)
        else None,
        answer["kinds"], answer["own_losses"],
        answer["left_training"],
    )  # fmt: skip


def rows_of(inputs: Sequence[Any], number: Any) -> list[list[int]]:
    """Return one of the decoder inputs as lists, or nothing where it is none."""
    found = inputs[number] if type(number) is int and 0 <= number < len(inputs) else None
    return found.tolist() if isinstance(found, np.ndarray) and found.ndim == 2 else []


def is_number(value: Any) -> bool:
    """Tell whether the value is a plain number that arithmetic with floats can use."""
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**53)


def wrong(code: str, cause: str, advice: str, evidence: dict[str, Any]) -> NoReturn:
    """Fail with a fault of training.py."""
    fail(code, "training", cause, advice, evidence)


def judge_order(seen: Seen) -> None:
    """Fail on a step that is missing, doubled or out of order."""
    happened = [e["what"] for e in seen.events]
    passes = [e for e in seen.events if e["what"] == "forward"]
    if not passes:
        wrong("model_not_called", "train never calls the model.",
              "Look at the body of the loop, and at whether something used the batches up before "
              "it: they can be gone through once.", seen.show())  # fmt: skip
    if not any(e.get("with_gradients") for e in passes):
        wrong("no_gradients_recorded", "the model runs without recording gradients.",
              "Look for no_grad or inference_mode around the loop.", seen.show())  # fmt: skip
    if "backward" not in happened:
        wrong("no_backward", "no gradient is ever computed.", "Look for the backward pass.",
              seen.show())  # fmt: skip
    bad = [i for i, e in enumerate(seen.forwards) if not e.get("training")]
    if bad:
        words = "in eval mode from the start" if not bad[0] else f"in eval mode from step {bad[0]}"
        wrong(
            "not_in_train_mode",
            f"the model that learns is {words}: dropout would be off.",
            "Look at which mode the loop sets, and sets again after an evaluation.",
            seen.show(),
        )
    if not seen.steps:
        wrong("no_step", "the optimiser never takes a step.", "Look at the end of the loop's body.",
              seen.show())  # fmt: skip
    judge_count(seen)
    judge_each_step(seen)


def judge_count(seen: Seen) -> None:
    """Fail unless every batch was read once, in order, and made one step."""
    batches, steps = len(seen.sizes), len(seen.steps)
    if steps != batches:
        word = "more_steps_than_batches" if steps > batches else "fewer_steps_than_batches"
        advice = "Take exactly one step per batch."
        if steps == 1:
            advice += " Does something leave the loop after the first, such as a return inside it?"
        wrong(word, f"{batches} batches made {steps} optimiser step{'s' * (steps != 1)}.",
              advice, seen.show())  # fmt: skip
    if not read_whole(seen.rows, seen.sizes):
        wrong("batches_not_in_order",
              f"batches of {list(seen.sizes)} rows came, and the model read {seen.rows}.",
              "Use every batch once, whole, in the order in which they come.",
              seen.show() | {"rows": seen.rows})  # fmt: skip


def read_whole(rows: Sequence[int], sizes: Sequence[int]) -> bool:
    """Tell whether every batch was read in order, at once or in pieces that add up to it.

    A batch that was read at once may be read again before the next one comes.
    """
    if not sizes:
        return not rows
    size, later = sizes[0], sizes[1:]
    taken = read = 0
    while read < size and taken < len(rows):
        read += rows[taken]
        taken += 1
    if read != size:
        return False
    # Passes of so many rows may be the same batch again, or pieces of the next one.
    again = 1
    while taken == 1 and rows[again : again + 1] == [size]:
        again += 1
    return any(read_whole(rows[n:], later) for n in range(taken, max(taken, again) + 1))


def judge_reading(
    seen: Seen, own_inputs: Sequence[Any], answers: Sequence[list[list[int]]]
) -> None:
    """Fail when the model learns from something else than the decoder inputs of its batch.

    What the student's own teacher_forcing gives is judged in task 6.1. Noise on some of the
    tokens is allowed, and a batch that is read in pieces is not judged.
    """
    if [len(read) for read in seen.taught] != list(seen.sizes):
        return
    right = total = 0
    for read, own, rows in zip(seen.taught, own_inputs, answers, strict=True):
        if isinstance(own, np.ndarray) and sorted(read) == sorted(own.tolist()):
            continue  # a loop may sort the rows of a batch
        witness = {"answer": rows[0], "read": read[0]}
        if all(got[: len(row)] == row for got, row in zip(read, rows, strict=True)):
            wrong("decoder_reads_targets",
                  "train: the decoder reads the targets, not the decoder inputs.", READING_ADVICE,
                  witness)  # fmt: skip
        for got, row in zip(read, rows, strict=True):
            wanted = [BOS, *row]
            total += len(wanted)
            right += sum(a == b for a, b in zip(got, wanted, strict=False))
    if 2 * right < total:
        wrong("decoder_reads_otherwise",
              "train: the decoder reads something else than the decoder inputs of its batch.",
              READING_ADVICE, witness)  # fmt: skip


def judge_each_step(seen: Seen) -> None:
    """Fail on a step whose gradients are gone, or are those of an earlier batch."""
    for number, step in enumerate(seen.steps):
        if not step["fresh"]:
            wrong("step_before_backward", f"step {number} is taken before the gradients of its "
                  "batch are there.", "Look at the order of backward and step.",
                  seen.show())  # fmt: skip
        if not step["norm"]:
            wrong("cleared_before_step", f"step {number} finds no gradients: they were cleared "
                  "after the backward pass.", "Look at the order of backward, zero_grad and step.",
                  seen.show())  # fmt: skip


def judge_gradients(seen: Seen) -> None:
    """Fail when a step uses more, or other, than the gradient of its own batch."""
    for number, step in enumerate(seen.steps):
        relative = step["gap"] / max(step["norm"], 1e-30)
        witness = seen.show() | {
            "step": number,
            "norm": step["norm"],
            "of_its_batch": step["fresh"],
        }
        if relative > ROUNDING and not number:
            wrong("gradients_changed",
                  f"step 0 uses other gradients than the backward passes of its batch gave: their "
                  f"norm is {step['norm']:.3g}, of those that were given {step['fresh']:.3g}.",
                  "Look at what happens to the gradients between backward and step: each of them "
                  "counts as it is, up to clipping.", witness)  # fmt: skip
        if relative > ROUNDING:
            wrong("gradients_accumulate",
                  f"step {number} uses the gradients of earlier batches too: their norm is "
                  f"{step['norm']:.3g}, that of its own batch {step['fresh']:.3g}.",
                  "Look at when gradients are cleared.", witness)  # fmt: skip
        # A loss that was summed or scaled may be undone in the gradients.
        scale = step.get("scale", 1.0)
        undone = step["factor"] * scale if is_number(scale) else step["factor"]
        if min(abs(step["factor"] - 1.0), abs(undone - 1.0)) > ROUNDING:
            wrong("gradients_rescaled",
                  f"step {number} multiplies gradients by {step['factor']:.3g}, although their "
                  "norm is far below clip_norm.", "Clipping leaves small gradients as they are.",
                  witness)  # fmt: skip


def judge_clipping(seen: Seen, clip_norm: float) -> None:
    """Fail when a step uses gradients above the norm, and say where clipping went."""
    for number, step in enumerate(seen.steps):
        if step["norm"] <= clip_norm * (1.0 + 1e-3) and step["gap"] <= 1e-2 * step["norm"]:
            continue
        witness = seen.show() | {"step": number, "norm": step["norm"], "clip_norm": clip_norm}
        code, cause = reading_of_clipping(seen, number, clip_norm)
        wrong(code, f"step {number} uses gradients of norm {step['norm']:.3g} where {clip_norm:g} "
              f"is allowed: {cause}.", "Clip between the backward pass and the optimiser's step, "
              "all parameters together.", witness)  # fmt: skip


def reading_of_clipping(seen: Seen, number: int, clip_norm: float) -> tuple[str, str]:
    """Return code and cause for a step whose gradients are too large."""
    step = seen.steps[number]
    if step["gap"] > ROUNDING * step["norm"] or step["factor"] < 1.0 - ROUNDING:
        return "clipped_otherwise", "something was clipped, but not their common norm"
    start = seen.events.index(step)
    for event in seen.events[start + 1 :]:
        if event["what"] in ("backward", "step"):
            break
        if 0.0 < event["norm"] <= clip_norm * (1.0 + 1e-3):
            return "clipped_after_step", "they are clipped only after the step"
    before = [e["what"] for e in seen.events[:start]]
    order = [what for what in before if what in ("clip", "backward")]
    if order[-2:] == ["clip", "backward"]:
        return "clipped_before_backward", "clipping comes before the backward pass that makes them"
    return "not_clipped", "nothing clips them"


def judge_losses(seen: Seen) -> None:
    """Fail unless the losses are plain numbers, one per batch, each the loss of its batch."""
    if seen.losses is None or len(seen.losses) != len(seen.sizes):
        count = "no list" if seen.losses is None else f"{len(seen.losses)} numbers"
        wrong("losses_incomplete", f"{len(seen.sizes)} batches made {count} of losses.",
              "Return one loss per batch, in order.", {})  # fmt: skip
    if "graph" in seen.kinds:
        wrong("losses_keep_history", "the losses are tensors with their whole history: every step "
              "would keep its graph in memory.", "Turn losses into numbers.", {})  # fmt: skip
    strange = [kind for kind in seen.kinds if kind not in ("number", "tensor")]
    if strange:
        wrong("losses_not_numbers", f"a loss is a {strange[0]}.", "Return a list of numbers.", {})
    if len(seen.own_losses) == len(seen.losses):
        for number, (got, own) in enumerate(zip(seen.losses, seen.own_losses, strict=True)):
            if math.isfinite(own) and not math.isclose(got, own, rel_tol=1e-3, abs_tol=1e-4):
                wrong(
                    "losses_differ",
                    f"loss {number} is {got:.5g}, but masked_cross_entropy of "
                    f"its batch was {own:.5g}.",
                    "Return the loss of each batch as it was before its step.",
                    {"losses": seen.losses, "expected": seen.own_losses},
                )
    if not seen.left_training:
        wrong("left_in_eval_mode", "train leaves the model in eval mode.",
              "Read what the docstring says of the mode.", {})  # fmt: skip
