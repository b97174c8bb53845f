"""Compare an answer with what was expected, and name the mistake that would give this answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from grader.base.result import CheckFailed, Diagnosis
from grader.base.settings import shipped

# How torch says that a tree cannot run in float64.
DTYPE_WORDS = ("dtype", "Double", "double", "Float", "scalar type")
# How near an answer must come; a run of the checks puts those of its own settings here.
tolerances = shipped().parts
PICTURED = 8  # rows and columns about the first difference that a report draws
# Set while expected values are recorded: suspects of a check that passes are then computed too.
every_suspect = False


@dataclass(frozen=True)
class Suspect:
    """A known mistake, and the value an implementation with this mistake would return."""

    code: str
    value: Any
    cause: str
    advice: str


def fail(
    code: str, part: str, cause: str, advice: str, evidence: dict[str, Any] | None = None
) -> NoReturn:
    """End a check with this diagnosis."""
    raise CheckFailed(Diagnosis(code, part, cause, advice), evidence)


def agrees(got: np.ndarray, want: Any, tolerance: float | None = None) -> bool:
    """Tell whether two arrays agree within the part checks' tolerance."""
    want, tolerance = np.asarray(want), tolerance or tolerances.tolerance
    if got.shape != want.shape:
        return False
    if want.dtype.kind in "bi":
        return bool(np.array_equal(got, want))
    return bool(np.allclose(got, want, rtol=tolerance, atol=tolerance))


def around(got: np.ndarray, want: np.ndarray, index: tuple[Any, ...]) -> dict[str, Any]:
    """Return what a picture needs: the rows and columns about a place, expected and got."""
    if want.ndim < 2:
        return {}
    starts = [
        max(0, min(place - PICTURED // 2, size - PICTURED))
        for place, size in zip(index[-2:], want.shape[-2:], strict=True)
    ]
    window = (*index[:-2], *(slice(start, start + PICTURED) for start in starts))
    pictured = {"expected": want[window].tolist(), "got": got[window].tolist()}
    return {"around": {"slice": [int(i) for i in index[:-2]], "starts": starts, **pictured}}


def judge(
    got: np.ndarray,
    want: Any,
    *,
    what: str,
    part: str,
    advice: str,
    suspects: Iterable[Suspect],
    tolerance: float | None = None,
) -> dict[str, Any]:
    """Return the evidence of agreement, or fail with the first suspect that explains `got`.

    Args:
        got: checked for shape, dtype and finiteness already.
        want: the expected array, of the same shape.
        what: names the value in a sentence, such as "causal_mask(5, 7)".
        part: the task file without `.py`.
        advice: what to look at when no suspect explains the difference.
        suspects: tried in order, the likeliest first; a generator is run on a failure only.
        tolerance: absolute and relative; floating values only. None = that of float64.
    """
    want = np.asarray(want)
    if every_suspect:
        suspects = list(suspects)
    if agrees(got, want, tolerance):
        return {"largest_difference": largest_difference(got, want)}
    witness = first_difference(got, want, tolerance)
    for suspect in suspects:
        # A suspect that agrees with the right answer here explains nothing.
        told_apart = not agrees(np.asarray(suspect.value), want, tolerance)
        if told_apart and agrees(got, suspect.value, tolerance):
            fail(suspect.code, part, f"{what}: {suspect.cause}", suspect.advice, witness)
    where, wanted, found = witness["index"], witness["expected"], witness["got"]
    cause = f"{what}: expected {wanted:.6g}, got {found:.6g} at {where}."
    if want.dtype.kind in "bi":
        cause = f"{what}: expected {wanted}, got {found} at {where}."
    fail("values_differ", part, cause, advice, witness)


def largest_difference(got: np.ndarray, want: np.ndarray) -> float:
    """Return the largest absolute difference, 0 for arrays that are no numbers."""
    if want.size == 0 or want.dtype.kind == "b":
        return 0.0
    return float(np.abs(got.astype(float) - want.astype(float)).max())


def first_difference(
    got: np.ndarray, want: np.ndarray, tolerance: float | None = None
) -> dict[str, Any]:
    """Return where the arrays first disagree, both values there, and how many places do."""
    tolerance = tolerance or tolerances.tolerance
    if want.dtype.kind in "bi":
        wrong = got != want
    else:
        wrong = ~np.isclose(got, want, rtol=tolerance, atol=tolerance)
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    return {
        "index": index,
        "expected": want[index].item(),
        "got": got[index].item(),
        **around(got, want, index),
        "largest_difference": largest_difference(got, want),
        "tolerance": 0 if want.dtype.kind in "bi" else tolerance,
        "places_that_differ": int(wrong.sum()),
        "places": int(wrong.size),
    }
