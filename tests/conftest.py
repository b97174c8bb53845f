"""Slow tests run in shares: each run takes one of them, and every share has its turn."""

import subprocess
import zlib
from pathlib import Path

import pytest

SHARES = 4


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow-share",
        default="1/1",
        metavar="I/N",
        help="run the I-th of N shares of the slow tests; 'turn' takes the commit's turn of four",
    )


def share_of(text: str) -> tuple[int, int]:
    """Read "2/3" as (2, 3); "turn" depends on the number of commits."""
    if text == "turn":
        command = ["git", "rev-list", "--count", "HEAD"]
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
        return int(done.stdout.strip() or 0) % SHARES + 1, SHARES
    share, _, shares = text.partition("/")
    if not (share.isdecimal() and shares.isdecimal() and 1 <= int(share) <= int(shares)):
        raise pytest.UsageError(f"--slow-share must be I/N with 1 <= I <= N, got {text!r}")
    return int(share), int(shares)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    share, shares = share_of(config.getoption("--slow-share"))
    kept, left = [], []
    for item in items:
        turn = zlib.crc32(item.nodeid.encode()) % shares + 1
        (left if item.get_closest_marker("slow") and turn != share else kept).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)


def pytest_report_header(config: pytest.Config) -> str:
    share, shares = share_of(config.getoption("--slow-share"))
    return f"slow tests: share {share} of {shares}"
