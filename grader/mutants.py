"""Small mistakes made by machine in the solution's task bodies: does the grader see each of them?

A mutant changes one place inside a `BEGIN SOLUTION` region: a comparison, an operator, a number,
an argument, a name, a condition, a statement. A mutant is killed when a check does not pass; one
that survives is a mistake that the grader cannot see, or no mistake at all. Each meets its own
stub's checks first, then its task's, then all parts and gates 1 to 3, then gate 4.
"""

from __future__ import annotations

import argparse
import ast
import copy
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

from grader import patching, settings
from grader.engine import Referee, Request
from grader.expectations import Expectations
from grader.pages import measured, show, table
from grader.pool import Pool, answered, serve
from grader.progress import shown
from grader.result import write_json

EQUIVALENTS = patching.ROOT / "tests" / "corpus" / "equivalents.toml"
SEED = 0
DOCS = patching.ROOT / "docs" / "mutants.md"
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
    seen = set()
    statements = statements_of(tree)
    for index, node in enumerate(ast.walk(tree)):
        line = 0 if id(node) in words else getattr(node, "lineno", 0)
        stub = next((s for s, first, last in spans if first < line < last), None)
        if stub is None:
            continue
        for change in changes(node):
            changed = copy.deepcopy(tree)
            twins = list(ast.walk(changed))
            twin, shown = twins[index], twins[statements[index]]
            before = ast.unparse(shown)
            replaced = change(twin)
            if replaced is not None:
                replace(changed, twin, replaced)
                shown = replaced if shown is twin else shown
            after = ast.unparse(ast.fix_missing_locations(shown))
            text = ast.unparse(ast.fix_missing_locations(changed))
            found = Mutant(file, stub, line, *shortened(before, after), text)
            if before != after and found.text not in seen:
                seen.add(found.text)
                yield found


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


def statements_of(tree: ast.AST) -> list[int]:
    """Return for every node, in the order of `ast.walk`, where its innermost statement stands."""
    nodes = list(ast.walk(tree))
    places = {id(node): place for place, node in enumerate(nodes)}
    found = list(range(len(nodes)))
    for place, node in enumerate(nodes):  # a parent comes before its children
        for child in ast.iter_child_nodes(node):
            own = places[id(child)]
            found[own] = own if isinstance(child, ast.stmt) else found[place]
    return found


def replace(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    """Put `new` where `old` stands."""
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
            elif isinstance(value, list):
                value[:] = [new if item is old else item for item in value]


Change = Callable[[ast.AST], ast.AST | None]


def changes(node: ast.AST) -> Iterator[Change]:
    """Yield what can be done to a node: each edits it in place, or returns its replacement."""
    yield from _operators(node)
    if isinstance(node, ast.Constant):
        yield from _constants(node)
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    elif isinstance(node, (ast.Name, ast.Attribute)):
        yield from _names(node)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.Invert, ast.USub)):
        yield lambda twin: twin.operand  # type: ignore[attr-defined]
    elif isinstance(node, ast.If):
        yield lambda twin: _set(twin, test=ast.Constant(True))
        yield lambda twin: _set(twin, test=ast.Constant(False))
    elif isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr)):
        yield lambda twin: ast.Pass()
    elif isinstance(node, ast.Tuple) and len(node.elts) == 2:
        yield lambda twin: _set(twin, elts=twin.elts[::-1])  # type: ignore[attr-defined]


def _set(node: ast.AST, **fields: object) -> None:
    for name, value in fields.items():
        setattr(node, name, value)


def _operators(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, (ast.BinOp, ast.BoolOp, ast.AugAssign)):
        for kind in SWAPS.get(type(node.op), []):
            yield lambda twin, kind=kind: _set(twin, op=kind())  # type: ignore[misc]
    if isinstance(node, ast.BinOp):
        yield lambda twin: twin.left  # type: ignore[attr-defined]
        yield lambda twin: twin.right  # type: ignore[attr-defined]
    if isinstance(node, ast.Compare):
        for kind in SWAPS.get(type(node.ops[0]), []):
            yield lambda twin, kind=kind: _set(twin, ops=[kind()])  # type: ignore[misc]


def _constants(node: ast.Constant) -> Iterator[Change]:
    if isinstance(node.value, bool):
        yield lambda twin: _set(twin, value=not twin.value)  # type: ignore[attr-defined]
    elif isinstance(node.value, int):
        yield lambda twin: _set(twin, value=twin.value + 1)  # type: ignore[attr-defined]
        yield lambda twin: _set(twin, value=twin.value - 1)  # type: ignore[attr-defined]
    elif isinstance(node.value, float):
        yield lambda twin: _set(twin, value=twin.value * 2 + 1)  # type: ignore[attr-defined]


def _calls(node: ast.Call) -> Iterator[Change]:
    if len(node.args) == 1 and not node.keywords:
        yield lambda twin: twin.args[0]  # type: ignore[attr-defined]
    if isinstance(node.func, ast.Attribute):
        yield lambda twin: twin.func.value  # type: ignore[attr-defined]
    for place in range(len(node.keywords)):
        yield lambda twin, place=place: _drop(twin.keywords, place)  # type: ignore[misc]
        if not isinstance(node.keywords[place].value, ast.Constant):
            yield lambda twin, place=place: _set(  # type: ignore[misc]
                twin.keywords[place], value=ast.Constant(None)
            )
    for place in range(len(node.args)):
        if len(node.args) > 1:
            yield lambda twin, place=place: _fill(twin.args, place)  # type: ignore[misc]
    if len(node.args) == 2:
        yield lambda twin: _set(twin, args=twin.args[::-1])  # type: ignore[attr-defined]


def _drop(items: list[ast.keyword], place: int) -> None:
    del items[place]


def _fill(items: list[ast.expr], place: int) -> None:
    items[place] = ast.Constant(None)


def _names(node: ast.Name | ast.Attribute) -> Iterator[Change]:
    field = "id" if isinstance(node, ast.Name) else "attr"
    name = getattr(node, field)
    for family in LOOKALIKES:
        for other in family:
            if name in family and other != name and isinstance(node.ctx, ast.Load):
                yield lambda twin, other=other: _set(twin, **{field: other})  # type: ignore[misc]


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
    with Pool(jobs, "grader.mutants") as pool:
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
