"""Small mistakes made by machine in the solution's task bodies: does the grader see each of them?

A mutant changes one place inside a `BEGIN SOLUTION` region: a comparison, an operator, a number,
an argument, a name, a condition, a statement. A mutant is killed when a check does not pass; one
that survives is a mistake that the grader cannot see, or no mistake at all. Each meets its own
stub's checks first, then its task's, then all parts and gates 1 to 3, then gate 4.
"""

from __future__ import annotations

import argparse
import ast
import os.path
import re
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from grader.asking.expectations import Expectations
from grader.base import settings
from grader.base.places import ROOT
from grader.base.progress import shown
from grader.base.result import write_json
from grader.run.engine import Referee, Request
from grader.run.pool import Pool, answered, serve
from grader.upkeep import patching
from grader.upkeep.pages import measured, show, table

EQUIVALENTS = ROOT / "tests" / "corpus" / "equivalents.toml"
SEED = 0
DOCS = ROOT / "docs" / "mutants.md"
HEADINGS = ["file", "mutants", "killed", "equivalent", "survive", "kill rate"]
TASK_FILES = ("masks", "attention", "residual", "encoder", "decoder", "training", "kv_cache")

BEGIN = re.compile(r"# BEGIN SOLUTION (\S+)")
END = "# END SOLUTION"
# So many characters of a long statement are shown on both sides of what was changed in it.
CONTEXT = 60

SWAPS: dict[type[ast.AST], list[type[ast.AST]]] = {
    ast.Add: [ast.Sub, ast.Mult],
    ast.Sub: [ast.Add],
    ast.Mult: [ast.Add, ast.Div],
    ast.Div: [ast.Mult],
    ast.FloorDiv: [ast.Mult],
    ast.Mod: [ast.Mult],
    ast.Pow: [ast.Mult],
    ast.MatMult: [],
    ast.BitAnd: [ast.BitOr],
    ast.BitOr: [ast.BitAnd],
    ast.And: [ast.Or],
    ast.Or: [ast.And],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.Lt: [ast.LtE, ast.GtE],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
}
# Names that stand for one another where somebody copies a line and edits half of it.
LOOKALIKES = [
    ("q_proj", "k_proj", "v_proj"),
    ("self_attention", "cross_attention"),
    ("attention_branch", "feed_forward_branch"),
    ("self_branch", "cross_branch", "feed_forward_branch"),
    ("queries", "keys", "values"),
    ("query", "key", "value"),
    ("key_valid", "query_valid"),
    ("target_valid", "memory_valid"),
    ("query_offset", "key_offset"),
    ("bos_id", "eos_id", "pad_id"),
    ("x", "memory"),
    ("num_queries", "num_keys"),
    ("num_heads", "num_kv_heads"),
    ("decoder_inputs", "targets"),
]


@dataclass(frozen=True)
class Mutant:
    """One mistake: where it stands, what was there, what is there now, and the whole file."""

    file: str
    stub: str
    line: int
    before: str
    after: str
    text: str

    @property
    def key(self) -> str:
        """Return a name that does not change when lines above it do."""
        return f"{self.stub}: {self.before} -> {self.after}"


def regions(text: str) -> list[tuple[str, int, int]]:
    """Return (stub id, first line, last line) of every solution region."""
    found, stub, start = [], "", 0
    for number, line in enumerate(text.splitlines(), 1):
        begin = BEGIN.search(line)
        if begin:
            stub, start = begin.group(1), number
        elif END in line:
            found.append((stub, start, number))
    return found


def mutants(file: str, text: str) -> Iterator[Mutant]:
    """Yield every mutant of a solution file, in the order of its lines."""
    tree = ast.parse(text)
    spans = regions(text)
    # The words of an error message are nobody's mistake.
    words = {id(n) for r in ast.walk(tree) if isinstance(r, ast.Raise) for n in ast.walk(r)}
    places = places_of(tree)
    seen = set()
    for node in ast.walk(tree):
        line = 0 if id(node) in words else getattr(node, "lineno", 0)
        stub = next((s for s, first, last in spans if first < line < last), None)
        if stub is None:
            continue
        statement = node
        while not isinstance(statement, ast.stmt):
            statement = places[id(statement)].parent
        before = ast.unparse(statement)
        for owner, field, value in changes(node, places[id(node)]):
            kept = getattr(owner, field)
            setattr(owner, field, value)
            # A statement that has been replaced stands nowhere any more.
            after = "pass" if node is statement and owner is not node else ast.unparse(statement)
            changed = ast.unparse(tree)
            setattr(owner, field, kept)
            if before != after and changed not in seen:
                seen.add(changed)
                yield Mutant(file, stub, line, *shortened(before, after), changed)


def shortened(before: str, after: str) -> tuple[str, str]:
    """Return both texts on one line; of long ones what differs, with some words around it."""
    before, after = (" ".join(text.split()) for text in (before, after))
    start = len(os.path.commonprefix([before, after]))
    rest = min(len(before), len(after)) - start
    end = min(rest, len(os.path.commonprefix([before[::-1], after[::-1]])))
    return tuple(  # type: ignore[return-value]
        text if len(text) <= CONTEXT * 2
        else text[max(0, start - CONTEXT) : len(text) - max(0, end - CONTEXT)]
        for text in (before, after)
    )  # fmt: skip


# A node, one of its fields, and what this field holds after the change.
Change = tuple[ast.AST, str, object]


@dataclass(frozen=True)
class Place:
    """Where a node stands: in a field of its parent, or in a list there."""

    parent: ast.AST
    field: str
    item: int

    def put(self, new: ast.AST) -> Change:
        """Return the change that puts `new` there."""
        held = getattr(self.parent, self.field)
        if isinstance(held, list):
            new = [*held[: self.item], new, *held[self.item + 1 :]]  # type: ignore[assignment]
        return self.parent, self.field, new


def places_of(tree: ast.AST) -> dict[int, Place]:
    """Return where every node below `tree` stands, by its id."""
    return {
        id(child): Place(parent, name, item)
        for parent in ast.walk(tree)
        for name, held in ast.iter_fields(parent)
        for item, child in enumerate(held if isinstance(held, list) else [held])
    }


def changes(node: ast.AST, place: Place) -> Iterator[Change]:
    """Yield what can be done to a node that stands in `place`."""
    if isinstance(node, (ast.BinOp, ast.BoolOp, ast.AugAssign)):
        for kind in SWAPS.get(type(node.op), []):
            yield node, "op", kind()
    if isinstance(node, ast.BinOp):
        yield place.put(node.left)
        yield place.put(node.right)
    elif isinstance(node, ast.Compare):
        for kind in SWAPS.get(type(node.ops[0]), []):
            yield node, "ops", [kind()]
    elif isinstance(node, ast.Constant):
        yield from ((node, "value", value) for value in _constants(node.value))
    elif isinstance(node, ast.Call):
        yield from _calls(node, place)
    elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
        field = "id" if isinstance(node, ast.Name) else "attr"
        name = getattr(node, field)
        for family in LOOKALIKES:
            if name in family:
                yield from ((node, field, other) for other in family if other != name)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.Invert, ast.USub)):
        yield place.put(node.operand)
    elif isinstance(node, ast.If):
        yield node, "test", ast.Constant(True)
        yield node, "test", ast.Constant(False)
    elif isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr)):
        yield place.put(ast.Pass())
    elif isinstance(node, ast.Tuple) and len(node.elts) == 2:
        yield node, "elts", node.elts[::-1]


def _constants(value: object) -> Iterator[object]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
        yield value - 1
    elif isinstance(value, float):
        yield value * 2 + 1


def _calls(node: ast.Call, place: Place) -> Iterator[Change]:
    if len(node.args) == 1 and not node.keywords:
        yield place.put(node.args[0])
    if isinstance(node.func, ast.Attribute):
        yield place.put(node.func.value)
    for number, keyword in enumerate(node.keywords):
        yield node, "keywords", node.keywords[:number] + node.keywords[number + 1 :]
        if not isinstance(keyword.value, ast.Constant):
            yield keyword, "value", ast.Constant(None)
    if len(node.args) > 1:
        for number in range(len(node.args)):
            others = node.args[number + 1 :]
            yield node, "args", [*node.args[:number], ast.Constant(None), *others]
    if len(node.args) == 2:
        yield node, "args", node.args[::-1]


# Grading them ----------------------------------------------------------------------------------


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
        for mutant in mutants(f"{name}.py", (package / f"{name}.py").read_text("utf-8"))
    ]


def equivalents() -> dict[str, str]:
    """Return the mutants that are no mistakes, by file and key, with the reason."""
    if not EQUIVALENTS.exists():
        return {}
    table = tomllib.loads(EQUIVALENTS.read_text("utf-8"))
    return {f"{e['file']} {e['key']}": e["why"] for e in table.get("equivalent", [])}


def fate_of(referee: Referee, mutant: Mutant, folder: Path) -> Fate:
    """Grade one mutant, the cheapest checks first; every mutant is asked the same questions."""
    tree = patching.patched("solution", [])
    tree[f"transformer/{mutant.file}"] = mutant.text.encode()
    patching.write(tree, folder)
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
    with Pool(jobs, "grader.upkeep.mutants") as pool:
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
    show(HEADINGS, tally(fates, known), console)
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
