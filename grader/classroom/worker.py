"""A process with one warm referee that grades what comes: `-m grader.classroom.worker`."""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from pathlib import Path
from typing import Any

from grader.base import settings
from grader.classroom.keys import inputs
from grader.classroom.messages import Who, texts, unpack, untimed
from grader.run import pool
from grader.run.engine import Referee, Request


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
                self.inputs = vars(inputs(lab, self.referee.isolation.contained))
            staged = unpack(message)
            tree = untimed(self.referee.grade(Request(path=Path(staged.name)), staged=staged))
            final = tree["complete"] and not tree["grader_error"]
            made = texts(tree, Who(**message["who"])) if final else {}
        except Exception as error:  # the class goes on, whatever it was
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(frame.filename).name}, line {frame.lineno}"
            return {"trouble": f"{type(error).__name__}: {error} ({where})"}
        seconds = round(time.monotonic() - began, 3)
        return {"tree": tree, "texts": made, "seconds": seconds, "inputs": self.inputs}

    def close(self) -> None:
        """End the referee."""
        if self.referee is not None:
            self.referee.close()


if __name__ == "__main__":
    # What a referee has to say stands in its results; standard error is the batch's own.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with contextlib.closing(Grader()) as grader:
        pool.serve(grader.grade)
