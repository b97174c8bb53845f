"""What is written twice agrees: docstrings and signatures, README and lab.toml, README and make."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from grader import __main__ as command_line
from grader.base import settings

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [*sorted((ROOT / "solution").rglob("*.py")), *sorted((ROOT / "grader").rglob("*.py"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = (README, (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
SECTION = re.compile(r"^Args:\n((?:    .*\n|\n)+)", re.MULTILINE)
Documented = ast.FunctionDef | ast.ClassDef


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def described(node: Documented) -> list[str] | None:
    """Return the names that a docstring's Args section describes, None without a section."""
    section = SECTION.search((ast.get_docstring(node) or "") + "\n")
    if section is None:
        return None
    return re.findall(r"^    \*{0,2}(\w+)(?: \(.*\))?:", section[1], re.MULTILINE)


def parameters(node: Documented) -> list[str]:
    """Return the parameters of a function, or of a class those of its constructor or its fields."""
    if isinstance(node, ast.ClassDef):
        methods = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)}
        if "__init__" in methods:
            return parameters(methods["__init__"])
        return [n.target.id for n in node.body if isinstance(n, ast.AnnAssign)]  # type: ignore
    given = node.args
    named = [*given.posonlyargs, *given.args]
    if given.vararg is not None:
        named.append(given.vararg)
    named += given.kwonlyargs
    if given.kwarg is not None:
        named.append(given.kwarg)
    return [a.arg for a in named if a.arg not in ("self", "cls")]


def documented(path: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, Documented):
            names = described(node)
            if names is not None:
                yield node.name, names, parameters(node)


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_docstring_describes_the_arguments_of_the_signature(path: Path) -> None:
    for name, names, signature in documented(path):
        assert (name, sorted(names)) == (name, sorted(signature))


def test_stub_docstring_names_its_task() -> None:
    lab = settings.load().points
    for stub in [*lab.stubs, *lab.stretch]:
        text = (ROOT / "solution/transformer" / stub.file).read_text(encoding="utf-8")
        assert re.search(rf"\b[Tt]ask {re.escape(stub.id)}\b", text), stub


def table(heading: str) -> list[list[str]]:
    """Return the rows of the README's table whose first heading is `heading`."""
    rows = README.split(f"\n| {heading} |")[1].split("\n\n")[0].split("\n")[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_readme_table_is_lab_toml() -> None:
    points = settings.load().points
    gates = dict(enumerate(points.gates, start=1))
    wanted = [
        [s.id, s.file, ", ".join(f"`{f}`" for f in s.functions), f"{s.gate} {gates[s.gate]}"]
        + [str(s.points)]
        for s in points.stubs
    ]
    assert table("task") == wanted


def test_readme_exit_codes_are_those_of_the_command_line() -> None:
    assert [row[0] for row in table("exit code")] == [
        str(code)
        for code in (
            command_line.PASSED,
            command_line.NOT_PASSED,
            command_line.CANNOT_GRADE,
            command_line.GRADER_FAILED,
            command_line.STOPPED,
        )
    ]


@pytest.mark.parametrize("page", PAGES, ids=["README", "CONTRIBUTING"])
def test_make_targets_of_a_page_exist(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    named = set(re.findall(r"(?:^ +|`)(?:[A-Z_]+=\S+ )*make ([a-z]+)", page, re.MULTILINE))
    assert {"grade", "test"} <= named <= targets


@pytest.mark.parametrize("page", PAGES, ids=["README", "CONTRIBUTING"])
def test_commands_of_a_page_parse(page: str) -> None:
    lines = re.findall(r"^ *(?:\S*python\S* -m grader) (.+?)(?: +#.*)?$", page, re.MULTILINE)
    assert lines
    for line in lines:
        command_line.parser().parse_args(line.split())


def test_readme_files_exist() -> None:
    paths = re.findall(r"`((?:grader|solution|starter|tests|\.ci|\.github)/[\w./-]*)`", README)
    paths += re.findall(r"`([\w.]+\.(?:toml|txt|md))`", README)
    assert [p for p in paths if not (ROOT / p).exists()] == []


def test_readme_names_every_room_of_the_grader() -> None:
    rooms = {path.parent.name for path in (ROOT / "grader").glob("*/__init__.py")}
    named = [room for row in table("rooms of `grader/`") for room in re.findall(r"(\w+)/", row[0])]
    assert sorted(named) == sorted(rooms)


def test_readme_fits_its_length() -> None:
    assert len(README.splitlines()) <= 130


def test_readme_letters_are_those_of_the_package() -> None:
    config = (ROOT / "solution/transformer/config.py").read_text(encoding="utf-8")
    legend = config.split("every file of this package:\n\n")[1].split("\n\n")[0]
    wanted = set(re.findall(r"([A-Z]) ([a-z][a-z -]*?)(?=  | \(|\n|$)", legend))
    line = README.split("Letters: ")[1].split(".\n\n")[0].replace("\n", " ")
    assert {tuple(item.split(" ", 1)) for item in line.split(", ")} == wanted
