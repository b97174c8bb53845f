"""What the markers of the checks say, read from their files without importing them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from grader.base.places import CHECKS

KINDS = ("part", "gate")


@dataclass(frozen=True)
class Marked:
    """One check.

    Attributes:
        file: where it stands.
        check: its function.
        kind: "part" or "gate"; nothing where the marker is missing.
        name: the id of its stub, or the name of its gate.
        slow: whether it trains a model.
        sentence: the first line of its docstring.
        about: the first line of its file's docstring.
    """

    file: Path
    check: str
    kind: str
    name: str
    slow: bool
    sentence: str
    about: str


@cache
def marked(folder: Path = CHECKS) -> tuple[Marked, ...]:
    """Return every check below `folder`, in the order of files and lines."""
    return tuple(one for path in sorted(folder.glob("[a-z]*.py")) for one in _of(path))


def sentences() -> dict[str, str]:
    """Return what each gate asks: its file's first line or, in a file of several, its check's."""
    gates = [one for one in marked() if one.kind == "gate"]
    files = [one.file for one in gates]
    asked = {}
    for one in gates:
        words = one.about if files.count(one.file) == 1 else one.sentence
        words = re.sub(r"^Gate( \d+)?: ", "", words)
        asked[one.name] = words[:1].upper() + words[1:]
    return asked


def _of(path: Path) -> Iterator[Marked]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
            continue
        found = dict(_mark(decorator) for decorator in node.decorator_list)
        kind = next((kind for kind in KINDS if kind in found), "")
        yield Marked(path, node.name, kind, found.get(kind, ""), "slow" in found,
                     _first_line(node), _first_line(tree))  # fmt: skip


def _mark(decorator: ast.expr) -> tuple[str, str]:
    """Return name and first argument of `@pytest.mark.name("argument")`."""
    call = decorator if isinstance(decorator, ast.Call) else None
    name = call.func if call else decorator
    first = call.args[0] if call and call.args else None
    argument = str(first.value) if isinstance(first, ast.Constant) else ""
    return name.attr if isinstance(name, ast.Attribute) else "", argument


def _first_line(node: ast.FunctionDef | ast.Module) -> str:
    return (ast.get_docstring(node) or "").split("\n")[0]
