"""What a submission may not use: judged by its source, and by what its worker saw it call.

The look at the source is plain: it knows imports, their aliases and chains of attributes, follows
nothing else, and reads every file once. Whatever it misses, the watch in the worker
(`forbidden_calls.py`) sees when it is called. A forbidden name is a breach of the part that uses
it. What is merely worth a person's look is an integrity flag (`flags.py`) and costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from grader.base.forbidden import FORBIDDEN, TELLING_EVENTS, is_forbidden
from grader.intake import flags
from grader.intake.flags import Flag
from grader.intake.source import Source, Unreadable
from grader.intake.staging import Staged

__all__ = ["Breach", "Flag", "Inspected", "inspect", "sighted"]


@dataclass(frozen=True)
class Breach:
    """A forbidden name in the source, or a call of what it stands for.

    Attributes:
        file: such as "attention.py"; "" where no line of the submission was under way.
        line: counted from 1.
        name: what the code names, such as "torch.nn.MultiheadAttention".
        part: the task file whose part it fails, without ".py"; "" where nothing shows it.
    """

    file: str
    line: int
    name: str
    part: str

    @property
    def cause(self) -> str:
        """Return the sentence that a student reads."""
        where = f"{self.file}, line {self.line}" if self.file else "your code"
        return f"{where} uses {self.name}, which the lab asks you to write."


@dataclass
class Inspected:
    """What the source shows: breaches in order of part and place, and flags."""

    breaches: list[Breach]
    flags: list[Flag]


def inspect(staged: Staged) -> Inspected:
    """Judge every staged file but the original given ones."""
    breaches: set[Breach] = set()
    found = {Flag("weights_shipped", f"{path} came with the code") for path in staged.weights}
    for path, content in staged.files.items():
        if path not in staged.given:
            own, notes = _looked_at(path, content, _part_of(path, staged))
            breaches |= own
            found |= notes
    return Inspected(
        sorted(breaches, key=lambda b: (b.part, b.file, b.line, b.name)),
        sorted(found, key=lambda f: (f.code, f.message)),
    )


def _part_of(path: str, staged: Staged) -> str:
    """Return the part that a staged file is, "" for one that is the student's own idea."""
    name = path.partition("/")[2]
    return name.removesuffix(".py") if name in (*staged.tasks, *staged.stretch) else ""


@lru_cache(maxsize=64)  # one save is looked at several times in a row, and most files stay the same
def _looked_at(path: str, content: bytes, part: str) -> tuple[frozenset[Breach], frozenset[Flag]]:
    """Return the breaches and flags of one file; one that Python cannot read has none."""
    try:
        source = Source(path, content)
    except Unreadable:
        text = f"{path} is nested too deeply to be read"
        return frozenset(), frozenset({Flag("unreadable_source", text)})
    except (SyntaxError, ValueError):
        return frozenset(), frozenset()
    found = {*flags.of_names(source), *flags.of_literals(source)}
    if part:
        breaches = {Breach(source.file, *named, part) for named in _forbidden(source)}
        return frozenset(breaches), frozenset(found)
    # Which part it helps shows when it is called: then the watch knows.
    for line, name in _forbidden(source, imports=False):
        text = f"{source.file}, line {line} names {name}; whether a part uses it shows when it runs"
        found.add(Flag("forbidden_name", text))
    return frozenset(), frozenset(found)


def _forbidden(source: Source, *, imports: bool = True) -> Iterator[tuple[int, str]]:
    """Yield the line and name of each use of a forbidden name, and of each import of one."""
    for use in source.uses:
        if imports or not use.imported:
            yield from ((use.line, path) for path in use.paths if is_forbidden(path))
    for line, name, stars in source.unbound:
        if FORBIDDEN.fullmatch(name):
            yield from ((line, f"{s}.{name}") for s in stars if is_forbidden(f"{s}.{name}"))


def sighted(sightings: Any, staged: Staged) -> Inspected:
    """Return the breaches and flags in what a worker says it saw.

    It may say anything: only lines of staged files and known names are taken up. Whose breach a
    call is shows in the innermost line of a task file, where it was seen in the innermost line.
    """
    breaches: list[Breach] = []
    for call in _entries(sightings, "calls"):
        frames = [f for f in _entries(call, "frames") if _is_place(f, staged)]
        parts = [part for f in frames if (part := _own_part(f["file"], staged))]
        at: dict[str, Any] = frames[0] if frames else {"file": "", "line": 0}
        name = call.get("name")
        shown = name if isinstance(name, str) and is_forbidden(name) else "ready-made attention"
        file = at["file"].partition("/")[2]
        breaches.append(Breach(file, at["line"], shown[:100], parts[0] if parts else ""))
    found: list[Flag] = []
    for oddity in _entries(sightings, "oddities"):
        event = str(oddity.get("event"))
        code, what = next((v for k, v in TELLING_EVENTS.items() if event.startswith(k)), ("", ""))
        if event == "watch":
            text = "functions of torch that are watched were replaced while the code ran"
            found.append(Flag("patched_library", text))
        elif code and _is_place(oddity, staged):
            file = oddity["file"].partition("/")[2]
            found.append(Flag(code, f"{file}, line {oddity['line']} {what}: {event[:40]}"))
    return Inspected(breaches, found)


def _entries(value: Any, key: str) -> list[dict[str, Any]]:
    found = value.get(key) if isinstance(value, dict) else None
    return [e for e in found if isinstance(e, dict)] if isinstance(found, list) else []


def _is_place(value: dict[str, Any], staged: Staged) -> bool:
    return value.get("file") in list(staged.files) and type(value.get("line")) is int


def _own_part(path: str, staged: Staged) -> str:
    return "" if path in staged.given else _part_of(path, staged)
