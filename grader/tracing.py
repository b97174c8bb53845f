"""From where an error showed to where it comes from: a missing file or name, or an earlier task."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from grader.locate import PACKAGE
from grader.outcomes import Place, missing_file, missing_name
from grader.result import Diagnosis, Outcome

LACKING = re.compile(rf"cannot import name '(\w+)' from '{PACKAGE}\.(\w+)'")


def traced(
    found: Outcome,
    place: Place,
    parts: Sequence[Outcome],
    missing: Mapping[str, str],
    functions: Mapping[str, Collection[str]],
) -> Outcome:
    """Return the outcome of code that raised or gave no answer, with the cause where it lies.

    Args:
        found: the outcome, as if the cause lay where the error showed.
        place: the check that it is of.
        parts: what the part checks found before.
        missing: task files that did not come, and a sentence on each.
        functions: the names that each task file must have.
    """
    known = found.diagnosis
    if known is None:
        return found
    if known.code == "import_failed":
        for file, sentence in missing.items():
            if f"No module named '{PACKAGE}.{file.removesuffix('.py')}'" in known.cause:
                _, found.summary, found.diagnosis = missing_file(file, sentence)
                return found
        lacking = LACKING.search(known.cause)
        if lacking and lacking[1] in functions.get(f"{lacking[2]}.py", ()):
            found.diagnosis = missing_name(lacking[1], lacking[2])
            found.summary = found.diagnosis.cause
    elif place.gate:
        found.diagnosis = beside(known, parts)
    return found


def beside(known: Diagnosis, parts: Sequence[Outcome]) -> Diagnosis:
    """Return what a gate's error means beside the tasks that fail already.

    The same error is the same mistake, and one in a file of a failed task shows it. What else
    failed before may be the cause, or have nothing to do with it.
    """
    failed = [(o.stub, o.diagnosis) for o in parts if o.diagnosis]
    for _, earlier in failed:
        if earlier.cause == known.cause:
            return earlier
    for stub, earlier in failed:
        if earlier.part == known.part:
            return replace(known, advice=f"Task {stub} already shows it: {earlier.cause}")
    for stub, earlier in failed[:1]:
        words = f"Task {stub} already fails; it may be the cause: {earlier.cause}"
        return replace(known, advice=f"{words} Otherwise: {known.advice}")
    return known
