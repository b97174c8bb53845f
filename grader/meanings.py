"""What an expression can stand for, as far as the source alone shows it."""

from __future__ import annotations

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
