"""Long work says how far it is: a bar on a terminal, elsewhere a line now and then."""

import io

import pytest
from rich.console import Console

from grader.base import progress


class Clock:
    """A time that moves by a third of a minute for every item."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(progress, "time", found)
    return found


def test_long_work_says_how_far_it_is_where_there_is_no_terminal(clock):
    text = io.StringIO()

    def items():
        for number in range(3):
            clock.now += 20
            yield number

    console = Console(file=text, width=80)
    assert list(progress.shown(items(), "mutants", 3, console)) == [0, 1, 2]
    assert text.getvalue() == "mutants: 2 of 3, 3.0 a minute, 0:20 left\n"


def test_what_took_no_time_tells_nothing_of_the_pace(clock):
    shown = progress.Shown("grading", 100, Console(file=io.StringIO()))
    for _ in range(90):
        shown.step(worked=False)
    assert shown.pace() == "none yet"
    clock.now = 3600.0
    shown.step()
    assert shown.pace() == "0.0 a minute, 9:00:00 left"


def test_quiet_says_nothing(clock):
    text = io.StringIO()
    with progress.Shown("grading", 1, Console(file=text, force_terminal=True), quiet=True) as shown:
        shown.say("anna: passed")
        shown.step()
    assert text.getvalue() == ""
