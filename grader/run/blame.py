"""From where an error showed to where it comes from: a missing file or name, or an earlier task."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from grader.base.result import Diagnosis, Outcome
from grader.intake.locate import PACKAGE
from grader.run import hints
from grader.run.outcomes import Place, missing_file, missing_name

LACKING = re.compile(rf"cannot import name '(\w+)' from '{PACKAGE}\.(\w+)'")

# Raised by the call itself, which no line of the student's makes.
OTHER_SIGNATURE = re.compile(r"TypeError: .*\b(argument|arguments)\b")
SIGNATURE = "Keep the signature of the handout: the checks and the rest of the lab call it so."
UNSEEN = (
    "Restore the given constructors. What a plain list or dict holds is no part of a module: "
    "nn.ModuleList makes it one."
)


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
    known = found.diagnosis = explained(known, found.evidence)
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
    elif known.code == "breakpoint_left":
        found.diagnosis = again(known, found.evidence, parts)
        found.summary = found.diagnosis.cause
    return found


def again(known: Diagnosis, evidence: Mapping[str, Any], parts: Sequence[Outcome]) -> Diagnosis:
    """Return the first diagnosis of the same stop: of a later import the last calls can be lost."""
    for earlier in parts:
        if earlier.diagnosis and earlier.diagnosis.code == known.code:
            if earlier.evidence.get("message") == evidence.get("message"):
                return earlier.diagnosis
    return known


def explained(known: Diagnosis, evidence: Mapping[str, Any]) -> Diagnosis:
    """Return what is known of code that raised, with what its error usually means."""
    if known.code == "constructor_changed":
        return replace(known, advice=UNSEEN) if "found no such" in known.cause else known
    if known.code not in ("raised", "import_failed"):
        return known
    # Indentation in what torch says, which is no text to print.
    known = replace(known, cause=known.cause.replace("\t", "  "))
    if not evidence.get("frames") and OTHER_SIGNATURE.search(known.cause):
        return replace(known, advice=SIGNATURE)
    hint = hints.hint(f"{evidence.get('type')}: {evidence.get('message')}")
    first = "Mend that line first. " if known.code == "import_failed" else ""
    return replace(known, advice=first + hint) if hint else known


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
