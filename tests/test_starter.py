"""The starter is the solution with the bodies of the tasks removed, and nothing of them left."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from grader.base import settings
from grader.upkeep import release

ROOT = Path(__file__).resolve().parent.parent
SOLUTION = ROOT / "solution"
STARTER = ROOT / "starter"
NAMES = sorted(p.relative_to(SOLUTION).as_posix() for p in SOLUTION.rglob("*.py"))
LAB = settings.load()
STUBS = [*LAB.points.stubs, *LAB.points.stretch]
SHORTEST_TELLING_STATEMENT = 25
# CausalStack.forward is given, and shows on purpose what a stack does: the student writes the
# two stacks beside it. The message about empty targets is shared with the given metrics; the
# command line calls teacher_forcing, and its docstring says what it returns.
SHOWN_ON_PURPOSE = {
    "source = query if key_value is None else key_value",  # the given check of the shapes
    "slots = layer_slots(cache, len(self.blocks), offset)",
    "for block, slot in zip(self.blocks, slots, strict=True):",
    "return zero_padding(self.final_norm(x), valid)",
    "decoder_inputs, targets = teacher_forcing(batch.answers)",
    "return TeacherForcing(decoder_inputs, targets)",
    "raise ValueError(f'every one of the {targets.numel()} targets is padding (id {pad_id})')",
}


def source(tree: Path, name: str) -> str:
    return (tree / name).read_text(encoding="utf-8")


def statements(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and normalised text of every statement below `node`, of blocks the header."""
    for child in ast.walk(node):
        if isinstance(child, ast.stmt):
            yield child.lineno, ast.unparse(child).split("\n")[0]


def functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    return dict(release.named_functions(tree))


def test_starter_has_not_drifted() -> None:
    assert release.drift(SOLUTION, STARTER, release.asked_tasks()) == []


@pytest.mark.parametrize("name", NAMES)
def test_starter_leaks_no_solution_statement(name: str) -> None:
    regions = release.find_regions(source(SOLUTION, name), name)
    inside = {
        text
        for line, text in statements(ast.parse(source(SOLUTION, name)))
        if any(r.first < line < r.last for r in regions)
    }
    telling = {t for t in inside if len(t) >= SHORTEST_TELLING_STATEMENT} - SHOWN_ON_PURPOSE
    starter = {t for n in NAMES for _, t in statements(ast.parse(source(STARTER, n)))}
    assert telling & starter == set()


@pytest.mark.parametrize("name", NAMES)
def test_starter_keeps_signatures_and_docstrings(name: str) -> None:
    solution, starter = (functions(ast.parse(source(t, name))) for t in (SOLUTION, STARTER))
    assert list(starter) == list(solution)
    for function, master in solution.items():
        stub = starter[function]
        assert ast.unparse(stub.args) == ast.unparse(master.args)
        assert ast.dump(stub.returns or ast.Pass()) == ast.dump(master.returns or ast.Pass())
        assert ast.get_docstring(stub) == ast.get_docstring(master)


def test_starter_holds_no_marker() -> None:
    assert not [n for n in NAMES if "SOLUTION" in source(STARTER, n)]


def test_regions_are_the_stubs_of_lab_toml() -> None:
    found = {
        (region.task, Path(name).name, region.function)
        for name in NAMES
        for region in release.find_regions(source(SOLUTION, name), name)
    }
    assert found == {(s.id, s.file, f) for s in STUBS for f in s.functions}


@pytest.mark.parametrize("stub", STUBS, ids=lambda stub: stub.id)
def test_stub_raises_its_task_id(stub: settings.Stub | settings.StretchStub) -> None:
    found = functions(ast.parse(source(STARTER, f"transformer/{stub.file}")))
    for name in stub.functions:
        body = found[name].body
        words = f"task {stub.id}: write {name} in {stub.file}"
        assert ast.unparse(body[-1]) == f"raise NotImplementedError({words!r})"
        assert ast.get_docstring(found[name]) and len(body) == 2


def run_in_starter(code: str) -> tuple[int, str, str]:
    environment = os.environ | {"PYTHONPATH": str(STARTER), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_starter_imports() -> None:
    modules = [n.removesuffix(".py").replace("/", ".") for n in NAMES if "__main__" not in n]
    code = "\n".join(f"import {m.removesuffix('.__init__')}" for m in modules)
    assert run_in_starter(code) == (0, "", "")


CALL_EVERY_STUB = """
import importlib, inspect, operator
for module, name in {stubs}:
    function = operator.attrgetter(name)(importlib.import_module("transformer." + module))
    parameters = inspect.signature(function).parameters.values()
    by_name = {{p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY}}
    try:
        function(*[None] * (len(parameters) - len(by_name)), **by_name)
    except NotImplementedError as error:
        print(error)
"""


def test_every_stub_raises_when_called() -> None:
    stubs = [(s.file.removesuffix(".py"), f) for s in STUBS for f in s.functions]
    words = [f"task {s.id}: write {f} in {s.file}" for s in STUBS for f in s.functions]
    assert run_in_starter(CALL_EVERY_STUB.format(stubs=stubs)) == (0, "\n".join(words) + "\n", "")
