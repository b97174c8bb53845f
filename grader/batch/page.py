"""`index.html`: a class on one page, to search and to sort; one file, nothing fetched.

Its one script is allowed by its digest, so that nothing a submission brings can ever run.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import quote

import jinja2

from grader.batch.rows import STATUSES, Rows, action, count
from grader.report_html import TEMPLATES, WORDS
from grader.settings import Settings
from grader.witness import cut

MOST_DIAGNOSES = 15
BINS = 10
STATUS_WORDS = {
    "passed": "passed",
    "not_passed": "not passed",
    "ungradable": "cannot be graded",
    "missing": "missing",
    "grader_error": "regrade",
    "not_graded": "not graded yet",
}
LATE = {None: "", True: "late", False: ""}


class Bar(NamedTuple):
    """A label, how many, and its share of the largest in percent."""

    label: str
    number: int
    percent: int
    note: str = ""


def render(rows: Rows, collected: Sequence[str], lab: Settings) -> str:
    """Return the page.

    Args:
        rows: of the class.
        collected: lines of the collection report.
        lab: names the lab and its gates.
    """
    counts = count(rows)
    script, style = source("class.js"), source("class.css")
    return template().render(
        name=lab.name,
        total=len(rows),
        script=script,
        style=style,
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        counts=[(s, STATUS_WORDS[s], number, STATUSES[s]) for s, number in counts.items()],
        flagged=sum(bool(row["flags"]) for row in rows),
        stops=stops(rows, lab.points.gates),
        diagnoses=diagnoses(rows),
        distribution=distribution(rows),
        middle=middle(rows),
        rows=map(shown, rows),
        collected=[cut(line, 400) for line in collected],
    )


def shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the table shows of a row."""
    students = row["students"]
    names = [s["name"] or next(iter(s["ids"]), s["platform_id"]) for s in students]
    ids = [" ".join(filter(None, [*s["ids"], s["email"]])) for s in students]
    graded = row["score"] is not None
    file = "report.html" if graded else "message.txt"
    return {
        "who": cut(", ".join(names) or row["name"], 120),
        "ids": cut(", ".join(filter(None, ids)), 160),
        "link": f"students/{quote(row['name'])}/{file}" if row["name"] else "",
        "status": row["status"],
        "word": STATUS_WORDS[row["status"]],
        "score": row["score"],
        "stopped": cut(row["stopped"].replace("_", " "), 60),
        "first": cut(row["first"].replace("_", " "), 60),
        "how": WORDS.get(row["how"], ""),
        "cause": cut(row["cause"], 240),
        "code": cut(next(iter(row["codes"]), ""), 80),
        "late": LATE[row["late"]],
        "flags": cut(" ".join(row["flags"]), 120),
        "action": action(row),
    }


def stops(rows: Iterable[Mapping[str, Any]], gates: Iterable[str]) -> list[Bar]:
    """Return how many each gate stops, and how many none."""
    graded = [row for row in rows if row["score"] is not None]
    counts = Counter(row["stopped"] for row in graded)
    labels = [f"gate {i} {name}" for i, name in enumerate(gates, 1)]
    pairs = [(label.replace("_", " "), counts[label]) for label in labels]
    return bars([*pairs, ("past all gates", counts[""])])


def diagnoses(rows: Iterable[Mapping[str, Any]]) -> list[Bar]:
    """Return the commonest diagnoses, each counted once a submission."""
    counts: Counter[str] = Counter()
    causes: dict[str, str] = {}
    for row in rows:
        counts.update(row["codes"])
        if row["codes"]:
            causes.setdefault(row["codes"][0], cut(row["cause"], 240))
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_DIAGNOSES]
    found = bars([(cut(code, 80), number) for code, number in ranked])
    return [
        bar._replace(note=causes.get(code, ""))
        for bar, (code, _) in zip(found, ranked, strict=True)
    ]


def distribution(rows: Iterable[Mapping[str, Any]]) -> list[Bar]:
    """Return how many scores lie in each tenth of the points; the last holds the full score."""
    counts = Counter(
        min(BINS - 1, int(BINS * row["score"] / row["max_score"]))
        for row in rows
        if row["score"] is not None
    )
    most = next((row["max_score"] for row in rows), 100)
    edges = [f"{most * i / BINS:g}" for i in range(BINS + 1)]
    labels = [f"{edges[i]} to {'' if i == BINS - 1 else '<'}{edges[i + 1]}" for i in range(BINS)]
    return bars([(label, counts[i]) for i, label in enumerate(labels)])


def middle(rows: Iterable[Mapping[str, Any]]) -> dict[str, float] | None:
    """Return mean and median of the scores."""
    scores = sorted(row["score"] for row in rows if row["score"] is not None)
    if not scores:
        return None
    half = len(scores) // 2
    median = scores[half] if len(scores) % 2 else (scores[half - 1] + scores[half]) / 2
    return {"mean": round(sum(scores) / len(scores), 1), "median": round(median, 1)}


def bars(pairs: Sequence[tuple[str, int]]) -> list[Bar]:
    """Return bars that the largest number fills."""
    largest = max((number for _, number in pairs), default=0) or 1
    return [Bar(label, number, round(100 * number / largest)) for label, number in pairs]


@cache
def source(name: str) -> str:
    """Return a piece of the page that is ours alone."""
    return (TEMPLATES / name).read_text(encoding="utf-8").strip()


@cache
def template() -> jinja2.Template:
    """Return the page's template; it escapes whatever is not markup of ours."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    return environment.get_template("class.html.j2")
