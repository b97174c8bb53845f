"""What a run found, as JSON, as a table for a terminal, and as a page for the docs."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from grader.bench.figure import Curve, Figure, Result
from grader.bench.session import Session

SCHEMA = 1
STYLES = {
    "goal met": "bold green",
    "met": "green",
    "short of the goal": "yellow",
    "missed": "red",
    "no target": "dim",
    "not measured": "magenta",
}
HEADINGS = ("figure", "required", "goal", "measured", "range", "rounds", "verdict")


def machine() -> dict[str, Any]:
    """Return the versions and the class of this machine."""
    versions = {name: metadata.version(name) for name in ("torch", "numpy")}
    return {
        "cores": os.cpu_count(),
        "processor": processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **versions,
    }


def processor() -> str:
    """Return the processor's model name."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or "unknown"
    names = [line.split(":", 1)[1] for line in text.splitlines() if line.startswith("model name")]
    return names[0].strip() if names else platform.processor() or "unknown"


def tree(session: Session, began: datetime, where: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `bench.json` holds: every figure, and every round it was made of."""
    return {
        "schema": SCHEMA,
        "complete": not session.stopped and set(session.rounds) == set(_names(session)),
        "date": began.isoformat(timespec="seconds"),
        "machine": dict(where),
        "figures": [
            _figure(r) | {"date": session.dates.get(r.figure.experiment, "")}
            for r in session.results()
        ],
        "curves": [_curve(curve) for curve in session.catalogue.curves],
        "tables": [asdict(table) for table in session.catalogue.tables],
        "experiments": {
            e.name: {
                "sentence": e.sentence,
                "threads": e.threads,
                "date": session.dates.get(e.name, ""),
                "trouble": session.trouble.get(e.name, ""),
                "rounds": [dict(r) for r in session.rounds[e.name]],
            }
            for e in session.catalogue.experiments
            if e.name in session.rounds
        },
    }


def _names(session: Session) -> list[str]:
    return [e.name for e in session.catalogue.experiments]


def _figure(result: Result) -> dict[str, Any]:
    figure, found = result.figure, result.spread
    return {
        "name": figure.name,
        "sentence": figure.sentence,
        "unit": figure.unit,
        "bound": "at least" if figure.target.at_least else "at most",
        "required": figure.target.required,
        "goal": figure.target.goal,
        "measured": found.median if found else None,
        "low": found.low if found else None,
        "high": found.high if found else None,
        "rounds": result.rounds,
        "threads": result.threads,
        "verdict": result.verdict,
        "trouble": result.trouble,
    }


def _curve(curve: Curve) -> dict[str, Any]:
    return {
        "name": curve.name,
        "sentence": curve.sentence,
        "experiment": curve.experiment,
        "x": curve.x,
        "series": dict(curve.series),
        "unit": curve.unit,
    }


def number(value: float) -> str:
    """Write a number to three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def amount(value: float | None, unit: str) -> str:
    """Write a number with its unit; nothing for None."""
    return "" if value is None else f"{number(value)} {unit}".rstrip()


def bound(figure: Figure, value: float | None) -> str:
    """Write one bound of a figure; nothing for None."""
    sign = ">=" if figure.target.at_least else "<="
    return "" if value is None else f"{sign} {amount(value, figure.unit)}"


def row(result: Result) -> tuple[str, ...]:
    """Return the cells of a figure, under HEADINGS."""
    figure, found = result.figure, result.spread
    return (
        figure.name,
        bound(figure, figure.target.required),
        bound(figure, figure.target.goal),
        amount(found.median, figure.unit) if found else "",
        f"{number(found.low)} to {amount(found.high, figure.unit)}" if found else "",
        str(result.rounds),
        result.verdict,
    )


def show(console: Console, results: Sequence[Result]) -> None:
    """Print every figure: a table, or plain lines where there is no terminal."""
    if not console.is_terminal:
        for result in results:
            console.print(line(result), highlight=False, markup=False, soft_wrap=True)
        return
    counts = sorted({str(r.threads) for r in results})
    title = f"Bench, threads per process: {', '.join(counts)}"
    table = Table(*HEADINGS, title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for result in results:
        *cells, verdict = row(result)
        table.add_row(*cells, Text(verdict, style=STYLES[verdict]))
    console.print(table)
    for result in results:
        if result.trouble:
            console.print(f"{result.figure.name}: {result.trouble}", markup=False)


def line(result: Result) -> str:
    """Write a figure as one plain line."""
    name, required, goal, measured, between, rounds, verdict = row(result)
    wanted = "; ".join(filter(None, (required, f"goal {goal}" if goal else "")))
    got = f"{measured} ({between}, {rounds} rounds)" if measured else result.trouble
    return f"{verdict:>17}  {name}: {wanted}; measured {got}"
