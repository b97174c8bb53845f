"""What a person sees while checks run: bars on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from grader.result import Outcome, Status
from grader.terminal import Pace, Progress

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
        assert progress.bars is not None
        lines = console.render_lines(progress.bars.progress.get_renderable(), pad=False)
    texts = ["".join(piece.text for piece in line).rstrip() for line in lines]
    assert len(texts) == 2 and all(len(text) <= width for text in texts)
    assert "\x1b[2J" not in "".join(texts)
    if width > 100:
        assert "[red]it[/red]" in texts[0]


def test_no_color_is_respected():
    console = Console(file=io.StringIO(), force_terminal=True, no_color=True)
    assert "\x1b[3" not in shown(console).replace("\x1b[2K", "")


def test_time_left_follows_from_the_pace():
    now = [0.0]
    pace = Pace(lambda: now[0])
    now[0] = 6.0
    assert pace.words(60, 300, "training steps", {}) == "60/300 training steps, 24 s left"
    figures = {"loss": 0.0021, "accuracy": 0.998}
    assert (
        pace.words(150, 300, "training steps", figures)
        == "150/300 training steps, loss 0.0021, accuracy 0.998, 6 s left"
    )
    assert pace.words(300, 300, "training steps", {}) == "300/300 training steps"
