"""Hints one by one, a reset that loses nothing, copies of what passed, and the examples to run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from grader.base import settings
from grader.cli import desk
from grader.intake.staging import IntakeError

ROOT = Path(__file__).resolve().parent.parent
LAB = settings.load()
IDS = [stub.id for stub in (*LAB.points.stubs, *LAB.points.stretch)]


@pytest.fixture
def mine(tmp_path: Path) -> desk.Desk:
    ignored = shutil.ignore_patterns("__pycache__")
    return desk.Desk(Path(shutil.copytree(ROOT / "starter", tmp_path / "starter", ignore=ignored)))


def stub(task: str) -> desk.Task:
    return desk.chosen(task, LAB)[0]


def example(task: str, tree: Path, **given: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "handout/examples.py"), task, "--tree", str(tree)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, **given)


@pytest.mark.parametrize("task", IDS)
def test_every_task_has_a_hint_that_is_one_sentence_or_more(task):
    found = desk.hints(stub(task))
    assert found and all(hint.endswith((".", "?")) and len(hint) > 20 for hint in found)
    assert not any("\n" in hint or "Hint" in hint for hint in found)


def test_each_call_gives_the_next_hint_and_then_begins_again(mine):
    several = desk.hints(stub("2.1"))
    said = [mine.next_hint(stub("2.1")) for _ in range(len(several) + 2)]
    assert said[0] == f"hint 1 of 3 for task 2.1\n{several[0]}"
    assert several[2] in said[2] and "all the hints" in said[3] and said[4] == said[0]


def test_a_damaged_note_of_hints_counts_as_none(mine):
    mine.home.mkdir()
    (mine.home / "hints.json").write_text('{"2.1": "x", "1.1": -3, "1.2')
    assert mine.next_hint(stub("2.1")).startswith("hint 1 of 3")


def test_reset_puts_one_function_back_and_keeps_your_version(mine):
    file = mine.file(stub("1.2"))
    handed_out = file.read_text()
    solved = (ROOT / "solution/transformer/masks.py").read_text()
    solved = re.sub(r" *# (BEGIN|END) SOLUTION.*\n", "", solved)
    file.write_text(solved)
    said = mine.reset(stub("1.2"))
    assert "put back: causal_mask" in said and "put back" not in mine.reset(stub("1.2"))
    text = file.read_text()
    assert text.count("NotImplementedError") == 1 and "tril(offset)" not in text
    (copy,) = (mine.home / "kept").iterdir()
    assert copy.read_text() == solved and str(copy) in said
    for task in ("1.1", "1.3"):
        mine.reset(stub(task))
    assert file.read_text() == handed_out
    assert len(list((mine.home / "kept").iterdir())) == 3


def test_reset_puts_a_broken_file_back_whole(mine):
    file = mine.file(stub("2.3"))
    file.write_text("def broken(:\n")
    assert "the whole of attention.py" in mine.reset(stub("2.3"))
    compile(file.read_text(), "attention.py", "exec")


def test_what_passed_is_kept_and_the_change_since_is_named(mine):
    file = mine.file(stub("1.2"))
    file.write_text((ROOT / "solution/transformer/masks.py").read_text())
    mine.keep_passed([stub("1.2")])
    assert mine.since_passed(stub("1.2")) == "" == mine.since_passed(stub("1.1"))
    text = file.read_text().replace("tril(offset)", "tril(offset + 1)")
    file.write_text("# one more line\n" + text)
    line = 1 + (file.read_text().split("tril(offset + 1)")[0]).count("\n")
    assert f"line {line} has changed since" in mine.since_passed(stub("1.2"))
    assert "tril(offset)" in mine.passed(stub("1.2")).read_text()


@pytest.mark.parametrize("task, words", [("9", "there is no task 9"), ("", "which task?")])
def test_a_task_that_does_not_exist_is_named(task, words):
    with pytest.raises(IntakeError, match=words.replace("?", r"\?")):
        desk.chosen(task, LAB)


def test_commands_print_hint_and_reset(mine):
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "grader", *words, "--tree", str(mine.tree)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert run("hint", "1.1").stdout.startswith("hint 1 of 3 for task 1.1\n  A comparison")
    assert "as it was handed out" in run("reset", "4.1").stdout
    wrong = run("hint", "2")
    assert wrong.returncode == 2 and "say one of 2.1, 2.2, 2.3" in wrong.stderr


@pytest.mark.parametrize("task", ["1.2", "2.1", "2.3", "6.1", "S1"])
def test_example_shows_arguments_and_what_comes_back(task):
    done = example(task, ROOT / "solution")
    assert done.returncode == 0, done.stderr
    assert "-> " in done.stdout and "shape (" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("task", IDS)
def test_every_task_has_an_example(task):
    assert example(task, ROOT / "solution").returncode == 0
    unwritten = example(task, ROOT / "starter")
    assert unwritten.returncode == 1 and "not written yet: task" in unwritten.stdout


def test_print_and_breakpoint_work_in_an_example(mine):
    file = mine.file(stub("1.2"))
    text = (ROOT / "solution/transformer/masks.py").read_text()
    line = "    return every_pair.tril(offset)"
    file.write_text(text.replace(line, f"    print('here')\n    breakpoint()\n{line}"))
    done = example("1.2", mine.tree, input="p offset\nc\np num_keys\nc\n")
    assert done.returncode == 0, done.stderr
    assert "here" in done.stdout and "(Pdb) 0" in done.stdout and "(Pdb) 4" in done.stdout


def test_example_of_no_task_says_which_there_are():
    done = example("7", ROOT / "solution")
    assert done.returncode == 2 and "say one of 1.1" in done.stderr
