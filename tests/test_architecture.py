"""Who may import whom, and that no rule is switched off quietly."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parent.parent
MASTER = sorted((ROOT / "solution").rglob("*.py"))
GRADER = sorted((ROOT / "grader").rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
STANDARD = set(sys.stdlib_module_names)
# What runs beside the student's code; all the rest of the grader is the referee.
WORKER_SIDE = {p for room in ("worker", "probes") for p in GRADER if p.parent.name == room}
# From the room that a command enters towards the foundations: each imports only what stands below.
ROOMS = (
    "__main__", "upkeep", "cli", "classroom", "report", "run", "checks", "gates", "parts", "asking",
    "oracle", "model", "worker", "probes", "link", "intake", "sandbox", "base",
)  # fmt: skip
# It is started by its path, before anything is installed, and imports nothing of ours.
ALONE = {"__init__", "setup_environment"}
MODULES = {"PyYAML": "yaml"}  # where a package is imported by another name
TEXT = {".py", ".toml", ".md", ".yml", ".txt", ".ini"}
TEXT_NAMES = {"Makefile", "LICENSE", "run", ".gitignore", ".gitattributes"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Yield every module that a file imports, at any depth, with its level of relativity."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.level


def roots(path: Path) -> set[str]:
    return {name.split(".")[0] for name, level in imports(path) if level == 0}


def project_files() -> list[Path]:
    """Return the text files that belong to the project, generated and fetched ones left out."""
    folders = ["grader", "bench", "solution", "starter", "tests", "notebooks", ".ci", ".github"]
    found = [p for folder in folders for p in (ROOT / folder).rglob("*")]
    found += list(ROOT.glob("*"))
    text = [p for p in found if p.suffix in TEXT or p.name in TEXT_NAMES]
    return sorted(p for p in text if p.is_file() and "__pycache__" not in p.parts)


@pytest.mark.parametrize("path", MASTER, ids=name_of)
def test_solution_imports_torch_safetensors_and_itself(path: Path) -> None:
    # The command line shows progress, and published models come with a tokenizer.
    also = {"__main__.py": {"rich", "tokenizers"}, "pretrained.py": {"tokenizers"}}
    assert roots(path) <= STANDARD | {"torch", "safetensors"} | also.get(path.name, set())
    assert {level for name, level in imports(path) if level} <= {1}


@pytest.mark.parametrize("path", GRADER, ids=name_of)
def test_grader_never_imports_a_submission(path: Path) -> None:
    assert not roots(path) & {"transformer", "solution", "starter", "tests"}


@pytest.mark.parametrize("path", GRADER, ids=name_of)
def test_only_the_worker_side_imports_torch(path: Path) -> None:
    assert "torch" not in roots(path) or path in WORKER_SIDE


@pytest.mark.parametrize("path", sorted((ROOT / "grader/oracle").glob("*.py")), ids=name_of)
def test_oracle_knows_numpy_and_what_a_model_is_only(path: Path) -> None:
    ours = {name for name, _ in imports(path) if name.split(".")[0] == "grader"}
    assert roots(path) <= STANDARD | {"numpy", "grader"}
    assert {n for n in ours if not n.startswith("grader.oracle")} <= {"grader.model.parameters"}


@pytest.mark.parametrize("path", GRADER, ids=name_of)
def test_grader_imports_declared_packages_only(path: Path) -> None:
    declared = {Requirement(text).name for text in PROJECT["project"]["dependencies"]}
    modules = {MODULES.get(name, name) for name in declared}
    assert roots(path) <= STANDARD | modules | {"grader"}


def ours(path: Path) -> Iterator[str]:
    """Yield every module of the grader that a file imports, such as grader.sandbox."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "grader":
            yield from (f"grader.{alias.name}" for alias in node.names)
    yield from (name for name, _ in imports(path) if name.startswith("grader."))


def room_of(path: Path) -> str:
    return path.relative_to(ROOT / "grader").parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", GRADER, ids=name_of)
def test_rooms_import_the_rooms_below_them_only(path: Path) -> None:
    room = room_of(path)
    used = {name.split(".")[1] for name in ours(path)} - {room}
    below = set(ROOMS[ROOMS.index(room) + 1 :]) if room in ROOMS else set()
    assert used <= below


def test_every_room_has_its_place_and_says_what_it_is_for() -> None:
    rooms = {room_of(path) for path in GRADER} - ALONE
    assert rooms == set(ROOMS)
    for room in rooms - {"__main__"}:
        text = (ROOT / "grader" / room / "__init__.py").read_text(encoding="utf-8")
        assert ast.get_docstring(ast.parse(text))


def test_referee_runs_without_torch() -> None:
    modules = [
        name_of(p).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for p in GRADER
        if p not in WORKER_SIDE
    ]
    code = f"""
import importlib, json, sys
for name in {modules}:
    importlib.import_module(name)
print(json.dumps(sorted({{"torch", "transformer"}} & set(sys.modules))))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == []


def test_text_is_ascii() -> None:
    texts = {name_of(path): path.read_text(encoding="utf-8") for path in project_files()}
    lines = ((n, i, x) for n, text in texts.items() for i, x in enumerate(text.split("\n"), 1))
    assert [found for found in lines if not found[2].isascii()] == []


def test_undefined_names_are_never_ignored() -> None:
    lint = PROJECT["tool"]["ruff"]["lint"]
    ignored = [*lint["ignore"], *(c for codes in lint["per-file-ignores"].values() for c in codes)]
    assert not [code for code in ignored if "F821".startswith(code)]
    waived = [
        name_of(p)
        for p in project_files()
        if p.suffix == ".py" and re.search(r"#\s*noqa(?!: [A-Z])|#\s*noqa:.*\bF821", p.read_text())
    ]
    assert [name for name in waived if name != "tests/test_architecture.py"] == []


def test_pyproject_is_the_only_configuration() -> None:
    names = {"ruff.toml", ".ruff.toml", "mypy.ini", ".mypy.ini", "pytest.ini", "setup.cfg"}
    assert [p for p in ROOT.iterdir() if p.name in names | {"tox.ini", "setup.py"}] == []


def test_constraints_pin_what_is_required_for_every_python_from_3_11_0() -> None:
    pinned = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    )
    versions = {canonical(name): version for name, version in pinned.items()}
    project = PROJECT["project"]
    todo = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    seen: set[str] = set()
    while todo:
        wanted = Requirement(todo.pop())
        name = canonical(wanted.name)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        assert wanted.specifier.contains(versions[name], prereleases=True), str(wanted)
        if name not in seen:
            seen.add(name)
            oldest = str(metadata.metadata(name).json.get("requires_python") or "")
            assert SpecifierSet(oldest).contains("3.11.0"), f"{name} {versions[name]}: {oldest}"
            todo += metadata.requires(name) or []
    assert seen <= set(versions)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
