"""What can be asked for on the command line; see `python -m grader --help`."""

from __future__ import annotations

import argparse
import importlib.util
import os
from pathlib import Path
from typing import Any

from grader.report.platforms import EXPORTERS

CODES = """\
exit codes: 0 passed; 1 graded, not passed; 2 cannot be graded; 3 the grader failed;
130 stopped with Ctrl-C, 143 with SIGTERM.
"""
EPILOG = f"""\
{CODES}
examples:
  python -m grader grade starter
  python -m grader grade submission.zip --out reports/anna
  python -m grader check 2 --tree starter
  python -m grader watch --tree starter
"""
BATCH_EPILOG = """\
exit codes: 0 every submission was graded; 1 some need a person (ungradable, missing, not graded);
2 the batch cannot run; 3 the grader failed on some: give the same command again;
130 stopped with Ctrl-C, 143 with SIGTERM: the same command goes on.
"""
Raw = argparse.RawDescriptionHelpFormatter
FORMATS = ", ".join(EXPORTERS)

# Where the commands are that have a module of their own; it is imported when it is needed.
MODULES = {
    "batch": "grader.classroom.command",
    "calibrate": "grader.upkeep.calibrate",
    "export": "grader.cli.export",
    "hint": "grader.cli.desk",
    "lint": "grader.upkeep.lint",
    "mutants": "grader.upkeep.mutants",
    "notebook": "grader.cli.jupyter",
    "notebooks": "grader.cli.notebooks",
    "release": "grader.upkeep.handout",
    "reset": "grader.cli.desk",
    "similar": "grader.classroom.similar",
    "verify": "grader.upkeep.verify",
}


def parser() -> argparse.ArgumentParser:
    """Return the argument parser with every command."""
    top = argparse.ArgumentParser(
        prog="python -m grader", epilog=EPILOG, formatter_class=Raw,
        description="Grade a transformer built in the lab: its parts, then the gates in order.",
    )  # fmt: skip
    commands = top.add_subparsers(dest="command", required=True, metavar="command")
    one = commands.add_parser(
        "grade", help="grade one tree, folder, archive or notebook", epilog=CODES,
        description="Run every part and gate; write results.json and report.html into --out.",
        formatter_class=Raw,
    )  # fmt: skip
    one.add_argument("path", type=Path, help="folder, .zip, .tar.gz or .ipynb with the tree")
    one.add_argument("--out", type=Path, help="folder for results.json (reports/<name>)")
    one.add_argument("--seed", type=int, help="replay a run; default: drawn from the submission")
    one.add_argument("--keep-going", action="store_true", help="run every gate, even after a fail")
    one.add_argument("--scale", action="store_true",
                     help="then train the larger size, if every gate passed")  # fmt: skip
    _formats(one, f"json prints the result; written beside it: {FORMATS}", default=[])
    _shared(one)
    quick = commands.add_parser("check", help="a quick look at the parts, without the gates")
    _student(quick)
    quick.add_argument("--out", type=Path, help="folder for results.json; default: none is kept")
    quick.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    _shared(quick)
    live = commands.add_parser("watch", help="check again whenever a file of the tree is saved")
    _student(live)
    _isolation(live)
    students = {
        "hint": "the next hint of a task",
        "reset": "put a task back as it was handed out; keeps your version",
    }
    for name, words in students.items():
        one_task = commands.add_parser(name, help=words)
        one_task.add_argument("task", nargs="?", default="", metavar="TASK", help="such as 2.1")
        one_task.add_argument("--tree", type=Path, default=Path("starter"), help="folder (starter)")
    other = commands.add_parser("export", help="write a results.json in other platforms' formats")
    other.add_argument("result", type=Path, metavar="RESULTS.json")
    _formats(other, FORMATS, required=True)
    other.add_argument("--out", type=Path, help="folder (that of RESULTS.json)")
    known = _instructors(commands, "verify", "grade submissions whose verdict is known")
    known.add_argument("names", nargs="*", metavar="NAME", help="names of cases; default: all")
    known.add_argument("--kind", choices=["wrong", "right", "hostile"], help="only this kind")
    known.add_argument("--shard", type=_shard, default=(1, 1), metavar="I/N", help="part I of N")
    known.add_argument("--rebase", metavar="REVISION", help="fit cases of an older solution")
    _measured(known, "docs/corpus.md", Path("reports/verify"), "for verify.json")
    _isolation(known)
    machine = _instructors(commands, "mutants", "small mistakes made by machine: which survive?")
    machine.add_argument("files", nargs="*", metavar="FILE", help="task files such as masks")
    machine.add_argument("--every", type=int, default=1, metavar="N", help="only each Nth mutant")
    _measured(machine, "docs/mutants.md", Path("reports/mutants"))
    margins = _instructors(commands, "calibrate", "measure the margin of every threshold")
    margins.add_argument("--seeds", type=int, default=50, help="seeds for each configuration (50)")
    margins.add_argument("--variants", type=int, default=2, help="seeds for each right case (2)")
    margins.add_argument("--verified", type=Path, metavar="FILE",
                         help="verify.json: its cases are not graded again")  # fmt: skip
    _measured(margins, "docs/calibration.md", Path("reports/calibrate"))
    _batch(_instructors(commands, "batch", "grade a class; resumes; writes the gradebook"))
    alike = _instructors(commands, "similar", "show code that submissions of a class share")
    alike.description = "Compare a class. A pair is something to look at; no score changes."
    alike.add_argument("source", type=Path, help="folder or .zip: what the platform handed out")
    alike.add_argument("--out", type=Path, required=True, help="folder for page and table")
    alike.add_argument("--pattern", metavar="REGEX", help="another layout; has (?P<student_id>)")
    alike.add_argument("--show", type=_count, default=50, help="most pairs on the page (50)")
    alike.add_argument(
        "--least", type=float, default=0.3, metavar="SHARE", help="least weighted share (0.3)"
    )
    alike.add_argument("--quiet", action="store_true", help="no progress bar")
    lint = _instructors(commands, "lint", "name what disagrees with lab.toml")
    lint.add_argument("--fix", action="store_true", help="rewrite the tables of README.md")
    handout = _instructors(commands, "release", "build what students get")
    handout.add_argument("--out", type=Path, default=Path("dist"), help="folder (dist)")
    books = commands.add_parser("notebooks", help="run the notebooks with a tree, as pages to read")
    books.add_argument("names", nargs="*", metavar="NAME", help="numbers or names; default: all")
    books.add_argument("--tree", type=Path, default=Path("starter"), help="the tree (starter)")
    books.add_argument("--out", type=Path, default=Path("reports/notebooks"))
    books.add_argument("--quiet", action="store_true", help="no progress bar")
    commands.add_parser("notebook", help="open the notebooks in JupyterLab, fetched at first use")
    commands.add_parser("doctor", help="what this machine offers: isolation, versions")
    return top


def _batch(command: argparse.ArgumentParser) -> None:
    command.epilog = BATCH_EPILOG
    command.description = "Grade a class; the same command goes on where it was stopped."
    command.formatter_class = Raw
    command.add_argument("source", type=Path, help="folder or .zip: what the platform handed out")
    command.add_argument("--out", type=Path, required=True, help="folder for results; resumes")
    command.add_argument("--roster", type=Path, metavar="CSV", help="who should have handed in")
    command.add_argument("--jobs", type=_count, metavar="N", help="processes (cores)")
    command.add_argument("--pattern", metavar="REGEX", help="another layout; has (?P<student_id>)")
    command.add_argument("--compare", type=Path, metavar="OLD", help="list changed scores, and why")
    command.add_argument("--fill", type=Path, metavar="CSV", help="a Canvas or Moodle export")
    command.add_argument("--adjustments", type=Path, metavar="CSV",
                         help="a person's word on scores (OUT/adjustments.csv)")  # fmt: skip
    command.add_argument(
        "--only", action="append", default=[], metavar="KIND=VALUE",
        help="regrade only student=, status=, task= or flag=; keep the rest",
    )  # fmt: skip
    command.add_argument("--column", metavar="NAME", help="its assignment, where that is unclear")
    command.add_argument("--shard", type=_shard, metavar="I/N", help="grade part I of N only")
    command.add_argument(
        "--merge", type=Path, nargs="*", metavar="DIR",
        help="grade nothing: join shards that wrote into --out, or into these folders",
    )  # fmt: skip
    command.add_argument("--cluster", metavar="ADDRESS", help="a Dask scheduler, or local")
    _shared(command)


def _instructors(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, words: str
) -> argparse.ArgumentParser:
    """Add a command, unless this is a student's copy, which lacks its module."""
    if not has_module(MODULES[name]):
        return argparse.ArgumentParser()
    return commands.add_parser(name, help=words)


def _measured(command: argparse.ArgumentParser, page: str, out: Path, words: str = "") -> None:
    """Add what the commands share that measure the grader itself and write a page on it."""
    cores = os.cpu_count() or 1
    command.add_argument("--jobs", type=int, default=cores, help="processes (cores)")
    command.add_argument("--out", type=Path, default=out, help=words or None)
    command.add_argument("--write-docs", action="store_true", help=f"rewrite {page}")


def _formats(command: argparse.ArgumentParser, words: str, **options: Any) -> None:
    """Add --format: a comma list, or several times."""
    command.add_argument("--format", type=_format_names, action="extend",
                         metavar="NAME[,NAME]", help=words, **options)  # fmt: skip


def _format_names(text: str) -> list[str]:
    """Read a comma list of what to print or export."""
    names = [name.strip() for name in text.split(",")]
    unknown = [n for n in names if n not in ("text", "json", *EXPORTERS)]
    if unknown:
        raise argparse.ArgumentTypeError(f"expected {FORMATS}, got {unknown[0]!r}")
    return names


def _shard(text: str) -> tuple[int, int]:
    """Read "2/3" as (2, 3)."""
    share, _, shares = text.partition("/")
    if not (share.isdecimal() and shares.isdecimal() and 1 <= int(share) <= int(shares)):
        raise argparse.ArgumentTypeError(f"expected I/N with 1 <= I <= N, got {text}")
    return int(share), int(shares)


def _count(text: str) -> int:
    """Read a number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, got {text}")
    return int(text)


def _shared(command: argparse.ArgumentParser) -> None:
    _isolation(command)
    command.add_argument("--quiet", action="store_true", help="print the verdict only")


def _student(command: argparse.ArgumentParser) -> None:
    command.add_argument("tasks", nargs="*", metavar="TASK", help="task ids such as 2 or 2.1")
    command.add_argument("--tree", type=Path, help="the tree to check (starter, or solution)")


def _isolation(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--isolation", default="auto", metavar="LEVEL",
        help="auto (the strongest that works here), portable, landlock, uid or bwrap",
    )  # fmt: skip


def has_module(name: str) -> bool:
    """Tell whether a module is here; the room that holds it may be missing too."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
