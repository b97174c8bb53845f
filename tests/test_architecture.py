"""Who may import whom, how large a file may grow, and that no rule is switched off quietly."""

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
WORKER_SIDE = {
    p.name
    for p in GRADER
    if p.stem.startswith("probes") or p.stem in ("worker", "zygote", "eager", "forbidden_calls")
}
MODULES = {"PyYAML": "yaml"}  # where a package is imported by another name
LONGEST_MODULE = 300
LONGER_MODULES: dict[str, str] = {}
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
    folders = ["grader", "solution", "starter", "tests", "notebooks", ".ci", ".github"]
    found = [p for folder in folders for p in (ROOT / folder).rglob("*")]
    found += list(ROOT.glob("*"))
    text = [p for p in found if p.suffix in TEXT or p.name in TEXT_NAMES]
    return sorted(p for p in text if p.is_file() and "__pycache__" not in p.parts)


@pytest.mark.parametrize("path", MASTER, ids=name_of)
def test_solution_imports_torch_safetensors_and_itself(path: Path) -> None:
    assert roots(path) <= STANDARD | {"torch", "safetensors"}
    assert {level for name, level in imports(path) if level} <= {1}


@pytest.mark.parametrize("path", GRADER, ids=name_of)
def test_grader_never_imports_a_submission(path: Path) -> None:
    assert not roots(path) & {"transformer", "solution", "starter", "tests"}


@pytest.mark.parametrize("path", GRADER, ids=name_of)
def test_only_the_worker_side_imports_torch(path: Path) -> None:
    assert "torch" not in roots(path) or path.name in WORKER_SIDE


@pytest.mark.parametrize("path", sorted((ROOT / "grader/oracle").glob("*.py")), ids=name_of)
def test_oracle_knows_numpy_and_what_a_model_is_only(path: Path) -> None:
    ours = {name for name, _ in imports(path) if name.split(".")[0] == "grader"}
    assert roots(path) <= STANDARD | {"numpy", "grader"}
    assert {n for n in ours if not n.startswith("grader.oracle")} <= {"grader.parameters"}


@pytest.mark.parametrize("path", GRADER, ids=name_of)
def test_grader_imports_declared_packages_only(path: Path) -> None:
    declared = {Requirement(text).name for text in PROJECT["project"]["dependencies"]}
    modules = {MODULES.get(name, name) for name in declared}
    assert roots(path) <= STANDARD | modules | {"grader"}


def test_referee_runs_without_torch() -> None:
    modules = [
        name_of(p).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for p in GRADER
        if p.name not in WORKER_SIDE
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


@pytest.mark.parametrize("path", GRADER, ids=name_of)
def test_grader_module_fits_one_sitting(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST_MODULE or name_of(path) in LONGER_MODULES


def test_every_excused_length_is_needed() -> None:
    for name in LONGER_MODULES:
        assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) > LONGEST_MODULE


@pytest.mark.parametrize("path", project_files(), ids=name_of)
def test_text_is_ascii(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert [(i, line) for i, line in enumerate(text.split("\n"), 1) if not line.isascii()] == []


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
