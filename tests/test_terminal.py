"""What a person sees while checks run: bars on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from platform_cases import mixed
from rich.console import Console

from grader.base.result import Outcome, Status
from grader.report.platforms import common
from grader.report.problems import flags
from grader.report.terminal import Progress, pace, verdict

ENDED = Outcome("x", "6.4", None, Status.PASSED, "fine")


def events(steps: int) -> list[dict[str, Any]]:
    run: list[dict[str, Any]] = [{"kind": "plan", "checks": 1}]
    run.append({"kind": "start", "title": "The loop \x1b[2J trains [red]it[/red]."})
    for done in range(1, steps + 1):
        event = {"kind": "progress", "done": done, "total": steps, "what": "training steps"}
        run.append(event | {"loss": 1 / done})
    return [*run, {"kind": "end", "title": "The loop \x1b[2J trains.", "outcome": ENDED}]


def shown(console: Console, *, quiet: bool = False) -> str:
    with Progress(console, quiet=quiet) as progress:
        for event in events(50):
            progress(event)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_plain_lines_without_a_terminal():
    lines = shown(Console(file=io.StringIO(), width=200)).splitlines()
    assert len(lines) == 6
    assert lines[0].strip().startswith("10/50 training steps, loss 0.1, ")
    assert lines[4].strip() == "50/50 training steps, loss 0.02"
    assert lines[5].split()[:2] == ["ok", "6.4"]
    assert "\x1b" not in "".join(lines)


def test_nothing_when_quiet():
    assert shown(Console(file=io.StringIO(), force_terminal=True), quiet=True) == ""


@pytest.mark.parametrize("width", [20, 40, 120])
def test_bars_fit_the_terminal(width):
    console = Console(file=io.StringIO(), force_terminal=True, width=width, no_color=True)
    with Progress(console) as progress:
        for event in events(7)[:-1]:
            progress(event)
        lines = console.render_lines(progress.bars.get_renderable(), pad=False)
    texts = ["".join(piece.text for piece in line).rstrip() for line in lines]
    assert len(texts) == 2 and all(len(text) <= width for text in texts)
    assert "\x1b[2J" not in "".join(texts)
    if width > 100:
        assert "[red]it[/red]" in texts[0]


def test_no_color_is_respected():
    console = Console(file=io.StringIO(), force_terminal=True, no_color=True)
    assert "\x1b[3" not in shown(console).replace("\x1b[2K", "")


def test_time_left_follows_from_the_pace():
    event: dict[str, Any] = {"done": 60, "total": 300, "what": "training steps"}
    assert pace(event, 6.0) == "60/300 training steps, 24 s left"
    event |= {"done": 150, "loss": 0.0021, "accuracy": 0.998}
    assert pace(event, 6.0) == "150/300 training steps, loss 0.0021, accuracy 0.998, 6 s left"
    assert pace({"done": 300, "total": 300}, 6.0) == "300/300 steps"


def verdict_of(tree: dict[str, Any], **console: Any) -> str:
    file = io.StringIO()
    Console(file=file, width=80, **console).print(verdict(tree, Path("out")))
    return file.getvalue()


def test_verdict_in_a_file_has_no_spaces_at_line_ends():
    lines = verdict_of(mixed()).splitlines()
    assert lines == [line.rstrip() for line in lines]
    on_terminal = verdict_of(mixed(), force_terminal=True, no_color=True, highlight=False)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal)
    assert lines == [line.rstrip() for line in plain.splitlines()]


def test_what_a_person_is_to_read_comes_in_the_order_of_lines():
    tree = mixed()
    places = [("masks.py", 2), ("masks.py", 9), ("masks.py", 10), ("masks.py", 100)]
    shown = [
        {"code": "odd", "message": f"{file}, line {line} opens a file"} for file, line in places
    ]
    tree["integrity"]["flags"] = sorted(shown, key=lambda flag: flag["message"])
    assert tree["integrity"]["flags"] != shown
    assert flags(tree) == shown and list(common.read(tree).flags) == shown
    said = re.findall(r"line (\d+) opens", verdict_of(tree))
    assert said == ["2", "9", "10", "100"]
