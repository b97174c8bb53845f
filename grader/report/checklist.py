"""The checklist of `check` and `watch`: every stub in task order, and the one thing to do next."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from grader.base.result import clean_text, decisive
from grader.base.settings import StretchStub, Stub, shipped
from grader.base.text import plain
from grader.report import witness

Check = Mapping[str, Any]
WORDS = {
    "passed": ("done", "green"),
    "not_implemented": ("not started", "yellow"),
    "blocked": ("waits", "dim"),
    "grader_error": ("our fault", "magenta"),
}
WRONG = ("wrong", "red")
WITNESS_ROWS = 3
PRINTED_ROWS = 10
# What keeps a whole file from being used, or ends a worker, and says at which line.
OF_A_FILE = ("import_failed", "circular_import", "forbidden_name", "breakpoint_left",
             "timeout", "out_of_memory", "crashed")  # fmt: skip
# Packages are found where they stand or in a folder around them, as staging finds them.
HOMES = ("transformer", ".", "*/transformer", "*/*/transformer")


@dataclass(frozen=True)
class Row:
    """A stub and what its checks found; the `decisive` one speaks for all."""

    stub: Stub | StretchStub
    checks: tuple[Check, ...]
    decisive: Check

    @property
    def status(self) -> str:
        """Return the status of the stub."""
        return str(self.decisive["status"])

    @property
    def code(self) -> str:
        """Return the code of the diagnosis, if there is one."""
        return str((self.decisive["diagnosis"] or {}).get("code", ""))

    @property
    def printed(self) -> str:
        """Return what your code printed in the check that speaks, or in the first that printed."""
        said = (str(check.get("printed", "")) for check in (self.decisive, *self.checks))
        return next(filter(None, said), "")

    @property
    def done(self) -> bool:
        """Tell whether every check passed."""
        return self.status == "passed"

    @property
    def optional(self) -> bool:
        """Tell whether it is a stretch task."""
        return self.stub.id.startswith("S")

    @property
    def word(self) -> tuple[str, str]:
        """Return the word that says how it stands, and its style."""
        word, style = WORDS.get(self.status, WRONG)
        if self.unfinished:
            return "unfinished", style
        return ("missing", "red") if self.code == "missing_file" else (word, style)

    @property
    def unfinished(self) -> bool:
        """Tell whether some of it works and some is not written."""
        some = any(check["status"] == "passed" for check in self.checks)
        return self.status == "not_implemented" and some


def rows(
    checks: Iterable[Check], stubs: Sequence[Stub | StretchStub], *, begun_only: bool = True
) -> list[Row]:
    """Return a row for every stub that was checked, of stretch tasks those that are begun."""
    found: list[Row] = []
    known = list(checks)
    for stub in stubs:
        own = tuple(c for c in known if c["stub"] == stub.id)
        if not own:
            continue
        row = Row(stub, own, decisive(own, itemgetter("status")) or own[0])
        # What stops a whole file says nothing of whether an optional task in it is begun.
        idle = row.status in ("not_implemented", "blocked")
        idle = idle or (row.code in OF_A_FILE and bool(echo(row, found)))
        if not (row.optional and begun_only and idle):
            found.append(row)
    return found


def checks_of(tree: Mapping[str, Any]) -> list[Check]:
    """Return every check of a stub in a `results.json` tree."""
    return [c for entry in [*tree["parts"], *tree["stretch"]] for c in entry["checks"]]


def render(
    found: Sequence[Row], path: Path, *, complete: bool, trouble: str | None = None
) -> Group:
    """Return the checklist, the public checks that pass, and the one next line.

    Args:
        found: From `rows`.
        path: The student's tree, in which lines are looked up.
        complete: Whether every task was looked at.
        trouble: What the grader itself got wrong, if anything.
    """
    lines: list[RenderableType] = []
    task = ""
    for number, row in enumerate(found):
        title = f"Task {row.stub.id.split('.')[0]}  {row.stub.file}"
        title = "Stretch, optional" if row.optional else title
        if title != task:
            task = title
            lines.append(Text(title, style="bold"))
        lines += row_lines(row, echo(row, found[:number]))
    every = [check for row in found for check in row.checks]
    good = sum(check["status"] == "passed" for check in every)
    step = next_step(found, path, complete=complete, trouble=trouble)
    lines += [
        Text(),
        Text(f"public checks: {good} of {len(every)} passed"),
        Text(f"next: {step}", style="bold"),
    ]
    return Group(*lines)


def echo(row: Row, before: Sequence[Row]) -> str:
    """Return in a few words that an earlier row explains this one, or nothing."""
    own = row.decisive
    for earlier in before:
        other = earlier.decisive
        if earlier.done or not own["diagnosis"] or not other["diagnosis"]:
            continue
        name = f"task {earlier.stub.id}"
        if own["evidence"].get("built_on") == earlier.stub.id:
            return f"builds on {name}, which does not pass"
        if own["diagnosis"]["cause"] == other["diagnosis"]["cause"]:
            return f"as {name}"
        raised = witness.frames(own["evidence"])[-1:]
        if raised and raised == witness.frames(other["evidence"])[-1:]:
            return f"raises at the same line as {name}"
    return ""


def row_lines(row: Row, echoed: str) -> list[RenderableType]:
    """Return a task's line and what explains it; `echoed` says that an earlier task does."""
    grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column(width=4)
    grid.add_column(width=11)
    grid.add_column(overflow="fold")
    grid.add_row(row.stub.id, Text(*row.word), ", ".join(row.stub.functions))
    below: list[Text] = []
    if echoed:
        below = [Text(echoed, style="dim")]
    elif not row.done and (row.status != "not_implemented" or row.decisive["diagnosis"]):
        below = [Text(text) for text in explanation(row.decisive)]
        bad = sum(check["status"] not in ("passed", "blocked") for check in row.checks)
        if bad > 1:
            text = f"{bad} of the {len(row.checks)} checks of this task are not passed"
            below.append(Text(text, style="dim"))
    if not echoed:
        below += printed(row.printed)
    return [Padding(grid, (0, 0, 0, 2), expand=False),
            *(Padding(text, (0, 0, 0, 8), expand=False) for text in below)]  # fmt: skip


def printed(text: str) -> list[Text]:
    """Return the lines that show what your code printed, the first ones of many."""
    lines = plain(text).split("\n") if text else []
    shown = [Text(f"printed: {line}", style="cyan") for line in lines[:PRINTED_ROWS]]
    if len(lines) > PRINTED_ROWS:
        more = f"printed: ... and {len(lines) - PRINTED_ROWS} more lines"
        shown.append(Text(more, style="dim"))
    return shown


def explanation(check: Check) -> list[str]:
    """Return the lines that explain a check: cause, witness, advice."""
    found = check["diagnosis"]
    if not found:
        return [witness.brief(check["summary"])]
    lines = [witness.brief(found["cause"])]
    seen = witness.rows(check["evidence"])[:WITNESS_ROWS]
    if check["status"] == "failed" and seen:
        lines.append("seen: " + "; ".join(f"{label} {text}" for label, text in seen))
        lines += witness.side_by_side(check["evidence"])
    lines.append(f"try: {witness.brief(found['advice'])}")
    return lines


def named_tasks(stubs: Sequence[str]) -> list[str]:
    """Return the tasks that these stubs are the whole of, and the other stubs by themselves."""
    every: dict[str, list[str]] = {}
    for stub in shipped().points.stubs:
        every.setdefault(stub.task, []).append(stub.id)
    whole = {task for task, ids in every.items() if set(ids) <= set(stubs)}
    return list(dict.fromkeys(s.split(".")[0] if s.split(".")[0] in whole else s for s in stubs))


def next_step(
    found: Sequence[Row], path: Path, *, complete: bool, trouble: str | None = None
) -> str:
    """Name the first thing to do: task, function, file and line.

    Stretch tasks are none of it, unless they were asked for: then not every task was looked at.
    """
    todo = [row for row in found if not row.done and not (row.optional and complete)]
    ours = [row.decisive["summary"] for row in todo if row.decisive["status"] == "grader_error"]
    trouble = trouble or next(iter(ours), None)
    todo = [row for row in todo if row.decisive["status"] != "grader_error"]
    if trouble and not todo:
        return f"give the command again: the grader failed, not your code: {witness.brief(trouble)}"
    if not todo:
        if complete:
            return "all parts are done; `make grade` opens the gates"
        looked_at = named_tasks([row.stub.id for row in found])
        are = "s {} are" if len(looked_at) > 1 else " {} is"
        done = f"task{are.format(', '.join(looked_at))} done" if looked_at else "nothing to do here"
        return f"{done}; `make check` looks at every task"
    row = next((r for r in todo if r.status != "blocked"), todo[0])
    task = f"(task {row.stub.id})"
    if row.status == "blocked":
        return f"task {row.stub.id} {clean_text(row.decisive['summary'])}: begin there"
    if row.code == "missing_file":
        return f"put {row.stub.file} back where the other task files are {task}"
    cause = clean_text(row.decisive["diagnosis"]["cause"]) if row.code in OF_A_FILE else ""
    named = re.search(r"([\w/.-]+\.py), line (\d+)", cause)
    if named:
        # What stops a whole file counts, whichever function it is in.
        source = find(path, named[1].rsplit("/", 1)[-1])
        return f"mend {clean_text(str(source or named[1]))}, line {named[2]} {task}"
    source = find(path, row.stub.file)
    function = _function(row, source)
    verb = "write" if row.status == "not_implemented" else "mend"
    if row.unfinished or (verb == "write" and _is_begun(functions(source).get(function))):
        verb = "finish"
    line = _line(row, function, source)
    where = f"{clean_text(str(source or row.stub.file))}{f', line {line}' if line else ''}"
    return f"{verb} {function} in {where} {task}"


def find(path: Path, file: str) -> Path | None:
    """Return where in the student's tree a file stands, None in an archive or when it is gone."""
    for home in HOMES:
        for candidate in sorted(path.glob(f"{home}/{file}")):
            return candidate
    return None


def _function(row: Row, source: Path | None) -> str:
    """Choose among the stub's functions: the first unwritten one, or the one that is spoken of."""
    names = row.stub.functions
    there = functions(source)
    if row.status == "not_implemented":
        likely = [name for name in names if name in there and _is_stub(there[name])]
    elif row.code == "constructor_changed":
        likely = [made for name in names if (made := f"{name.split('.')[0]}.__init__") in there]
    else:
        told = row.decisive["summary"]
        likely = [name for name in names if name.rsplit(".", 1)[-1] in told]
    return (likely or names)[0]


def _line(row: Row, function: str, source: Path | None) -> int | None:
    """Return the line where the code raised, if it is in the function, or the function's own."""
    node = functions(source).get(function)
    if node is None:
        return None
    for file, line in reversed(witness.frames(row.decisive["evidence"])):
        if file == row.stub.file and node.lineno <= line <= (node.end_lineno or 0):
            return line
    return node.lineno


def functions(source: Path | None) -> dict[str, ast.FunctionDef]:
    """Return the functions and methods of a file by name, such as `Encoder.forward`."""
    try:
        body = ast.parse(source.read_bytes()).body if source else []
    except (OSError, SyntaxError, ValueError):
        return {}
    found = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            methods = (n for n in node.body if isinstance(n, ast.FunctionDef))
            found |= {f"{node.name}.{method.name}": method for method in methods}
    return found


def _is_begun(node: ast.FunctionDef | None) -> bool:
    """Tell whether a function holds more than its docstring and one `raise`."""
    return node is not None and len(node.body) - (ast.get_docstring(node) is not None) > 1


def _is_stub(node: ast.FunctionDef) -> bool:
    return any(
        isinstance(n, ast.Raise) and "NotImplementedError" in ast.dump(n) for n in ast.walk(node)
    )
