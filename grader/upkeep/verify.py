"""Grade the corpus and compare every verdict with the one that its case expects.

The cases are spread over processes, each with one warm referee (see pool.py).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from grader.base import settings
from grader.base.places import ROOT
from grader.base.progress import Shown
from grader.base.result import write_json
from grader.intake.staging import IntakeError
from grader.run.engine import Referee, Request
from grader.run.pool import Pool, serve
from grader.upkeep import corpus, patching, rebase
from grader.upkeep.corpus import KINDS, Case, Hostile, Right, Wrong
from grader.upkeep.pages import measured, show, table
from grader.upkeep.traps import Traps

DOCS = ROOT / "docs" / "corpus.md"
Tree = dict[str, Any]
# Statuses of a check that speak against the submission.
CAUGHT = ("failed", "error", "timeout", "out_of_memory", "crashed", "protocol")
# Codes that say what was seen without a cause; they never count as a cause that was named.
NO_CAUSE = ("values_differ", "raised")
BREACHED = "Breached"


class Naming(msgspec.Struct, frozen=True):
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


class Result(msgspec.Struct):
    """One case's end; it is as expected when there is no problem."""

    name: str
    kind: str
    title: str
    problems: list[str] = []
    namings: list[Naming] = []
    skipped: str = ""
    seconds: float = 0.0
    gates: dict[str, list[Any]] = {}  # status and evidence of each, for `calibrate`

    @property
    def verdict(self) -> str:
        """Return "as expected", "skipped" or "mismatch"."""
        return "mismatch" if self.problems else "skipped" if self.skipped else "as expected"

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain values."""
        return {"verdict": self.verdict, **msgspec.to_builtins(self)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Result:
        """Return the result that `to_json` wrote."""
        return msgspec.convert(values, cls)


# Judging a case --------------------------------------------------------------------------------


class Judge:
    """Grades cases with one referee that it keeps warm."""

    def __init__(self, lab: settings.Settings, isolation: str) -> None:
        """Start the referee."""
        self.lab = lab
        self.referee = Referee(lab, isolation)

    def close(self) -> None:
        """End the referee."""
        self.referee.close()

    def judge(self, case: Case) -> Result:
        """Grade `case` and compare."""
        began = time.monotonic()
        result = Result(case.name, case.kind, case.title)
        try:
            self._judge(case, result)
        except IntakeError as error:
            result.problems.append(f"it cannot be graded: {error}")
        except Exception as error:  # no submission may do that: it is a finding, not our end
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(frame.filename).name}, line {frame.lineno}"
            result.problems.append(f"the grader raised {type(error).__name__}: {error} ({where})")
        result.seconds = round(time.monotonic() - began, 2)
        return result

    def _judge(self, case: Case, result: Result) -> None:
        if isinstance(case, Hostile):
            self._hostile(case, result)
            return
        tree = self._grade(case)
        result.gates = {g["name"]: [g["status"], g["evidence"]] for g in tree["gates"]}
        result.problems += compare_run(tree)
        if isinstance(case, Right):
            result.problems += compare_right(case, tree)
        elif isinstance(case, Wrong):
            result.problems += compare_wrong(case, tree)
            result.namings.append(naming_of(case, tree))

    def _hostile(self, case: Hostile, result: Result) -> None:
        isolation = self.referee.isolation
        layers = {**isolation.layers, "contained": "active" if isolation.contained else "no"}
        missing = [name for name in case.needs if layers[name] != "active"]
        if missing:
            result.skipped = f"needs {', '.join(missing)}"
            return
        # While it starts, a launcher is fewer processes than once it is ready.
        self.referee.workshop.launcher.wait_ready()
        with Traps(self.referee) as traps:
            tree = self._grade(case, traps.words, case.question_s)
            result.problems += [*compare_run(tree), *compare_hostile(case, tree)]
            with tempfile.TemporaryDirectory(prefix="grader-case-") as out:
                request = Request(patching.SOLUTION, Path(out), tasks=frozenset({"1"}), gates=0)
                control = self.referee.grade(request)
            result.problems += traps.sprung()
        statuses = {check["status"] for _, check in checks(control)}
        if statuses != {"passed"}:
            result.problems.append("the next submission was not graded as it should be")

    def _grade(
        self, case: Case, words: dict[str, str] | None = None, question_s: float | None = None
    ) -> Tree:
        limits = self.lab.limits
        limits = replace(limits, question_s=question_s or limits.question_s)
        self.referee.adopt(replace(self.lab, limits=limits))
        scope = case.scope(self.lab.points)
        with tempfile.TemporaryDirectory(prefix="grader-case-") as folder:
            path, out = Path(folder, case.name), Path(folder, "out")
            patching.write(case.tree(words), path)
            found = self.referee.grade(Request(path, out, tasks=scope.tasks, gates=scope.gates))
            if json.loads((out / "results.json").read_bytes()) != found:
                raise RuntimeError(f"{case.name}: results.json is not what was found")
        return found


def judging(judge: Judge) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return what answers one task, a case file."""
    return lambda task: judge.judge(corpus.read(Path(task["case"]), judge.lab)).to_json()


def judge_all(
    cases: Iterable[Case], isolation: str, jobs: int, heard: Callable[[Result], None]
) -> list[Result]:
    """Judge the cases on `jobs` processes, those that train first."""
    ordered = sorted(cases, key=lambda case: (not case.trains, case.kind, case.name))
    files = {str(case.path): case for case in ordered}
    results = []
    with Pool(jobs, "grader.upkeep.verify", isolation) as pool:
        for task, answer in pool.map({"case": path} for path in files):
            results.append(result_of(files[task["case"]], answer))
            heard(results[-1])
    return sorted(results, key=lambda result: (result.kind, result.name))


def result_of(case: Case, answer: dict[str, Any] | None) -> Result:
    """Return the answer to a case as a result; where none came the grader itself has ended."""
    if answer is None:
        problems = ["the grader's process ended at this case"]
        return Result(case.name, case.kind, case.title, problems)
    return Result.from_json(answer)


# Comparing -------------------------------------------------------------------------------------


def checks(tree: Tree) -> Iterator[tuple[str, Tree]]:
    """Yield every check with its place: a stub id or the name of its gate."""
    for entry in tree["parts"] + tree["stretch"] + tree["gates"]:
        for check in entry["checks"]:
            yield check["stub"] or entry["name"], check


def caught(tree: Tree) -> dict[str, Tree]:
    """Return, by place, the first check that caught the submission."""
    found: dict[str, Tree] = {}
    for place, check in checks(tree):
        if check["status"] in CAUGHT:
            found.setdefault(place, check)
    return found


def standing(tree: Tree, place: str) -> Tree:
    """Return the entry of a task or gate, or the check that speaks for a stub."""
    for entry in tree["parts"] + tree["stretch"] + tree["gates"]:
        if place == entry.get("task", entry["name"]):
            return dict(entry)
    own = [check for at, check in checks(tree) if at == place]
    bad = [check for check in own if check["status"] != "passed"]
    return (bad or own or [{"status": "missing", "summary": "no check of it ran"}])[0]


def naming_of(case: Wrong, tree: Tree) -> Naming:
    """Return the diagnosis of the first check that must catch a wrong submission."""
    diagnosis = caught(tree).get(case.caught_by[0], {}).get("diagnosis")
    got = (diagnosis["part"], diagnosis["code"]) if diagnosis else ("none", "none")
    return Naming((case.part, case.code), got)


def compare_wrong(case: Wrong, tree: Tree) -> Iterator[str]:
    """Yield how a wrong submission was not caught, or not named, as it must be."""
    if tree["passed"]:
        yield "it was accepted"
    found = caught(tree)
    for place in case.caught_by:
        if place not in found:
            yield f"expected {place} to catch it, got {', '.join(sorted(found)) or 'none'}"
    first, naming = case.caught_by[0], naming_of(case, tree)
    if naming.got != naming.expected:
        summary = found.get(first, {}).get("summary", "it did not fail")
        expected, got = "/".join(naming.expected), "/".join(naming.got)
        yield f"{first}: expected the diagnosis {expected}, got {got}: {summary}"


def compare_right(case: Right, tree: Tree) -> Iterator[str]:
    """Yield what a right submission lacks to full marks, but for the stubs it loses."""
    for place, check in checks(tree):
        lost = place in case.loses and check["status"] == "failed"
        if check["status"] != "passed" and not lost:
            yield f"{place}: expected passed, got {check['status']}: {check['summary']}"
    for place in case.loses:
        code = (caught(tree).get(place, {}).get("diagnosis") or {}).get("code", "no failure")
        if code != "constructor_changed":
            yield f"{place}: expected constructor_changed, got {code}"
    if case.trains and not tree["gates_passed" if case.loses else "passed"]:
        yield "it was not accepted"
    for flag in tree["integrity"]["flags"]:
        yield f"flagged {flag['code']}: {flag['message']}"


def compare_hostile(case: Hostile, tree: Tree) -> Iterator[str]:
    """Yield what a hostile submission earned or reached that it must not, and what went unseen."""
    score = tree["score"] or 0
    if not case.min_score <= score <= case.max_score:
        yield f"expected {case.min_score:g} to {case.max_score:g} points, got {score:g}"
    for place, status in case.statuses.items():
        found = standing(tree, place)
        if found["status"] != status:
            yield f"{place}: expected {status}, got {found['status']}: {found['summary']}"
    codes = [flag["code"] for flag in tree["integrity"]["flags"]]
    for code in case.flags:
        if code not in codes:
            yield f"expected the flag {code}, got {', '.join(codes) or 'none'}"
    notes = "\n".join(tree["submission"]["notes"])
    for words in case.notes:
        if words not in notes:
            yield f"expected a note with {words!r}, got {notes or 'none'}"
    for place, check in checks(tree):
        if BREACHED in str(check):
            yield f"{place}: it reached what it must not: {check['summary']}"
    # A line break is the one control character that a text may hold.
    if any(not (c.isprintable() or c == "\n") for c in texts(tree)):
        yield "a control character reached the result"


def texts(value: Any) -> str:
    """Return every text in a tree, joined."""
    if isinstance(value, dict):
        return "".join(texts(v) for item in value.items() for v in item)
    if isinstance(value, list):
        return "".join(map(texts, value))
    return value if isinstance(value, str) else ""


def compare_run(tree: Tree) -> Iterator[str]:
    """Yield every fault of the grader itself."""
    if tree["grader_error"]:
        yield f"the grader failed: {tree['grader_error']}"
    if not tree["complete"]:
        yield "the grading did not finish"


# Adding up -------------------------------------------------------------------------------------

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


def rows(results: Iterable[Result]) -> list[tuple[str, ...]]:
    """Return the table of a run under HEADINGS, a row for each kind."""
    found = list(results)
    return [
        _row(kind, [result for result in found if result.kind == kind])
        for kind in KINDS
        if any(result.kind == kind for result in found)
    ]


def _row(kind: str, results: list[Result]) -> tuple[str, ...]:
    counts = tally(results)[kind]
    named = accuracy(results)
    total = named.pop("diagnoses")
    shares = [f"{100 * count / total:.1f}%" if total else "-" for count in named.values()]
    return (kind, str(len(results)), *map(str, counts.values()), str(total or "-"), *shares)


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


def main(options: argparse.Namespace) -> int:
    """Run `python -m grader verify` and return its exit code."""
    console = Console(highlight=False)
    if options.rebase:
        return rebase.main(settings.load(), options.rebase, console)
    kinds = [options.kind] if options.kind else list(corpus.KINDS)
    cases = corpus.load(settings.load(), kinds=kinds)
    unknown = sorted(set(options.names) - {case.name for case in cases})
    if unknown:
        raise corpus.CorpusError(f"expected names of cases, got {', '.join(unknown)}")
    if options.names:
        cases = [case for case in cases if case.name in options.names]
    share, shares = options.shard
    cases = cases[share - 1 :: shares]
    with Shown("judging", len(cases), console) as progress:

        def heard(result: Result) -> None:
            progress.step()
            name = f"{result.kind}/{result.name}"
            if result.problems or not console.is_terminal:
                progress.say(f"{result.verdict:>11}  {name}  {result.seconds:.1f} s")
            for problem in result.problems:
                progress.say(f"{'':>11}  {problem}", "red")

        began = time.monotonic()
        results = judge_all(cases, options.isolation, options.jobs, heard)
    seconds = time.monotonic() - began
    counts = {"cases": tally(results), "accuracy": accuracy(results)}
    listed = [result.to_json() for result in results]
    write_json(
        options.out / "verify.json", counts | {"seconds": round(seconds, 1), "results": listed}
    )
    for result in results:
        name = f"{result.kind}/{result.name}"
        if result.skipped:
            console.print(Text(f"skipped {name}: {result.skipped}"))
        for problem in result.problems:
            console.print(Text(f"mismatch {name}: {problem}", style="red"), soft_wrap=True)
    show(HEADINGS, rows(results), console)
    console.print(f"{len(results)} cases in {seconds:.0f} s on {options.jobs} processes")
    console.print(Text(f"full result: {options.out / 'verify.json'}"), style="dim")
    if options.write_docs:
        DOCS.write_text(markdown(results, seconds, options.jobs), encoding="utf-8")
    return 1 if any(result.problems for result in results) else 0


if __name__ == "__main__":
    with contextlib.closing(Judge(settings.load(), sys.argv[1])) as judge:
        serve(judging(judge))
