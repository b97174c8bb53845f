"""What a result depends on, and the key it is stored under: the same inputs, the same key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from grader.base.places import GRADER, originals
from grader.base.settings import Settings
from grader.intake.staging import Staged
from grader.run.results import environment

# What stands in the store is laid out like this; another number, another key.
FORMAT = 1
# They bring submissions in and results out, and change none.
_WITHOUT_INFLUENCE = frozenset({"classroom", "cli", "report", "upkeep"})


@dataclass(frozen=True)
class Inputs:
    """Digests of all that decides a result.

    Attributes:
        submission: what was read of the submission, notes included; "" before it is known.
        grader: the grader's source and the given files.
        configuration: lab.toml, its salt and late policy aside.
        seed: the rule that makes seeds: the salt.
        versions: of Python, its packages and the kind of machine.
        contained: whether workers cannot read the grader's files.
    """

    submission: str
    grader: str
    configuration: str
    seed: str
    versions: str
    contained: bool

    def of(self, staged: Staged) -> Inputs:
        """Return the inputs of one submission."""
        read = [staged.sha256, staged.notes, staged.missing, staged.weights]
        return replace(self, submission=_digest(read))

    @property
    def key(self) -> str:
        """Return the key of the result."""
        return _digest([FORMAT, vars(self)])


def inputs(lab: Settings, contained: bool) -> Inputs:
    """Return what all submissions of a run share."""
    versions = {k: v for k, v in environment().items() if k != "executable"}
    return Inputs(
        submission="",
        grader=_source(),
        configuration=hashlib.sha256(repr(replace(lab, salt="-", late=None)).encode()).hexdigest(),
        seed=_digest(["SHA-256 of salt and submission", lab.salt]),
        versions=_digest(versions),
        contained=contained,
    )


def causes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the names of the inputs in which two runs differ."""
    return [name for name in Inputs.__dataclass_fields__ if old.get(name) != new.get(name)]


@cache
def _source() -> str:
    """Return a digest of the given files and of all of the grader that has influence."""
    digest = hashlib.sha256()
    for root in (GRADER, originals()):
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root)
            skip = name.parts[0] in _WITHOUT_INFLUENCE or "__pycache__" in name.parts
            if skip or not path.is_file():
                continue
            for piece in (name.as_posix().encode(), path.read_bytes()):
                digest.update(len(piece).to_bytes(8, "big") + piece)
    return digest.hexdigest()


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
