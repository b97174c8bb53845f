"""The corpus: small patches on the solution, each with the verdict it must get.

A case is a folder `<kind>/<name>` with a `case.toml`; tests/corpus/README.md lists its keys, and
the structs below are the schema that reads them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from grader.base.places import ROOT
from grader.base.result import Status
from grader.base.settings import PointsTable, Settings, SettingsError
from grader.upkeep import patching
from grader.upkeep.patching import PatchError

CORPUS = ROOT / "tests" / "corpus"
TRAINING_GATE = "greedy_accuracy"

Sentence = Annotated[str, Meta(pattern=r"\A\S.{9,119}\Z")]
Word = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9_]*\Z")]
Points = Annotated[float, Meta(ge=0)]


class CorpusError(SettingsError):
    """A case that cannot be used; the message names its file, what was expected and what came."""


class Scope(NamedTuple):
    """The tasks whose checks run, None for all, and the number of the last gate that runs."""

    tasks: frozenset[str] | None
    gates: int


class Case(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
            raise PatchError("edit", "a change to the tree", "none")

    def tree(self, words: dict[str, str] | None = None) -> patching.Tree:
        """Return the tree of the case; `words` stand for @WORD@ in new text."""
        return patching.patched(self.base, self.edit, self.file, self.delete, words)


class Wrong(Case, frozen=True, kw_only=True):
    """A submission that must fail, and be told why."""

    kind = "wrong"
    caught_by: Annotated[tuple[str, ...], Meta(min_length=1)]
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
            raise PatchError("caught_by", words, gates)


class Right(Case, frozen=True, kw_only=True):
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


class Hostile(Case, frozen=True, kw_only=True):
    """A submission that attacks the grader."""

    kind = "hostile"
    max_score: Points
    min_score: Points = 0.0
    statuses: dict[str, Word] = {}
    flags: tuple[Word, ...] = ()
    notes: tuple[str, ...] = ()
    needs: tuple[Literal["contained", "landlock", "seccomp", "uid", "bwrap"], ...] = ()
    question_s: Annotated[float, Meta(ge=1)] | None = None
    last_gate: Annotated[int, Meta(ge=0, le=3)] = 0

    def scope(self, points: PointsTable) -> Scope:
        """Most attacks are over, or lost, before the gates."""
        return Scope(None, 4 if self.trains else self.last_gate)

    def check(self, points: PointsTable) -> None:
        """Refuse contradicting points and unknown places."""
        super().check(points)
        if self.min_score > self.max_score:
            words = f"at most max_score = {self.max_score:g}"
            raise PatchError("min_score", words, f"{self.min_score:g}")
        tasks = {stub.task for stub in points.stubs}
        known("statuses", self.statuses, places(points) | tasks)
        known("statuses", self.statuses.values(), [str(status) for status in Status])


KINDS: dict[str, type[Case]] = {kind.kind: kind for kind in (Wrong, Right, Hostile)}


def places(points: PointsTable) -> set[str]:
    """Return where a check may stand: every stub id and the name of every gate."""
    ids = [stub.id for stub in points.stubs] + [stub.id for stub in points.stretch]
    return {*ids, *points.gates}


def known(key: str, names: Collection[str], allowed: Collection[str]) -> None:
    """Refuse a name that is not allowed."""
    for name in names:
        if name not in allowed:
            raise PatchError(key, f"one of {', '.join(sorted(allowed))}", name)


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
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        own: dict[str, Any] = {"path": path, "name": path.parent.name}
        for key in own.keys() & table.keys():
            raise PatchError(key, "a key that the README lists", key)
        case = msgspec.convert(table | own, KINDS[path.parent.parent.name])
        case.check(settings.points)
        case.tree()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CorpusError(f"{where}: expected a TOML file, got: {error}") from None
    except msgspec.ValidationError as error:
        raise CorpusError(f"{where}: {error}") from None
    except PatchError as error:
        raise CorpusError(f"{where}.{error}") from None
    return case
