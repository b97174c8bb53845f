"""The corpus: small patches on the solution, each with the verdict it must get.

A case is a folder `<kind>/<name>` with a `case.toml`; tests/corpus/README.md lists its keys, and
the dataclasses below are the schema that reads them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

from grader import patching
from grader.result import Status
from grader.schema import Pattern, Range, SchemaError, build
from grader.settings import PointsTable, Settings, SettingsError

CORPUS = patching.ROOT / "tests" / "corpus"
TRAINING_GATE = "greedy_accuracy"

Sentence = Annotated[str, Pattern(r"\S.{9,119}", "of one sentence, 10 to 120 characters")]
Word = Annotated[str, Pattern(r"[a-z][a-z0-9_]*", "such as causal_too_wide")]
Points = Annotated[float, Range(0)]


class CorpusError(SettingsError):
    """A case that cannot be used; the message names its file, what was expected and what came."""


class Scope(NamedTuple):
    """The tasks whose checks run, None for all, and the number of the last gate that runs."""

    tasks: frozenset[str] | None
    gates: int


@dataclass(frozen=True, kw_only=True)
class Case:
    """What every case says."""

    kind: ClassVar[str]
    path: Path
    name: str
    title: Sentence
    source: str = ""
    base: Literal["solution", "starter"] = "solution"
    needs_training: bool | None = None
    edit: tuple[patching.Edit, ...] = ()
    file: tuple[patching.Extra, ...] = ()
    delete: tuple[patching.Inside, ...] = ()

    @property
    def trains(self) -> bool:
        """Tell whether gate 4 has to run."""
        return self.needs_training is True

    def scope(self, points: PointsTable) -> Scope:
        """Return what has to run for the verdict."""
        return Scope(None, 4 if self.trains else 3)

    def check(self, points: PointsTable) -> None:
        """Refuse values that contradict one another, or names that `points` does not know."""
        if not (self.edit or self.file or self.delete):
            raise SchemaError("edit", "a change to the tree", "none")


@dataclass(frozen=True, kw_only=True)
class Wrong(Case):
    """A submission that must fail, and be told why."""

    kind = "wrong"
    caught_by: tuple[str, ...]
    part: Word
    code: Word

    @property
    def trains(self) -> bool:
        """Only gate 4 needs training, unless the case says otherwise."""
        if self.needs_training is None:
            return TRAINING_GATE in self.caught_by
        return self.needs_training

    def scope(self, points: PointsTable) -> Scope:
        """The stubs that must catch it; for a gate every part too, whose findings it reads."""
        gates = [n for n, gate in enumerate(points.gates, 1) if gate in self.caught_by]
        if self.needs_training or gates:
            return Scope(None, 4 if self.needs_training else max(gates))
        return Scope(frozenset(self.caught_by), 0)

    def check(self, points: PointsTable) -> None:
        """Refuse a verdict that no run could give."""
        super().check(points)
        known("caught_by", self.caught_by, places(points))
        gates = [name for name in self.caught_by if name[0].islower()]
        if len(gates) > 1:
            words = "at most one gate, for the later ones wait for it"
            raise SchemaError("caught_by", words, gates)


@dataclass(frozen=True, kw_only=True)
class Right(Case):
    """A submission that is odd and right."""

    kind = "right"
    loses: tuple[str, ...] = ()

    @property
    def trains(self) -> bool:
        """Full marks are seen only with every gate, unless the case says otherwise."""
        return self.needs_training is not False

    def check(self, points: PointsTable) -> None:
        """Refuse unknown stubs."""
        super().check(points)
        known("loses", self.loses, places(points))


@dataclass(frozen=True, kw_only=True)
class Hostile(Case):
    """A submission that attacks the grader."""

    kind = "hostile"
    max_score: Points
    min_score: Points = 0.0
    statuses: dict[str, Word] | None = None
    flags: tuple[Word, ...] = ()
    notes: tuple[str, ...] = ()
    needs: tuple[Literal["contained", "landlock", "seccomp", "uid", "bwrap"], ...] = ()
    question_s: Annotated[float, Range(1)] | None = None
    last_gate: Annotated[int, Range(0, 3)] = 0

    def scope(self, points: PointsTable) -> Scope:
        """Most attacks are over, or lost, before the gates."""
        return Scope(None, 4 if self.trains else self.last_gate)

    def check(self, points: PointsTable) -> None:
        """Refuse contradicting points and unknown places."""
        super().check(points)
        if self.min_score > self.max_score:
            words = f"at most max_score = {self.max_score:g}"
            raise SchemaError("min_score", words, f"{self.min_score:g}")
        statuses = self.statuses or {}
        tasks = {stub.task for stub in points.stubs}
        known("statuses", statuses, places(points) | tasks)
        known("statuses", statuses.values(), [str(status) for status in Status])


KINDS: dict[str, type[Case]] = {kind.kind: kind for kind in (Wrong, Right, Hostile)}


def places(points: PointsTable) -> set[str]:
    """Return where a check may stand: every stub id and the name of every gate."""
    ids = [stub.id for stub in points.stubs] + [stub.id for stub in points.stretch]
    return {*ids, *points.gates}


def known(key: str, names: Collection[str], allowed: Collection[str]) -> None:
    """Refuse a name that is not allowed."""
    for name in names:
        if name not in allowed:
            raise SchemaError(key, f"one of {', '.join(sorted(allowed))}", name)


def load(settings: Settings, corpus: Path = CORPUS, kinds: Collection[str] = KINDS) -> list[Case]:
    """Read every case, in order of kind and name.

    Raises:
        CorpusError: A case cannot be used, or there is none.
    """
    found = [read(path, settings) for kind in kinds for path in case_files(corpus / kind)]
    if not found:
        raise CorpusError(f"{corpus}: expected {' or '.join(kinds)}/<name>/case.toml, found none")
    return found


def case_files(folder: Path) -> Iterator[Path]:
    """Yield the case file of every folder in `folder`, whether it exists or not."""
    for case in sorted(folder.iterdir()) if folder.is_dir() else ():
        if case.is_dir():
            yield case / "case.toml"


def read(path: Path, settings: Settings) -> Case:
    """Read one case and try its patch.

    Raises:
        CorpusError: It cannot be used.
    """
    where = "/".join(path.parts[-3:])
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
        own = {"path": path, "name": path.parent.name}
        for key in own.keys() & table.keys():
            raise SchemaError(key, "a key that the README lists", key)
        case = build(KINDS[path.parent.parent.name], table | own, where)
        case.check(settings.points)
        patching.patched(case.base, case.edit, case.file, case.delete)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CorpusError(f"{where}: expected a TOML file, got: {error}") from None
    except SchemaError as error:
        text = str(error)
        raise CorpusError(text if text.startswith(where) else f"{where}.{text}") from None
    return case
