"""Judging modules call by call: the answer, its padding, and where it first goes wrong."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from grader.asking import compare
from grader.asking.compare import agrees, judge
from grader.asking.expectations import Ask, Expected
from grader.asking.submission import Submission, tensor
from grader.base.result import CheckFailed
from grader.base.student_error import StudentError
from grader.parts import forwarded_arguments
from grader.parts.causes import CATALOGUE, fail
from grader.parts.judging import Case, Trial, ask, real, returned, sure

# What shows that a call went wrong, but not why.
UNEXPLAINED = ("values_differ", "not_finite")
# Modules of earlier tasks inside a block, by the ends of their names.
OWNERS = {"attention": "attention.MultiHeadAttention", "branch": "residual.ResidualBranch"}


def try_modules(
    submission: Submission, expected: Ask, advice: str, *trials: Trial
) -> dict[str, Any]:
    """Judge every call of every trial; one frame asks them all.

    A call whose failure has a known cause speaks before an earlier one that has none.
    """
    questions = [q for trial in trials for q in (trial.build(), *map(trial.call, trial.cases))]
    answers, tolerance = ask(submission, *questions)
    coming = iter(answers)
    largest = 0.0
    unexplained: list[tuple[Trial, Case, CheckFailed | StudentError]] = []
    for trial in trials:
        built, *given = islice(coming, 1 + len(trial.cases))
        _check_built(submission, trial, built)
        for case, answer in zip(trial.cases, given, strict=True):
            try:
                gap = _judge_case(expected, trial, case, answer, advice, tolerance)
                largest = max(largest, gap)
            except StudentError as error:
                if error.kind != "raised":
                    raise
                unexplained.append((trial, case, error))
            except CheckFailed as failure:
                if failure.diagnosis.code not in UNEXPLAINED:
                    raise _in_branch(submission, trial, case, failure) from None
                unexplained.append((trial, case, failure))
    if unexplained:
        trial, case, trouble = unexplained[0]
        if isinstance(trouble, CheckFailed):
            _localise(submission, expected, trial, case, trouble)
        else:
            forwarded_arguments.explain_error(submission, trial, case, trouble)
        raise trouble
    return {"largest_difference": largest, "tolerance": tolerance}


def _check_built(submission: Submission, trial: Trial, answer: Any) -> None:
    """Raise what kept a module from being built, and name the file whose constructor differs."""
    if not isinstance(answer, StudentError) or answer.kind != "constructor_changed":
        sure(answer)
        return
    before, owner, _ = _split(str(answer.detail.get("name")))
    target = next((t for name, t in OWNERS.items() if owner.endswith(name)), None)
    if target is not None and not trial.target.startswith(target.split(".")[0]):
        start = ".".join([*before, owner, ""])
        own = {n.removeprefix(start): w for n, w in trial.weights.items() if n.startswith(start)}
        options = {"rope": False} if owner.endswith("attention") else {}
        alone = replace(trial, target=target, weights=own, options=options)
        (inner,) = submission.attempt(alone.build())
        if isinstance(inner, StudentError) and inner.kind == "constructor_changed":
            answer.detail["file"] = f"{target.split('.')[0]}.py"
    raise answer


def _split(name: str) -> tuple[list[str], str, list[str]]:
    """Split a parameter's name at the first part that is a module of an earlier task."""
    words = name.split(".")
    index = next((i for i, word in enumerate(words) if word.endswith(tuple(OWNERS))), 0)
    return words[:index], words[index], words[index + 1 :]


def _in_branch(
    submission: Submission, trial: Trial, case: Case, failure: CheckFailed
) -> CheckFailed:
    """Return a failure of one branch of a block with what can be seen of that branch."""
    known = failure.diagnosis
    code, _, branch = known.code.partition(":")
    if not branch:
        return failure
    cause = known.cause
    if code in ("branch_skipped", "norm_skipped"):
        (_, answer), _ = ask(submission, trial.build(), trial.call(case, [branch]))
        records = answer["records"][0] if not isinstance(answer, StudentError) else {}
        ran = isinstance(records, dict) and branch in records
        lost = code == "branch_skipped"
        if ran and (lost or trial.config.placement == "pre"):
            entry = "branch_lost" if lost else "branch_reads_x"
            cause = CATALOGUE["sublayers"][entry][0].format(what=case.what, branch=branch)
        elif not ran:
            cause = f"{cause} {branch} itself is not called."
    return CheckFailed(replace(known, code=code, cause=cause), failure.evidence)


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
        _check_padding(value, case, trial.part)
    return float(evidence["largest_difference"])


def _check_response(got: np.ndarray, case: Case, part: str) -> None:
    """Fail an answer that is one number everywhere: it responds to nothing."""
    shown = got if case.valid is None else got[case.valid]
    if shown.size > 1 and not np.ptp(shown):
        fail(part, "module", "does_not_respond", what=case.what, found=shown.flat[0])


def _check_padding(value: np.ndarray, case: Case, part: str) -> None:
    wrong = (value != 0).any(axis=-1) & ~np.asarray(case.valid)
    if wrong.any():
        unused = " query_valid is not applied to it." if "query_valid" in case.inputs else ""
        row, place = (int(i) for i in np.argwhere(wrong)[0])
        found = float(value[row, place][value[row, place] != 0][0])
        evidence: dict[str, Any] = {"row": row, "position": place}
        fail(part, "module", "padding_not_zeroed", evidence, what=case.what, file=part,
             found=found, unused=unused, **evidence)  # fmt: skip


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
        fail(trial.part, "module", "not_deterministic", failure.evidence, what=case.what,
             mode=trial.mode)  # fmt: skip
    code, name = _first_wrong(first["records"][0], trial.expect(expected, case), trial, case)
    if code:
        known = failure.diagnosis
        cause = f"{known.cause} {CATALOGUE['sublayers'][code][0].format(name=name)}"
        raise CheckFailed(replace(known, code=code, cause=cause), failure.evidence)


def _first_wrong(records: Any, right: Expected, trial: Trial, case: Case) -> tuple[str, str]:
    """Return what is wrong with which sub-layer's output, the first one; "" where none was seen."""
    seen = records if isinstance(records, dict) else {}
    if not trial.sublayers or not seen:
        return "", ""
    for name in trial.sublayers:
        value, wanted = seen.get(name), real(right[name], case.valid)
        if value is None:
            return "sublayer_not_called", name
        whole = isinstance(value, np.ndarray) and value.shape == wanted.shape
        if not whole or not agrees(
            real(value, case.valid), wanted, compare.tolerances.tolerance_float32
        ):
            return "sublayer_misfed", name
    return "sublayers_misjoined", ""
