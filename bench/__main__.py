"""The command line of the bench: `python -m bench --help`."""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from datetime import date
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import ROOT
from bench.figures import FIGURES, HEADINGS, Figure, Measured

DONE, MISSED, STOPPED = 0, 1, 130
PAGE = ROOT / "docs" / "bench.md"


def main(
    arguments: list[str] | None = None, known: Sequence[Figure] = FIGURES, page: Path = PAGE
) -> int:
    """Measure and return the exit code.

    Args:
        arguments: The words after the program's name; None takes them from sys.argv.
        known: What can be measured.
        page: Where the table goes.
    """
    names = [figure.name for figure in known]
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure speed and memory beside their targets, and write docs/bench.md.",
    )
    only = f"print these alone, and write nothing: {', '.join(names)}"
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=names, help=only)
    parser.add_argument("--check", action="store_true", help="exit 1 on a missed required figure")
    options = parser.parse_args(arguments)
    chosen = [figure for figure in known if options.only is None or figure.name in options.only]
    try:
        results = measure(chosen, Console(soft_wrap=True, highlight=False))
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return STOPPED
    if options.only is None:
        page.write_text(markdown(results), encoding="utf-8")
        print(f"written: {page}")
    return MISSED if options.check and any(result.fails for result in results) else DONE


def measure(figures: Sequence[Figure], console: Console) -> list[Measured]:
    """Run each program once, below a bar, and print its figures as they come."""
    results: list[Measured] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        bar = progress.add_task("", total=len(figures))
        for program, own in itertools.groupby(figures, key=lambda figure: figure.program):
            rounds: list[dict[str, float]] = []
            trouble, asked = "", list(own)
            progress.update(bar, description=asked[0].name)
            try:
                for taken in program():
                    rounds.append(taken)
                    progress.update(bar, description=f"{asked[0].name}, {len(rounds)} rounds")
            except Exception as error:  # what cannot be measured must not cost the others
                rounds, trouble = [], str(error) or type(error).__name__
            for figure in asked:
                result = Measured(figure, [taken[figure.name] for taken in rounds], trouble)
                _, _, required, _, median, spread, _, verdict = result.row
                words = f"{figure.name}: {median} ({spread}), required {required}: {verdict}"
                console.print(words, markup=False)
                results.append(result)
                progress.advance(bar)
    return results


def markdown(results: Iterable[Measured]) -> str:
    """Return docs/bench.md."""
    rows = [HEADINGS, ["---"] * len(HEADINGS), *(result.row for result in results)]
    return f"""# Bench

`make bench` measures every figure again and writes this page; `.venv/bin/python -m bench --only
NAME` measures one again and prints it. The targets stand in `bench/figures.py`, and `make bench
CHECK=1` fails on a required one that is missed.

Measured {date.today()} on {machine()}, with one thread in each process. The median of the rounds
counts. What a ratio compares is measured in turn, A B A B, within the round, so that a busy machine
slows both; seconds are those of this machine.

""" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def machine() -> str:
    """Return the class of this machine and the versions in use."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "numpy"))
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return f"{os.cpu_count()} cores ({processor()}), {system}, {versions}"


def processor() -> str:
    """Return the processor's model name."""
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    names = (line.split(":", 1)[1] for line in text.splitlines() if line.startswith("model name"))
    return next(names, platform.processor() or "unknown").strip()


if __name__ == "__main__":
    sys.exit(main())
