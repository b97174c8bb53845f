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
from typing import Annotated, ClassVar, Literal

from grader import patching, release
from grader.result import Status
from grader.schema import Pattern, Range, SchemaError, build
from grader.settings import Settings

CORPUS = patching.ROOT / "tests" / "corpus"
TRAINING_GATE = "greedy_accuracy"

Sentence = Annotated[str, Pattern(r"\S.{9,119}", "of one sentence, 10 to 120 characters")]
Word = Annotated[str, Pattern(r"[a-z][a-z0-9_]*", "such as causal_too_wide")]
Points = Annotated[float, Range(0)]


class CorpusError(ValueError):
    """A case that cannot be used; the message names its file, what was expected and what came."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What every case says."""

    kind: ClassVar[str]
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

    def check(self, places: Collection[str]) -> None:
        """Refuse values that contradict one another.

        Args:
            places: Every stub id and gate name.
        """
        if not (self.edit or self.file or self.delete):
            raise SchemaError("edit", "a change to the tree", "none")


@dataclass(frozen=True)
class Catch:
    """Which checks must fail, and what the first of them must say."""

    caught_by: tuple[str, ...]
    part: Word
    code: Word


@dataclass(frozen=True, kw_only=True)
class Wrong(Case):
    """A submission that must fail, and be told why."""

    kind = "wrong"
    caught_by: tuple[str, ...] = ()
    part: Word | None = None
    code: Word | None = None
    given_submitted: Catch | None = None

    @property
    def catch(self) -> Catch | None:
        """Return what must be found with given files graded as the original."""
        if self.part is None or self.code is None:
            return None
        return Catch(self.caught_by, self.part, self.code)

    @property
    def trains(self) -> bool:
        """Only gate 4 needs training, unless the case says otherwise."""
        if self.needs_training is None:
            catches = [c for c in (self.catch, self.given_submitted) if c is not None]
            return any(TRAINING_GATE in catch.caught_by for catch in catches)
        return self.needs_training

    def check(self, places: Collection[str]) -> None:
        """Refuse a verdict that is incomplete or that no run could give."""
        super().check(places)
        if len({bool(self.caught_by), self.part is not None, self.code is not None}) > 1:
            raise SchemaError("caught_by", "caught_by, part and code together", "some of them")
        if self.catch is None and self.given_submitted is None:
            raise SchemaError("caught_by", "what must catch it", "nothing")
        for catch in (self.catch, self.given_submitted):
            if catch is not None:
                known_places("caught_by", catch.caught_by, places)
                gates = [name for name in catch.caught_by if name[0].islower()]
                if len(gates) > 1:
                    words = "at most one gate, for the later ones wait for it"
                    raise SchemaError("caught_by", words, gates)
        if self.catch is None and not self.patches_only_given():
            raise SchemaError("caught_by", "a verdict, for a task file is patched", "none")

    def patches_only_given(self) -> bool:
        """Tell whether no file with a task in it is changed."""
        original = patching.base_files("solution")
        changed = [f"{release.PACKAGE}/{edit.file}" for edit in self.edit] + list(self.delete)
        return not any(
            release.find_regions(original[name].decode(), name)
            for name in changed
            if name in original
        )


@dataclass(frozen=True, kw_only=True)
class Right(Case):
    """A submission that is odd and right."""

    kind = "right"
    loses: tuple[str, ...] = ()

    @property
    def trains(self) -> bool:
        """Full marks are seen only with every gate, unless the case says otherwise."""
        return self.needs_training is not False

    def check(self, places: Collection[str]) -> None:
        """Refuse unknown stubs."""
        super().check(places)
        known_places("loses", self.loses, places)


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

    def check(self, places: Collection[str]) -> None:
        """Refuse contradicting points and unknown places."""
        super().check(places)
        if self.min_score > self.max_score:
            words = f"at most max_score = {self.max_score:g}"
            raise SchemaError("min_score", words, f"{self.min_score:g}")
        entries = {place.split(".")[0] for place in places}
        known_places("statuses", self.statuses or {}, entries)
        known_places("statuses", (self.statuses or {}).values(), [str(s) for s in Status])


KINDS: dict[str, type[Case]] = {kind.kind: kind for kind in (Wrong, Right, Hostile)}


def known_places(key: str, names: Collection[str], places: Collection[str]) -> None:
    """Refuse a name that is no place."""
    for name in names:
        if name not in places:
            raise SchemaError(key, f"one of {', '.join(sorted(places))}", name)


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
    points = settings.points
    ids = [stub.id for stub in points.stubs] + [stub.id for stub in points.stretch]
    places = {*ids, *points.gates}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
        if "name" in table:
            raise SchemaError("name", "the folder's name alone", "this key")
        case = build(KINDS[path.parts[-3]], table | {"name": path.parts[-2]}, where)
        case.check(places)
        patching.patched(case.base, case.edit, case.file, case.delete)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CorpusError(f"{where}: expected a TOML file, got: {error}") from None
    except SchemaError as error:
        text = str(error)
        raise CorpusError(text if text.startswith(where) else f"{where}.{text}") from None
    return case
