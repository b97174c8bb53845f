"""Seconds from saving a file to what `watch` says of its task, and of gates 1 to 3."""

from __future__ import annotations

import itertools
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.options import parse
from grader.bench.rounds import tell
from grader.patching import SOLUTION

FILES = ("masks", "attention", "residual", "encoder", "decoder", "training")
GATES, WHOLE = "gates 1 to 3:", "everything:"
PAUSE_S = 0.3  # a person looks up between two saves


class Watching:
    """`python -m grader watch` over a copy of the solution, and the lines that it prints."""

    def __init__(self, folder: Path) -> None:
        """Start it, and wait until it has looked at everything once."""
        self.package = folder / "tree" / "transformer"
        shutil.copytree(SOLUTION / "transformer", self.package)
        command = [sys.executable, "-u", "-m", "grader", "watch", "--tree", str(folder / "tree")]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.wait_for(WHOLE)

    def wait_for(self, *starts: str) -> tuple[str, float]:
        """Return which of `starts` a line began with, and when it came.

        Raises:
            SystemExit: it ended before.
        """
        assert self.process.stdout
        for line in self.process.stdout:
            for start in starts:
                if line.startswith(start):
                    return start, time.perf_counter()
        raise SystemExit("watch ended by itself")

    def save(self, name: str) -> dict[str, float]:
        """Save a file with one comment more, and time both verdicts."""
        path = self.package / f"{name}.py"
        text = path.read_text(encoding="utf-8") + "# saved\n"
        began = time.perf_counter()
        path.write_text(text, encoding="utf-8")
        _, task = self.wait_for("task ")
        # The gates come first where something builds on the task, else with all the rest.
        start, gates = self.wait_for(GATES, WHOLE)
        if start == GATES:
            self.wait_for(WHOLE)
        return {"task": task - began, "gates": gates - began}

    def close(self) -> None:
        """Press Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=30)


def main() -> None:
    """Save the files in turn."""
    options = parse(__doc__ or "")
    with tempfile.TemporaryDirectory() as folder:
        watching = Watching(Path(folder))
        try:
            for name in itertools.islice(itertools.cycle(FILES), options.rounds):
                time.sleep(PAUSE_S)
                tell(watching.save(name))
        finally:
            watching.close()


if __name__ == "__main__":
    main()
