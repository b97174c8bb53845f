"""The witness of a verdict as rows of a label and a short text, for the terminal and the report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

from grader.base.result import clean_text

LONGEST = 200
LONGEST_SENTENCE = 500
MOST_ITEMS = 24
# Drawn as pictures, or the machine's circumstances rather than the submission's.
UNTOLD = {
    "influence", "pattern", "difference_per_position", "difference_by_sublayer", "gradient_norms",
    "loss_curve", "accuracy_by_length", "token_accuracy_by_position", "attention", "example",
    "frames", "frozen", "sharpened", "dtype", "weights", "mode", "num_layers", "model", "batch",
    "trained_largest_forbidden", "generate_disagrees", "built_on", "type", "message",
    "in_short", "around",
}  # fmt: skip
LABELS = {
    "index": "first place that differs",
    "got": "got",
    "changed": "token changed",
    "position": "position",
    "moved": "moved by",
    "largest_difference": "largest difference",
    "tolerance": "allowed",
    "ratio": "times the allowed",
    "first_sublayer": "shows first in",
    "first_wrong": "first wrong at",
    "places_that_differ": "places that differ",
    "row": "row of the batch",
    "form": "what was done",
    "not_trained": "never trained",
    "parameters": "without a gradient",
    "finite_difference": "change of the loss",
    "exact_match": "held-out rows answered",
    "exact_match_wanted": "wanted",
    "attempts": "rows answered, by attempt",
    "untrained_exact_match": "answered before training",
    "scrambled_exact_match": "answered with scrambled weights",
    "ended": "rows that end",
    "right_but_for_the_end": "rows right but for their end",
    "teacher_forced_tokens": "next tokens right when forced",
}


def rows(evidence: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what the evidence says in words: (label, text), pictures left to others."""
    found = [("asked of", circumstances(evidence))]
    for key, value in evidence.items():
        if key not in UNTOLD:
            label = LABELS.get(key, clean_text(key).replace("_", " "))
            found.append((label, place(value) if key == "index" else short(value)))
    return [(label, text) for label, text in found if text]


def circumstances(evidence: Mapping[str, Any]) -> str:
    """Return in one phrase which model was asked, and how."""
    if "model" not in evidence:
        return ""
    words = [str(evidence["model"]).replace("_", "-").replace("seq2seq", "encoder-decoder")]
    if "num_layers" in evidence:
        words.append(f"{evidence['num_layers']} layer{'s' * (evidence['num_layers'] != 1)}")
    words += [str(evidence[k]) for k in ("mode", "batch") if k in evidence]
    words += ["trained weights"] * (evidence.get("weights") == "trained")
    words += ["sharpened weights"] * bool(evidence.get("sharpened"))
    return cut(", ".join(words))


def short(value: Any) -> str:
    """Return `value` on one line of limited length."""
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return cut("; ".join(f"{k}: {short(v)}" for k, v in list(value.items())[:MOST_ITEMS]))
    if isinstance(value, list):
        more = len(value) - MOST_ITEMS
        return cut(" ".join(map(short, value[:MOST_ITEMS]))) + f" and {more} more" * (more > 0)
    return f"{value:.3g}" if isinstance(value, float) else cut(str(value))


def place(index: Any) -> str:
    """Return an index as one writes it, `(0, 2)`; nothing for that of a single number."""
    if not isinstance(index, list):
        return short(index)
    return cut(f"({', '.join(map(short, index))})") if index else ""


def brief(text: str) -> str:
    """Return a sentence for the terminal: cleaned, and cut where a message goes on for pages."""
    kept = clean_text(text)
    return kept if len(kept) <= LONGEST_SENTENCE else kept[: LONGEST_SENTENCE - 4] + " ..."


def cut(text: str, longest: int = LONGEST) -> str:
    """Return cleaned text on one line, cut where it grows too long."""
    line = " ".join(clean_text(text).split())
    return line if len(line) <= longest else line[: longest - 4] + " ..."


def frames(evidence: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return file name and line of every frame of the student's, the innermost last."""
    told = evidence.get("frames")
    found = []
    for frame in told if isinstance(told, list) else []:
        line = str(frame.get("line", "")) if isinstance(frame, Mapping) else ""
        if line.isdecimal() and len(line) < 7:
            name = str(frame.get("file", "")).rsplit("/", 1)[-1]
            found.append((cut(name, 60), int(line)))
    return found


def number(value: Any) -> float:
    """Return a number of the evidence, NaN for what is none ("nan", "inf", None)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    return float(value)


# Expected and got, side by side ------------------------------------------------------------------

MOST_GRID = 8
WIDEST = 66
Grid = list[list[Any]]


class Around(NamedTuple):
    """The values about the first place that differs; `first` is the window's row and column."""

    wanted: Grid
    got: Grid
    first: tuple[int, int]
    at: list[int]


def pictured(evidence: Mapping[str, Any]) -> Around | None:
    """Return the two windows of the evidence, None where there are none or they do not fit."""
    found = evidence.get("around")
    if not isinstance(found, Mapping):
        return None
    wanted, got, starts, at = (found.get(key) for key in ("expected", "got", "starts", "slice"))
    if not _is_grid(wanted) or not _is_grid(got):
        return None
    if [len(row) for row in wanted] != [len(row) for row in got]:
        return None
    if not _are_whole(starts) or len(starts) != 2 or not _are_whole(at) or len(at) > 4:
        return None
    return Around(wanted, got, (starts[0], starts[1]), at)


def _is_grid(value: Any) -> TypeGuard[Grid]:
    return (
        isinstance(value, list) and 0 < len(value) <= MOST_GRID
        and all(isinstance(row, list) and 0 < len(row) <= MOST_GRID for row in value)
    )  # fmt: skip


def _are_whole(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(one) is int for one in value)


def same(one: Any, other: Any) -> bool:
    """Tell whether two values look the same in a picture."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    a, b = number(one), number(other)
    return a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= 1e-2 * abs(b)


def told(value: Any) -> str:
    """Return a value as a cell of a picture shows it."""
    if isinstance(value, bool):
        return "True" if value else "\u00b7"
    return cut(f"{value:.3g}" if isinstance(value, float) else str(value), 9)


def side_by_side(evidence: Mapping[str, Any]) -> list[str]:
    """Return the two windows as lines of text, [ ] about what differs; none where too wide."""
    found = pictured(evidence)
    if found is None:
        return []
    short = {"True": "1", "\u00b7": "."}
    left = [[f" {short.get(told(v), told(v))} " for v in row] for row in found.wanted]
    right = [
        [f" {text} " if same(is_, should) else f"[{text}]"
         for is_, should, text in zip(row, wanted, (short.get(told(v), told(v)) for v in row),
                                      strict=True)]
        for row, wanted in zip(found.got, found.wanted, strict=True)
    ]  # fmt: skip
    cell = max(len(text) for row in (*left, *right) for text in row)
    both = [
        tuple("".join(f"{text:>{cell}}" for text in row) for row in pair)
        for pair in zip(left, right, strict=True)
    ]
    width = max(len("expected"), *(len(one) for one, _ in both))
    lines = [f"{'expected':<{width}}    got", *(f"{one:<{width}}    {two}" for one, two in both)]
    return [] if max(map(len, lines)) > WIDEST else lines
