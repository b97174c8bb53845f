"""`check`: a quick look at the parts, printed as a checklist; `--out` keeps the result."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from grader.base.settings import Settings, StretchStub, Stub
from grader.cli import desk
from grader.intake.staging import IntakeError
from grader.link.workshop import Workshop
from grader.report import checklist, terminal
from grader.run import engine

ALL_PASSED, NOT_ALL_PASSED, GRADER_FAILED = 0, 1, 3


def default_tree() -> Path:
    """Return the tree a student works in, or the solution where there is no starter."""
    return next((p for p in map(Path, ("starter", "solution")) if p.is_dir()), Path("starter"))


def stubs_of(lab: Settings) -> list[Stub | StretchStub]:
    """Return every stub in task order, stretch tasks last."""
    return [*lab.points.stubs, *lab.points.stretch]


def chosen(tasks: Sequence[str], lab: Settings) -> frozenset[str] | None:
    """Return the tasks that were asked for, None for all of them.

    Raises:
        IntakeError: There is no such task.
    """
    ids = [stub.id for stub in stubs_of(lab)]
    known = dict.fromkeys([i.split(".")[0] for i in ids] + ids)
    for task in tasks:
        if task not in known:
            hint = f"; for another tree, say --tree {task}" if Path(task).exists() else ""
            raise IntakeError(f"there is no task {task}; expected one of {', '.join(known)}{hint}")
    return frozenset(tasks) or None


def check(options: argparse.Namespace, lab: Settings, workshop: Workshop) -> int:
    """Look at the parts once, print the checklist, and return the exit code."""
    path = options.tree or default_tree()
    tasks = chosen(options.tasks, lab)
    request = engine.Request(path=path, out=options.out, seed=options.seed, tasks=tasks, gates=0)
    console = Console(highlight=False)
    with engine.Referee(lab, workshop=workshop) as referee:
        # Without a terminal the checklist says all there is to say.
        quiet = options.quiet or not console.is_terminal
        with terminal.Progress(console, quiet=quiet) as progress:
            tree = referee.grade(request, progress)
    found = checklist.rows(checklist.checks_of(tree), stubs_of(lab), begun_only=tasks is None)
    shown = checklist.render(found, path, complete=tasks is None, trouble=tree["grader_error"])
    console.print(terminal.Trimmed(shown))
    if options.tree is None:
        desk.Desk(path).keep_passed([row.stub for row in found if row.done])
    if options.out is not None:
        console.print(f"full result: {options.out / 'results.json'}", soft_wrap=True)
    if tree["grader_error"]:
        return GRADER_FAILED
    done = all(row.done or (row.optional and tasks is None) for row in found)
    return ALL_PASSED if done else NOT_ALL_PASSED
