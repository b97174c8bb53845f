"""The docs page: a pure function of what `bench.json` holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grader.bench.report import amount, number

HEAD = """\
# Bench

`make bench` measures again and writes `reports/bench.json`, the numbers of every round. With
`--write-docs`, `.venv/bin/python -m grader.bench` writes this page besides, all but its notes; with
`--only NAME ...` it measures, and renews here, these alone. `bench.json` beside this page holds
what was measured when.

Machine class: {cores} cores, {processor}, {system}; Python {python}, torch {torch}, numpy {numpy}.

Every figure was taken in one run, on the date that stands beside it. Its subjects are measured in
turn, A B A B; the median counts, and beside it stand the smallest and the largest round. Ratios are
taken within a round. Nothing here is a test: a busy machine shows other numbers, and the same
ratios within their spread.
"""
FIGURES = ("figure", "what it is", "required", "goal", "measured", "smallest to largest",
           "rounds", "threads", "taken", "verdict")  # fmt: skip


def text(tree: Mapping[str, Any], notes: str, pictures: Sequence[str]) -> str:
    """Return the page.

    Args:
        tree: What `bench.json` holds.
        notes: What a person wrote about the numbers, kept from the page before.
        pictures: File names beside the page, named after their curves.
    """
    blocks = [HEAD.format(**tree["machine"])]
    blocks.append("## Figures\n\n" + table(FIGURES, map(figure, tree["figures"])))
    if notes:
        blocks.append(f"{NOTES}\n\n{notes}\n")
    for curve in tree["curves"]:
        found = tree["experiments"].get(curve["experiment"], {"rounds": []})
        names = [n for n in pictures if Path(n).stem == f"bench_{curve['name']}"]
        shown = "".join(f"![{curve['sentence']}]({name})\n\n" for name in names)
        heading = f"## {curve['name']}\n\n{curve['sentence']}\n\n"
        blocks.append(heading + shown + points(curve, found["rounds"]))
    for made in tree["tables"]:
        found = tree["experiments"].get(made["experiment"], {"rounds": []})
        rows = ([cell(r.get(key)) for key in made["columns"]] for r in found["rounds"])
        heading = f"## {made['name']}\n\n{made['sentence']}\n\n"
        blocks.append(heading + table(list(made["columns"].values()), rows))
    return "\n".join(blocks)


NOTES = "## What stands between"


def notes_of(page: str) -> str:
    """Return the notes of an earlier page; the bench writes all but them."""
    _, found, rest = page.partition(NOTES + "\n")
    return rest.split("\n## ")[0].strip() if found else ""


def figure(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of one figure, under FIGURES."""
    unit, word = row["unit"], row["bound"]
    bounds = [f"{word} {amount(row[k], unit)}" if row[k] is not None else ""
              for k in ("required", "goal")]  # fmt: skip
    known = row["measured"] is not None
    between = f"{number(row['low'])} to {amount(row['high'], unit)}" if known else row["trouble"]
    return [f"`{row['name']}`", row["sentence"], *bounds, amount(row["measured"], unit), between,
            str(row["rounds"]), str(row["threads"]), row["date"], row["verdict"]]  # fmt: skip


def points(curve: Mapping[str, Any], rounds: Iterable[Mapping[str, float]]) -> str:
    """Return the table of a curve."""
    heads = [curve["x"], *(f"{label} ({curve['unit']})" for label in curve["series"].values())]
    rows = [
        [f"{r[curve['x']]:g}", *(number(r[k]) if k in r else "" for k in curve["series"])]
        for r in rounds
    ]
    return table(heads, rows)


def cell(value: float | str | None) -> str:
    """Write what a table holds; nothing for what a round lacks."""
    return "" if value is None else value if isinstance(value, str) else f"{value:.4g}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join(c.replace("|", "\\|") for c in r) + " |\n" for r in lines)
