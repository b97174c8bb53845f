"""`index.html`: a class on one page, to search and to sort; one file, nothing fetched.

Its one script is allowed by its digest, so that nothing a submission brings can ever run.
"""

from __future__ import annotations

import base64
import hashlib
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple
from urllib.parse import quote

from grader.batch.rows import ABSENT, INCOMPLETE, STATUSES, Rows, action
from grader.report_html import TEMPLATES, WORDS, template
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


@dataclass
class Tally:
    """What is counted of a class, row by row.

    Attributes:
        statuses: how many have each.
        stops: how many of those graded each gate stops; "" = none does.
        codes: how many submissions show each diagnosis.
        causes: a sentence for a diagnosis, of the first that shows it first.
        scores: how many have each score.
        flagged: how many are to be looked at.
        most: the full score.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    stops: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    causes: dict[str, str] = field(default_factory=dict)
    scores: Counter[float] = field(default_factory=Counter)
    flagged: int = 0
    most: float = 100

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Tally:
        """Count the rows."""
        tally = cls()
        for row in rows:
            tally._add(row)
        return tally

    def _add(self, row: Mapping[str, Any]) -> None:
        self.most = row["max_score"]
        self.statuses[row["status"]] += 1
        self.flagged += bool(row["flags"])
        self.codes.update(row["codes"])
        if row["codes"]:
            self.causes.setdefault(row["codes"][0], cut(row["cause"], 240))
        if row["score"] is not None:
            self.stops[row["stopped"]] += 1
            self.scores[row["score"]] += 1


def render(rows: Rows, collected: Sequence[str], lab: Settings) -> Iterator[str]:
    """Yield the page, piece by piece.

    Args:
        rows: of the class.
        collected: lines of the collection report.
        lab: names the lab and its gates.
    """
    tally = Tally.of(rows)
    counts = {status: tally.statuses[status] for status in STATUSES if tally.statuses[status]}
    script, style = source("class.js"), source("class.css")
    return template("class.html.j2").generate(
        name=lab.name,
        total=len(rows),
        script=script,
        style=style,
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        counts=[(s, STATUS_WORDS[s], number, STATUSES[s]) for s, number in counts.items()],
        flagged=tally.flagged,
        incomplete=tally.codes[ABSENT],
        ask=INCOMPLETE,
        stops=stops(tally, lab.points.gates),
        diagnoses=diagnoses(tally),
        distribution=distribution(tally),
        middle=middle(tally),
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


def stops(tally: Tally, gates: Iterable[str]) -> list[Bar]:
    """Return how many each gate stops, and how many none."""
    labels = [f"gate {i} {name}" for i, name in enumerate(gates, 1)]
    pairs = [(label.replace("_", " "), tally.stops[label]) for label in labels]
    return bars([*pairs, ("past all gates", tally.stops[""])])


def diagnoses(tally: Tally) -> list[Bar]:
    """Return the commonest diagnoses, each counted once a submission."""
    ranked = sorted(tally.codes.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_DIAGNOSES]
    found = bars([(cut(code, 80), number) for code, number in ranked])
    return [
        bar._replace(note=tally.causes.get(code, ""))
        for bar, (code, _) in zip(found, ranked, strict=True)
    ]


def distribution(tally: Tally) -> list[Bar]:
    """Return how many scores lie in each tenth of the points; the last holds the full score."""
    counts: Counter[int] = Counter()
    for score, number in tally.scores.items():
        counts[min(BINS - 1, int(BINS * score / tally.most))] += number
    edges = [f"{tally.most * i / BINS:g}" for i in range(BINS + 1)]
    labels = [f"{edges[i]} to {'' if i == BINS - 1 else '<'}{edges[i + 1]}" for i in range(BINS)]
    return bars([(label, counts[i]) for i, label in enumerate(labels)])


def middle(tally: Tally) -> dict[str, float] | None:
    """Return mean and median of the scores."""
    number = tally.scores.total()
    if not number:
        return None
    scores = sorted(tally.scores.items())
    mean = sum(score * times for score, times in scores) / number
    # The one in the middle, or the two: those that half of all lie below or at.
    passed = list(accumulate(times for _, times in scores))
    halves = [scores[bisect(passed, place)][0] for place in ((number - 1) // 2, number // 2)]
    return {"mean": round(mean, 1), "median": round(sum(halves) / 2, 1)}


def bars(pairs: Sequence[tuple[str, int]]) -> list[Bar]:
    """Return bars that the largest number fills."""
    largest = max((number for _, number in pairs), default=0) or 1
    return [Bar(label, number, round(100 * number / largest)) for label, number in pairs]


@cache
def source(name: str) -> str:
    """Return a piece of the page that is ours alone."""
    return (TEMPLATES / name).read_text(encoding="utf-8").strip()
