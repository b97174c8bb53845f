"""A lab that can be changed: each change of docs/changing-the-lab.md, made on a copy.

A changed copy grades its solution and its starter, and builds its handout.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PIECES = (
    "grader", "solution", "starter", "handout", "notebooks", "lab.toml", "Makefile", "README.md",
    "pyproject.toml", "constraints.txt", "LICENSE", ".gitignore", ".devcontainer",
)  # fmt: skip
CHECK = '''\
"""{about}"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from grader.asking.compare import fail
from grader.asking.submission import Submission


@pytest.mark.{mark}
def test_{name}(submission: Submission) -> dict[str, Any]:
    """{sentence}"""
    value = submission.call("{target}", {arguments})
    if not np.array_equal(value, {right}):
        fail("wrong", "{part}", "the answer is another one.", "Look again.")
    return {{"calls": 1}}
'''
SEVENTH = '''\
"""Task 7: one more file."""

from __future__ import annotations

from torch import Tensor

__all__ = ["doubled"]


def doubled(x: Tensor) -> Tensor:
    """Task 7.1. Double every number."""
    # BEGIN SOLUTION 7.1
    return x * 2
    # END SOLUTION
'''

pytestmark = pytest.mark.slow


class Copy:
    """The repository once more, to be changed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        junk = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
        for name in PIECES:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, root / name, ignore=junk)
            else:
                shutil.copy(ROOT / name, root / name)

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.root / name
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{name}: {old}"
        path.write_text(text.replace(old, new), encoding="utf-8")

    def add_check(self, file: str, **words: str) -> None:
        (self.root / "grader" / "checks" / file).write_text(CHECK.format(**words))

    def run(self, module: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", module, *words]
        return subprocess.run(command, cwd=self.root, capture_output=True, text=True)

    def grade(self, tree: str, *words: str) -> dict[str, Any]:
        done = self.run("grader", "grade", tree, "--out", f"out/{tree}", "--quiet", *words)
        assert done.returncode in (0, 1), done.stderr
        return json.loads((self.root / "out" / tree / "results.json").read_bytes())

    def handout(self) -> dict[str, str]:
        """Build the handout and return its texts."""
        done = self.run("grader", "release", "--out", "dist")
        assert done.returncode == 0, done.stderr
        with zipfile.ZipFile(self.root / "dist" / "transformer-lab.zip") as archive:
            names = [n for n in archive.namelist() if n.endswith((".py", ".md", ".toml"))]
            return {n.removeprefix("transformer-lab/"): archive.read(n).decode() for n in names}

    def make_starter(self) -> None:
        done = self.run("grader.upkeep.release", "starter")
        assert done.returncode == 0, done.stderr

    def lint(self, *words: str) -> tuple[int, str]:
        done = self.run("grader", "lint", *words)
        assert not done.stderr
        return done.returncode, done.stdout


@pytest.fixture
def lab(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def statuses(result: dict[str, Any], kind: str) -> dict[str, str]:
    return {entry.get("task") or entry["name"]: entry["status"] for entry in result[kind]}


def passes(lab: Copy) -> dict[str, Any]:
    """Return the solution's result, which must be full marks; the starter's must be none."""
    result = lab.grade("solution")
    wrong = [e for e in (*result["parts"], *result["gates"]) if e["status"] != "passed"]
    assert not wrong and result["passed"] and result["score"] == 100
    starter = lab.grade("starter")
    assert (starter["score"], starter["grader_error"]) == (0, None)
    assert set(statuses(starter, "parts").values()) == {"not_implemented"}
    return result


def test_lab_as_it_is_agrees_with_itself(lab: Copy) -> None:
    shutil.copytree(ROOT / "tests" / "corpus", lab.root / "tests" / "corpus")
    assert lab.lint() == (0, "lab.toml, checks, solution, starter, pages and corpus agree\n")


def test_dropped_task_is_given_and_asked_nowhere(lab: Copy) -> None:
    lab.edit(
        "lab.toml", '    { id = "5.3", file = "decoder.py", functions = ["CausalBlock.forward"], '
        "gate = 1, points = 2 },\n", "",
    )  # fmt: skip
    lab.edit("lab.toml", '"Decoder.forward"], gate = 1, points = 2',
             '"Decoder.forward"], gate = 1, points = 4')  # fmt: skip
    assert lab.lint()[0] == 2
    lab.make_starter()
    assert lab.lint("--fix") == (
        0, "note: task 5.3 is not in lab.toml: its code is given, and its checks do not run\n"
        "lab.toml, checks, solution, starter, pages and corpus agree\n",
    )  # fmt: skip
    result = passes(lab)
    assert "5.3" not in {check["stub"] for part in result["parts"] for check in part["checks"]}
    files = lab.handout()
    for name in ("starter/transformer/decoder.py", "grader/original/transformer/decoder.py"):
        assert "task 5.3" not in files[name] and "# BEGIN SOLUTION" not in files[name]
        assert "task 5.2" in files[name]
    assert "| 5.2 |" in files["README.md"] and "| 5.3 |" not in files["README.md"]


def test_threshold_is_changed_in_one_place(lab: Copy) -> None:
    lab.edit("lab.toml", "\nexact_match = 0.95", "\nexact_match = 0.9")
    code, said = lab.lint()
    assert code == 2 and "90%" in said
    assert lab.lint("--fix")[0] == 0
    result = passes(lab)
    evidence = result["gates"][-1]["checks"][0]["evidence"]
    assert evidence["exact_match_wanted"] == 0.9
    assert "at least 90% of new sequences" in lab.handout()["README.md"]


def test_fifth_gate_is_a_check_and_a_line(lab: Copy) -> None:
    lab.add_check(
        "gate_5_causal_square.py", about="Gate 5: the causal mask is a lower triangle.",
        mark='gate("causal_square")', name="causal_mask_is_a_lower_triangle",
        sentence="The causal mask of four tokens is a lower triangle.", target="masks.causal_mask",
        arguments="4, 4", right="np.tri(4, dtype=bool)", part="masks",
    )  # fmt: skip
    lab.edit("lab.toml", '"greedy_accuracy"]', '"greedy_accuracy", "causal_square"]')
    lab.edit("lab.toml", "gate = 15 ", "gate = 12 ")
    assert lab.lint("--fix")[0] == 0
    result = passes(lab)
    assert statuses(result, "gates")["causal_square"] == "passed"
    page = (lab.root / "out" / "solution" / "report.html").read_text(encoding="utf-8")
    assert "All five gates" in page and "The causal mask is a lower triangle." in page
    words = lab.handout()["README.md"]
    assert "5. **causal_square**: the causal mask is a lower triangle." in words
    assert "each of the five gates" in words.replace("\n", " ") and "gives 12 points more" in words


def test_check_is_added_in_one_file(lab: Copy) -> None:
    lab.add_check(
        "part_1_more.py", about="Task 1: one more check.", mark='part("1.2")',
        name="causal_mask_of_one_token", sentence="causal_mask lets one token attend to itself.",
        target="masks.causal_mask", arguments="1, 1", right="np.ones((1, 1), bool)", part="masks",
    )  # fmt: skip
    assert lab.lint()[0] == 0
    result = passes(lab)
    names = [check["check"] for check in result["parts"][0]["checks"]]
    assert "part_1_more.py::test_causal_mask_of_one_token" in names
    assert "grader/checks/part_1_more.py" in lab.handout()


def test_other_task_to_learn_is_a_function_and_a_name(lab: Copy) -> None:
    tasks = "grader/base/sequence_tasks.py"
    sort = "def sort(row: Row) -> list[int]:\n    return sorted(row)\n\n\n"
    lab.edit(tasks, "TASKS: dict", f"{sort}TASKS: dict")
    lab.edit(tasks, "in (copy, reverse)", "in (copy, reverse, sort)")
    lab.edit("lab.toml", 'task = "reverse"', 'task = "sort"')
    assert lab.lint()[0] == 0
    result = passes(lab)
    example = result["gates"][-1]["checks"][0]["evidence"]["example"]
    assert len(example["expected"]) == len(example["source"]) + 1
    lab.handout()


def test_seventh_part_is_two_files_and_a_line(lab: Copy) -> None:
    (lab.root / "solution" / "transformer" / "doubling.py").write_text(SEVENTH)
    lab.add_check(
        "part_7_doubling.py", about="Task 7: one more file.", mark='part("7.1")',
        name="doubled_doubles", sentence="doubled doubles every number.", target="doubling.doubled",
        arguments="np.ones(3)", right="np.full(3, 2.0)", part="doubling",
    )  # fmt: skip
    old = '"MultiHeadAttention.forward"], gate = 1, points = 3'
    lab.edit("lab.toml", old, old.replace("points = 3", "points = 1"))
    train = 'functions = ["train"], gate = 4, points = 2 },\n'
    lab.edit("lab.toml", train, train + '    { id = "7.1", file = "doubling.py", '
             'functions = ["doubled"], gate = 1, points = 2 },\n')  # fmt: skip
    lab.make_starter()
    assert lab.lint("--fix")[0] == 0
    result = passes(lab)
    assert statuses(result, "parts")["7"] == "passed"
    files = lab.handout()
    assert "task 7.1: write doubled in doubling.py" in files["starter/transformer/doubling.py"]
    assert "| 7.1 | doubling.py | `doubled` |" in files["README.md"]
    assert "in seven tasks" in files["README.md"]
