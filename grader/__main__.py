"""The command line: `python -m grader <command>`, and what becomes of it."""

from __future__ import annotations

import argparse
import errno
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from grader.base.stopping import stopping
from grader.cli.arguments import MODULES, parser

if TYPE_CHECKING:
    from grader.base.settings import Settings
    from grader.link.workshop import Workshop

PASSED, NOT_PASSED, CANNOT_GRADE, GRADER_FAILED = 0, 1, 2, 3
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
STOPPED = 130  # by Ctrl-C, as shells have it
SIGNALLED = 128  # and this much more than the number of another signal
VERBS = {
    "check": "check",
    "hint": "give a hint",
    "reset": "reset",
    "watch": "check",
    "verify": "verify",
    "calibrate": "calibrate",
}
# What a command that is stopped may have written already.
KEPT = {"grade": "results.json", "check": "results.json", "calibrate": "results.jsonl"}


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    came: list[int] = []
    try:
        with stopping() as came:
            code = run(parser().parse_args(arguments))
    except KeyboardInterrupt:  # before there was anything to end
        print("stopped", file=sys.stderr)
        code = STOPPED
    except Exception as error:
        return failed(error)
    return SIGNALLED + came[0] if came and code == STOPPED else code


def failed(error: Exception) -> int:
    """Say in two lines that the grader failed, and keep the traceback in a file."""
    import tempfile
    import traceback

    said = f"{type(error).__name__}: {error}"
    print(f"the grader failed, not the submission: {said}", file=sys.stderr)
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="grader-error-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            traceback.print_exception(error, file=file)
        print(f"please report it with {file.name}", file=sys.stderr)
    except OSError:
        traceback.print_exception(error)
    return GRADER_FAILED


def run(options: argparse.Namespace) -> int:
    """Run the command of `options`."""
    from grader.base.settings import SettingsError
    from grader.intake.staging import IntakeError
    from grader.sandbox import IsolationUnavailable

    began = time.time()
    try:
        return command(options.command)(options)
    except (IntakeError, IsolationUnavailable, SettingsError) as error:
        print(f"cannot {VERBS.get(options.command, 'grade')}: {error}", file=sys.stderr)
        return CANNOT_GRADE
    except KeyboardInterrupt:
        if options.command != "watch":
            print(f"stopped{kept(options, began)}", file=sys.stderr)
        return STOPPED


def kept(options: argparse.Namespace, began: float) -> str:
    """Say where a command that was stopped has kept what it found since `began`."""
    name = KEPT.get(options.command)
    file = options.out / name if name and options.out else None
    # File systems count time in steps of a few milliseconds.
    if file is None or not file.is_file() or file.stat().st_mtime < began - 0.01:
        return ""
    return f"; what was found so far is kept in {file}"


def command(name: str) -> Callable[[argparse.Namespace], int]:
    """Return what runs the command; its module is imported here and not before."""
    if name in MODULES:
        found: Callable[[argparse.Namespace], int] = importlib.import_module(MODULES[name]).main
        return found
    return _doctor if name == "doctor" else _grade


def _doctor(_: argparse.Namespace) -> int:
    from grader.cli import doctor

    print(doctor.text(), end="")
    return PASSED


def _grade(options: argparse.Namespace) -> int:
    from grader import sandbox
    from grader.base import settings
    from grader.link.workshop import Workshop

    lab = settings.load()
    # Nobody of the same user may look into this process.
    sandbox.protect_memory()
    # The workers load torch while this process imports what it needs itself.
    with Workshop(sandbox.choose(options.isolation), lab.limits) as workshop:
        if options.command == "grade":
            return _graded(options, lab, workshop)
        from grader.cli import check, watch

        run = check.check if options.command == "check" else watch.watch
        return run(options, lab, workshop)


def _graded(options: argparse.Namespace, lab: Settings, workshop: Workshop) -> int:
    from rich.console import Console

    from grader.report import html_report, platforms, terminal
    from grader.run import engine

    name = options.path.resolve().name.removesuffix(".zip").removesuffix(".tar.gz")
    out = options.out = options.out or Path("reports") / name
    request = engine.Request(
        path=options.path,
        out=out,
        seed=options.seed,
        keep_going=options.keep_going,
        scale=options.scale,
    )
    as_json = "json" in options.format
    console = Console(stderr=as_json, highlight=False)
    refuse_unwritable(out)
    try:
        with engine.Referee(lab, workshop=workshop) as referee:
            with terminal.Progress(console, quiet=options.quiet or as_json) as progress:
                tree = referee.grade(request, progress)
        html_report.write(tree, out / "report.html")
        platforms.export(tree, options.format, out)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        why = f"{out} cannot be written ({error.strerror})"
        print(f"cannot grade: {why}: make room and give the same command again", file=sys.stderr)
        return CANNOT_GRADE
    if as_json:
        print(json.dumps(tree, indent=2, ensure_ascii=False))
    else:
        console.print(terminal.verdict(tree, out))
    return exit_code(tree)


def refuse_unwritable(out: Path) -> None:
    """Raise IntakeError now rather than after the work where nothing can be written to `out`."""
    from grader.intake.staging import IntakeError

    standing = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    why = "" if os.access(standing, os.W_OK | os.X_OK) else "cannot be written"
    why = why if standing.is_dir() else "is not a folder"
    if why:
        raise IntakeError(f"{standing} {why}: name another folder with --out, got {out}")


def exit_code(tree: dict[str, object]) -> int:
    """Return the exit code that belongs to a result."""
    if tree["grader_error"]:
        return GRADER_FAILED
    return PASSED if tree["passed"] else NOT_PASSED


if __name__ == "__main__":
    sys.exit(main())
