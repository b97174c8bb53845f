"""Judging modules call by call: the answer, its padding, and where it first goes wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from grader.compare import agrees, fail, judge
from grader.expectations import Ask, Expected
from grader.parts import TOLERANCE_FLOAT32, Case, Trial, ask, real, returned, sure
from grader.result import CheckFailed
from grader.student_error import StudentError
from grader.submission import Submission, tensor

# What shows that a call went wrong, but not why.
UNEXPLAINED = ("values_differ", "not_finite")


def silenced(trial: Trial) -> Trial:
    """Return the trial with sub-layers that answer 0: their last projections are 0."""
    last = ("out_proj.", "output_projection.")
    weights = {
        name: weight * 0.0 if any(part in name for part in last) else weight
        for name, weight in trial.weights.items()
    }
    return replace(trial, weights=weights)


def try_modules(
    submission: Submission, expected: Ask, advice: str, *trials: Trial
) -> dict[str, Any]:
    """Judge every call of every trial; one frame asks them all.

    A call whose failure has a known cause speaks before an earlier one that has none.
    """
    questions = []
    for trial in trials:
        questions += [trial.build(), *map(trial.call, trial.cases)]
    answers, tolerance = ask(submission, *questions)
    largest = 0.0
    unexplained: list[tuple[Trial, Case, CheckFailed | StudentError]] = []
    for trial in trials:
        sure(answers.pop(0))
        for case in trial.cases:
            try:
                gap = _judge_case(expected, trial, case, answers.pop(0), advice, tolerance)
                largest = max(largest, gap)
            except StudentError as error:
                if error.kind != "raised":
                    raise
                unexplained.append((trial, case, error))
            except CheckFailed as failure:
                if failure.diagnosis.code not in UNEXPLAINED:
                    raise
                unexplained.append((trial, case, failure))
    if unexplained:
        trial, case, trouble = unexplained[0]
        if isinstance(trouble, CheckFailed):
            _localise(submission, expected, trial, case, trouble)
        raise trouble
    return {"largest_difference": largest, "tolerance": tolerance}


def _judge_case(
    expected: Ask, trial: Trial, case: Case, answer: Any, advice: str, tolerance: float
) -> float:
    """Return the largest difference at real positions; padded ones must hold exactly 0."""
    right = trial.expect(expected, case)[""]
    value = returned(answer, case.what, trial.part)
    whole = isinstance(value, np.ndarray) and value.shape == right.shape
    shown = real(value, case.valid) if whole else value
    got = tensor(shown, right.shape, case.what, trial.part)
    try:
        evidence = judge(
            got,
            real(right, case.valid),
            what=case.what,
            part=trial.part,
            advice=advice,
            suspects=trial.suspects(expected, case),
            tolerance=tolerance,
        )
    except CheckFailed as failure:
        if failure.diagnosis.code == "values_differ":
            _check_response(got, case, trial.part)
        raise
    if case.valid is not None:
        _check_padding(value, case.what, case.valid, trial.part)
    return float(evidence["largest_difference"])


def _check_response(got: np.ndarray, case: Case, part: str) -> None:
    """Fail an answer that is one number everywhere: it responds to nothing."""
    shown = got if case.valid is None else got[case.valid]
    if shown.size > 1 and not np.ptp(shown):
        fail(
            "does_not_respond",
            part,
            f"{case.what}: it answers {shown.flat[0]:.3g} everywhere, whatever it is given.",
            "Return what was computed from the input.",
        )


def _check_padding(value: np.ndarray, what: str, valid: np.ndarray, part: str) -> None:
    wrong = (value != 0).any(axis=-1) & ~valid
    if wrong.any():
        row, place = (int(i) for i in np.argwhere(wrong)[0])
        held = float(value[row, place][value[row, place] != 0][0])
        fail(
            "padding_not_zeroed",
            part,
            f"{what}: padded position {place} of row {row} holds {held:.3g} where exactly 0 is "
            "expected.",
            f"Look at the end of the function in {part}.py: what its docstring says of padded "
            "positions.",
            {"row": row, "position": place},
        )


def _localise(
    submission: Submission, expected: Ask, trial: Trial, case: Case, failure: CheckFailed
) -> None:
    """Ask the failed call twice more, and fail with what that shows if it shows more."""
    questions = trial.build(), *[trial.call(case, trial.sublayers)] * 2
    (_, first, second), tolerance = ask(submission, *questions)
    if isinstance(first, StudentError) or isinstance(second, StudentError):
        return
    answers = [real(a["outputs"][0], case.valid) for a in (first, second)]
    if not agrees(np.nan_to_num(answers[0]), np.nan_to_num(answers[1]), tolerance):
        fail(
            "not_deterministic",
            trial.part,
            f"{case.what}: the same call gives other values each time in {trial.mode}().",
            "Look for dropout that ignores eval() or the configured rate.",
            failure.evidence,
        )
    found = _first_wrong(first["records"][0], trial.expect(expected, case), trial, case)
    if found is not None:
        code, words = found
        known = failure.diagnosis
        fail(code, trial.part, f"{known.cause} {words}", known.advice, failure.evidence)


def _first_wrong(records: Any, right: Expected, trial: Trial, case: Case) -> tuple[str, str] | None:
    """Say which sub-layer's output is the first that is wrong, as a code and a sentence."""
    seen = records if isinstance(records, dict) else {}
    if not trial.sublayers or not seen:
        return None
    for name in trial.sublayers:
        value, wanted = seen.get(name), real(right[name], case.valid)
        if value is None:
            return "sublayer_not_called", f"Nothing was seen of {name}: it was not called."
        whole = isinstance(value, np.ndarray) and value.shape == wanted.shape
        if not whole or not agrees(real(value, case.valid), wanted, TOLERANCE_FLOAT32):
            return "sublayer_misfed", (
                f"The first wrong value comes out of {name}: look at what it is given, and when."
            )
    return "sublayers_misjoined", (
        "What every sub-layer returns is right: look at what is done with it."
    )
