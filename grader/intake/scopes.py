"""The scopes of a Python module and what its names are bound to; nothing is run.

The analysis ignores order and conditions: a name means everything it is ever bound to.
"""

from __future__ import annotations

import ast
import functools
import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from grader.intake.meanings import UNKNOWN, Path, Unknown


@dataclass(frozen=True)
class Deferred:
    """The value of an expression, to be found when it is asked for."""

    node: ast.expr
    scope: Scope


Binding = Path | Deferred | Unknown


@dataclass(eq=False)
class Scope:
    """A module, function or class body.

    Attributes:
        module: the module it belongs to.
        parent: where its free names are looked up; None for a module.
        owner: the module-level definition around it, "" outside of any.
        path: the dotted path of what is defined in it.
        bindings: what each name is bound to.
        stars: modules imported with `*`.
        outer: names declared global.
    """

    module: Module
    parent: Scope | None
    owner: str
    path: str
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    outer: set[str] = field(default_factory=set)

    def bind(self, name: str, binding: Binding) -> None:
        """Let a name mean one thing more."""
        scope = self.module.scope if name in self.outer else self
        scope.bindings.setdefault(name, []).append(binding)


@dataclass(frozen=True)
class Use:
    """A place where something is used or set: an expression, or the import of `imported`."""

    node: ast.AST
    scope: Scope
    imported: str = ""


def names_of(path: str) -> tuple[str, str]:
    """Return the dotted names of a file's module and of the package it belongs to."""
    parts = path.removesuffix(".py").split("/")
    package = ".".join(parts[:-1])
    return (package if parts[-1] == "__init__" else ".".join(parts)), package


class Module:
    """One parsed file: its scopes, every use in it, and what attributes are set to.

    Attributes:
        path: such as `transformer/masks.py`.
        file: as a student calls it: `masks.py`.
        stem: `masks`; of a file in a folder of the package, `folder/masks`.
        name: dotted, such as `transformer.masks`.
        body: its statements, but for a student's own trials.
        scope: its outermost scope.
        uses: names, attributes, subscripts and calls that are read, and imports.
        stores: attributes and subscripts that are set or deleted.
        attributes: what is bound to an attribute of this name, of whatever object.
    """

    def __init__(self, path: str, tree: ast.Module) -> None:
        """Collect everything from the syntax tree."""
        self.path = path
        self.file = path.partition("/")[2]
        self.stem = self.file.removesuffix(".py")
        self.name, self.package = names_of(path)
        self.scope = Scope(self, None, "", self.name)
        self.uses: list[Use] = []
        self.stores: list[Use] = []
        self.attributes: dict[str, list[Binding]] = {}
        guards = set(_main_guards(tree))
        self.body = [statement for statement in tree.body if statement not in guards]
        collector = _Collector(self)
        for statement in self.body:
            collector.visit(statement)

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the body."""
        return list(itertools.chain.from_iterable(map(ast.walk, self.body)))

    def absolute(self, module: str | None, level: int) -> str:
        """Return the absolute name of a module that is imported in this one."""
        if level == 0:
            return module or ""
        parts = self.package.split(".")
        base = parts[: len(parts) - level + 1]
        return ".".join([*base, *([module] if module else [])])


@functools.lru_cache(maxsize=64)
def read_module(path: str, content: bytes) -> Module:
    """Parse a file; most files of a class are the same, so each is kept for a while."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a student's odd escapes are not ours
        return Module(path, ast.parse(content))


def _main_guards(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield `if __name__ == "__main__":` statements: a student's own trials, never run here."""
    wanted = ast.dump(ast.parse('__name__ == "__main__"', mode="eval").body)
    branches = [s for s in tree.body if isinstance(s, ast.If) and not s.orelse]
    guards = [branch for branch in branches if ast.dump(branch.test) == wanted]
    names = [node for node in ast.walk(tree) if guards and isinstance(node, ast.Name)]
    if not any(n.id == "__name__" and isinstance(n.ctx, ast.Store) for n in names):
        yield from guards


class _Collector(ast.NodeVisitor):
    """Fills a module's scopes, uses and stores."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.scope = module.scope
        self.in_class = False

    def _bind(self, target: ast.expr | str | None, binding: Binding) -> None:
        """Bind whatever `target` is made of."""
        if isinstance(target, str):
            self.scope.bind(target, binding)
            if self.in_class:
                self.module.attributes.setdefault(target, []).append(binding)
        elif isinstance(target, ast.Name):
            self._bind(target.id, binding)
        elif isinstance(target, ast.Tuple | ast.List):
            self._bind_each(target.elts, binding)
        elif isinstance(target, ast.Starred):
            self._bind(target.value, binding)
        elif isinstance(target, ast.Attribute):
            self.module.attributes.setdefault(target.attr, []).append(binding)
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            self._bind(target.value.id, binding)

    def _bind_each(self, targets: list[ast.expr], binding: Binding) -> None:
        values = binding.node if isinstance(binding, Deferred) else None
        pairs = isinstance(values, ast.Tuple | ast.List) and len(values.elts) == len(targets)
        for place, target in enumerate(targets):
            one = binding
            if pairs and isinstance(values, ast.Tuple | ast.List):
                one = self._later(values.elts[place])
            self._bind(target, one)

    def _later(self, node: ast.expr) -> Deferred:
        return Deferred(node, self.scope)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.module.uses.append(Use(node, self.scope, alias.name))
            top = alias.name.split(".")[0]
            self._bind(alias.asname or top, Path(alias.name if alias.asname else top))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = self.module.absolute(node.module, node.level)
        for alias in node.names:
            if alias.name == "*":
                self.module.uses.append(Use(node, self.scope, base))
                self.scope.stars.append(base)
                continue
            path = f"{base}.{alias.name}"
            self.module.uses.append(Use(node, self.scope, path))
            self._bind(alias.asname or alias.name, Path(path))

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._bind(target, self._later(node.value))
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._bind(node.target, self._later(node.value))
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._bind(node.target, self._later(node.value))
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._bind(node.target, UNKNOWN)
        self.generic_visit(node)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self._bind(node.target, self._later(node.iter))
        self.generic_visit(node)

    visit_AsyncFor = visit_For

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._bind(node.target, self._later(node.iter))
        self.generic_visit(node)

    def visit_withitem(self, node: ast.withitem) -> None:
        self._bind(node.optional_vars, UNKNOWN)
        self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self._bind(node.name, UNKNOWN)
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        self._bind(node.name, UNKNOWN)
        self.generic_visit(node)

    visit_MatchStar = visit_MatchAs

    def visit_Global(self, node: ast.Global) -> None:
        self.scope.outer.update(node.names)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for outside in (*node.decorator_list, *([node.returns] if node.returns else [])):
            self.visit(outside)
        self._enter(node, node.name, node.args, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._enter(node, "", node.args, [node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for outside in (*node.decorator_list, *node.bases, *(k.value for k in node.keywords)):
            self.visit(outside)
        self._enter(node, node.name, None, node.body)

    def _enter(
        self, node: ast.AST, name: str, parameters: ast.arguments | None, body: Sequence[ast.AST]
    ) -> None:
        """Visit a body in a scope of its own; a class body is not seen from the functions in it."""
        outer, was_class = self.scope, self.in_class
        path = f"{outer.path}.{name or '<lambda>'}"
        if name:
            self._bind(name, Path(path))
        parent = outer.parent if was_class and outer.parent else outer
        inner = Scope(self.module, parent, outer.owner or name, path)
        if parameters is not None:
            self._bind_parameters(parameters, inner)
        self.scope, self.in_class = inner, isinstance(node, ast.ClassDef)
        for part in body:
            self.visit(part)
        self.scope, self.in_class = outer, was_class

    def _bind_parameters(self, parameters: ast.arguments, inner: Scope) -> None:
        positional = [*parameters.posonlyargs, *parameters.args]
        with_default = positional[len(positional) - len(parameters.defaults) :]
        pairs = [
            *zip(with_default, parameters.defaults, strict=True),
            *zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True),
        ]
        for argument, default in pairs:
            if default is not None:
                inner.bind(argument.arg, self._later(default))
                self.visit(default)
        every = [*positional, *parameters.kwonlyargs, parameters.vararg, parameters.kwarg]
        for parameter in every:
            if parameter is not None:
                inner.bind(parameter.arg, UNKNOWN)
                if parameter.annotation is not None:
                    self.visit(parameter.annotation)

    def generic_visit(self, node: ast.AST) -> None:
        """Note what is read and what is set, then go on below."""
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
            reads = isinstance(node.ctx, ast.Load)
            (self.module.uses if reads else self.module.stores).append(Use(node, self.scope))
        elif isinstance(node, ast.Call):
            self.module.uses.append(Use(node, self.scope))
        inner = node
        while isinstance(inner, ast.Attribute):
            inner = inner.value  # of a.b.c only the whole counts
        if inner is node:
            super().generic_visit(node)
        elif not isinstance(inner, ast.Name):
            self.visit(inner)
