"""The witness of a verdict as rows of a label and a short text, for the terminal and the report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

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
    "in_short",
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
