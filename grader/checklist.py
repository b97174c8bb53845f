"""The checklist of `check` and `watch`: every stub in task order, and the one thing to do next."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from grader import witness
from grader.result import clean_text
from grader.settings import StretchStub, Stub

Check = Mapping[str, Any]
WORDS = {
    "passed": ("done", "green"),
    "not_implemented": ("not started", "yellow"),
    "blocked": ("waits", "dim"),
    "grader_error": ("our fault", "magenta"),
}
WRONG = ("wrong", "red")
MISSING = ("missing", "red")
WITNESS_ROWS = 3
# What keeps a whole file from being used, or ends a worker, and says at which line.
OF_A_FILE = ("import_failed", "circular_import", "forbidden_name", "breakpoint_left",
             "timeout", "out_of_memory", "crashed")  # fmt: skip
# Packages are found where they stand or in a folder around them, as staging finds them.
HOMES = ("transformer", ".", "*/transformer", "*/*/transformer")


@dataclass(frozen=True)
class Row:
    """A stub and what its checks found; `speaks` is the check that speaks for all."""

    stub: Stub | StretchStub
    checks: tuple[Check, ...]
    speaks: Check

    @property
    def done(self) -> bool:
        """Tell whether every check passed."""
        return bool(self.speaks["status"] == "passed")

    @property
    def optional(self) -> bool:
        """Tell whether it is a stretch task."""
        return self.stub.id.startswith("S")

    @property
    def missing(self) -> bool:
        """Tell whether its file is not there."""
        return (self.speaks["diagnosis"] or {}).get("code") == "missing_file"

    @property
    def stops_file(self) -> bool:
        """Tell whether it fails for something that stops a whole file."""
        return (self.speaks["diagnosis"] or {}).get("code") in OF_A_FILE

    @property
    def unfinished(self) -> bool:
        """Tell whether some of it works and some is not written."""
        some = any(check["status"] == "passed" for check in self.checks)
        return bool(self.speaks["status"] == "not_implemented" and some)


def rows(
    checks: Iterable[Check], stubs: Sequence[Stub | StretchStub], *, begun_only: bool = True
) -> list[Row]:
    """Return a row for every stub that was checked, of stretch tasks those that are begun."""
    found: list[Row] = []
    known = list(checks)
    for stub in stubs:
        own = tuple(c for c in known if c["stub"] == stub.id)
        if own:
            row = Row(stub, own, speaker(own))
            begun = row.speaks["status"] not in ("not_implemented", "blocked")
            # What stops a whole file says nothing of whether an optional task in it is begun.
            begun = begun and not (row.stops_file and echo(row, found))
            if begun or not (row.optional and begun_only):
                found.append(row)
    return found


def speaker(checks: Sequence[Check]) -> Check:
    """Return the check that speaks for all: our fault first, then undone, then the first wrong."""
    for statuses in (("grader_error",), ("not_implemented",)):
        for check in checks:
            if check["status"] in statuses:
                return check
    bad = [c for c in checks if c["status"] != "passed"]
    return next((c for c in bad if c["status"] != "blocked"), (bad or list(checks))[0])


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
        own = "Stretch, optional" if row.optional else f"Task {row.stub.id.split('.')[0]}"
        if own != task:
            task = own
            lines.append(Text(own if row.optional else f"{own}  {row.stub.file}", style="bold"))
        lines += _lines(row, echo(row, found[:number]))
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
    speaks = row.speaks
    for earlier in before:
        if earlier.done or not speaks["diagnosis"] or not earlier.speaks["diagnosis"]:
            continue
        name = f"task {earlier.stub.id}"
        if speaks["evidence"].get("built_on") == earlier.stub.id:
            return f"builds on {name}, which does not pass"
        if speaks["diagnosis"]["cause"] == earlier.speaks["diagnosis"]["cause"]:
            return f"as {name}"
        place = witness.place_of_error(speaks["evidence"])
        if place and place == witness.place_of_error(earlier.speaks["evidence"]):
            return f"raises at the same line as {name}"
    return ""


def _lines(row: Row, echoed: str) -> list[RenderableType]:
    word, style = WORDS.get(row.speaks["status"], WRONG)
    if row.unfinished:
        word = "unfinished"
    elif row.missing:
        word, style = MISSING
    grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column(width=4)
    grid.add_column(width=11)
    grid.add_column(overflow="fold")
    grid.add_row(row.stub.id, Text(word, style=style), ", ".join(row.stub.functions))
    lines: list[RenderableType] = [Padding(grid, (0, 0, 0, 2), expand=False)]
    if row.done or row.speaks["status"] == "not_implemented" and not row.speaks["diagnosis"]:
        return lines
    if echoed:
        return [*lines, Padding(Text(echoed, style="dim"), (0, 0, 0, 8), expand=False)]
    lines += [Padding(Text(text), (0, 0, 0, 8), expand=False) for text in explanation(row.speaks)]
    bad = sum(check["status"] not in ("passed", "blocked") for check in row.checks)
    if bad > 1:
        text = f"{bad} of the {len(row.checks)} checks of this task are not passed"
        lines.append(Padding(Text(text, style="dim"), (0, 0, 0, 8), expand=False))
    return lines


def explanation(check: Check) -> list[str]:
    """Return the lines that explain a check: cause, witness, advice."""
    found = check["diagnosis"]
    if not found:
        return [witness.brief(check["summary"])]
    lines = [witness.brief(found["cause"])]
    seen = witness.rows(check["evidence"])[:WITNESS_ROWS]
    if check["status"] == "failed" and seen:
        lines.append("seen: " + "; ".join(f"{label} {text}" for label, text in seen))
    lines.append(f"try: {witness.brief(found['advice'])}")
    return lines


def next_step(
    found: Sequence[Row], path: Path, *, complete: bool, trouble: str | None = None
) -> str:
    """Name the first thing to do: task, function, file and line.

    Stretch tasks are none of it, unless they were asked for: then not every task was looked at.
    """
    todo = [row for row in found if not row.done and not (row.optional and complete)]
    ours = [row.speaks["summary"] for row in todo if row.speaks["status"] == "grader_error"]
    trouble = trouble or next(iter(ours), None)
    todo = [row for row in todo if row.speaks["status"] != "grader_error"]
    if trouble and not todo:
        return f"give the command again: the grader failed, not your code: {witness.brief(trouble)}"
    if not todo:
        if complete:
            return "all parts are done; `make grade` opens the four gates"
        tasks = list(dict.fromkeys(row.stub.id.split(".")[0] for row in found))
        are = "s {} are" if len(tasks) > 1 else " {} is"
        done = f"task{are.format(', '.join(tasks))} done" if tasks else "nothing to do here"
        return f"{done}; `make check` looks at every task"
    row = next((r for r in todo if r.speaks["status"] != "blocked"), todo[0])
    if row.speaks["status"] == "blocked":
        return f"task {row.stub.id} {clean_text(row.speaks['summary'])}: begin there"
    if row.missing:
        return f"put {row.stub.file} back where the other task files are (task {row.stub.id})"
    line_of_file = _line_of_file(row, path)
    if line_of_file:
        return f"mend {line_of_file} (task {row.stub.id})"
    source = find(path, row.stub.file)
    function = _function(row, source)
    verb = "write" if row.speaks["status"] == "not_implemented" else "mend"
    if row.unfinished or verb == "write" and _is_begun(functions(source).get(function)):
        verb = "finish"
    line = _line(row, function, source)
    where = row.stub.file if source is None else str(source)
    spot = f", line {line}" if line else ""
    return f"{verb} {function} in {clean_text(where)}{spot} (task {row.stub.id})"


def _line_of_file(row: Row, path: Path) -> str:
    """Return the place that keeps whole files from being used, whichever function it is in."""
    found = row.speaks["diagnosis"]
    if not found or found["code"] not in OF_A_FILE:
        return ""
    named = re.search(r"([\w/.-]+\.py), line (\d+)", clean_text(found["cause"]))
    if named is None:
        return ""
    source = find(path, named[1].rsplit("/", 1)[-1])
    where = named[1] if source is None else clean_text(str(source))
    return f"{where}, line {named[2]}"


def find(path: Path, file: str) -> Path | None:
    """Return where in the student's tree a file stands, None in an archive or when it is gone."""
    for home in HOMES:
        for candidate in sorted(path.glob(f"{home}/{file}")):
            return candidate
    return None


def _function(row: Row, source: Path | None) -> str:
    """Choose among the stub's functions: the first unwritten one, or the one that is spoken of."""
    names = row.stub.functions
    if row.speaks["status"] == "not_implemented":
        found = functions(source)
        return next((n for n in names if n in found and _is_stub(found[n])), names[0])
    found = row.speaks["diagnosis"] or {}
    if found.get("code") == "constructor_changed":
        constructors = [f"{n.split('.')[0]}.__init__" for n in names]
        return next((n for n in constructors if n in functions(source)), names[0])
    text = row.speaks["summary"]
    return next((n for n in names if n.rsplit(".", 1)[-1] in text), names[0])


def _line(row: Row, function: str, source: Path | None) -> int | None:
    """Return the line where the code raised, if it is in the function, or the function's own."""
    node = functions(source).get(function)
    for file, line in reversed(witness.frames(row.speaks["evidence"])):
        if node and file == row.stub.file and node.lineno <= line <= (node.end_lineno or 0):
            return line
    if node is None and source is not None:
        try:
            ast.parse(source.read_bytes())
        except SyntaxError as error:
            return error.lineno
        except (OSError, ValueError):
            pass
    return node.lineno if node else None


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
    body = node.body if node else []
    return len(body) - (ast.get_docstring(node) is not None if node else 0) > 1


def _is_stub(node: ast.FunctionDef) -> bool:
    return any(
        isinstance(n, ast.Raise) and "NotImplementedError" in ast.dump(n) for n in ast.walk(node)
    )
