"""What an expression in a submission stands for: follows imports, aliases and constants.

A finding is a dotted path ("torch.nn.functional"), a constant string, or unknown. Nothing is run,
so what depends on a running program stays unknown.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Mapping

from grader.intake.meanings import (
    ANYTHING,
    NOTHING,
    Finding,
    Findings,
    Getter,
    Path,
    Text,
    Unreadable,
    joined,
)
from grader.intake.scopes import Binding, Deferred, Module, Scope, Use, read_module

_MOST_STEPS = 300_000
# Modules that others have as an attribute: torch.sys is sys.
_ROOTS = frozenset({"torch", "builtins", "importlib", "sys", "os", "inspect", "gc"})
_IMPORTERS = {"importlib.import_module", "importlib.__import__", "builtins.__import__"}
_BY_NAME = {"get", "pop", "setdefault", "__getitem__"}
_CONTENT = {"values", "items", "copy", "get", "pop"}
_PASSING = {"functools.partial"} | {
    f"builtins.{name}"
    for name in ("list", "tuple", "set", "dict", "iter", "next", "reversed", "sorted", "zip")
}
_ATTRIBUTE_READERS = {"__getattribute__", "__getattr__"}
DICTIONARY = "__dict__"


class Sources:
    """The modules of a submission, and what their expressions stand for."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        """Parse the files; one with a syntax error is left out, as it cannot be imported either.

        Args:
            files: paths such as "transformer/masks.py", and their bytes.
        """
        self.modules: dict[str, Module] = {}
        self.unreadable: list[str] = []
        self._known: dict[tuple[int, int], Findings] = {}
        self._open: set[tuple[int, int]] = set()
        self._circles = self._steps = 0
        self._packages = {path.split("/")[0] for path in files}
        for path, content in files.items():
            try:
                module = read_module(path, content)
                self.modules[module.name] = module
            except (SyntaxError, ValueError):
                continue
            except (RecursionError, MemoryError):
                self.unreadable.append(path)

    def named(self, use: Use) -> list[str]:
        """Return the dotted paths that a use stands for, sorted."""
        if use.imported:
            found = self._follow(use.imported)
        elif isinstance(use.node, ast.expr):
            found = self.means(use.node, use.scope)
        return sorted(f.text for f in found if isinstance(f, Path))

    def is_own(self, path: str) -> bool:
        """Tell whether a dotted path lies in the submission."""
        return path.split(".")[0] in self._packages

    def means(self, node: ast.expr, scope: Scope) -> Findings:
        """Return everything that an expression may stand for.

        Raises:
            Unreadable: the expressions lead too deep.
        """
        key = (id(node), id(scope))
        if key in self._known:
            return self._known[key]
        if key in self._open:
            self._circles += 1
            return NOTHING  # defined by itself: the rest of its definition counts
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise Unreadable(scope.module.name)
        self._open.add(key)
        before = self._circles
        try:
            found = self._find(node, scope)
        except RecursionError:
            raise Unreadable(scope.module.name) from None
        finally:
            self._open.discard(key)
        # What was found inside a circle lacks what the circle itself will add.
        if not self._open or self._circles == before:
            self._known[key] = found
        return found

    def _find(self, node: ast.expr, scope: Scope) -> Findings:
        match node:
            case ast.Name():
                return self._name(node.id, scope)
            case ast.Attribute():
                return self._each_member(self.means(node.value, scope), node.attr)
            case ast.Constant(value=str(text)):
                return frozenset({Text(text)})
            case ast.Constant():
                return NOTHING
            case ast.Call():
                return self._call(node, scope)
            case ast.Subscript():
                return self._subscript(node, scope)
            case ast.JoinedStr(values=parts):
                return joined([self.means(part, scope) for part in parts])
            case ast.FormattedValue(conversion=-1, format_spec=None, value=value):
                return self.means(value, scope)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return joined([self.means(left, scope), self.means(right, scope)])
            case ast.IfExp(body=one, orelse=other):
                return self._union([one, other], scope)
            case ast.BoolOp(values=values):
                return self._union(values, scope)
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                return self._union(parts, scope)
            case ast.Dict(values=values):
                return self._union(values, scope)
            case ast.ListComp(elt=value) | ast.SetComp(elt=value) | ast.GeneratorExp(elt=value):
                return self.means(value, scope)
            case ast.NamedExpr(value=value) | ast.Starred(value=value):
                return self.means(value, scope)
        return ANYTHING

    def _union(self, nodes: Iterable[ast.expr], scope: Scope) -> Findings:
        return frozenset().union(*(self.means(node, scope) for node in nodes))

    def _binding(self, binding: Binding) -> Findings:
        if isinstance(binding, Deferred):
            return self.means(binding.node, binding.scope)
        if isinstance(binding, Path):
            return self._follow(binding.text)
        return ANYTHING

    def _name(self, name: str, scope: Scope) -> Findings:
        at: Scope | None = scope
        while at is not None:
            if name in at.bindings:
                return frozenset().union(*map(self._binding, at.bindings[name]))
            at = at.parent
        if name in vars(builtins):
            return frozenset({Path(f"builtins.{name}")})
        if name == "__builtins__":
            return frozenset({Path("builtins")})
        stars = scope.module.scope.stars
        found = [self._follow(f"{star}.{name}") for star in stars]
        return frozenset().union(*found) if found else ANYTHING

    def _follow(self, path: str) -> Findings:
        """Return what a dotted path stands for once the submission's own modules are followed."""
        parts = path.split(".")
        if parts[0] not in self._packages:
            last = max((i for i, part in enumerate(parts) if part in _ROOTS), default=0)
            return frozenset({Path(".".join(parts[last:]))})
        if path in self.modules:
            return frozenset({Path(path)})
        parent, _, name = path.rpartition(".")
        module = self.modules.get(parent)
        if module is None:
            return frozenset({Path(path)})
        bound = module.scope.bindings.get(name)
        if bound is None and not module.scope.stars:
            return frozenset({Path(path)})
        if bound is None:
            return self._name(name, module.scope)
        key = (id(module), hash(name))
        if key in self._open:
            self._circles += 1
            return NOTHING
        self._open.add(key)
        own = Path(path)
        try:
            return frozenset().union(*({own} if b == own else self._binding(b) for b in bound))
        finally:
            self._open.discard(key)

    def _each_member(self, bases: Findings, name: str) -> Findings:
        found: list[Findings] = []
        for base in bases:
            if not isinstance(base, Path):
                found.append(self._attribute(name))
            elif base.text == "sys.modules" or base.text.endswith(f".{DICTIONARY}"):
                found.append(frozenset({Path(f"{base.text}.{name}")}))
            elif self._is_own_definition(base.text):
                found.append(self._attribute(name) if name != DICTIONARY else ANYTHING)
            else:
                found.append(self._follow(f"{base.text}.{name}"))
        return frozenset().union(*found)

    def _is_own_definition(self, path: str) -> bool:
        return self.is_own(path) and not any(f"{m}.".startswith(f"{path}.") for m in self.modules)

    def _attribute(self, name: str) -> Findings:
        """Return what an attribute of this name was ever set to, on any object."""
        found = [
            self._binding(binding)
            for module in self.modules.values()
            for binding in module.attributes.get(name, ())
        ]
        return frozenset().union(ANYTHING, *found)

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Findings:
        bases = self.means(node.value, scope)
        found = [
            self._item(base, self.means(node.slice, scope))
            if isinstance(base, Path) and _holds_names(base.text)
            else frozenset({base})
            for base in bases
        ]
        cut = ANYTHING if isinstance(node.slice, ast.Slice) else NOTHING
        return frozenset().union(cut, *found)

    def _item(self, base: Path, keys: Findings) -> Findings:
        """Return what a module's dictionary, or sys.modules, holds under these keys."""
        found: list[Findings] = []
        for key in keys:
            if not isinstance(key, Text):
                found.append(ANYTHING)
            elif base.text == "sys.modules":
                found.append(self._follow(key.text))
            else:
                owner = Path(base.text.removesuffix(f".{DICTIONARY}"))
                found.append(self._each_member(frozenset({owner}), key.text))
        return frozenset().union(*found)

    def _call(self, node: ast.Call, scope: Scope) -> Findings:
        arguments = [self.means(argument, scope) for argument in node.args]
        function = node.func
        if isinstance(function, ast.Attribute):
            bases = self.means(function.value, scope)
            match node.args:
                case [ast.List(elts=parts) | ast.Tuple(elts=parts)] if function.attr == "join":
                    glues = [f.text for f in bases if isinstance(f, Text)]
                    pieces = [self.means(part, scope) for part in parts]
                    return ANYTHING.union(*(joined(pieces, glue) for glue in glues))
            if function.attr in _ATTRIBUTE_READERS and arguments:
                owners = bases if len(arguments) == 1 else arguments[0]
                return self._named(owners, arguments[-1])
            holders = [b for b in bases if isinstance(b, Path) and _holds_names(b.text)]
            if function.attr in _BY_NAME and holders and arguments:
                return frozenset().union(*(self._item(b, arguments[0]) for b in holders))
            if function.attr in _CONTENT:
                return bases | ANYTHING
        found = [self._called(f, arguments, scope) for f in self.means(function, scope)]
        return frozenset().union(*found) if found else ANYTHING

    def _called(self, function: Finding, arguments: list[Findings], scope: Scope) -> Findings:
        first = arguments[0] if arguments else NOTHING
        texts = [f.text for f in first if isinstance(f, Text)]
        unsure = ANYTHING if len(texts) < len(first) else NOTHING
        if isinstance(function, Getter):
            found = first
            for name in function.attributes.split("."):
                found = self._each_member(found, name)
            return found
        name = function.text if isinstance(function, Path) else ""
        if name == "builtins.getattr" and len(arguments) > 1:
            return self._named(first, arguments[1])
        if name in _IMPORTERS:
            whole = name == "importlib.import_module"
            paths = [*texts, *(() if whole else [text.split(".")[0] for text in texts])]
            return unsure.union(*map(self._follow, paths))
        if name == "pkgutil.resolve_name":
            return unsure.union(*(self._follow(text.replace(":", ".")) for text in texts))
        if name == "operator.attrgetter":
            return unsure | {Getter(text) for text in texts}
        if name in _PASSING:
            return ANYTHING.union(*arguments)
        if name == "builtins.vars" and first:
            return frozenset(Path(f"{f.text}.{DICTIONARY}") for f in first if isinstance(f, Path))
        if name in ("builtins.globals", "builtins.vars"):
            return frozenset({Path(f"{scope.module.name}.{DICTIONARY}")})
        return ANYTHING

    def _named(self, owners: Findings, names: Findings) -> Findings:
        found = [
            self._each_member(owners, n.text) if isinstance(n, Text) else ANYTHING for n in names
        ]
        return frozenset().union(*found)


def _holds_names(path: str) -> bool:
    return path == "sys.modules" or path.endswith(f".{DICTIONARY}")
