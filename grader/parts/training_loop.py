"""From what a spy saw of the training loop to verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from grader.model.draws import BOS
from grader.parts.causes import fail

# Relative; sums over a few hundred numbers in float32 differ by 1e-6 at most.
ROUNDING = 1e-4
STEP_NUMBERS = ("fresh", "factor", "gap")


@dataclass(frozen=True)
class Seen:
    """One run of the loop: events in order, and among them the ones that matter.

    `forwards` are the passes whose gradients were asked for; other passes do not count.
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

    def wrong(self, code: str, *, entry: str = "", subject: str = "train", **seen: Any) -> NoReturn:
        """Fail, and show what was seen and the events of the first two batches."""
        words = [
            event["what"] + (" in eval mode" if event.get("training") is False else "")
            for event in self.events
        ]
        seen |= {"what_happened": words[:12], "batches": len(self.sizes), "steps": len(self.steps)}
        fail("training", subject, code, seen, entry=entry, **seen)


def read(answer: dict[str, Any], sizes: Sequence[int]) -> Seen:
    """Return what the spy wrote down; anything of another form is dropped."""
    events = [
        event
        for event in answer["events"]
        if isinstance(event, dict)
        and isinstance(event.get("what"), str)
        and is_number(event.get("norm"))
    ]
    forwards, last = [], None
    for event in events:
        if event["what"] == "forward":
            last = event
        elif event["what"] == "backward" and last is not None:
            forwards.append(last)
            last = None
    losses = answer["losses"]
    if isinstance(losses, list):
        losses = [float(loss) if is_number(loss) else math.nan for loss in losses]
    return Seen(
        sizes=tuple(sizes),
        events=events,
        forwards=forwards,
        steps=[
            event
            for event in events
            if event["what"] == "step" and all(is_number(event.get(k)) for k in STEP_NUMBERS)
        ],
        rows=[v.shape[0] for v in answer["inputs"] if isinstance(v, np.ndarray) and v.ndim],
        taught=[rows_of(answer["inputs"], event.get("read")) for event in forwards],
        losses=losses if isinstance(losses, list) else None,
        kinds=answer["kinds"],
        own_losses=answer["own_losses"],
        left_training=answer["left_training"],
    )


def rows_of(inputs: Sequence[Any], number: Any) -> list[list[int]]:
    """Return one of the decoder inputs as lists, or nothing where it is none."""
    found = inputs[number] if type(number) is int and 0 <= number < len(inputs) else None
    return found.tolist() if isinstance(found, np.ndarray) and found.ndim == 2 else []


def is_number(value: Any) -> bool:
    """Tell whether the value is a plain number that arithmetic with floats can use."""
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**53)


def judge_order(seen: Seen) -> None:
    """Fail on a step that is missing, doubled or out of order."""
    passes = [event for event in seen.events if event["what"] == "forward"]
    if not passes:
        seen.wrong("model_not_called")
    if not any(event.get("with_gradients") for event in passes):
        seen.wrong("no_gradients_recorded")
    if not any(event["what"] == "backward" for event in seen.events):
        seen.wrong("no_backward")
    bad = [i for i, event in enumerate(seen.forwards) if not event.get("training")]
    if bad:
        seen.wrong("not_in_train_mode", when=f"step {bad[0]}" if bad[0] else "the start")
    if not seen.steps:
        seen.wrong("no_step")
    judge_count(seen)
    for number, step in enumerate(seen.steps):
        if not step["fresh"]:
            seen.wrong("step_before_backward", step=number)
        if not step["norm"]:
            seen.wrong("cleared_before_step", step=number)


def judge_count(seen: Seen) -> None:
    """Fail unless every batch was read once, in order, and made one step."""
    batches, steps = len(seen.sizes), len(seen.steps)
    if steps > batches:
        seen.wrong("more_steps_than_batches")
    if steps < batches:
        seen.wrong("fewer_steps_than_batches", entry="single_step" if steps == 1 else "")
    if not read_whole(seen.rows, seen.sizes):
        seen.wrong("batches_not_in_order", sizes=list(seen.sizes), rows=seen.rows)


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
    witness: dict[str, Any] = {}
    for read, own, rows in zip(seen.taught, own_inputs, answers, strict=True):
        if isinstance(own, np.ndarray) and sorted(read) == sorted(own.tolist()):
            continue  # a loop may sort the rows of a batch
        witness = {"answer": rows[0], "read": read[0]}
        if all(got[: len(row)] == row for got, row in zip(read, rows, strict=True)):
            fail("training", "train", "decoder_reads_targets", witness)
        for got, row in zip(read, rows, strict=True):
            wanted = [BOS, *row]
            total += len(wanted)
            right += sum(a == b for a, b in zip(got, wanted, strict=False))
    if 2 * right < total:
        fail("training", "train", "decoder_reads_otherwise", witness)


def judge_gradients(seen: Seen) -> None:
    """Fail when a step uses more, or other, than the gradient of its own batch."""
    for number, step in enumerate(seen.steps):
        norm, factor = step["norm"], step["factor"]
        witness = {"step": number, "norm": norm, "of_its_batch": step["fresh"]}
        if step["gap"] / max(norm, 1e-30) > ROUNDING:
            seen.wrong("gradients_accumulate" if number else "gradients_changed", **witness)
        # A loss that was summed or scaled may be undone in the gradients.
        scale = step.get("scale", 1.0)
        undone = factor * scale if is_number(scale) else factor
        if min(abs(factor - 1.0), abs(undone - 1.0)) > ROUNDING:
            seen.wrong("gradients_rescaled", factor=factor, **witness)


def judge_clipping(seen: Seen, clip_norm: float) -> None:
    """Fail when a step uses gradients above the norm, and say where clipping went."""
    for number, step in enumerate(seen.steps):
        norm = step["norm"]
        if not fits(norm, clip_norm) or step["gap"] > 1e-2 * norm:
            code = reading_of_clipping(seen, step, clip_norm)
            seen.wrong(code, subject="clipping", step=number, norm=norm, clip_norm=clip_norm)


def fits(norm: float, clip_norm: float) -> bool:
    """Tell whether gradients of this norm are clipped."""
    return norm <= clip_norm * (1.0 + 1e-3)


def reading_of_clipping(seen: Seen, step: dict[str, Any], clip_norm: float) -> str:
    """Return the code for a step whose gradients are too large."""
    if step["gap"] > ROUNDING * step["norm"] or step["factor"] < 1.0 - ROUNDING:
        return "clipped_otherwise"
    start = seen.events.index(step)
    for event in seen.events[start + 1 :]:
        if event["what"] in ("backward", "step"):
            break
        if event["norm"] > 0.0 and fits(event["norm"], clip_norm):
            return "clipped_after_step"
    before = [e["what"] for e in seen.events[:start] if e["what"] in ("clip", "backward")]
    return "clipped_before_backward" if before[-2:] == ["clip", "backward"] else "not_clipped"


def judge_losses(seen: Seen) -> None:
    """Fail unless the losses are plain numbers, one per batch, each the loss of its batch."""
    batches = len(seen.sizes)
    if seen.losses is None or len(seen.losses) != batches:
        count = "no list" if seen.losses is None else f"{len(seen.losses)} numbers"
        seen.wrong("losses_incomplete", count=count)
    if "graph" in seen.kinds:
        seen.wrong("losses_keep_history")
    for kind in seen.kinds:
        if kind not in ("number", "tensor"):
            seen.wrong("losses_not_numbers", kind=kind)
    if len(seen.own_losses) == batches:
        for number, (loss, own) in enumerate(zip(seen.losses, seen.own_losses, strict=True)):
            if math.isfinite(own) and not math.isclose(loss, own, rel_tol=1e-3, abs_tol=1e-4):
                seen.wrong("losses_differ", number=number, loss=loss, own=own)
    if not seen.left_training:
        seen.wrong("left_in_eval_mode")
