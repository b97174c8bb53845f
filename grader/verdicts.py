"""Compare what a case got with what it must get, and add up the comparisons."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from grader.corpus import KINDS, Hostile, Wrong
from grader.pages import measured, table

Tree = dict[str, Any]
# Statuses of a check that speak against the submission.
CAUGHT = ("failed", "error", "timeout", "out_of_memory", "crashed", "protocol")
# Codes that say what was seen without a cause; they never count as a cause that was named.
NO_CAUSE = ("values_differ", "raised")
BREACHED = "Breached"


@dataclass(frozen=True)
class Naming:
    """What the diagnosis of a wrong case was, beside what it must be: (part, code)."""

    expected: tuple[str, str]
    got: tuple[str, str]

    @property
    def part(self) -> bool:
        """Tell whether the right part was named."""
        return self.expected[0] == self.got[0]

    @property
    def cause(self) -> bool:
        """Tell whether the right cause was named."""
        return self.expected == self.got and self.got[1] not in NO_CAUSE


@dataclass
class Result:
    """One case's end; it is as expected when there is no problem."""

    name: str
    kind: str
    title: str
    problems: list[str] = field(default_factory=list)
    namings: list[Naming] = field(default_factory=list)
    skipped: str = ""
    seconds: float = 0.0
    gates: dict[str, list[Any]] = field(default_factory=dict)

    def keep(self, tree: Tree) -> None:
        """Keep what the gates measured, for `calibrate`."""
        self.gates = {gate["name"]: [gate["status"], gate["evidence"]] for gate in tree["gates"]}

    @property
    def verdict(self) -> str:
        """Return "as expected", "skipped" or "mismatch"."""
        return "mismatch" if self.problems else "skipped" if self.skipped else "as expected"

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain values."""
        return {"verdict": self.verdict} | asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Result:
        """Return the result that `to_json` wrote."""
        namings = [Naming(tuple(n["expected"]), tuple(n["got"])) for n in values["namings"]]
        return cls(**{k: v for k, v in values.items() if k != "verdict"} | {"namings": namings})


def entries(tree: Tree) -> list[dict[str, Any]]:
    """Return every entry that holds checks, in order."""
    return [*tree["parts"], *tree["stretch"], *tree["gates"]]


def checks(tree: Tree) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every check with its place: a stub id or the name of its gate."""
    for entry in entries(tree):
        for check in entry["checks"]:
            yield check["stub"] or entry["name"], check


def caught(tree: Tree, place: str) -> dict[str, Any] | None:
    """Return the first check of `place` that caught the submission."""
    return next((c for at, c in checks(tree) if at == place and c["status"] in CAUGHT), None)


def standing(tree: Tree, place: str) -> dict[str, Any]:
    """Return the entry of a task or gate, or the check that speaks for a stub."""
    for entry in entries(tree):
        if place == entry.get("task", entry["name"]):
            return dict(entry)
    own = [check for at, check in checks(tree) if at == place]
    bad = [check for check in own if check["status"] != "passed"]
    return (bad or own or [{"status": "missing", "summary": "no check of it ran"}])[0]


def compare_wrong(case: Wrong, tree: Tree, result: Result) -> None:
    """Compare a wrong submission with what must catch it, and how."""
    compare_run(tree, result)
    if tree["passed"]:
        result.problems.append("it was accepted")
    found = sorted({at for at, check in checks(tree) if check["status"] in CAUGHT})
    for place in case.caught_by:
        if place not in found:
            others = ", ".join(found) or "none"
            result.problems.append(f"expected {place} to catch it, got {others}")
    first = caught(tree, case.caught_by[0]) or {}
    diagnosis = first.get("diagnosis") or {"part": "none", "code": "none"}
    expected = (case.part, case.code)
    naming = Naming(expected, (diagnosis["part"], diagnosis["code"]))
    result.namings.append(naming)
    if naming.got != expected:
        words = [f"{part}/{code}" for part, code in (expected, naming.got)]
        result.problems.append(
            f"{case.caught_by[0]}: expected the diagnosis {words[0]}, got {words[1]}: "
            f"{first.get('summary', 'it did not fail')}"
        )


def compare_right(loses: Collection[str], tree: Tree, trained: bool, result: Result) -> None:
    """Compare a right submission with full marks, but for the stubs it loses."""
    compare_run(tree, result)
    for place, check in checks(tree):
        lost = place in loses and check["status"] == "failed"
        if check["status"] != "passed" and not lost:
            result.problems.append(
                f"{place}: expected passed, got {check['status']}: {check['summary']}"
            )
    for place in loses:
        found = caught(tree, place)
        code = ((found or {}).get("diagnosis") or {}).get("code", "no failure")
        if code != "constructor_changed":
            result.problems.append(f"{place}: expected constructor_changed, got {code}")
    passed = tree["gates_passed"] if loses else tree["passed"]
    if trained and not passed:
        result.problems.append("it was not accepted")
    for flag in tree["integrity"]["flags"]:
        result.problems.append(f"flagged {flag['code']}: {flag['message']}")


def compare_hostile(case: Hostile, tree: Tree, result: Result) -> None:
    """Compare what a hostile submission earned, and what was seen of it."""
    compare_run(tree, result)
    score = tree["score"] or 0
    if not case.min_score <= score <= case.max_score:
        result.problems.append(
            f"expected {case.min_score:g} to {case.max_score:g} points, got {score:g}"
        )
    for place, status in (case.statuses or {}).items():
        found = standing(tree, place)
        if found["status"] != status:
            result.problems.append(
                f"{place}: expected {status}, got {found['status']}: {found['summary']}"
            )
    codes = [flag["code"] for flag in tree["integrity"]["flags"]]
    for code in case.flags:
        if code not in codes:
            result.problems.append(f"expected the flag {code}, got {', '.join(codes) or 'none'}")
    notes = "\n".join(tree["submission"]["notes"])
    for words in case.notes:
        if words not in notes:
            result.problems.append(f"expected a note with {words!r}, got {notes or 'none'}")
    for place, check in checks(tree):
        if BREACHED in str(check):
            result.problems.append(f"{place}: it reached what it must not: {check['summary']}")
    # A line break is the one control character that a text may hold.
    if any(not (c.isprintable() or c == "\n") for c in texts(tree)):
        result.problems.append("a control character reached the result")


def texts(value: Any) -> str:
    """Return every text in a tree, joined."""
    if isinstance(value, dict):
        return "".join(texts(v) for item in value.items() for v in item)
    if isinstance(value, list):
        return "".join(map(texts, value))
    return value if isinstance(value, str) else ""


def compare_run(tree: Tree, result: Result) -> None:
    """Note every fault of the grader itself."""
    if tree["grader_error"]:
        result.problems.append(f"the grader failed: {tree['grader_error']}")
    if not tree["complete"]:
        result.problems.append("the grading did not finish")


COUNTS = ("as expected", "mismatch", "skipped")


def tally(results: Iterable[Result]) -> dict[str, dict[str, int]]:
    """Count the verdicts of each kind."""
    counts: dict[str, dict[str, int]] = {}
    for result in results:
        own = counts.setdefault(result.kind, dict.fromkeys(COUNTS, 0))
        own[result.verdict] += 1
    return counts


def accuracy(results: Iterable[Result]) -> dict[str, int]:
    """Count how often the right part and the right cause of a wrong case were named."""
    namings = [naming for result in results for naming in result.namings]
    return {
        "diagnoses": len(namings),
        "part named": sum(naming.part for naming in namings),
        "cause named": sum(naming.cause for naming in namings),
    }


HEADINGS = ("kind", "cases", *COUNTS, "diagnoses", "part named", "cause named")


def rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """Return the table of a run under HEADINGS, a row for each kind."""
    kinds = [(kind, [result for result in results if result.kind == kind]) for kind in KINDS]
    return [_row(kind, own) for kind, own in kinds if own]


def _row(name: str, results: Sequence[Result]) -> tuple[str, ...]:
    verdicts = [result.verdict for result in results]
    counts = accuracy(results)
    total = counts["diagnoses"]
    shares = [
        f"{100 * counts[what] / total:.1f}%" if total else "-"
        for what in ("part named", "cause named")
    ]
    return (name, str(len(results)), *(str(verdicts.count(word)) for word in COUNTS),
            str(total or "-"), *shares)  # fmt: skip


def markdown(results: Sequence[Result], seconds: float, jobs: int) -> str:
    """Return the page that docs/ keeps: the table, how long it took, and what was left out."""
    lines = [
        "# How the grader is graded",
        "",
        "`make verify` grades submissions whose verdict is known (tests/corpus) and compares. The",
        "diagnoses are those of the wrong ones: whether the right file was named, and whether the",
        "right cause was; a difference without a cause counts as none.",
        "",
        f"{measured()}: {len(results)} cases in {seconds / 60:.0f} minutes on {jobs} processes.",
        "",
        table(HEADINGS, rows(results)).rstrip(),
    ]
    for title, found in (
        ("Not as expected", [(r, "; ".join(r.problems)) for r in results if r.problems]),
        ("Not run here", [(r, r.skipped) for r in results if r.verdict == "skipped"]),
    ):
        if found:
            lines += ["", f"{title}:", ""]
            lines += [f"- {result.kind}/{result.name}: {why}" for result, why in found]
    return "\n".join(lines) + "\n"
