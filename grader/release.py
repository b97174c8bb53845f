"""Solution to starter: the same files, with the body of every task replaced by one `raise`.

In the solution a body stands between the comment lines `# BEGIN SOLUTION 2.1` and
`# END SOLUTION`; it must be the whole body of its function after the docstring.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "transformer"
BEGIN = re.compile(r"( *)# BEGIN SOLUTION ([1-9]\.[1-9]|S[1-9])")
END = re.compile(r" *# END SOLUTION")
JUNK = {"__pycache__", ".DS_Store", ".ipynb_checkpoints"}


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
        name = next((n for n, f in functions if _has_statement_within(f, first, last)), None)
        if name is None:
            raise ReleaseError(f"{file}:{first}: region {task} lies in no function")
        if name in found:
            raise ReleaseError(
                f"{file}:{first}: {name} already has a region, at line {found[name].first}"
            )
        found[name] = Region(task, name, first, last, indent)
    return list(found.values())


def strip(text: str, file: str) -> str:
    """Replace the task bodies in Python source by their stubs.

    Args:
        text: The source.
        file: What messages and stubs call it.

    Raises:
        ReleaseError: As `find_regions`, or a region is not the whole body of its function.
    """
    regions = find_regions(text, file)
    lines = text.split("\n")
    for region in reversed(regions):
        lines[region.first - 1 : region.last] = [region.stub(file)]
    stripped = "\n".join(lines)
    for region in regions:
        where = f"{file}:{region.first}: region {region.task}"
        if not _is_stub(stripped, file, region.function):
            raise ReleaseError(f"{where} must hold the whole body of {region.function}")
    names = {region.function for region in regions}
    if _outline(stripped, file, names) != _outline(text, file, names):
        raise ReleaseError(f"{file}: a region holds more than the body of its function")
    return stripped


def _marked(text: str, file: str) -> Iterator[tuple[str, int, int, str]]:
    """Yield task, first line, last line and indentation of each pair of markers."""
    task, first, indent = "", 0, ""
    for number, line in enumerate(text.split("\n"), start=1):
        if "BEGIN SOLUTION" not in line and "END SOLUTION" not in line:
            continue
        begin = BEGIN.fullmatch(line)
        if begin is None and END.fullmatch(line) is None:
            raise ReleaseError(f"{file}:{number}: this is no marker: {line.strip()}")
        if begin is not None and task:
            raise ReleaseError(f"{file}:{number}: region {begin[2]} begins inside region {task}")
        if begin is None and not task:
            raise ReleaseError(f"{file}:{number}: END SOLUTION closes no region")
        if begin is not None:
            indent, task, first = begin[1], begin[2], number
        else:
            yield task, first, number, indent
            task = ""
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


def _has_statement_within(function: ast.FunctionDef, first: int, last: int) -> bool:
    return any(first < s.lineno and (s.end_lineno or 0) < last for s in function.body)


def _without_docstring(function: ast.FunctionDef) -> list[ast.stmt]:
    return function.body[1:] if ast.get_docstring(function) is not None else function.body


def _is_stub(text: str, file: str, name: str) -> bool:
    """Tell whether the body of function `name` is one `raise`."""
    body = _without_docstring(dict(named_functions(_parse(text, file)))[name])
    return len(body) == 1 and isinstance(body[0], ast.Raise)


def _outline(text: str, file: str, names: set[str]) -> str:
    """Return the syntax tree of a source as text, without the bodies of the functions `names`."""
    tree = _parse(text, file)
    for name, function in named_functions(tree):
        if name in names:
            del function.body[len(function.body) - len(_without_docstring(function)) :]
    return ast.dump(tree)


def starter_files(solution: Path) -> dict[str, bytes]:
    """Return the starter's files by relative name, made from the tree `solution`.

    Raises:
        ReleaseError: As `strip`; a task stands in two files; there is no package, or a file in
            it is a link or not UTF-8.
    """
    if not (solution / PACKAGE).is_dir():
        raise ReleaseError(f"{solution}: expected a folder holding {PACKAGE}/")
    files: dict[str, bytes] = {}
    homes: dict[str, str] = {}
    for path in sorted(solution.rglob("*")):
        name = path.relative_to(solution)
        if JUNK & set(name.parts) or path.is_dir():
            continue
        if path.is_symlink() or not path.is_file():
            raise ReleaseError(f"{name}: expected a regular file")
        files[name.as_posix()] = _starter_file(path, name.as_posix(), homes)
    return files


def _starter_file(path: Path, name: str, homes: dict[str, str]) -> bytes:
    content = path.read_bytes()
    if path.suffix != ".py":
        return content
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ReleaseError(f"{name}: expected UTF-8: {error}") from None
    for region in find_regions(text, path.name):
        if homes.setdefault(region.task, name) != name:
            raise ReleaseError(
                f"{name}:{region.first}: task {region.task} is in {homes[region.task]}"
            )
    return strip(text, path.name).encode("utf-8")


def build_starter(solution: Path, starter: Path) -> list[str]:
    """Write the starter of `solution` to the folder `starter`, replacing it as a whole.

    Returns:
        The names of the files written.

    Raises:
        ReleaseError: As `starter_files`, or `starter` holds something that is not a starter.
            Nothing has changed then.
    """
    files = starter_files(solution)
    if starter.exists() and any(starter.iterdir()) and not (starter / PACKAGE).is_dir():
        raise ReleaseError(f"{starter}: will not replace a folder that holds no {PACKAGE}/")
    starter.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=starter.parent, prefix=f".{starter.name}.") as scratch:
        made, old = Path(scratch, "made"), Path(scratch, "old")
        for name, content in files.items():
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            (made / name).write_bytes(content)
        if starter.exists():
            starter.rename(old)
        try:
            made.rename(starter)
        except OSError:
            old.rename(starter)
            raise
    return list(files)


def drift(solution: Path, starter: Path) -> list[str]:
    """Return one line for each file in which `starter` differs from what would be built."""
    wanted = starter_files(solution)
    there = {
        path.relative_to(starter).as_posix(): path.read_bytes()
        for path in starter.rglob("*")
        if path.is_file() and not JUNK & set(path.relative_to(starter).parts)
    }
    return (
        [f"missing: {name}" for name in sorted(wanted.keys() - there.keys())]
        + [f"not in the solution: {name}" for name in sorted(there.keys() - wanted.keys())]
        + [f"differs: {n}" for n in sorted(wanted.keys() & there.keys()) if wanted[n] != there[n]]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the starter, or with --check compare it; return 0, or 1 on drift, or 2."""
    parser = argparse.ArgumentParser(prog="python -m grader.release", description=__doc__)
    parser.add_argument("what", choices=["starter"], help="what to build")
    parser.add_argument("--check", action="store_true", help="change nothing; fail on drift")
    chosen = parser.parse_args(arguments)
    solution, starter = ROOT / "solution", ROOT / "starter"
    try:
        if chosen.check:
            found = drift(solution, starter)
            print("\n".join(found) or "starter: as the solution says")
            return 1 if found else 0
        print(f"starter: {len(build_starter(solution, starter))} files written")
    except (ReleaseError, OSError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
