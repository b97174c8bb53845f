"""The corpus: small patches on the solution, each with the verdict it must get.

A case is a file `<kind>/<folder>/<name>.toml`; tests/corpus/README.md lists its keys, and the
structs below are the schema that reads them.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Collection
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
        if self.path.parent.name != self.caught_by[0]:
            words = f"the folder {self.caught_by[0]}, the first of caught_by"
            raise PatchError("path", words, self.path.parent.name)


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


def files(kinds: Collection[str] = KINDS, corpus: Path = CORPUS) -> list[Path]:
    """Return every case file, in order of kind, folder and name."""
    return [path for kind in kinds for path in sorted((corpus / kind).rglob("*.toml"))]


def load(settings: Settings, corpus: Path = CORPUS, kinds: Collection[str] = KINDS) -> list[Case]:
    """Read every case, in order of kind, folder and name, and try its patch.

    Raises:
        CorpusError: Cases cannot be used, each in a line; or there is none.
    """
    cases, troubles = [], []
    for path in files(kinds, corpus):
        try:
            cases.append(read(path, settings))
            cases[-1].tree()
        except CorpusError as error:
            troubles.append(str(error))
        except PatchError as error:
            troubles.append(f"{where(path)}: {error}")
    names = Counter(f"{case.kind}/{case.name}" for case in cases)
    troubles += [f"{name}: expected one case of this name" for name in names if names[name] > 1]
    if not (cases or troubles):
        troubles = [f"{corpus}: expected {' or '.join(kinds)}/<folder>/<name>.toml, found none"]
    if troubles:
        raise CorpusError("\n".join(troubles))
    return cases


def where(path: Path) -> str:
    """Return how messages name a case file."""
    return "/".join(path.parts[-3:])


def read(path: Path, settings: Settings) -> Case:
    """Read one case.

    Raises:
        CorpusError: It says what it must not, or nothing that can be read.
    """
    try:
        if path.name == "case.toml":
            raise PatchError("path", "<kind>/<folder>/<name>.toml, not the old layout", where(path))
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        own: dict[str, Any] = {"path": path, "name": path.stem}
        for key in own.keys() & table.keys():
            raise PatchError(key, "a key that the README lists", key)
        case = msgspec.convert(table | own, KINDS[path.parts[-3]])
        case.check(settings.points)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CorpusError(f"{where(path)}: expected a TOML file, got: {error}") from None
    except (msgspec.ValidationError, PatchError) as error:
        raise CorpusError(f"{where(path)}: {error}") from None
    return case
