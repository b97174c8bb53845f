"""Small mistakes made by machine in the solution's task bodies: does the grader see each of them?

A mutant changes one place inside a `BEGIN SOLUTION` region: a comparison, an operator, a number,
an argument, a name, a condition, a statement. A mutant is killed when a check does not pass;
one that survives is a mistake that the grader cannot see, or no mistake at all.
"""

from __future__ import annotations

import ast
import copy
import os.path
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
