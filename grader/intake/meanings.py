"""What an expression can stand for, as far as the source alone shows it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass


class Unreadable(Exception):
    """Code that is too deeply nested or entangled to be followed."""


@dataclass(frozen=True)
class Path:
    """What a dotted path names: `torch.nn`, or something of the submission's own."""

    text: str


@dataclass(frozen=True)
class Text:
    """A constant string."""

    text: str


@dataclass(frozen=True)
class Getter:
    """What `operator.attrgetter` made of a constant."""

    attributes: str


@dataclass(frozen=True)
class Unknown:
    """A value that only running the code would show."""


UNKNOWN = Unknown()
Finding = Path | Text | Getter | Unknown
Findings = frozenset[Finding]

NOTHING: Findings = frozenset()
ANYTHING: Findings = frozenset({UNKNOWN})

_MOST_TEXTS = 64
_LONGEST_TEXT = 256


def joined(pieces: list[Findings], glue: str = "") -> Findings:
    """Return every string that the pieces make; paths are kept, as lists are added too."""
    paths = {f for findings in pieces for f in findings if isinstance(f, Path)}
    choices = [[f.text for f in findings if isinstance(f, Text)] for findings in pieces]
    sure = all(isinstance(f, Text) for findings in pieces for f in findings) and all(choices)
    whole: set[Finding] = set()
    for count, words in enumerate(itertools.product(*choices)):
        if sum(map(len, words)) > _LONGEST_TEXT or count == _MOST_TEXTS:
            sure = False
            break
        whole.add(Text(glue.join(words)))
    return frozenset(whole | paths | (set() if sure else {UNKNOWN}))
