"""From where an error showed to where it comes from: a missing file or name, or an earlier task."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from grader.locate import PACKAGE
from grader.outcomes import Place, missing_file, missing_name
from grader.result import Outcome

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
        earlier = next(((o.stub, o.diagnosis) for o in parts if o.diagnosis), None)
        if earlier and earlier[1].cause == known.cause:
            found.diagnosis = earlier[1]
        elif earlier:
            advice = f"Task {earlier[0]} already shows it: {earlier[1].cause}"
            found.diagnosis = replace(known, part=earlier[1].part, advice=advice)
    return found
