"""A process that keeps one warm referee and grades what comes: `python -m grader.batch.worker`."""

from __future__ import annotations

import os
import threading
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grader import pool, settings
from grader.batch.keys import inputs
from grader.batch.task import unpack, untimed
from grader.batch.view import Who, texts
from grader.engine import Referee, Request

_LOOK_S = 1.0


class Grader:
    """Grades submissions, each by itself; what goes wrong with one is its answer."""

    def __init__(self) -> None:
        """Have no referee until the first submission says which isolation it wants."""
        self.referee: Referee | None = None
        self.inputs: dict[str, Any] = {}

    def grade(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return what `task.graded` reads: a result, or trouble, which is the grader's fault."""
        began = time.monotonic()
        try:
            if self.referee is None:
                lab = settings.load()
                self.referee = Referee(lab, message["isolation"])
                self.inputs = asdict(inputs(lab, self.referee.isolation.contained))
            staged = unpack(message)
            tree = self.referee.grade(Request(path=Path(staged.name)), staged=staged)
            tree = untimed(tree)
            who = Who(**message["who"])
            made = texts(tree, who) if tree["complete"] and not tree["grader_error"] else {}
        except Exception as error:  # the class goes on, whatever it was
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(frame.filename).name}, line {frame.lineno}"
            return {"trouble": f"{type(error).__name__}: {error} ({where})"}
        return {
            "tree": tree,
            "texts": made,
            "seconds": round(time.monotonic() - began, 3),
            "inputs": self.inputs,
        }

    def close(self) -> None:
        """End the referee."""
        if self.referee is not None:
            self.referee.close()


def end_with(parent: int) -> None:
    """End this process as soon as its parent has ended: nobody would read the answer."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


def main() -> None:
    """Grade until standard input ends."""
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    grader = Grader()
    try:
        pool.serve(grader.grade)
    finally:
        grader.close()


if __name__ == "__main__":
    main()
