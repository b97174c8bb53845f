"""`hint` and `reset`, and the copies that are kept of your work in `.lab/`.

`.lab/passed/` holds each task's file as it was when the task last passed, `.lab/kept/` what a reset
took away, `.lab/hints.json` how many hints you have seen.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import re
import shutil
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grader.base import settings
from grader.base.files import replace_file
from grader.base.places import GRADER, ROOT
from grader.base.settings import Settings, StretchStub, Stub
from grader.base.text import plain
from grader.intake.staging import IntakeError
from grader.report import checklist

Task = Stub | StretchStub
HOME = ".lab"
DONE = 0
HINT = re.compile(r"^\s*(\d+)\. ", re.MULTILINE)


@dataclass(frozen=True)
class Desk:
    """A student's tree and the folder `.lab` beside it."""

    tree: Path

    @property
    def home(self) -> Path:
        """Return the folder of the copies."""
        return self.tree.resolve().parent / HOME

    def file(self, stub: Task) -> Path:
        """Return the student's file of a task.

        Raises:
            IntakeError: It is not in the tree.
        """
        found = checklist.find(self.tree, stub.file)
        if found is None:
            raise IntakeError(f"{stub.file} is not in {self.tree}")
        return found

    def passed(self, stub: Task) -> Path:
        """Return where the file is kept as it was when the task passed."""
        return self.home / "passed" / stub.id / stub.file

    # Hints --------------------------------------------------------------------------------------

    def next_hint(self, stub: Task) -> str:
        """Return the next hint of a task and remember that it was given."""
        every = hints(stub)
        seen = self._seen()
        level = min(seen.get(stub.id, 0), len(every))
        if level == len(every):
            # From the first one again: who asks once more wants to read them again.
            self._remember({**seen, stub.id: 0})
            first = "Those were all the hints. To read them again, ask once more."
            return f"{first}\nTo watch your code at work: make run TASK={stub.id}"
        self._remember({**seen, stub.id: level + 1})
        return f"hint {level + 1} of {len(every)} for task {stub.id}\n{every[level]}"

    def _seen(self) -> dict[str, int]:
        with contextlib.suppress(OSError, ValueError):
            found = json.loads((self.home / "hints.json").read_text(encoding="utf-8"))
            if isinstance(found, dict):
                return {k: v for k, v in found.items() if isinstance(v, int) and v >= 0}
        return {}

    def _remember(self, seen: dict[str, int]) -> None:
        self.home.mkdir(exist_ok=True)
        replace_file(self.home / "hints.json", f"{json.dumps(seen)}\n".encode())

    # Copies -------------------------------------------------------------------------------------

    def keep_passed(self, stubs: Sequence[Task]) -> None:
        """Keep the files of tasks that have just passed, unless that very code is kept already."""
        for stub in stubs:
            with contextlib.suppress(OSError, IntakeError):
                file, kept = self.file(stub), self.passed(stub)
                if _code(file, stub) and _code(file, stub) != _code(kept, stub):
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    replace_file(kept, file.read_bytes())

    def since_passed(self, stub: Task) -> str:
        """Say when a task last passed and where its code has changed since; "" where it has not."""
        kept, file = self.passed(stub), checklist.find(self.tree, stub.file)
        if file is None or not kept.is_file():
            return ""
        when = _moment(kept.stat().st_mtime)
        before, now = checklist.functions(kept), checklist.functions(file)
        old, new = _lines(kept), _lines(file)
        for name in stub.functions:
            if name not in before or name not in now:
                return f"task {stub.id} passed {when}; that code is kept in {kept}"
            was = old[before[name].lineno - 1 : before[name].end_lineno]
            first = now[name].lineno
            mine = new[first - 1 : now[name].end_lineno]
            for number in range(max(len(was), len(mine))):
                if was[number : number + 1] != mine[number : number + 1]:
                    changed = f"line {first + number} has changed since"
                    return f"task {stub.id} passed {when}; {changed}; kept: {kept}"
        return ""

    def reset(self, stub: Task) -> str:
        """Put the handed-out functions of a task back; return what was done, and the copy's name.

        A file that is no Python, or lacks one of them, is put back whole.
        """
        file = self.file(stub)
        original = handed_out(stub.file).read_text(encoding="utf-8")
        text = file.read_bytes().decode("utf-8", errors="replace")
        fresh = _with_functions(text, original, stub.functions)
        if fresh == text:
            return f"task {stub.id} is as it was handed out; nothing changed"
        copy = self.home / "kept" / f"{file.stem}-{time.strftime('%Y%m%d-%H%M%S')}{file.suffix}"
        copy.parent.mkdir(parents=True, exist_ok=True)
        number = 1
        while copy.exists():
            number += 1
            copy = copy.with_stem(f"{copy.stem.split('~')[0]}~{number}")
        shutil.copy2(file, copy)
        replace_file(file, fresh.encode())
        what = ", ".join(stub.functions) if fresh != original else f"the whole of {stub.file}"
        return f"put back: {what}\nyour version is kept in {copy}"


def handed_out(file: str) -> Path:
    """Return a task file as it was handed out; a student's copy keeps one beside the grader."""
    homes = (GRADER / "original", ROOT / "starter")
    return next(p for p in homes if p.is_dir()) / "transformer" / file


def hints(stub: Task) -> list[str]:
    """Return the numbered hints in the docstrings of a task's functions, in order."""
    there = checklist.functions(handed_out(stub.file))
    found = []
    for name in stub.functions:
        text = ast.get_docstring(there[name]) or ""
        _, mark, rest = text.partition(f"Task {stub.id}.")
        lead = f"{name}: " if len(stub.functions) > 1 else ""
        body = re.sub(r"^\s*Hints?:\s*", "", rest)
        pieces = HINT.split(body) if mark else []
        several = [pieces[i + 1] for i in range(1, len(pieces) - 1, 2)]
        alone = [body[:1].upper() + body[1:]]
        found += [lead + _paragraph(hint) for hint in several or alone if hint.strip()]
    return found


def _paragraph(text: str) -> str:
    return " ".join(textwrap.dedent(text).split())


def _moment(seconds: float) -> str:
    moment = time.localtime(seconds)
    today = moment[:3] == time.localtime()[:3]
    return time.strftime("at %H:%M" if today else "on %d %B", moment)


def _lines(file: Path) -> list[str]:
    return file.read_bytes().decode("utf-8", errors="replace").splitlines()


def _code(file: Path, stub: Task) -> list[str]:
    """Return the lines of a task's functions in a file, none where it cannot be read."""
    there = checklist.functions(file) if file.is_file() else {}
    lines = _lines(file) if there else []
    nodes = [there[name] for name in stub.functions if name in there]
    return [line for node in nodes for line in lines[node.lineno - 1 : node.end_lineno]]


def _with_functions(text: str, original: str, names: Sequence[str]) -> str:
    """Return `text` with the functions as they stand in `original`, or all of `original`."""
    for name in names:
        places = [_span(source, name) for source in (text, original)]
        if None in places:
            return original
        (start, end), (first, last) = (place for place in places if place)
        lines, wanted = text.splitlines(keepends=True), original.splitlines(keepends=True)
        text = "".join([*lines[:start], *wanted[first:last], *lines[end:]])
    return text


def _span(source: str, name: str) -> tuple[int, int] | None:
    """Return where a function or a method stands in a source: first line and the one after."""
    with contextlib.suppress(SyntaxError, ValueError):
        body: Sequence[ast.stmt] = ast.parse(source).body
        *owners, last = name.split(".")
        for owner in owners:
            classes = [n for n in body if isinstance(n, ast.ClassDef) and n.name == owner]
            body = classes[0].body if classes else []
        for node in body:
            if isinstance(node, ast.FunctionDef) and node.name == last:
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                return first - 1, node.end_lineno or node.lineno
    return None


def chosen(task: str, lab: Settings) -> list[Task]:
    """Return the stubs of a task such as "2" or "2.1".

    Raises:
        IntakeError: There is no such task.
    """
    every: list[Task] = [*lab.points.stubs, *lab.points.stretch]
    found = [stub for stub in every if task in (stub.id, stub.id.split(".")[0])]
    if not found:
        known = ", ".join(stub.id for stub in every)
        asked = f"there is no task {task}" if task else "which task?"
        raise IntakeError(f"{asked}; say one of {known}, as in TASK=2.1")
    return found


def main(options: argparse.Namespace) -> int:
    """Give a hint, or reset a task; return the exit code."""
    stubs = chosen(options.task, settings.load())
    desk = Desk(options.tree)
    if options.command == "hint":
        if len(stubs) > 1:
            ids = ", ".join(stub.id for stub in stubs)
            raise IntakeError(f"task {options.task} has several parts: say one of {ids}")
        head, _, body = plain(desk.next_hint(stubs[0])).partition("\n")
        print(f"{head}\n{textwrap.fill(body, 80, initial_indent='  ', subsequent_indent='  ')}")
        return DONE
    for stub in stubs:
        print(plain(desk.reset(stub)))
    return DONE
