"""The command line of the bench: `python -m grader.bench --help`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from grader.bench import catalogue, page, report, rounds
from grader.bench.progress import Shown
from grader.bench.session import Catalogue, Run, Session
from grader.result import write_json

DONE, MISSED, USAGE, STOPPED = 0, 1, 2, 130
DOCS = rounds.ROOT / "docs"
DATA = "bench.json"
VERSIONS = ("python", "torch", "numpy")


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    top = argparse.ArgumentParser(
        prog="python -m grader.bench",
        description="Measure speed and memory against their targets; nothing here is a test.",
    )
    top.add_argument("--check", action="store_true", help="exit 1 on a required figure not met")
    top.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these alone")
    top.add_argument("--out", type=Path, default=Path("reports"), help="folder for bench.json")
    top.add_argument("--list", action="store_true", help="print the names and end")
    top.add_argument("--write-docs", action="store_true", help="rewrite docs/bench.md, with plots")
    return top


def main(
    arguments: list[str] | None = None,
    known: Catalogue = catalogue.ALL,
    run: Run = rounds.run,
    docs: Path = DOCS,
) -> int:
    """Measure and return the exit code.

    Args:
        arguments: The words after the program's name; None takes them from sys.argv.
        known: What can be measured.
        run: Runs an experiment.
        docs: Folder of the docs.
    """
    options = parser().parse_args(arguments)
    console = Console()
    try:
        chosen = known.chosen(options.only)
    except ValueError as error:
        print(f"bench: {error}", file=sys.stderr)
        return USAGE
    if options.list:
        print(listed(chosen), end="")
        return DONE
    session, began, where = Session(chosen), datetime.now(), report.machine()
    path = options.out / "bench.json"

    def save(session: Session) -> None:
        write_json(path, report.tree(session, began, where))

    with Shown(Console(stderr=True), len(chosen.experiments)) as shown:
        session.measure(run, shown, save)
    results = session.results()
    report.show(console, results)
    print(f"every round: {path}")
    if session.stopped:
        print("stopped; what was measured so far is kept", file=sys.stderr)
        return STOPPED
    if options.write_docs:
        whole = session.joined(known, kept(docs / DATA, where, known))
        write_docs(report.tree(whole, began, where), docs)
    return MISSED if options.check and any(r.fails for r in results) else DONE


def listed(known: Catalogue) -> str:
    """Return the names, each with its sentence, below the experiment they are read from."""
    lines = []
    for experiment in known.experiments:
        lines.append(f"{experiment.name}: {experiment.sentence}")
        for item in known.readings:
            if item.experiment == experiment.name:
                lines.append(f"    {item.name}: {item.sentence}")
    return "".join(f"{line}\n" for line in lines)


def kept(path: Path, where: Mapping[str, Any], known: Catalogue) -> dict[str, Any]:
    """Return the experiments that the docs hold and that this class of machine would repeat."""
    if not path.is_file():
        return {}
    tree = json.loads(path.read_text(encoding="utf-8"))
    found = dict(tree["experiments"])
    if tree["machine"] == where:
        return found
    print("the docs held figures of another machine or other versions: these are gone")
    if any(tree["machine"].get(name) != where.get(name) for name in VERSIONS):
        return {}
    counted = {e.name for e in known.experiments if not e.timed}
    return {name: made for name, made in found.items() if name in counted}


def write_docs(tree: dict[str, Any], docs: Path) -> None:
    """Rewrite the page with its data and, where they can be drawn, its pictures."""
    write_json(docs / DATA, tree)
    said = rounds.draw(docs / DATA, docs)
    if said:
        print(f"no new pictures: {said}")
    target = docs / "bench.md"
    notes = page.notes_of(target.read_text(encoding="utf-8")) if target.exists() else ""
    pictures = sorted(p.name for p in docs.glob("bench_*.svg"))
    target.write_text(page.text(tree, notes, pictures), encoding="utf-8")
    print(f"written: {target}")


if __name__ == "__main__":
    sys.exit(main())
