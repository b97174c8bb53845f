"""What a submission's source may not use, judged by what its names stand for.

A forbidden name is a breach of the part that uses it. What is merely worth a person's look is an
integrity flag (`flags.py`) and costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from grader.intake import flags
from grader.intake.flags import Flag
from grader.intake.meanings import Unreadable
from grader.intake.names import Sources
from grader.intake.scopes import Module, Use
from grader.intake.staging import Staged

__all__ = ["Breach", "Flag", "Inspected", "inspect"]

# Below torch: the classes, the functions, and the kernels under them.
_FORBIDDEN = re.compile(
    r"Transformer\w*"
    r"|\w*[mM]ulti_?[hH]ead_?\w*"
    r"|\w*scaled_dot\w*"
    r"|\w*(flash|efficient|flex|cudnn|mem_eff)_attention\w*"
    r"|_transformer_(en|de)coder\w*|_fused_sdp\w*|_transform_bias_rescale_qkv\w*"
    r"|attention"
)
# A definition, or the rest of a module (""), by the module's name.
_Place = tuple[str, str]


@dataclass(frozen=True)
class Breach:
    """A forbidden name in the source.

    Attributes:
        file: such as "attention.py".
        line: counted from 1.
        name: what the code names, such as "torch.nn.MultiheadAttention".
        part: the task file whose part it fails, without ".py".
    """

    file: str
    line: int
    name: str
    part: str

    @property
    def cause(self) -> str:
        """Return the sentence that a student reads."""
        return f"{self.file}, line {self.line} uses {self.name}, which the lab asks you to write."


@dataclass
class Inspected:
    """What the source shows: breaches in order of part and place, and flags."""

    breaches: list[Breach]
    flags: list[Flag]


def inspect(staged: Staged) -> Inspected:
    """Judge every staged file but the original given ones."""
    files = tuple(sorted(staged.files.items()))
    breaches, found = _inspected(files, staged.tasks, staged.stretch, staged.given, staged.weights)
    return Inspected(list(breaches), list(found))


@lru_cache(maxsize=4)  # one save is looked at several times in a row
def _inspected(
    files: tuple[tuple[str, bytes], ...],
    task_files: tuple[str, ...],
    stretch: tuple[str, ...],
    given: frozenset[str],
    weights: tuple[str, ...],
) -> tuple[list[Breach], list[Flag]]:
    sources = Sources(dict(files))
    tasks = {name.removesuffix(".py") for name in task_files}
    breaches: set[Breach] = set()
    found = {Flag("weights_shipped", f"{path} came with the code") for path in weights}
    found |= {
        Flag("unreadable_source", f"{path} is nested too deeply to be read")
        for path in sources.unreadable
    }
    for module in sources.modules.values():
        if module.path in given:
            continue
        try:
            found.update(flags.of_literals(module), flags.of_module(sources, module))
            for use, name in _forbidden(sources, module, is_task=module.stem in tasks):
                line = getattr(use.node, "lineno", 1)
                parts = _parts(sources, tasks, use)
                parts += [module.stem] if module.file in stretch else []
                breaches |= {Breach(module.file, line, name, part) for part in parts}
                if not parts:
                    text = f"{module.file}, line {line} uses {name}, but no part was seen to"
                    found.add(Flag("forbidden_name", text))
        except Unreadable as error:
            found.add(Flag("unreadable_source", f"{error} is too entangled to be followed"))
    return (
        sorted(breaches, key=lambda b: (b.part, b.file, b.line, b.name)),
        sorted(found, key=lambda f: (f.code, f.message)),
    )


def _forbidden(sources: Sources, module: Module, *, is_task: bool) -> Iterator[tuple[Use, str]]:
    """Yield each use of a forbidden name; elsewhere than in a task file an import alone is none."""
    for use in module.uses:
        if use.imported and not is_task:
            continue
        for name in sources.named(use):
            root, *rest = name.split(".")
            if root == "torch" and any(_FORBIDDEN.fullmatch(part) for part in rest):
                yield use, name


def _parts(sources: Sources, tasks: set[str], use: Use) -> list[str]:
    """Return the parts that a use belongs to: its own file's, or those that reach it."""
    module = use.scope.module
    if module.stem in tasks:
        return [module.stem]
    place = (module.name, use.scope.owner)
    return [
        task.stem
        for task in sources.modules.values()
        if task.stem in tasks and place in _reached(sources, tasks, task)
    ]


def _reached(sources: Sources, tasks: set[str], task: Module) -> set[_Place]:
    """Return every place that a task file uses, directly or through files that are no task."""
    reached = set(_used(sources, task, None))
    waiting = list(reached)
    while waiting:
        name, owner = waiting.pop()
        module = sources.modules[name]
        if module.stem in tasks:
            continue
        new = set(_used(sources, module, owner)) - reached
        reached |= new
        waiting += new
    return reached


def _used(sources: Sources, module: Module, owner: str | None) -> Iterator[_Place]:
    """Yield the own places that a definition of a module uses; None stands for all of them."""
    for use in module.uses:
        if owner is not None and use.scope.owner != owner:
            continue
        for name in sources.named(use):
            parts = name.split(".")
            for length in range(len(parts), 0, -1):
                home = ".".join(parts[:length])
                if home in sources.modules:
                    yield home, ""
                    if length < len(parts):
                        yield home, parts[length]
                    break
