"""The Makefile lists what it offers, and continuous integration runs nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE)
CORE = ["setup", "check", "grade", "test", "starter", "vectors", "verify", "bench", "format"]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(*words: str, folder: Path = ROOT, **variables: str) -> str:
    """Run make and return what it prints; `-n` among the words only shows the commands."""
    # An outer make hands its own variables down.
    ours = {"PYTHON", "TREE", "TASK", "DIR", "CHECK", "JOBS"}
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k not in ours}
    command = ["make", "--no-print-directory", *words]
    done = subprocess.run(
        command, cwd=folder, env=kept | variables, capture_output=True, text=True, check=True
    )
    return done.stdout


def command(*words: str, folder: Path = ROOT) -> str:
    """Return the last command that make would run."""
    return make("-n", *words, folder=folder).strip().split("\n")[-1].strip()


def test_make_alone_lists_every_target_once() -> None:
    listed = [line.split()[1] for line in make().splitlines()]
    assert listed == [target for target in TARGETS if target != "help"]
    assert set(CORE + ["clean"]) <= set(listed)


def test_make_alone_says_what_each_target_does() -> None:
    lines = make().splitlines()
    assert [line for line in lines if len(line.split()) < 4 or len(line) > 100] == []


def test_grade_takes_the_solution_where_there_is_one(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    assert command("grade", folder=tmp_path) == ".venv/bin/python -m grader grade 'starter'"
    (tmp_path / "solution").mkdir()
    assert command("grade", folder=tmp_path) == ".venv/bin/python -m grader grade 'solution'"


def test_grade_takes_a_tree_with_spaces() -> None:
    wanted = ".venv/bin/python -m grader grade 'my tree.zip'"
    assert command("grade", "TREE=my tree.zip") == wanted


def test_check_takes_a_task_and_a_tree() -> None:
    assert command("check").split() == [".venv/bin/python", "-m", "grader", "check"]
    wanted = [".venv/bin/python", "-m", "grader", "check", "2", "--tree", "'mine'"]
    assert command("check", "TASK=2", "TREE=mine").split() == wanted


def test_vectors_takes_a_folder() -> None:
    assert command("vectors") == ".venv/bin/python tests/vector_cases.py 'tests/vectors'"
    assert command("vectors", "DIR=x").endswith("'x'")


def test_bench_fails_on_a_missed_figure_when_asked() -> None:
    assert command("bench", "CHECK=1") == command("bench").strip() + " --check"


def test_every_working_target_sets_up_first() -> None:
    rules = dict(re.findall(r"^([a-z]+):(.*?)##", MAKEFILE, re.MULTILINE))
    assert {t for t, needs in rules.items() if "setup" not in needs} == {"setup", "clean"}


def test_makefile_stays_thin() -> None:
    recipes = re.findall(r"^[a-z]+:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    lengths = [len(recipe.splitlines()) for recipe in recipes]
    assert max(lengths) <= 4 and sum(lengths) / len(lengths) <= 1.5


def test_threads_are_one_for_every_recipe() -> None:
    assert "export OMP_NUM_THREADS := 1" in MAKEFILE


def test_continuous_integration_runs_make_test_alone() -> None:
    script = ROOT / ".ci/run"
    lines = [x for x in script.read_text(encoding="utf-8").splitlines() if not x.startswith("#")]
    assert len(lines) == 1 and lines[0].endswith("&& exec make --no-print-directory test")
    assert os.access(script, os.X_OK)
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    assert re.findall(r"- run: (.*)", workflow) == [".ci/run"]


def test_nightly_workflow_runs_make_targets_alone() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text(encoding="utf-8"))
    (job,) = workflow["jobs"].values()
    targets = job["strategy"]["matrix"]["target"]
    assert {"test SLOW=1/1", "verify", "coverage"} <= set(targets)
    assert {target.split()[0] for target in targets} <= set(TARGETS)
    assert [step["run"] for step in job["steps"] if "run" in step] == ["make ${{ matrix.target }}"]


def test_pre_commit_runs_the_tools_of_make_test() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    entries = [hook["entry"] for repo in config["repos"] for hook in repo["hooks"]]
    tools = {entry.split(" -m ")[1].split()[0] for entry in entries}
    assert tools == {"ruff", "mypy", "pytest"}
    assert all(f"-m {tool}" in make("-n", "test") for tool in tools)


def test_test_ends_with_pytest() -> None:
    assert " -m pytest " in command("test")


def test_make_names_a_missing_python(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    with pytest.raises(subprocess.CalledProcessError) as caught:
        make("setup", "PYTHON=no-such-python", folder=tmp_path)
    words = "setup: no no-such-python here; Python 3.11 or newer is needed"
    assert caught.value.stderr.splitlines()[0] == words
