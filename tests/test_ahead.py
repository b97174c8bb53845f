"""A training that runs ahead changes no verdict, and is given up once nobody needs it."""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from grader import ahead, patching, plugin, settings
from grader.draws import Draws
from grader.engine import Referee, Request
from grader.launchers import WorkersUnavailable

LAB = settings.load()
SHORT = replace(
    LAB,
    recipe=replace(LAB.recipe, steps=10, batch_size=16),
    # The processor time of so few steps is that of making the model.
    accuracy=replace(LAB.accuracy, time_factor_flag=1000.0),
)


@pytest.fixture(scope="module")
def referee():
    with Referee(SHORT) as made:
        # While it starts, a launcher is fewer processes than once it is ready.
        made.workshop.launcher.wait_ready()
        made.standing = workers_below()
        yield made


def bare(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {k: bare(v) for k, v in tree.items() if k != "seconds"}
    return [bare(v) for v in tree] if isinstance(tree, list) else tree


def workers_below() -> int:
    return len(psutil.Process().children(recursive=True))


def come_down_to(number: int) -> bool:
    """Wait for the zygote to bury what was killed."""
    deadline = time.monotonic() + 10.0
    while workers_below() != number and time.monotonic() < deadline:
        time.sleep(0.02)
    return workers_below() == number


def graded(referee: Referee, path: Path, **options: Any) -> tuple[dict[str, Any], list[str]]:
    """Grade, and say which kinds of thing were heard before gate 1 started."""
    heard: list[str] = []

    def listen(event: dict[str, Any]) -> None:
        if event["kind"] in ("start", "progress"):
            gate = event["place"].gate if event["kind"] == "start" else None
            heard.append(f"gate {gate}" if gate else event["kind"])

    return referee.grade(Request(path, **options), listen), heard


def test_verdict_and_evidence_are_those_of_a_training_in_its_turn(referee):
    early, heard = graded(referee, patching.SOLUTION, ahead=True)
    in_turn, _ = graded(referee, patching.SOLUTION)
    assert early["gates"][3]["status"] == "failed"  # ten steps teach little
    assert bare(early) == bare(in_turn)
    assert heard.index("progress") > heard.index("gate 4")  # nobody hears of it before its turn


@pytest.fixture
def begun(monkeypatch):
    """Count the trainings that ran ahead."""
    made: list[plugin.Ahead] = []

    def begin(*given: Any) -> plugin.Ahead:
        made.append(ahead.Ahead(*given))
        return made[-1]

    monkeypatch.setattr(plugin, "Ahead", begin)
    return made


def test_tree_with_a_failed_part_trains_in_its_turn(referee, begun, tmp_path):
    tree = Path(shutil.copytree(patching.SOLUTION, tmp_path / "tree"))
    masks = tree / "transformer" / "masks.py"
    text = masks.read_text(encoding="utf-8")
    assert "every_pair.tril(offset)" in text
    masks.write_text(text.replace("every_pair.tril(offset)", "every_pair"), encoding="utf-8")
    found, _ = graded(referee, tree, ahead=True)
    assert found["gates"][0]["status"] == "failed" and begun == []


def test_part_that_fails_later_gives_the_training_up(referee, begun, tmp_path):
    tree = Path(shutil.copytree(patching.SOLUTION, tmp_path / "tree"))
    decoder = tree / "transformer" / "decoder.py"
    text = decoder.read_text(encoding="utf-8")
    assert text.count("self.final_norm(") >= 1
    decoder.write_text(text.replace("self.final_norm(", "2.0 * self.final_norm("), "utf-8")
    assert come_down_to(referee.standing)
    found, _ = graded(referee, tree, ahead=True)
    assert found["parts"][4]["status"] == "failed" and found["parts"][1]["status"] == "passed"
    assert len(begun) == 1 and begun[0].closed and come_down_to(referee.standing)
    assert found["gates"][3]["status"] == "failed"  # in its turn: ten steps teach little


def test_training_that_no_gate_needs_any_more_leaves_no_process(referee, begun, monkeypatch):
    monkeypatch.setattr("grader.independence.RESPONDS", 1e9)  # no model responds that much
    assert come_down_to(referee.standing)
    found, _ = graded(referee, patching.SOLUTION, ahead=True)
    assert [gate["status"] for gate in found["gates"]] == ["failed"] + ["blocked"] * 3
    assert len(begun) == 1 and begun[0].closed and come_down_to(referee.standing)


def test_training_given_up_while_its_worker_starts_ends_at_once():
    begun, wanted = threading.Event(), threading.Event()
    closed = []

    def start() -> Any:
        begun.set()
        assert wanted.wait(10.0)
        return SimpleNamespace(alive=True, close=lambda: closed.append(True))

    early = ahead.Ahead(start, Draws(1, "gate 4"), SHORT)
    assert begun.wait(10.0)
    threading.Timer(0.2, wanted.set).start()
    early.close()
    assert closed == [True] and isinstance(early.future.exception(), WorkersUnavailable)
