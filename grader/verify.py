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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from grader import corpus, patching, settings
from grader.containment import Traps
from grader.corpus import Case, Hostile, Right, Scope, Wrong
from grader.engine import Referee, Request
from grader.intake import IntakeError
from grader.pool import Pool, serve
from grader.progress import Shown
from grader.result import write_json
from grader.verdicts import (
    HEADINGS,
    Result,
    accuracy,
    checks,
    compare_hostile,
    compare_right,
    compare_wrong,
    markdown,
    rows,
    tally,
)

DOCS = patching.ROOT / "docs" / "corpus.md"


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
        if isinstance(case, Right):
            tree = self._grade(case, case.scope(self.lab.points))
            compare_right(case.loses, tree, case.trains, result)
            result.keep(tree)
        elif isinstance(case, Hostile):
            self._hostile(case, result)
        elif isinstance(case, Wrong):
            tree = self._grade(case, case.scope(self.lab.points))
            compare_wrong(case, tree, result)
            result.keep(tree)

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
            scope = case.scope(self.lab.points)
            tree = self._grade(case, scope, words=traps.words, question_s=case.question_s)
            compare_hostile(case, tree, result)
            with tempfile.TemporaryDirectory(prefix="grader-case-") as out:
                request = Request(patching.SOLUTION, Path(out), tasks=frozenset({"1"}), gates=0)
                control = self.referee.grade(request)
            result.problems += traps.sprung()
        statuses = {check["status"] for _, check in checks(control)}
        if statuses != {"passed"}:
            result.problems.append("the next submission was not graded as it should be")

    def _grade(
        self,
        case: Case,
        scope: Scope,
        *,
        words: Mapping[str, str] | None = None,
        question_s: float | None = None,
    ) -> dict[str, Any]:
        limits = self.lab.limits
        if question_s is not None:
            limits = replace(limits, question_s=question_s)
        self.referee.adopt(replace(self.lab, limits=limits))
        with tempfile.TemporaryDirectory(prefix="grader-case-") as folder:
            path = Path(folder, case.name)
            tree = patching.patched(case.base, case.edit, case.file, case.delete, words)
            patching.write(tree, path)
            out = Path(folder, "out")
            request = Request(path, out, tasks=scope.tasks, gates=scope.gates)
            found = self.referee.grade(request)
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
    with Pool(jobs, "grader.verify", isolation) as pool:
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


def main(options: argparse.Namespace) -> int:
    """Run `python -m grader verify` and return its exit code."""
    kinds = [options.kind] if options.kind else list(corpus.KINDS)
    cases = corpus.load(settings.load(), kinds=kinds)
    unknown = sorted(set(options.names) - {case.name for case in cases})
    if unknown:
        raise corpus.CorpusError(f"expected names of cases, got {', '.join(unknown)}")
    if options.names:
        cases = [case for case in cases if case.name in options.names]
    share, shares = options.shard
    cases = cases[share - 1 :: shares]
    console = Console(highlight=False)
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
    write_json(
        options.out / "verify.json",
        {"cases": tally(results), "accuracy": accuracy(results), "seconds": round(seconds, 1),
         "results": [result.to_json() for result in results]},
    )  # fmt: skip
    show(results, console)
    console.print(f"{len(results)} cases in {seconds:.0f} s on {options.jobs} processes")
    console.print(Text(f"full result: {options.out / 'verify.json'}"), style="dim")
    if options.write_docs:
        DOCS.parent.mkdir(exist_ok=True)
        page = markdown(results, seconds, options.jobs)
        DOCS.write_text(page, encoding="utf-8")
    return 1 if any(result.problems for result in results) else 0


def show(results: list[Result], console: Console) -> None:
    """Print the table, what was skipped, and every mismatch."""
    for result in results:
        if result.skipped:
            console.print(Text(f"skipped {result.kind}/{result.name}: {result.skipped}"))
        for problem in result.problems:
            line = f"mismatch {result.kind}/{result.name}: {problem}"
            console.print(Text(line, style="red"), soft_wrap=True)
    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in HEADINGS:
        table.add_column(heading, no_wrap=True)
    for row in rows(results):
        table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    with contextlib.closing(Judge(settings.load(), sys.argv[1])) as judge:
        serve(judging(judge))
