"""What a block hands its attentions, and a stack its blocks: seen where they are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from grader.asking.submission import Json, Question, Submission
from grader.base.student_error import StudentError
from grader.parts.causes import fail
from grader.parts.judging import Case, Trial, ask, sure

ATTENTIONS = ("self_attention", "cross_attention")
OFFSET = 3


def question(trial: Trial, case: Case, inside: Sequence[str], **options: int) -> Question:
    """Ask what the named modules are handed in one of the trial's calls."""
    own = {"handle": "module", "inside": list(inside), "offset": 0, "layers": 0}
    return Question("handed_on", own | trial.arguments(case) | options)


def calls_in(answer: Any) -> list[tuple[str, Json]]:
    """Return name and keywords of every call; whatever is no call is left out."""
    calls = answer.get("calls") if isinstance(answer, dict) else None
    return [
        (one["name"], one["given"])
        for one in (calls if isinstance(calls, list) else [])
        if isinstance(one, dict)
        and isinstance(one.get("name"), str)
        and isinstance(one.get("given"), dict)
    ]


def try_offset_and_cache(
    submission: Submission, trial: Trial, offset_name: str, wanted: dict[str, str], layers: int = 0
) -> dict[str, Any]:
    """Fail unless the modules are handed the offset, and each of them the cache meant for it.

    Args:
        submission: the tree.
        trial: the block or stack, with one call.
        offset_name: what the modules inside call the offset.
        wanted: the cache of each module, by the names of `probes_modules.make_cache`.
        layers: of a stack.
    """
    inside = list(wanted) if layers else ATTENTIONS
    asked = question(trial, trial.cases[0], inside, offset=OFFSET, layers=layers)
    (built, answer), _ = ask(submission, trial.build(), asked)
    sure(built)
    sure(answer)
    what = trial.target.split(".")[-1]
    for name, given in calls_in(answer):
        offset = given.get(offset_name, 0)
        if type(offset) is not int or offset != OFFSET:
            shown = offset if type(offset) is int else "something else"
            fail(trial.part, "handed", "offset_not_handed_on", {"module": name}, what=what,
                 offset=OFFSET, module=name, name=offset_name, shown=shown)  # fmt: skip
        if given.get("cache") != wanted.get(name, ""):
            shown = "no cache" if given.get("cache") is None else "another cache"
            fail(trial.part, "handed", "cache_not_handed_on", {"module": name}, what=what,
                 module=name, shown=shown)  # fmt: skip
    return {"offset": OFFSET, "modules": len(wanted)}


def explain_error(submission: Submission, trial: Trial, case: Case, error: StudentError) -> None:
    """Fail with a name for padded queries that are left without a key, where that raised."""
    if error.type != "ValueError" or case.valid is None:
        return
    raised = f"{case.what}: it raises {error.type}: {error.message}."
    if "query_valid" in case.inputs:
        freely = Case(case.what, case.inputs | {"key_valid": None, "attention_mask": None})
        (_, answer), _ = ask(submission, trial.build(), trial.call(freely))
        if not isinstance(answer, StudentError):
            fail(trial.part, "handed", "padded_queries_raise", raised=raised)
        return
    (_, answer), _ = ask(submission, trial.build(), question(trial, case, ATTENTIONS))
    for name, given in calls_in(answer):
        handed = given.get("query_valid")
        if not isinstance(handed, np.ndarray) or not np.array_equal(handed, case.valid):
            fail(trial.part, "handed", "query_valid_not_handed_on", {"module": name},
                 raised=raised, module=name)  # fmt: skip
