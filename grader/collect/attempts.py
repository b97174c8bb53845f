"""Files that came more than once, told by the names and numbers that Canvas gives them."""

from __future__ import annotations

import re
from collections.abc import Set
from typing import NamedTuple

from grader.collect.layouts import Claim
from grader.collect.model import Piece, one_line

_RESUBMITTED = re.compile(r"-\d+(?=\.[^.]+\Z)")


class Newest(NamedTuple):
    """The files that are taken, the newest first, and sentences on those that are left."""

    taken: list[Claim]
    notes: list[str]


def original(name: str, expected: Set[str]) -> str:
    """Undo a platform's "-1" where that gives a file that is expected."""
    plain = _RESUBMITTED.sub("", name)
    return plain if plain in expected else name


def newest(files: list[Claim], expected: Set[str]) -> Newest:
    """Take the newest of the files that were called the same; without numbers, take all.

    Args:
        files: of one submission.
        expected: the names of the lab's files.
    """
    if not all(claim.number for claim in files):
        return Newest(files, [])
    # A student's own part-1.zip and part-2.zip stay two: nothing is called part.zip.
    names = expected | {claim.target for claim in files}
    groups: dict[str, list[Claim]] = {}
    for claim in sorted(files, key=_age, reverse=True):
        groups.setdefault(original(claim.target, names), []).append(claim)
    notes = [twice(*(claim.path for claim in same)) for same in groups.values() if len(same) > 1]
    return Newest([same[0] for same in groups.values()], notes)


def _age(claim: Claim) -> tuple[int, str]:
    """Return what orders numbers of any length without making integers of them."""
    digits = claim.number.lstrip("0")
    return len(digits), digits


def twice(taken: str, *left: str) -> str:
    """Say which of several is graded."""
    others = ", ".join(map(one_line, left))
    return f"came more than once: {one_line(taken)} is graded, not {others}"


def several(containers: list[Piece]) -> list[str]:
    """Say of several archives which one counts where they hold the same file."""
    # Notebooks are handed in by the dozen, each with files of its own.
    names = [one_line(p.path) for p in containers if not p.path.lower().endswith(".ipynb")]
    if len(names) < 2:
        return []
    order = ", then ".join(names)
    return [f"several archives: a file that more than one holds is taken from {order}"]
