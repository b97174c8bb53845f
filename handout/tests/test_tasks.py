"""One test for each task, so that an editor can run it: the same checks as `make check`."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
POINTS = tomllib.loads((ROOT / "lab.toml").read_text(encoding="utf-8"))["points"]
TASKS = [stub["id"] for stub in (*POINTS["stubs"], *POINTS["stretch"])]


@pytest.fixture(scope="session")
def checks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Check every task that was selected, all in one run."""
    selected = {item.name for item in request.session.items}  # tests of your own may be there too
    chosen = [task for task in TASKS if f"test_task[{task}]" in selected]
    out = tmp_path_factory.mktemp("check")
    command = [sys.executable, "-m", "grader", "check", *chosen, "--tree", "starter", "--quiet"]
    done = subprocess.run([*command, "--out", str(out)], cwd=ROOT, capture_output=True, text=True)
    if not (out / "results.json").is_file():
        pytest.fail(done.stderr or done.stdout, pytrace=False)
    found = json.loads((out / "results.json").read_bytes())
    return [check for part in found["parts"] + found["stretch"] for check in part["checks"]]


@pytest.mark.parametrize("task", TASKS)
def test_task(task: str, checks: list[Any]) -> None:
    """Every check of the task passes."""
    own = [check for check in checks if check["stub"] == task]
    wrong = [check for check in own if check["status"] != "passed"]
    for check in own:
        print(check.get("printed", ""), end="")  # pytest shows it below a test that fails
    unwritten = [check for check in wrong if check["status"] == "not_implemented"]
    if unwritten and all(check["status"] in ("not_implemented", "blocked") for check in wrong):
        pytest.skip(unwritten[0]["summary"])
    for check in wrong:
        known = check["diagnosis"] or {"cause": check["summary"], "advice": ""}
        pytest.fail(f"{known['cause']} {known['advice']}".strip(), pytrace=False)
    assert own, f"task {task} was not checked"
