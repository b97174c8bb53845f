"""One file of a submission as the look at the source sees it: what its names stand for.

Only what is written out counts: imports and their aliases, `name = some.chain`, chains of
attributes, and `getattr` or an import function with a plain string. Order, scopes and conditions
are ignored: a name stands for all that it is ever made to stand for. Every node is visited once,
and none by recursion.
"""

from __future__ import annotations

import ast
import builtins
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

# Modules that others have as an attribute: torch.sys is sys.
_ROOTS = frozenset({"torch", "builtins", "importlib", "sys", "os", "inspect", "gc"})
IMPORTERS = frozenset({"importlib.import_module", "importlib.__import__", "builtins.__import__"})
_MOST_MEANINGS = 4  # of one name
_LONGEST_CHAIN = 20


class Unreadable(Exception):
    """Code that is nested too deeply to be read."""


@dataclass(frozen=True)
class Use:
    """A place where something of a library is read or imported."""

    node: ast.AST
    paths: tuple[str, ...]
    imported: bool = False

    @property
    def line(self) -> int:
        """Return its line, counted from 1."""
        return int(getattr(self.node, "lineno", 1))


class Source:
    """A parsed file, without what never runs when it is graded.

    Attributes:
        file: as a student calls it: `masks.py`.
        package: the submission's own package.
        nodes: every node, in order of the source.
        uses: imports, and the longest chains that are read.
        stores: attributes and subscripts that are set or deleted.
        unbound: names that nothing in the file binds: the line, the name, and the modules whose
            names were imported with a star.
    """

    def __init__(self, path: str, content: bytes) -> None:
        """Parse the file `path`, such as `transformer/masks.py`.

        Raises:
            SyntaxError, ValueError: Python cannot read it either.
            Unreadable: It is nested too deeply.
        """
        self.package, _, self.file = path.partition("/")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a student's odd escapes are not ours
                tree = ast.parse(content)
        except (RecursionError, MemoryError):
            raise Unreadable from None
        self.nodes = list(_walk(tree))
        self.uses: list[Use] = []
        self.stores: list[ast.Attribute | ast.Subscript] = []
        self._meanings: dict[str, list[str]] = {}
        self._stars: dict[str, None] = {}
        self._bound = {
            getattr(node, "name", None) or getattr(node, "arg", None) or getattr(node, "id", "")
            for node in self.nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.arg)
            or (isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load))
        }
        for node in self.nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._read_import(node)
        for node in self.nodes:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.Attribute):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self._mean(target.id, *self.paths(node.value))
        self.unbound: list[tuple[int, str, tuple[str, ...]]] = []
        inner: set[ast.AST] = set()  # of a.b.c only the whole counts
        for node in self.nodes:
            if isinstance(node, ast.Attribute | ast.Subscript) and not _is_read(node):
                self.stores.append(node)
            elif isinstance(node, ast.Attribute | ast.Name | ast.Call) and node not in inner:
                self._read_use(node)
            if isinstance(node, ast.Attribute):
                inner.add(node.value)

    def _read_import(self, node: ast.Import | ast.ImportFrom) -> None:
        names = [alias.name for alias in node.names]
        if isinstance(node, ast.Import):
            self.uses.append(Use(node, tuple(names), imported=True))
            for alias in node.names:
                top = alias.name.partition(".")[0]
                self._mean(alias.asname or top, alias.name if alias.asname else top)
        elif node.level == 0 and node.module:
            paths = [node.module if name == "*" else f"{node.module}.{name}" for name in names]
            self.uses.append(Use(node, tuple(paths), imported=True))
            if "*" in names and len(self._stars) < _MOST_MEANINGS:
                self._stars[node.module] = None
            for alias in node.names:
                self._mean(alias.asname or alias.name, f"{node.module}.{alias.name}")
        else:  # of the submission itself
            self._bound |= {alias.asname or alias.name for alias in node.names}

    def _mean(self, name: str, *paths: str) -> None:
        meanings = self._meanings.setdefault(name, [])
        meanings += [path for path in paths if path not in meanings]
        del meanings[_MOST_MEANINGS:]

    def _read_use(self, node: ast.Attribute | ast.Name | ast.Call) -> None:
        paths = self.paths(node)
        if paths:
            self.uses.append(Use(node, tuple(paths)))
        name = node.id if isinstance(node, ast.Name) else ""
        if name and name not in self._bound and name not in self._meanings:
            self.unbound.append((node.lineno, name, tuple(self._stars)))

    def paths(self, node: ast.expr) -> list[str]:
        """Return the dotted paths of libraries that an expression stands for as it is written."""
        words: list[str] = []
        while len(words) < _LONGEST_CHAIN:
            if isinstance(node, ast.Attribute):
                words.append(node.attr)
                node = node.value
                continue
            match node:
                case ast.Call(
                    func=ast.Name(id="getattr"), args=[owner, ast.Constant(value=str(word)), *_]
                ):
                    words.append(word)
                    node = owner
                case ast.Name(id=name):
                    return _joined(self._named(name), words)
                case ast.Call(
                    func=ast.Name() | ast.Attribute(value=ast.Name()) as function,
                    args=[ast.Constant(value=str(module)), *_],
                ) if not IMPORTERS.isdisjoint(self.paths(function)):
                    whole = isinstance(function, ast.Attribute)
                    return _joined([module if whole else module.partition(".")[0]], words)
                case _:
                    return []
        return []

    def _named(self, name: str) -> list[str]:
        if name in self._meanings:
            return self._meanings[name]
        if name in self._bound:
            return []
        if name in vars(builtins):
            return [f"builtins.{name}"]
        return ["builtins"] if name == "__builtins__" else []

    def is_own(self, path: str) -> bool:
        """Tell whether a dotted path lies in the submission."""
        return path.partition(".")[0] == self.package


def _joined(owners: list[str], words: list[str]) -> list[str]:
    """Return the paths of what `words`, innermost last, name below each of `owners`."""
    found = []
    for owner in owners:
        parts = [*owner.split("."), *reversed(words)]
        last = max((i for i, part in enumerate(parts) if part in _ROOTS), default=0)
        found.append(".".join(parts[last:]))
    return found


def _is_read(node: ast.Attribute | ast.Subscript) -> bool:
    return isinstance(node.ctx, ast.Load)


def _walk(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield every node in order of the source, but for what does not run when it is graded.

    That is `if __name__ == "__main__":`, a student's own trials, unless the file sets `__name__`
    itself; `if TYPE_CHECKING:`; and annotations.
    """
    bent = any(
        isinstance(n, ast.Name) and n.id == "__name__" and not isinstance(n.ctx, ast.Load)
        for n in ast.walk(tree)
    )
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        skipped: set[ast.AST] = set()
        if isinstance(node, ast.If) and (_asks_for_types(node) or (not bent and _is_main(node))):
            skipped = {*node.body}
        elif isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            skipped = {node.annotation}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            skipped = {node.returns}
        children = [child for child in ast.iter_child_nodes(node) if child not in skipped]
        waiting += reversed(children)


def _is_main(node: ast.If) -> bool:
    match node.test:
        case ast.Compare(
            left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant("__main__")]
        ):
            return not node.orelse
    return False


def _asks_for_types(node: ast.If) -> bool:
    match node.test:
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return True
    return False
