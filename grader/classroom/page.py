"""`index.html`: a class on one page, to search and to sort; one file, nothing fetched.

Its one script is allowed by its digest, so that nothing a submission brings can ever run.
"""

from __future__ import annotations

import base64
import hashlib
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from grader.base.places import TEMPLATES
from grader.base.settings import Settings
from grader.base.text import one_line
from grader.classroom.figures import Item, items, monday
from grader.classroom.rows import ABSENT, INCOMPLETE, STATUSES, Row, action, count
from grader.report.html_report import WORDS, template
from grader.report.witness import cut

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


# A label, how many, and a note.
Bar = tuple[str, int, str]


def render(rows: Sequence[Row], collected: Sequence[str], lab: Settings) -> Iterator[str]:
    """Yield the page, piece by piece.

    Args:
        rows: of the class.
        collected: lines of the collection report.
        lab: names the lab, its points and its gates.
    """
    script, style = (
        (TEMPLATES / name).read_text(encoding="utf-8").strip() for name in ("class.js", "class.css")
    )
    codes = Counter(code for row in rows for code in row["codes"])
    scores = [row["score"] for row in rows if row["score"] is not None]
    middle = None
    if scores:
        middle = {
            "mean": round(statistics.fmean(scores), 1),
            "median": round(statistics.median(scores), 1),
        }
    return template("class.html.j2").generate(
        name=lab.name,
        total=len(rows),
        script=script,
        style=style,
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        counts=[(s, STATUS_WORDS[s], n, STATUSES[s]) for s, n in count(rows).items()],
        flagged=sum(bool(row["flags"]) for row in rows),
        incomplete=codes[ABSENT],
        ask=INCOMPLETE,
        tasks=list(map(shown_item, items(rows, lab))),
        monday=monday(rows),
        stops=stops(rows, lab.points.gates),
        diagnoses=diagnoses(rows, codes),
        distribution=distribution(scores, float(lab.points.maximum)),
        middle=middle,
        rows=map(shown, rows),
        collected=[cut(line, 400) for line in collected],
    )


def shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the table shows of a row."""
    students = row["students"]
    names = [s["name"] or next(iter(s["ids"]), s["platform_id"]) for s in students]
    ids = [" ".join(filter(None, [*s["ids"], s["email"]])) for s in students]
    file = "message.txt" if row["score"] is None else "report.html"
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
        "late": "late" if row["late"] else "",
        "flags": cut(" ".join(row["flags"]), 120),
        "action": "; ".join([*map(one_line, row.get("comments", ())), action(row)]),
    }


def shown_item(item: Item) -> dict[str, Any]:
    """Return what the page shows of a task or gate."""
    return {
        "label": item.label if item.label.startswith("gate") else f"task {item.label}",
        "name": item.name,
        "passed": item.passed,
        "of": item.of,
        "percent": f"{100 * item.share:.0f} %" if item.of else "",
        "causes": [(cut(c.code, 80), c.count, cut(c.example, 240)) for c in item.causes],
    }


def stops(rows: Sequence[Row], gates: Iterable[str]) -> list[Bar]:
    """Return how many each gate stops of those that were graded, and how many none."""
    stopped = Counter(row["stopped"] for row in rows if row["score"] is not None)
    labels = [f"gate {i} {name}" for i, name in enumerate(gates, 1)]
    bars = [(label.replace("_", " "), stopped[label], "") for label in labels]
    return [*bars, ("past all gates", stopped[""], "")]


def diagnoses(rows: Sequence[Row], codes: Counter[str]) -> list[Bar]:
    """Return the commonest diagnoses, each with the sentence of the first that shows it first."""
    causes = {row["codes"][0]: row["cause"] for row in reversed(rows) if row["codes"]}
    ranked = sorted(codes.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_DIAGNOSES]
    return [(cut(code, 80), number, cut(causes.get(code, ""), 240)) for code, number in ranked]


def distribution(scores: Iterable[float], most: float) -> list[Bar]:
    """Return how many scores lie in each tenth of the points; the last holds the full score."""
    counts = Counter(min(BINS - 1, int(BINS * score / most)) for score in scores)
    edges = [f"{most * i / BINS:g}" for i in range(BINS + 1)]
    labels = [f"{edges[i]} to {'' if i == BINS - 1 else '<'}{edges[i + 1]}" for i in range(BINS)]
    return [(label, counts[i], "") for i, label in enumerate(labels)]
