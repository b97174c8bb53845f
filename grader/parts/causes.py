"""What to say of a mistake: read from `checks/causes.toml`, which is sorted by task."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, NoReturn

from grader.asking import compare
from grader.base.places import CHECKS

# Cause and advice by the name of the mistake.
Causes = dict[str, tuple[str, str]]


def _read(path: Path) -> dict[str, Causes]:
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return {
        subject: {
            code: (told, table["advice"]) if isinstance(told, str) else (told[0], told[1])
            for code, told in table.items()
            if code != "advice"
        }
        for subject, table in tables.items()
    }


CATALOGUE = _read(CHECKS / "causes.toml")


def suspect(
    subject: str, code: str, value: Any, *, entry: str = "", **details: Any
) -> compare.Suspect:
    """Return a known mistake with the value that it would give (see `fail`)."""
    cause, advice = CATALOGUE[subject][entry or code]
    return compare.Suspect(code, value, cause.format(**details), advice)


def fail(
    part: str,
    subject: str,
    code: str,
    evidence: dict[str, Any] | None = None,
    *,
    entry: str = "",
    **details: Any,
) -> NoReturn:
    """End a check with this mistake.

    Args:
        part: the task file without `.py`.
        subject: its table in the catalogue.
        code: its name.
        evidence: for `results.json`.
        entry: its entry in the table, where that is not its name.
        details: what stands in the braces of cause and advice.
    """
    cause, advice = CATALOGUE[subject][entry or code]
    cause, advice = cause.format(**details), advice.format(**details)
    compare.fail(code, part, cause, advice, evidence)


def slips(*subjects: str) -> Causes:
    """Return every mistake of these subjects, in order."""
    return {code: told for subject in subjects for code, told in CATALOGUE[subject].items()}


def chosen(causes: Causes, *names: str) -> Causes:
    """Return some of the causes, in the order of `names`."""
    return {name: causes[name] for name in names}


def in_branches(*branches: str) -> Causes:
    """Return the slips of these residual branches of a block, as `<slip>:<branch>`."""
    return {
        f"{slip}:{branch}": (f"in {branch}, {cause}", advice)
        for branch in branches
        for slip, (cause, advice) in slips("branch", "later_branch").items()
        if slip in BRANCH or branch != branches[0]
    }


SCORES = slips("scaling", "softmax")
MASKED = slips("masked")
ZERO_SCORES = slips("zero_scores")
BIASED = slips("biased")
ATTENTION = SCORES | MASKED | BIASED
PROJECTIONS = slips("projections", "split_and_merged")
SOURCES = slips("sources")
MASKS = slips("masks") | chosen(MASKED, "mask_of_other_rows") | chosen(BIASED, "bias_ignored")
OFFSETS = slips("offsets")
BRANCH = slips("branch")
ENCODER_BLOCK = slips("block", "encoder_block")
CAUSAL_BLOCK = slips("block", "causal_block")
DECODER_BLOCK = slips("decoder_block") | chosen(
    slips("block"), "norms_exchanged", "score_bias_ignored"
)
SAME_LENGTH = slips("same_length")
LOOP = slips("loop")
ENCODER = slips("loop", "stack", "encoder")
DECODER = slips("loop", "stack", "decoder")
MEMORY = slips("memory")
