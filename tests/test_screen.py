"""What `watch` draws on a terminal, and the keys that it listens to."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from grader.base import settings
from grader.cli import check, screen
from grader.report import checklist

ROOT = Path(__file__).resolve().parent.parent
STUBS = check.stubs_of(settings.load())
WRONG = {"code": "c", "part": "masks", "cause": "too wide.", "advice": "Look there."}


def rows(**statuses: str) -> list[checklist.Row]:
    """Return a row for each task; those that are not named are not started."""
    found: list[dict[str, Any]] = []
    for stub in STUBS:
        status = statuses.get(f"t{stub.id.replace('.', '')}", "not_implemented")
        found.append({"stub": stub.id, "status": status, "summary": "s", "evidence": {},
                      "diagnosis": WRONG if status == "failed" else None,
                      "printed": "x\n" * 40 if status == "failed" else ""})  # fmt: skip
    return checklist.rows(found, STUBS)


def drawn(found: list[checklist.Row], focus: str, owed: tuple[str, ...] = ()) -> list[str]:
    console = Console(file=io.StringIO(), width=80, height=24)
    console.print(screen.draw(found, focus, owed, []))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_screen_fits_24_lines_with_the_failure_whole_and_the_rest_folded():
    lines = drawn(rows(t11="passed", t12="failed", t13="failed"), "1.2")
    assert len(lines) <= 24 and lines[-1] == screen.KEYS
    assert lines[0].split() == ["done:", "1.1"]
    assert sum(line.startswith("not started:") for line in lines) == 1
    assert "        try: Look there." in lines
    assert any(line.startswith("wrong:") and "1.3 combine_masks" in line for line in lines)


def test_screen_shows_no_verdict_of_a_state_that_is_gone():
    lines = drawn(rows(t11="passed", t12="passed", t21="failed"), "1.2", ("2",))
    assert not any("2.1" in line for line in lines if not line.startswith("checking:"))


def test_screen_never_moves_on_by_itself():
    found = rows(t11="passed", t12="failed")
    assert screen.focus_of(found, "", []) == "1.2"
    found = rows(t11="passed", t12="passed")
    assert screen.focus_of(found, "1.2", ["1"]) == "1.2"
    assert screen.next_of(found, "1.2") == "1.3"
    assert any("n goes to the next task" in line for line in drawn(found, "1.2"))


def test_screen_follows_you_to_the_file_that_you_save():
    found = rows(t11="passed", t12="passed", t13="passed", t31="failed")
    assert screen.focus_of(found, "1.3", ["3"]) == "3.1"
    # As long as the task is wrong, it stays: what you save elsewhere may be meant to cure it.
    assert screen.focus_of(rows(t12="failed"), "1.2", ["3"]) == "1.2"


@pytest.mark.skipif(sys.platform == "win32", reason="a pseudo-terminal is needed")
def test_keys_work_without_enter_and_the_terminal_is_put_back(tmp_path):
    import pty
    import termios

    ignored = shutil.ignore_patterns("__pycache__")
    tree = shutil.copytree(ROOT / "starter", tmp_path / "starter", ignore=ignored)
    leader, follower = pty.openpty()
    before = termios.tcgetattr(follower)
    process = subprocess.Popen(
        [sys.executable, "-m", "grader", "watch", "1", "--tree", str(tree)],
        cwd=tmp_path, stdin=follower, stdout=follower, stderr=follower,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TERM": "xterm",
                          "COLUMNS": "80", "LINES": "24"},
    )  # fmt: skip
    seen = ""

    def until(words: str) -> None:
        nonlocal seen
        deadline = time.monotonic() + 90
        os.set_blocking(leader, False)
        while words not in seen:
            assert time.monotonic() < deadline, seen
            with contextlib.suppress(BlockingIOError):
                seen += os.read(leader, 1 << 16).decode(errors="replace")
            time.sleep(0.02)

    try:
        until("q quit")
        time.sleep(0.3)
        os.write(leader, b"h")
        until("hint 1 of 3 for task 1.1")
        os.write(leader, b"x")
        until("Reset task 1.1?")
        os.write(leader, b"y")
        until("as it was handed out")
        os.write(leader, b"q")
        until("stopped")
        assert process.wait(30) == 0
        assert termios.tcgetattr(follower) == before
    finally:
        process.kill()
        os.close(leader)
        os.close(follower)
