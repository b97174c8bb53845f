"""How far each threshold is from the nearest right and the nearest wrong submission.

`python -m grader calibrate` grades the solution over many seeds, in the lab's own configuration
above all and in every other that can solve its task; the right cases of the corpus over some seeds;
and once every wrong case that a gate has to catch. It tables what the gates measured. Every result
is kept as it comes; the same command goes on where it stopped. What `verify` has judged need not be
graded again.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from grader import corpus, margins, patching, settings
from grader.batch import keys
from grader.engine import Referee
from grader.kept import kept, task_key, verified
from grader.pool import Pool, answered, serve
from grader.progress import shown
from grader.report import Request
from grader.settings import Settings, enlarged

Json = dict[str, Any]
# What takes ten times as long gets a tenth of the seeds.
LARGE_SHARE = 10
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


@dataclass(frozen=True)
class Configuration:
    """A size, a task and a way to tell positions under which the solution is graded."""

    name: str
    task: Literal["reverse", "copy"] = "reverse"
    num_layers: int = 1
    positions: str = "learned"
    large: bool = False

    def settings(self, lab: Settings) -> Settings:
        """Return the settings that say so."""
        if self.large:
            return enlarged(lab, self.task)
        model = replace(lab.model, num_layers=self.num_layers)
        return replace(lab, model=model, data=replace(lab.data, task=self.task))


LEARNED = "learned"
CONFIGURATIONS = {
    made.name: made
    for made in [
        *(
            Configuration(f"{task}, {positions}, {layers} layer(s)", task, layers, positions)
            for task in ("reverse", "copy")
            for positions in (LEARNED, "sinusoidal")
            for layers in (1, 2)
        ),
        Configuration("larger size, reverse", large=True),
        Configuration("larger size, copy", task="copy", large=True),
    ]
}


def judging(referee: Referee) -> Callable[[Json], Json]:
    """Return what grades one task: a case, or the solution in a configuration, under one seed."""
    lab, originals = referee.settings, referee.originals

    def judge(task: Json) -> Json:
        made = CONFIGURATIONS[task["configuration"]] if task["configuration"] else None
        referee.adopt(made.settings(lab) if made else lab)
        parts = None if task["kind"] == "right" and task["case"] else frozenset[str]()
        with tempfile.TemporaryDirectory(prefix="grader-calibrate-") as folder:
            path, referee.originals = patching.SOLUTION, originals
            if task["case"]:
                case = corpus.read(Path(task["case"]), lab)
                path = Path(folder, case.name)
                tree = patching.patched(case.base, case.edit, case.file, case.delete)
                patching.write(tree, path)
            elif made and made.positions != LEARNED:
                path = Path(folder, "solution")
                shutil.copytree(patching.SOLUTION, path)
                tell_positions(path / "transformer" / "config.py", made.positions)
                referee.originals = path  # config.py is given
            request = Request(
                path, Path(folder, "out"), seed=task["seed"], gates=task["last_gate"], tasks=parts
            )
            found = referee.grade(request)
        gates = {g["name"]: [g["status"], g["evidence"]] for g in found["gates"]}
        asked = found["gates"][: task["last_gate"]] + (found["parts"] if parts is None else [])
        passed = all(entry["status"] == "passed" for entry in asked)
        return task | {"score": found["score"], "passed": passed, "gates": gates}

    return judge


def tell_positions(config: Path, positions: str) -> None:
    """Make a tree's models tell positions in another way unless they are told otherwise."""
    text = config.read_text(encoding="utf-8")
    default = f'positions: str = "{LEARNED}"'
    assert default in text
    config.write_text(text.replace(default, f'positions: str = "{positions}"'), encoding="utf-8")


def tasks(lab: Settings, seeds: int, variants: int) -> Iterator[Json]:
    """Yield each configuration under its seeds, each right case under some, wrong ones once.

    A case whose parts alone have to catch it is shown to gates 1 to 3: those that would have
    stopped it say how near a wrong submission comes.
    """
    for seed in range(seeds):
        for name, made in CONFIGURATIONS.items():
            if not made.large or seed < -(-seeds // LARGE_SHARE):
                yield {"kind": "right", "case": "", "configuration": name, "seed": seed,
                       "last_gate": 4}  # fmt: skip
    for case in corpus.load(lab, kinds=["right", "wrong"]):
        gates = max(3, case.scope(lab.points).gates)
        for seed in range(variants if case.kind == "right" else 1):
            yield {"kind": case.kind, "case": str(case.path), "configuration": "", "seed": seed,
                   "last_gate": gates}  # fmt: skip


def values(evidence: Any, name: str) -> Iterator[float]:
    """Yield every number called `name` in an evidence tree."""
    if isinstance(evidence, dict):
        for key, value in evidence.items():
            if key == name and isinstance(value, (int, float)) and math.isfinite(value):
                yield float(value)
            else:
                yield from values(value, name)


def collect(results: list[Json], lab: Settings) -> dict[str, Seen]:
    """Sort what was measured by threshold; a failed gate's witness counts by its ratio."""
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
    if threshold.gate in GATES[:3]:
        if threshold.right_is_below:
            found = [ratio * bound for ratio in values(evidence, "ratio")]
        elif "moved" in evidence and "expected_at_least" in evidence:
            found = [evidence["moved"] / evidence["expected_at_least"] * bound]
    return [v for v in found if (v > bound) == threshold.right_is_below and v != bound]


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


def measured(options: argparse.Namespace, lab: Settings, console: Console) -> list[Json]:
    """Grade what has not been graded yet, and return all results in order."""
    todo = list(tasks(lab, options.seeds, options.variants))
    path = options.out / "results.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    source = keys.inputs(lab, contained=True).grader
    known = kept(path, source)
    done = verified(options.verified)
    for task in todo:
        found = done.get((task["kind"], Path(task["case"]).parent.name))
        if found is not None and task["seed"] == 0:
            known.setdefault(task_key(task), task | found)
    missing = [task for task in todo if task_key(task) not in known]
    with Pool(options.jobs, "grader.calibrate") as pool, path.open("a", encoding="utf-8") as file:
        answers = answered(pool.map(missing))
        for result in shown(answers, "graded", len(missing), console):
            file.write(json.dumps(result | {"source": source}) + "\n")
            file.flush()
            known[task_key(result)] = result
    return [known[task_key(task)] for task in todo]


def main(options: argparse.Namespace) -> int:
    """Run `python -m grader calibrate` and return its exit code."""
    lab, console = settings.load(), Console(highlight=False)
    results = measured(options, lab, console)
    right = [r for r in results if r["kind"] == "right"]
    rejected = [r for r in right if not r["passed"]]
    near, rated = lines(collect(results, lab), lab), margins.rates(right, GATES[3])
    for headings, rows in ((margins.HEADINGS, near), (margins.RATES, rated)):
        table = Table(*headings, box=None)
        for row in rows:
            table.add_row(*row)
        console.print(table)
        console.print()
    for result in rejected:
        name = result["case"] or result["configuration"]
        console.print(f"rejected: {name}, seed {result['seed']}", soft_wrap=True)
    if options.write_docs:
        DOCS.parent.mkdir(exist_ok=True)
        DOCS.write_text(margins.markdown(near, rated), encoding="utf-8")
    return 1 if rejected else 0


if __name__ == "__main__":
    with Referee(settings.load()) as warm:
        serve(judging(warm))
