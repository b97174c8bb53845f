"""What was asked, and the tree of `results.json` that answers it."""

from __future__ import annotations

import contextlib
import platform
import shlex
import sys
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib import metadata
from operator import attrgetter
from pathlib import Path
from typing import Any

from grader import sandbox
from grader.base.result import SCHEMA, Entry, Outcome, Status, decisive, number, write_json
from grader.base.settings import Settings, StretchStub
from grader.intake import policy, staging
from grader.run.outcomes import task_of


@dataclass(frozen=True)
class Request:
    """What to grade and how.

    `gates` is the number of the last gate that runs, None for all of them; `scale` opens the larger
    size behind them. Without `slow` no check runs that trains a model.
    Without `out` nothing is written; `known` outcomes of an earlier run stand beside the new ones.
    """

    path: Path
    out: Path | None = None
    seed: int | None = None
    keep_going: bool = False
    tasks: frozenset[str] | None = None
    gates: int | None = None
    slow: bool = True
    scale: bool = False
    known: tuple[Outcome, ...] = ()


class Report:
    """Turns outcomes into the tree of `results.json`."""

    def __init__(
        self,
        settings: Settings,
        isolation: sandbox.Isolation,
        staged: staging.Staged,
        request: Request,
        seed: int,
        flags: list[policy.Flag],
    ) -> None:
        """Remember what the tree says besides the outcomes."""
        self.settings = settings
        self.isolation = isolation
        self.staged = staged
        self.request = request
        self.seed = seed
        self.flags = flags
        self._kept: dict[str, tuple[list[str], dict[str, Any]]] = {}

    def keep(self, outcomes: list[Outcome]) -> None:
        """Write what there is so far."""
        with contextlib.suppress(OSError):  # the last write says what is wrong with the disk
            self.write(outcomes)

    def write(self, outcomes: list[Outcome], *, complete: bool = False) -> dict[str, Any]:
        """Write `results.json` where it was asked for, and return the tree."""
        tree = self.tree(outcomes, complete=complete)
        if self.request.out is not None:
            # Until it is whole, a file that is replaced after every check need not be pretty, nor
            # wait for the disk.
            path, indent = self.request.out / "results.json", 2 if complete else None
            write_json(path, tree, indent=indent, lasting=complete)
        return tree

    def tree(self, outcomes: list[Outcome], *, complete: bool) -> dict[str, Any]:
        """Return the whole tree; `complete` is False until every check has ended."""
        parts = [self._part(task, outcomes) for task in self.settings.points.files]
        gates = [self._gate(name, outcomes) for name in self.settings.points.gates]
        stretch = [self._stretch(stub, outcomes) for stub in self.settings.points.stretch]
        graded = parts + gates
        ours = [o for o in outcomes if o.status is Status.GRADER_ERROR]
        passed = complete and not ours and all(e.status is Status.PASSED for e in graded)
        score: Fraction | None = sum((e.score for e in graded), Fraction(0))
        return {
            "schema": SCHEMA,
            "complete": complete,
            "passed": passed,
            "gates_passed": complete and all(e.status is Status.PASSED for e in gates),
            "score": None if ours else number(score or Fraction(0)),
            "max_score": number(sum((e.max_score for e in graded), Fraction(0))),
            "grader_error": ours[0].summary if ours else None,
            "submission": {
                "name": self.staged.name,
                "sha256": self.staged.sha256,
                "files": sorted(self.staged.files),
                "notes": self.staged.notes,
            },
            "gates": [self._plain(e) for e in gates],
            "parts": [self._plain(e) for e in parts],
            "stretch": [self._plain(e) for e in stretch],
            **self._scale(outcomes),
            "integrity": {"flags": [{"code": f.code, "message": f.message} for f in self.flags]},
            "isolation": {
                "level": self.isolation.level,
                "contained": self.isolation.contained,
                "layers": dict(self.isolation.layers),
            },
            "environment": environment(),
            "seed": self.seed,
            "replay": replay(self.request, self.seed),
        }

    def _plain(self, entry: Entry) -> dict[str, Any]:
        """Return an entry as plain values, made anew only when a check joined it or changed."""
        name = entry.task or entry.name
        summaries = [check.summary for check in entry.checks]
        before, plain = self._kept.get(name, ([""], {}))
        if before != summaries:
            plain = entry.to_json()
            self._kept[name] = summaries, plain
        return plain

    def _part(self, task: str, outcomes: list[Outcome]) -> Entry:
        own = [o for o in outcomes if o.stub and task_of(o.stub) == task]
        points = {s.id: s.points for s in self.settings.points.stubs if s.task == task}
        return self._entry(self.settings.points.files[task].removesuffix(".py"), task, own, points)

    def _stretch(self, stub: StretchStub, outcomes: list[Outcome]) -> Entry:
        own = [o for o in outcomes if o.stub == stub.id]
        return self._entry(", ".join(stub.functions), stub.id, own, {stub.id: stub.points})

    def _entry(
        self, name: str, task: str, own: list[Outcome], points: dict[str, Fraction]
    ) -> Entry:
        """Score a part: a stub earns its points when it was checked and every check passed."""
        good = [s for s in points if all_passed([o for o in own if o.stub == s])]
        whole = sum(points.values(), Fraction(0))
        return entry(
            name,
            task,
            own,
            sum((points[s] for s in good), Fraction(0)),
            whole,
            len(good) == len(points),
        )

    def _scale(self, outcomes: list[Outcome]) -> dict[str, Any]:
        """Return the larger size's results, which earn no points, where they were asked for."""
        if not self.request.scale:
            return {}
        nothing = Fraction(0)
        found = []
        for name in self.settings.scale.gates:
            own = [o for o in outcomes if o.gate == name]
            found.append(entry(name, None, own, nothing, nothing, all_passed(own)).to_json())
        return {"scale": found}

    def _gate(self, name: str, outcomes: list[Outcome]) -> Entry:
        own = [o for o in outcomes if o.gate == name]
        points = self.settings.points.gate
        good = all_passed(own)
        return entry(name, None, own, points if good else Fraction(0), points, good)


def all_passed(outcomes: list[Outcome]) -> bool:
    """Tell whether there were checks and all of them passed."""
    return bool(outcomes) and all(o.status is Status.PASSED for o in outcomes)


def entry(
    name: str, task: str | None, own: list[Outcome], score: Fraction, whole: Fraction, good: bool
) -> Entry:
    """Let the worst outcome speak for a part or gate."""
    bad = decisive(own, attrgetter("status"))
    seconds = sum(o.seconds for o in own)
    if bad is None and good:
        evidence = {o.check.rsplit("::", 1)[-1]: o.evidence for o in own if o.evidence}
        text = f"{len(own)} checks passed" if len(own) > 1 else "passed"
        if len(own) == 1 and "in_short" in own[0].evidence:
            text = f"passed, {own[0].evidence['in_short']}"
        return Entry(name, task, Status.PASSED, score, whole, text, None, evidence, seconds, own)
    if bad is None:
        text = "has not been checked"
        return Entry(name, task, Status.BLOCKED, score, whole, text, None, {}, seconds, own)
    return Entry(
        name, task, bad.status, score, whole, bad.summary, bad.diagnosis, bad.evidence, seconds, own
    )


def replay(request: Request, seed: int) -> str:
    """Return the command that repeats a grading."""
    words = ["python", "-m", "grader", "grade", str(request.path), "--seed", str(seed)]
    words += ["--keep-going"] if request.keep_going else []
    words += ["--scale"] if request.scale else []
    return shlex.join(words)


@cache
def environment() -> dict[str, str]:
    """Return the versions a score depends on."""
    names = ("torch", "numpy", "safetensors", "pytest")
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        **{name: metadata.version(name) for name in names},
        "executable": Path(sys.executable).name,
    }
