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
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from grader.base import settings
from grader.base.places import ROOT
from grader.base.progress import shown
from grader.base.settings import Settings, enlarged
from grader.classroom import keys
from grader.run.engine import Referee
from grader.run.pool import Pool, answered, serve
from grader.run.results import Request
from grader.upkeep import corpus, patching
from grader.upkeep.pages import measured, show, table

Json = dict[str, Any]
# What takes ten times as long gets a tenth of the seeds.
LARGE_SHARE = 10
DOCS = ROOT / "docs" / "calibration.md"
# The gate that trains: its measured values stand in its evidence as they are.
TRAINED = "greedy_accuracy"
RATES = [
    "submissions", "runs", "least first attempt", "trained again", "steps: median, most",
    "rejected", "at most",
]  # fmt: skip
HEADINGS = ["threshold", "bound", "nearest right", "runs", "nearest wrong", "cases"]


@dataclass(frozen=True)
class Threshold:
    """One threshold: which gate, which measured value, and on which side right ones stand."""

    name: str
    gate: str
    value: str
    right_is_below: bool
    bound: Callable[[Settings], float]


THRESHOLDS = [
    Threshold("gate 1: forbidden influence", "future_independence", "largest_forbidden", True,
              lambda lab: lab.invariance.tolerance),
    Threshold("gate 1: allowed influence (control)", "future_independence", "smallest_allowed",
              False, lambda lab: 1e-4),
    Threshold("gate 2: influence of padding", "padding_invariance", "largest_difference", True,
              lambda lab: lab.invariance.tolerance),
    Threshold("gate 2: response to a mask (control)", "padding_invariance", "smallest_response",
              False, lambda lab: 1e-4),
    Threshold("gate 3: error of a gradient", "finite_gradients", "largest_error", True,
              lambda lab: lab.gradients.relative_tolerance),
    Threshold("gate 4: exact match", TRAINED, "exact_match", False,
              lambda lab: lab.accuracy.exact_match),
    Threshold("gate 4: untrained (control)", TRAINED, "untrained_exact_match", True,
              lambda lab: lab.accuracy.control_exact_match),
    Threshold("gate 4: scrambled (control)", TRAINED, "scrambled_exact_match", True,
              lambda lab: lab.accuracy.control_exact_match),
]  # fmt: skip


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
                patching.write(case.tree(), path)
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


# Tables ----------------------------------------------------------------------------------------


def values(evidence: Any, name: str) -> Iterator[float]:
    """Yield every number called `name` in an evidence tree."""
    if isinstance(evidence, dict):
        for key, value in evidence.items():
            if key == name and isinstance(value, (int, float)) and math.isfinite(value):
                yield float(value)
            else:
                yield from values(value, name)


def witnessed(evidence: Any, threshold: Threshold, lab: Settings) -> list[float]:
    """Return the values that failed this threshold; a witness counts by its ratio."""
    bound = threshold.bound(lab)
    found = list(values(evidence, threshold.value))
    if threshold.gate != TRAINED:
        if threshold.right_is_below:
            found = [ratio * bound for ratio in values(evidence, "ratio")]
        elif "moved" in evidence and "expected_at_least" in evidence:
            found = [evidence["moved"] / evidence["expected_at_least"] * bound]
    return [v for v in found if (v > bound) == threshold.right_is_below and v != bound]


def margins(results: list[Json], lab: Settings) -> list[list[str]]:
    """Return a row for each threshold: HEADINGS."""
    rows = []
    for threshold in THRESHOLDS:
        right: list[float] = []
        wrong: list[float] = []
        for result in results:
            status, evidence = result["gates"][threshold.gate]
            if result["kind"] == "right":
                right += values(evidence, threshold.value)
            elif status == "failed":
                wrong += witnessed(evidence, threshold, lab)
        worst, best = (max, min) if threshold.right_is_below else (min, max)
        near = [f"{worst(right):.3g}" if right else "-", str(len(right))]
        near += [f"{best(wrong):.3g}" if wrong else "-", str(len(wrong))]
        rows.append([threshold.name, f"{threshold.bound(lab):.3g}", *near])
    return rows


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


def attempts(evidence: Json) -> list[float]:
    """Return the exact match of every training that a gate's evidence tells of."""
    inner = [evidence, *(v for v in evidence.values() if isinstance(v, dict))]
    return next((list(e["attempts"]) for e in inner if "attempts" in e), [])


def rates(right: list[Json]) -> list[list[str]]:
    """Return a row for each configuration, the right cases and all of them: RATES."""
    groups: dict[str, list[Json]] = {}
    for result in right:
        groups.setdefault(result["configuration"] or "right cases", []).append(result)
    rows = []
    for name, own in (groups | {"all together": right}).items():
        evidence = [result["gates"][TRAINED][1] for result in own]
        trained = [made for one in evidence if (made := attempts(one))]
        least = f"{min(made[0] for made in trained):.4g}" if trained else "-"
        again = sum(len(made) > 1 for made in trained)
        steps = [max(found) for one in evidence if (found := list(values(one, "steps")))]
        taken = f"{statistics.median(steps):.0f}, {max(steps):.0f}" if steps else "-"
        bad = sum(not result["passed"] for result in own)
        bound = f"{100 * upper_rate(bad, len(own)):.2g}%"
        rows.append([name, str(len(own)), least, str(again), taken, str(bad), bound])
    return rows


def markdown(near: list[list[str]], rated: list[list[str]]) -> str:
    """Return the page that docs/ keeps."""
    return (
        "# Margins of the gates\n\n"
        f"{measured()} by `make calibrate`: the solution "
        "in every configuration that can solve its task, over many seeds; every right case of the "
        "corpus; and every wrong case, shown to the gates alone, whatever its parts say. With "
        "`--verified reports/verify/verify.json` the cases whose gates `make verify` has asked are "
        "not asked again.\n\n"
        "How far each threshold is from the nearest right and the nearest wrong submission:\n\n"
        f"{table(HEADINGS, near)}\n"
        "What gates 1 and 2 measure counts in units of max(1, largest logit). A right submission "
        "beyond gate 2's bound rounds, as a softmax in float32 does when there are more columns: "
        "the gate has told that from a leak by other embeddings of PAD in calls of one shape. A "
        "wrong case counts where its gate failed, by how far it went beyond the threshold.\n\n"
        "How often a right submission is rejected, with the 95% upper bound of that rate (Clopper "
        "and Pearson 1934). Gate 4 trains once more, from another seed, where a training ends "
        "between `near_miss` and `exact_match` of lab.toml, and the better attempt counts: "
        "without that rule everything trained again would have been rejected.\n\n"
        f"{table(RATES, rated)}"
    )


# Earlier runs ----------------------------------------------------------------------------------


def verified(path: Path | None) -> dict[tuple[str, str], Json]:
    """Return what `verify` kept of the cases whose gates it ran, by kind and name.

    Raises:
        CorpusError: `path` cannot be read, or is not what `verify` writes.
    """
    if path is None:
        return {}
    try:
        return {
            (r["kind"], r["name"]): {
                "score": None, "passed": not r["problems"], "gates": r["gates"]
            }
            for r in json.loads(path.read_bytes())["results"]
            if any(status != "blocked" for status, _ in r["gates"].values())
        }  # fmt: skip
    except (OSError, KeyError, TypeError, ValueError) as error:
        text = f"{path}: expected the verify.json of this version, got {error!r}"
        raise corpus.CorpusError(text) from None


def kept(path: Path, source: str) -> dict[str, Json]:
    """Read the results that an earlier run with the same code left, by task."""
    found = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for line in lines:
        try:
            result = json.loads(line)
        except ValueError:  # the line at which it was stopped
            continue
        if result.pop("source") == source:
            found[task_key(result)] = result
    return found


def task_key(task: Json) -> str:
    """Return what tells a task from others."""
    return "|".join(str(task[k]) for k in ("kind", "case", "configuration", "seed", "last_gate"))


# The command -----------------------------------------------------------------------------------


def results_of(options: argparse.Namespace, lab: Settings, console: Console) -> list[Json]:
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
    with (
        Pool(options.jobs, "grader.upkeep.calibrate") as pool,
        path.open("a", encoding="utf-8") as file,
    ):
        answers = answered(pool.map(missing))
        for result in shown(answers, "graded", len(missing), console):
            file.write(json.dumps(result | {"source": source}) + "\n")
            file.flush()
            known[task_key(result)] = result
    return [known[task_key(task)] for task in todo]


def main(options: argparse.Namespace) -> int:
    """Run `python -m grader calibrate` and return its exit code."""
    lab, console = settings.load(), Console(highlight=False)
    results = results_of(options, lab, console)
    right = [r for r in results if r["kind"] == "right"]
    rejected = [r for r in right if not r["passed"]]
    near, rated = margins(results, lab), rates(right)
    for headings, rows in ((HEADINGS, near), (RATES, rated)):
        show(headings, rows, console)
        console.print()
    for result in rejected:
        name = result["case"] or result["configuration"]
        console.print(f"rejected: {name}, seed {result['seed']}", soft_wrap=True)
    if options.write_docs:
        DOCS.write_text(markdown(near, rated), encoding="utf-8")
    return 1 if rejected else 0


if __name__ == "__main__":
    with Referee(settings.load()) as warm:
        serve(judging(warm))
