"""How far each threshold is from the nearest right and the nearest wrong submission.

`python -m grader calibrate` grades the solution and the right cases of the corpus over many seeds,
and every wrong case once, and tables what the gates measured.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from grader import corpus, patching, report, settings
from grader.engine import Referee
from grader.pool import Pool, serve
from grader.report import Request
from grader.result import write_json
from grader.settings import Settings

Json = dict[str, Any]
DOCS = patching.ROOT / "docs" / "calibration.md"
GATES = ("future_independence", "padding_invariance", "finite_gradients", "greedy_accuracy")


@dataclass(frozen=True)
class Threshold:
    """One threshold: which gate, which measured value, and on which side right ones stand."""

    name: str
    gate: str
    value: str
    right_is_below: bool
    bound: Callable[[Settings], float]


THRESHOLDS = [
    Threshold("gate 1: forbidden influence", GATES[0], "largest_forbidden", True,
              lambda lab: lab.invariance.tolerance),
    Threshold("gate 1: allowed influence (control)", GATES[0], "smallest_allowed", False,
              lambda lab: 1e-4),
    Threshold("gate 2: influence of padding", GATES[1], "largest_difference", True,
              lambda lab: lab.invariance.tolerance),
    Threshold("gate 2: response to a mask (control)", GATES[1], "smallest_response", False,
              lambda lab: 1e-4),
    Threshold("gate 3: error of a gradient", GATES[2], "largest_error", True,
              lambda lab: lab.gradients.relative_tolerance),
    Threshold("gate 4: exact match", GATES[3], "exact_match", False,
              lambda lab: lab.accuracy.exact_match),
    Threshold("gate 4: untrained (control)", GATES[3], "untrained_exact_match", True,
              lambda lab: lab.accuracy.control_exact_match),
    Threshold("gate 4: scrambled (control)", GATES[3], "scrambled_exact_match", True,
              lambda lab: lab.accuracy.control_exact_match),
]  # fmt: skip


@dataclass
class Seen:
    """What was measured against one threshold."""

    right: list[float] = field(default_factory=list)
    wrong: list[float] = field(default_factory=list)


def judging(referee: Referee) -> Callable[[Json], Json]:
    """Return what grades one task: a case (or the solution) under one seed."""

    def judge(task: Json) -> Json:
        with tempfile.TemporaryDirectory(prefix="grader-calibrate-") as folder:
            path = patching.SOLUTION
            if task["case"]:
                case = corpus.read(Path(task["case"]), referee.settings)
                path = Path(folder, case.name)
                tree = patching.patched(case.base, case.edit, case.file, case.delete)
                patching.write(tree, path)
            request = Request(path, Path(folder, "out"), seed=task["seed"], gates=task["gates"])
            found = referee.grade(request)
        gates = {g["name"]: [g["status"], g["evidence"]] for g in found["gates"]}
        return task | {"score": found["score"], "passed": found["passed"], "gates": gates}

    return judge


def tasks(lab: Settings, seeds: int, variants: int) -> Iterator[Json]:
    """Yield the solution under every seed, each right case under some, each wrong one once."""
    for seed in range(seeds):
        yield {"kind": "right", "case": "", "seed": seed, "gates": 4}
    for case in corpus.load(lab, kinds=["right"]):
        for seed in range(variants):
            yield {"kind": "right", "case": str(case.path), "seed": seed, "gates": 4}
    for case in corpus.load(lab, kinds=["wrong"]):
        gates = 4 if case.trains else 3
        yield {"kind": "wrong", "case": str(case.path), "seed": 0, "gates": gates}


def values(evidence: Any, name: str) -> Iterator[float]:
    """Yield every number called `name` in an evidence tree."""
    if isinstance(evidence, dict):
        for key, value in evidence.items():
            if key == name and isinstance(value, (int, float)) and math.isfinite(value):
                yield float(value)
            else:
                yield from values(value, name)


def collect(results: list[Json], lab: Settings) -> dict[str, Seen]:
    """Sort what was measured by threshold; a failed gate's witness counts with its ratio."""
    table = {t.name: Seen() for t in THRESHOLDS}
    for result in results:
        for threshold in THRESHOLDS:
            status, evidence = result["gates"][threshold.gate]
            seen = table[threshold.name]
            if result["kind"] == "right":
                seen.right += values(evidence, threshold.value)
            elif status == "failed":
                seen.wrong += witnessed(evidence, threshold, lab)
    return table


def witnessed(evidence: Any, threshold: Threshold, lab: Settings) -> list[float]:
    """Return the values that failed this threshold."""
    bound = threshold.bound(lab)
    found = list(values(evidence, threshold.value))
    if threshold.right_is_below and threshold.gate in GATES[:2]:
        found = [ratio * bound for ratio in values(evidence, "ratio")]
    return [v for v in found if (v > bound) == threshold.right_is_below and v != bound]


def upper_rate(failures: int, trials: int) -> float:
    """Return the 95% upper bound of a rate (Clopper and Pearson 1934), by bisection."""
    low, high = failures / max(trials, 1), 1.0
    for _ in range(60):
        middle = (low + high) / 2
        tail = sum(
            math.comb(trials, k) * middle**k * (1 - middle) ** (trials - k)
            for k in range(failures + 1)
        )
        low, high = (middle, high) if tail > 0.05 else (low, middle)
    return high


def lines(table: dict[str, Seen], lab: Settings) -> list[list[str]]:
    """Return the rows of the margin table."""
    rows = []
    for threshold in THRESHOLDS:
        seen, bound = table[threshold.name], threshold.bound(lab)
        nearest = max if threshold.right_is_below else min
        farthest = min if threshold.right_is_below else max
        right = f"{nearest(seen.right):.3g}" if seen.right else "-"
        wrong = f"{farthest(seen.wrong):.3g}" if seen.wrong else "-"
        rows.append([threshold.name, f"{bound:.3g}", right, str(len(seen.right)), wrong,
                     str(len(seen.wrong))])  # fmt: skip
    return rows


HEADINGS = ["threshold", "bound", "nearest right", "runs", "nearest wrong", "cases"]


def markdown(rows: list[list[str]], rejected: int, trials: int) -> str:
    """Return the page that docs/ keeps."""
    made = report.environment()
    versions = ", ".join(f"{k} {made[k]}" for k in ("python", "torch", "numpy"))
    head = f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}\n"
    body = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return (
        "# Margins of the gates\n\n"
        f"Measured {date.today().isoformat()} with {versions} by `make calibrate`: the solution "
        "and every right case of the corpus over many seeds, every wrong case once.\n\n"
        f"{head}{body}\n"
        f"Right submissions rejected: {rejected} of {trials} runs "
        f"(95% upper bound of the rate: {100 * upper_rate(rejected, trials):.2g}%).\n\n"
        "Gate 4 trains once more, from another seed, where a training ends between `near_miss` "
        "and `exact_match` of lab.toml; the better attempt counts.\n"
    )


def main(options: argparse.Namespace) -> int:
    """Run `python -m grader calibrate` and return its exit code."""
    lab, console = settings.load(), Console(highlight=False)
    todo = list(tasks(lab, options.seeds, options.variants))
    with Pool("grader.calibrate", options.jobs) as pool:
        results = list(track(pool.map(todo), "grading", total=len(todo), console=console,
                             transient=True, disable=not console.is_terminal))  # fmt: skip
    write_json(options.out / "calibrate.json", {"results": results})
    rows = lines(collect(results, lab), lab)
    right = [r for r in results if r["kind"] == "right"]
    rejected = [r for r in right if not r["passed"]]
    table = Table(*HEADINGS, box=None)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print(f"right submissions rejected: {len(rejected)} of {len(right)}")
    for result in rejected:
        console.print(f"  {result['case'] or 'solution'} seed {result['seed']}", soft_wrap=True)
    if options.write_docs:
        DOCS.parent.mkdir(exist_ok=True)
        DOCS.write_text(markdown(rows, len(rejected), len(right)), encoding="utf-8")
    return 1 if rejected else 0


if __name__ == "__main__":
    with Referee(settings.load()) as warm:
        serve(judging(warm))
