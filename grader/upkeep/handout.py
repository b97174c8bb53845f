"""What students get: `release --out dist` writes dist/transformer-lab.zip.

In it are the starter, the notebooks and the grader without its secrets: recorded answers to one
public seed take the oracle's place, and no line of a solution, no salt and no known case goes
along. The same sources make the same bytes.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path

from grader.asking import compare
from grader.asking.expectations import Expectations
from grader.base import settings
from grader.base.places import ROOT
from grader.cli import notebooks
from grader.run.engine import Referee, Request, default_seed
from grader.upkeep import bundles, facts
from grader.upkeep.release import Files, ReleaseError, asked_tasks, starter_files, tree_files

NAME = "transformer-lab"
PUBLIC_SALT = "public"
# The students' commands, and what is started by its path; the handout holds what these import.
STUDENTS = (
    "__init__.py", "__main__.py", "setup_environment.py", "cli/*", "checks/*", "probes/*",
    "worker/*", "run/engine.py", "report/html_report.py", "report/templates/report*",
    "sandbox/probe.py",
)  # fmt: skip
# They know answers, wrong trees or the solution; the commands that need them are not offered.
WITHHELD = ("classroom", "oracle", "upkeep")
TARGETS = (
    "help",
    "setup",
    "check",
    "watch",
    "run",
    "hint",
    "reset",
    "grade",
    "scale",
    "notebook",
    "notebooks",
    "clean",
)
AS_THEY_ARE = ("LICENSE", "constraints.txt", ".gitignore", ".devcontainer/devcontainer.json")
PYTEST = """
[tool.pytest.ini_options]
addopts = ["-p", "no:cacheprovider"]
pythonpath = [".", "starter"]
testpaths = ["tests"]
"""


def handout_files(root: Path = ROOT) -> Files:
    """Return the files that students get, in one folder, by name.

    Args:
        root: a whole repository; its solution is graded once to record the public answers.

    Raises:
        ReleaseError: The solution cannot be turned into a starter or fails a check of its own, or
            a file from which the handout is made does not look as expected.
    """
    starter = starter_files(root / "solution", asked_tasks(root))
    grader = tree_files(root / "grader")
    files = {name: (root / name).read_bytes() for name in AS_THEY_ARE}
    files |= tree_files(root / "handout")
    page = files["README.md"].decode()
    files["README.md"] = facts.corrected(page, settings.load(root / "lab.toml", {})).encode()
    files |= {f"starter/{name}": content for name, content in starter.items()}
    files |= {f"grader/original/{name}": content for name, content in starter.items()}
    files |= {f"grader/{name}": grader[name] for name in students_modules(grader)}
    files |= {f"notebooks/{name}": c for name, c in notebooks.built(root / "notebooks").items()}
    files["notebooks/lab.py"] = (root / "notebooks" / "lab.py").read_bytes()
    lab = (root / "lab.toml").read_text(encoding="utf-8")
    files["lab.toml"] = bundles.salted(lab, PUBLIC_SALT, "your instructor has another").encode()
    files["Makefile"] = students_makefile((root / "Makefile").read_text(encoding="utf-8")).encode()
    project = (root / "pyproject.toml").read_text(encoding="utf-8")
    files["pyproject.toml"] = students_project(project).encode()
    files["grader/expected.safetensors"] = recorded_answers(root)
    return {f"{NAME}/{name}": content for name, content in files.items()}


def students_modules(grader: Files) -> list[str]:
    """Return the names of the grader's files that students get, out of all of them."""
    todo = [name for pattern in STUDENTS for name in grader if fnmatchcase(name, pattern)]
    kept: set[str] = set()
    while todo:
        name = todo.pop()
        if name in kept or name.split("/")[0].removesuffix(".py") in WITHHELD:
            continue
        kept.add(name)
        todo += {f"{Path(name).parent.as_posix()}/__init__.py"} & set(grader)
        # It also imports the instructors' commands, which are not offered without their modules.
        for module in _imported(name, grader[name]) if name != "__main__.py" else ():
            path = module.removeprefix("grader.").replace(".", "/")
            todo += {f"{path}.py", f"{path}/__init__.py"} & set(grader)
    return sorted(kept)


def _imported(name: str, source: bytes) -> set[str]:
    """Return what a module imports of the grader, at any depth, as dotted names."""
    found = set()
    for node in ast.walk(ast.parse(source)) if name.endswith(".py") else ():
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in found if name.startswith("grader.")}


def students_makefile(text: str) -> str:
    """Return the Makefile with the students' targets only."""
    kept = []
    for block in text.split("\n\n"):
        rule = re.match(r"([a-z]+):", block)
        if rule is None or rule[1] in TARGETS:
            kept.append(re.sub(r"(?m)^\.PHONY:.*$", f".PHONY: {' '.join(TARGETS)}", block))
    text = re.sub(r"(?m)^(DIR|JOBS|SLOW) +\?=.*\n", "", "\n\n".join(kept))
    return text.rstrip("\n") + "\n"


def students_project(text: str) -> str:
    """Return pyproject.toml without the instructors' extras and tools."""
    project, found, _ = text.partition("\n[project.optional-dependencies]")
    if not found:
        raise ReleaseError("pyproject.toml: expected [project.optional-dependencies]")
    return project.rstrip("\n") + "\n" + PYTEST


def public_seed() -> int:
    """Return the seed of all public checks."""
    return default_seed(PUBLIC_SALT, NAME)


def recorded_answers(root: Path) -> bytes:
    """Grade the solution with the public seed and return what the oracle answered, as a file.

    What only a wrong tree would lead the checks to ask is asked as well.

    Raises:
        ReleaseError: The solution does not pass.
    """
    seed = public_seed()
    answers = Expectations()
    compare.every_suspect = True
    try:
        # A gate that trains asks the oracle nothing.
        request = Request(root / "solution", seed=seed, keep_going=True, slow=False)
        with Referee(settings.load(root / "lab.toml", {})) as referee:
            referee.expectations = answers
            found = referee.grade(request)
    finally:
        compare.every_suspect = False
    asked = [gate for gate in found["gates"] if gate["checks"]]
    for entry in [*found["parts"], *found["stretch"], *asked]:
        if entry["status"] != "passed":
            where = f"{entry['task'] or 'gate'} {entry['name']}"
            raise ReleaseError(f"the solution does not pass {where}: {entry['summary']}")
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "expected")
        answers.save(path, seed)
        return path.read_bytes()


def main(options: argparse.Namespace) -> int:
    """Build the handout; return 0, or 2 where the sources do not allow it."""
    path = options.out / f"{NAME}.zip"
    try:
        files = handout_files()
        bundles.write(path, files)
        made = bundles.build(options.out)
    except (ReleaseError, OSError) as error:
        print(f"cannot release: {error}", file=sys.stderr)
        return 2
    size = path.stat().st_size / 2**20
    print(f"{path}: {len(files)} files, {size:.1f} MB; all checks in it are public")
    for bundle, purpose in made.items():
        print(f"{bundle}: {purpose}")
    return 0
