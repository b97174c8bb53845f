"""Slow tests run in shares: each run takes one of them, and every share has its turn."""

import subprocess
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from results_schema import valid

from grader.run.engine import Referee

SHARES = 4


@pytest.fixture(scope="session", autouse=True)
def every_result_fits_its_schema() -> Iterator[None]:
    """Hold every result that a test gets of a referee against docs/results.schema.json."""
    grade = Referee.grade
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Referee, "grade", lambda *args, **named: valid(grade(*args, **named)))
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow-share",
        default="1/1",
        metavar="I/N",
        help="run the I-th of N shares of the slow tests; 'turn' takes the commit's turn of four",
    )


@cache
def commits() -> int:
    """Return the number of commits, 0 outside a repository."""
    command = ["git", "rev-list", "--count", "HEAD"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    return int(done.stdout.strip() or 0)


def share_of(text: str) -> tuple[int, int]:
    """Read "2/3" as (2, 3); "turn" depends on the number of commits."""
    if text == "turn":
        return commits() % SHARES + 1, SHARES
    share, _, shares = text.partition("/")
    if not (share.isdecimal() and shares.isdecimal() and 1 <= int(share) <= int(shares)):
        raise pytest.UsageError(f"--slow-share must be I/N with 1 <= I <= N, got {text!r}")
    return int(share), int(shares)


def turn_of(text: str, item: pytest.Item, marker: pytest.Mark) -> bool:
    """Tell whether a slow test runs; one marked with times=N has its turn N times more seldom."""
    share, shares = share_of(text)
    code = zlib.crc32(item.nodeid.encode())
    times = marker.kwargs.get("times", 1) if text == "turn" else 1
    return code % shares + 1 == share and code // shares % times == commits() // shares % times


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    text = config.getoption("--slow-share")
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        marker = item.get_closest_marker("slow")
        runs = marker is None or turn_of(text, item, marker)
        (kept if runs else left).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)


def pytest_report_header(config: pytest.Config) -> str:
    share, shares = share_of(config.getoption("--slow-share"))
    return f"slow tests: share {share} of {shares}"
