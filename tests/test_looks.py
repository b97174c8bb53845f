"""Gate 4 ends when the model has learned, and a look at it decides nothing else."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grader.base import settings
from grader.base.result import CheckFailed, Diagnosis
from grader.base.settings import SettingsError
from grader.base.student_error import StudentError
from grader.gates import decoding, sequences, training
from grader.gates.training import Attempt, Looking, Supply
from grader.link.frames import ProtocolError
from grader.link.workers import WorkerLost
from grader.model.draws import Draws
from grader.run.engine import Referee, Request
from grader.upkeep import patching

LAB = settings.load()
ACCURACY = LAB.accuracy
LOOK_STEPS = [*range(ACCURACY.look_from, LAB.recipe.steps, ACCURACY.look_every)]
DATA = sequences.draw(Draws(7, "gate 4"), LAB)


class Proxy:
    """A submission that answers nothing and hears of progress."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.progress = self.events.append


def supply(shares: list[float | None]) -> tuple[Supply, Looking]:
    """Return the supply of a training whose looks see these shares, one after another."""
    made = Attempt(0, 0, LAB.recipe.steps)
    looking = Looking(Proxy(), DATA, made)  # type: ignore[arg-type]
    looking.share = lambda values: shares.pop(0)  # type: ignore[method-assign]
    return Supply(Proxy(), DATA, made, looking), looking  # type: ignore[arg-type]


def drawn(given: Supply, looks: bool = True) -> int:
    """Draw until the end, as an honest worker does."""
    for step in range(LAB.recipe.steps + 2):
        values = {"parameters": {}, "buffers": {}} if looks and step in LOOK_STEPS else {}
        if given({"draw": step} | values) == {"end": True}:
            return step
    raise AssertionError("it never ended")


def test_training_ends_at_the_first_look_that_sees_enough():
    enough = ACCURACY.look_exact_match
    given, _ = supply([0.0, enough - 0.001, enough, 1.0])
    assert drawn(given) == LOOK_STEPS[2] == given.made.drawn
    assert given.made.learned
    assert training.in_short(given.made) == f"learned after {LOOK_STEPS[2]} of at most 300 steps"


@pytest.mark.parametrize("shares", [[0.0] * 20, [None] * 20])
def test_training_that_no_look_ends_takes_its_budget(shares):
    given, _ = supply(shares)
    assert drawn(given) == LAB.recipe.steps and not given.made.learned


def test_values_are_looked_at_in_their_turn_only():
    given, _ = supply([])
    assert drawn(given, looks=False) == LAB.recipe.steps
    given, _ = supply([])
    given({"draw": 0, "parameters": {}, "buffers": {}})
    assert given.made.drawn == 1


@pytest.mark.parametrize(
    "message",
    [{}, {"draw": 1}, {"draw": 0, "learned": True}, {"end": True}, {"draw": [0]}],
)
def test_draw_out_of_turn_breaks_the_rules(message):
    given, _ = supply([])
    with pytest.raises(ProtocolError, match="not its turn"):
        given(message)


def test_draw_after_the_end_breaks_the_rules():
    given, _ = supply([1.0])
    drawn(given)
    with pytest.raises(ProtocolError):
        given({"draw": given.made.drawn})


def test_what_is_no_model_breaks_the_rules():
    given, _ = supply([1.0])
    for step in range(LOOK_STEPS[0]):
        given({"draw": step})
    with pytest.raises(ProtocolError, match="no model"):
        given({"draw": LOOK_STEPS[0], "parameters": [1], "buffers": {}})


class Elsewhere:
    """A second worker that fails in some way; `asked` counts how often it was tried."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.asked = 0

    def ask(self, *questions: Any) -> Any:
        self.asked += 1
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        StudentError({"kind": "raised", "type": "IndexError"}),
        WorkerLost("timeout", "no answer"),
        CheckFailed(Diagnosis("wrong_shape", "decoder", "", "")),
    ],
)
def test_model_that_fails_at_a_look_is_looked_at_no_more(error):
    elsewhere = Elsewhere(error)
    looking = Looking(elsewhere, DATA, Attempt(0, 0, LAB.recipe.steps))  # type: ignore[arg-type]
    assert [looking.share({}), looking.share({})] == [None, None] and elsewhere.asked == 1


def test_a_look_asks_look_rows_alone(monkeypatch):
    asked = []

    class Answers:
        def ask(self, *questions: Any) -> Any:
            asked.extend(q.probe for q in questions)

    def decode(submission: Any, handles: Any, rows: Any, data: Any) -> dict[str, Any]:
        asked.append(rows)
        right = sequences.forced(data.answers(rows), data.steps)[1]
        return {handles[0]: decoding.Decoded(right, right < 0)}

    monkeypatch.setattr(decoding, "decode", decode)
    looking = Looking(Answers(), DATA, Attempt(0, 0, LAB.recipe.steps))  # type: ignore[arg-type]
    assert looking.share({}) == 1.0
    assert asked == ["restore", DATA.look]


@pytest.mark.parametrize("key", ["look_from", "look_every", "look_rows"])
def test_looks_are_counted_from_one(tmp_path, key):
    text = settings.LAB_FILE.read_text(encoding="utf-8")
    changed = re.sub(rf"(?m)^{key} = \d+", f"{key} = 0", text)
    assert changed != text
    (tmp_path / "lab.toml").write_text(changed, encoding="utf-8")
    with pytest.raises(SettingsError, match=key):
        settings.load(tmp_path / "lab.toml")


def test_a_look_wants_no_less_than_the_gate(tmp_path):
    text = settings.LAB_FILE.read_text(encoding="utf-8")
    changed = text.replace("look_exact_match = 0.99", "look_exact_match = 0.5")
    (tmp_path / "lab.toml").write_text(changed, encoding="utf-8")
    with pytest.raises(SettingsError, match=f"at least exact_match = {LAB.accuracy.exact_match:g}"):
        settings.load(tmp_path / "lab.toml")


# Whole gates ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def referee():
    with Referee(LAB) as made:
        yield made


def gate_4(
    referee: Referee, path: Path = patching.SOLUTION, question_s: float = 30.0, **changed: Any
) -> tuple[str, int, int]:
    """Return summary, steps and number of attempts of gate 4 alone, under changed settings."""
    limits = replace(LAB.limits, question_s=question_s)
    referee.adopt(replace(LAB, accuracy=replace(ACCURACY, **changed), limits=limits))
    request = Request(path, tasks=frozenset(), keep_going=True, seed=5)
    (found,) = [g for g in referee.grade(request)["gates"] if g["name"] == "greedy_accuracy"]
    (evidence,) = found["evidence"].values()
    return found["summary"], evidence["steps"], len(evidence["attempts"])


FULL = ("passed, trained for 300 of 300 steps", 300, 1)


def tree_with(home: Path, file: str, old: str, new: str) -> Path:
    """Return the solution with one passage of one file replaced."""
    shutil.copytree(patching.SOLUTION, home, ignore=shutil.ignore_patterns("__pycache__"))
    path = home / "transformer" / file
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")
    return home


@pytest.mark.slow
def test_solution_learns_before_its_budget_ends_and_the_result_says_so(referee):
    summary, steps, attempts = gate_4(referee)
    assert steps in LOOK_STEPS and steps <= 150 and attempts == 1
    assert summary == f"passed, learned after {steps} of at most 300 steps"


@pytest.mark.slow
def test_training_that_ended_too_soon_is_repeated_in_full(referee):
    # Such a look ends a training that has hardly begun.
    assert gate_4(referee, look_from=1, look_every=1, look_exact_match=0.0) == FULL


@pytest.mark.slow
def test_loop_that_draws_every_batch_first_keeps_its_budget(referee, tmp_path):
    old, new = "    for batch in batches:\n", "    for batch in list(batches):\n"
    assert gate_4(referee, tree_with(tmp_path / "tree", "training.py", old, new)) == FULL


@pytest.mark.slow
@pytest.mark.parametrize(
    "trouble", ["while True: pass", "raise IndexError", "import os; os._exit(3)"]
)
def test_model_that_fails_on_look_rows_alone_keeps_its_budget(referee, tmp_path, trouble):
    old = "            x = block(\n                x,\n                memory,\n"
    new = f"            if len(x) == {ACCURACY.look_rows}:\n                {trouble}\n{old}"
    tree = tree_with(tmp_path / "tree", "decoder.py", old, new)
    assert gate_4(referee, tree, question_s=5.0) == FULL
