"""Solution to starter: the same files, with the body of every task replaced by one `raise`.

In the solution a body stands between the comment lines `# BEGIN SOLUTION 2.1` and
`# END SOLUTION`; it must be the whole body of its function after the docstring. The body of a task
that lab.toml does not name is given: it stays, without its markers.
"""

from __future__ import annotations

import argparse
import ast
import re
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from grader.base import settings
from grader.base.places import LAB_FILE, ROOT
from grader.base.settings import SettingsError

PACKAGE = "transformer"
BEGIN = re.compile(r"( *)# BEGIN SOLUTION ([1-9]\d*\.[1-9]\d*|S[1-9]\d*)")
END = re.compile(r" *# END SOLUTION")
JUNK = {"__pycache__", ".DS_Store", ".ipynb_checkpoints"}
Files = dict[str, bytes]


class ReleaseError(ValueError):
    """A tree that cannot be turned into a starter; the message names file and line."""


@dataclass(frozen=True)
class Region:
    """One task's body: its function and the lines of its two markers, counted from 1."""

    task: str
    function: str
    first: int
    last: int
    indent: str

    def stub(self, file: str) -> str:
        """Return the line that takes the body's place in `file`."""
        words = f"task {self.task}: write {self.function} in {file}"
        return f'{self.indent}raise NotImplementedError("{words}")'


def find_regions(text: str, file: str) -> list[Region]:
    """Find the task bodies in Python source.

    Args:
        text: The source.
        file: What messages call it.

    Raises:
        ReleaseError: A region is nested, unclosed, misspelt, outside every function, or the
            second one of its function.
    """
    marked = list(_marked(text, file))
    functions = list(named_functions(_parse(text, file))) if marked else []
    found: dict[str, Region] = {}
    for task, first, last, indent in marked:
        inside = range(first, last)
        name = next((n for n, f in functions if any(s.lineno in inside for s in f.body)), None)
        if name is None:
            raise ReleaseError(f"{file}:{first}: region {task} lies in no function")
        if name in found:
            raise ReleaseError(
                f"{file}:{first}: {name} already has a region, at line {found[name].first}"
            )
        found[name] = Region(task, name, first, last, indent)
    return list(found.values())


def strip(text: str, file: str, asked: Collection[str] | None = None) -> str:
    """Replace the task bodies in Python source by their stubs.

    Args:
        text: The source.
        file: What messages and stubs call it.
        asked: The tasks that are asked; other bodies stay. None = all of them.

    Raises:
        ReleaseError: As `find_regions`, or a region is not the whole body of its function.
    """
    regions = find_regions(text, file)
    tree = _parse(text, file)
    functions = dict(named_functions(tree))
    lines = text.split("\n")
    for region in reversed(regions):
        function, inside = functions[region.function], range(region.first, region.last)
        body = function.body[ast.get_docstring(function) is not None :]
        if any(s.lineno not in inside or s.end_lineno not in inside for s in body):
            where = f"{file}:{region.first}: region {region.task}"
            raise ReleaseError(f"{where} must hold the whole body of {region.function}")
        own = {node for statement in body for node in ast.walk(statement)}
        others = (n for n in ast.walk(tree) if isinstance(n, ast.stmt) and n not in own)
        if any(statement.lineno in inside for statement in others):
            raise ReleaseError(f"{file}: a region holds more than the body of its function")
        whole = slice(region.first - 1, region.last)
        given = asked is not None and region.task not in asked
        lines[whole] = lines[whole][1:-1] if given else [region.stub(file)]
    return "\n".join(lines)


def _marked(text: str, file: str) -> Iterator[tuple[str, int, int, str]]:
    """Yield task, first line, last line and indentation of each pair of markers."""
    task, first, indent = "", 0, ""
    for number, line in enumerate(text.split("\n"), start=1):
        begin = BEGIN.fullmatch(line)
        if begin and task:
            raise ReleaseError(f"{file}:{number}: region {begin[2]} begins inside region {task}")
        if begin:
            indent, task, first = begin[1], begin[2], number
        elif END.fullmatch(line):
            if not task:
                raise ReleaseError(f"{file}:{number}: END SOLUTION closes no region")
            yield task, first, number, indent
            task = ""
        elif "BEGIN SOLUTION" in line or "END SOLUTION" in line:
            raise ReleaseError(f"{file}:{number}: this is no marker: {line.strip()}")
    if task:
        raise ReleaseError(f"{file}:{first}: region {task} is never closed")


def _parse(text: str, file: str) -> ast.Module:
    try:
        return ast.parse(text, file)
    except SyntaxError as error:
        raise ReleaseError(f"{file}:{error.lineno}: {error.msg}") from None


def named_functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield functions and methods with their dotted names, not what they define inside."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from named_functions(child, f"{prefix}{child.name}.")


def tree_files(folder: Path) -> Files:
    """Return the files below `folder` by name, caches and links left out."""
    return {
        name.as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
        and not JUNK & set((name := path.relative_to(folder)).parts)
    }  # fmt: skip


def asked_tasks(root: Path = ROOT) -> tuple[str, ...]:
    """Return the ids of the tasks in the repository's lab.toml.

    Raises:
        SettingsError: it cannot be used.
    """
    return settings.load(root / LAB_FILE.name, {}).points.ids


def starter_files(solution: Path, asked: Collection[str] | None = None) -> Files:
    """Return the starter's files by relative name, made from the tree `solution`.

    Args:
        solution: A tree.
        asked: The tasks that are asked, as for `strip`.

    Raises:
        ReleaseError: As `strip`; a task stands in two files; there is no package, or a file in
            it is a link or not UTF-8.
    """
    if not (solution / PACKAGE).is_dir():
        raise ReleaseError(f"{solution}: expected a folder holding {PACKAGE}/")
    for path in solution.rglob("*"):
        if path.is_symlink():
            raise ReleaseError(f"{path.relative_to(solution)}: expected a regular file")
    files = tree_files(solution)
    homes: dict[str, str] = {}
    for name, content in files.items():
        if name.endswith(".py"):
            try:
                text = content.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ReleaseError(f"{name}: expected UTF-8: {error}") from None
            file = Path(name).name
            for region in find_regions(text, file):
                home = homes.setdefault(region.task, name)
                if home != name:
                    raise ReleaseError(f"{name}:{region.first}: task {region.task} is in {home}")
            files[name] = strip(text, file, asked).encode("utf-8")
    return files


def build_starter(solution: Path, starter: Path, asked: Collection[str] | None = None) -> list[str]:
    """Write the starter of `solution` to the folder `starter`, replacing it as a whole.

    Returns:
        The names of the files written.

    Raises:
        ReleaseError: As `starter_files`, or `starter` holds something that is not a starter.
            Nothing has changed then.
    """
    files = starter_files(solution, asked)
    if starter.exists() and any(starter.iterdir()) and not (starter / PACKAGE).is_dir():
        raise ReleaseError(f"{starter}: will not replace a folder that holds no {PACKAGE}/")
    shutil.rmtree(starter, ignore_errors=True)
    for name, content in files.items():
        (starter / name).parent.mkdir(parents=True, exist_ok=True)
        (starter / name).write_bytes(content)
    return list(files)


def drift(solution: Path, starter: Path, asked: Collection[str] | None = None) -> list[str]:
    """Return one line for each file in which `starter` differs from what would be built."""
    wanted, there = starter_files(solution, asked), tree_files(starter)
    return (
        [f"missing: {name}" for name in sorted(wanted.keys() - there.keys())]
        + [f"not in the solution: {name}" for name in sorted(there.keys() - wanted.keys())]
        + [f"differs: {n}" for n in sorted(wanted.keys() & there.keys()) if wanted[n] != there[n]]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the starter, or with --check compare it; return 0, or 1 on drift, or 2."""
    parser = argparse.ArgumentParser(prog="python -m grader.upkeep.release", description=__doc__)
    parser.add_argument("what", choices=["starter"], help="what to build")
    parser.add_argument("--check", action="store_true", help="change nothing; fail on drift")
    chosen = parser.parse_args(arguments)
    solution, starter = ROOT / "solution", ROOT / "starter"
    try:
        asked = asked_tasks()
        if chosen.check:
            found = drift(solution, starter, asked)
            print("\n".join(found) or "starter: as the solution says")
            return 1 if found else 0
        print(f"starter: {len(build_starter(solution, starter, asked))} files written")
    except (ReleaseError, SettingsError, OSError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
