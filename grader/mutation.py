"""The mutation run: grade every mutant of the solution's task files and list those that survive.

`python -m grader mutants` spreads them over processes, each with one warm referee. Each mutant
meets its own stub's checks first, then its task's, then all parts and gates 1 to 3, then gate 4.
"""

from __future__ import annotations

import argparse
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from grader import mutants, patching, settings
from grader.engine import Referee, Request
from grader.expectations import Expectations
from grader.mutants import Mutant
from grader.pages import measured, table
from grader.pool import Pool, answered, serve
from grader.progress import shown
from grader.result import write_json

EQUIVALENTS = patching.ROOT / "tests" / "corpus" / "equivalents.toml"
SEED = 0
DOCS = patching.ROOT / "docs" / "mutants.md"
HEADINGS = ["file", "mutants", "killed", "equivalent", "survive", "kill rate"]
TASK_FILES = ("masks", "attention", "residual", "encoder", "decoder", "training", "kv_cache")


@dataclass(frozen=True)
class Fate:
    """How a mutant ended: the first check or gate that did not pass, or nothing."""

    file: str
    key: str
    line: int
    killed_by: str

    @property
    def name(self) -> str:
        """What tests/corpus/equivalents.toml calls it."""
        return f"{self.file} {self.key}"


def all_mutants(files: list[str]) -> list[Mutant]:
    """Return every mutant of the named task files (without `.py`)."""
    package = patching.SOLUTION / "transformer"
    return [
        mutant
        for name in files
        for mutant in mutants.mutants(f"{name}.py", (package / f"{name}.py").read_text("utf-8"))
    ]


def equivalents() -> dict[str, str]:
    """Return the mutants that are no mistakes, by file and key, with the reason."""
    if not EQUIVALENTS.exists():
        return {}
    table = tomllib.loads(EQUIVALENTS.read_text("utf-8"))
    return {f"{e['file']} {e['key']}": e["why"] for e in table.get("equivalent", [])}


def fate_of(referee: Referee, mutant: Mutant, folder: Path) -> Fate:
    """Grade one mutant, the cheapest checks first; every mutant is asked the same questions."""
    tree = dict(patching.base_files("solution"))
    tree[f"transformer/{mutant.file}"] = mutant.text.encode()
    patching.write(tree, folder)  # type: ignore[arg-type]
    stub, task = frozenset({mutant.stub}), frozenset({mutant.stub.split(".")[0]})
    for tasks, gates in ((stub, 0), (task, 0), (None, 3), (None, 4)):
        request = Request(folder, None, tasks=tasks, gates=gates, seed=SEED)
        killer = first_failure(referee.grade(request), gates)
        if killer:
            return Fate(mutant.file, mutant.key, mutant.line, killer)
    return Fate(mutant.file, mutant.key, mutant.line, "")


def first_failure(tree: dict[str, Any], gates: int) -> str:
    """Name the first part check or gate, among those that ran, that did not pass."""
    if tree["grader_error"]:
        return f"grader_error: {tree['grader_error']}"
    for entry in tree["parts"] + tree["stretch"] + tree["gates"][:gates]:
        for check in entry["checks"]:
            if check["status"] != "passed":
                return f"{check['stub'] or entry['name']} ({check['status']})"
    return ""


def judging(referee: Referee) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return what judges one mutant with `referee`."""

    def judge(task: dict[str, Any]) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="grader-mutant-") as folder:
            return asdict(fate_of(referee, Mutant(**task), Path(folder)))

    return judge


def run(todo: list[Mutant], jobs: int, console: Console) -> list[Fate]:
    """Judge all of them on `jobs` processes."""
    with Pool(jobs, "grader.mutation") as pool:
        answers = answered(pool.map(asdict(mutant) for mutant in todo))
        fates = [Fate(**fate) for fate in shown(answers, "mutants", len(todo), console)]
    place = {(m.file, m.line, m.key): number for number, m in enumerate(todo)}
    return sorted(fates, key=lambda fate: place[fate.file, fate.line, fate.key])


def tally(fates: list[Fate], known: Mapping[str, str]) -> list[list[str]]:
    """Return a row for each file and one for all: HEADINGS."""
    rows = []
    for name in [*dict.fromkeys(f.file for f in fates), "all"]:
        own = [f for f in fates if name in (f.file, "all")]
        alive = [f for f in own if not f.killed_by]
        equal = sum(f.name in known for f in alive)
        killed = len(own) - len(alive)
        rate = f"{100 * killed / (len(own) - equal):.1f}%" if len(own) > equal else "-"
        rows.append([name, *map(str, (len(own), killed, equal, len(alive) - equal)), rate])
    return rows


def markdown(fates: list[Fate], known: Mapping[str, str]) -> str:
    """Return the page that docs/ keeps."""
    killers = Counter(f.killed_by.split(" (")[0] for f in fates if f.killed_by)
    survivors = [f for f in fates if not f.killed_by and f.name not in known]
    return (
        "# Mutants\n\n"
        f"{measured()} by `make mutants`: in the solution's "
        "task bodies statements, operators, constants, arguments and names that are easily "
        "confused are dropped or changed, one at a time. Each such tree meets the checks of its "
        "own stub first, then those of its task, then all parts and gates 1 to 3, then gate 4. A "
        "mutant is killed by the first check that does not pass. "
        "Those that are no mistakes are listed, with the reason, in "
        "`tests/corpus/equivalents.toml`.\n\n"
        f"{table(HEADINGS, tally(fates, known))}\n"
        "What killed them:\n\n"
        f"{table(['check', 'mutants'], [[k, str(n)] for k, n in killers.most_common()])}\n"
        + ("Survivors:\n\n" if survivors else "None survives.\n")
        + "".join(f"- {f.file}, line {f.line}: `{f.key}`\n" for f in survivors)
    )


def main(options: argparse.Namespace) -> int:
    """Run `python -m grader mutants` and return its exit code."""
    console = Console(highlight=False)
    todo = all_mutants(options.files or list(TASK_FILES))[:: options.every]
    known = equivalents()
    fates = run(todo, options.jobs, console)
    table = Table(*HEADINGS, box=None)
    for row in tally(fates, known):
        table.add_row(*row)
    console.print(table)
    survivors = [f for f in fates if not f.killed_by and f.name not in known]
    for fate in survivors:
        console.print(Text(f"survives {fate.file}:{fate.line} {fate.key}"), soft_wrap=True)
    write_json(options.out / "mutants.json", {"fates": [asdict(f) for f in fates]})
    if options.write_docs:
        DOCS.write_text(markdown(fates, known), encoding="utf-8")
    return 1 if survivors else 0


if __name__ == "__main__":
    with Referee(settings.load()) as warm:
        warm.expectations = Expectations()  # which remembers what it was asked
        serve(judging(warm))
