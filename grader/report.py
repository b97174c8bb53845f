"""What was asked, and the tree of `results.json` that answers it."""

from __future__ import annotations

import contextlib
import platform
import shlex
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from grader import intake, policy, sandbox
from grader.outcomes import FILES, task_of
from grader.result import SCHEMA, Entry, Outcome, Status, number, write_json
from grader.settings import Settings, StretchStub, checked_given

SCALE = ("scale_reverse", "scale_copy")


@dataclass(frozen=True)
class Request:
    """What to grade and how.

    `gates` is the number of the last gate that runs; `scale` opens the larger size behind them.
    Without `out` nothing is written; `known` outcomes of an earlier run stand beside the new ones.
    `ahead` lets gate 4 train while the other checks run, which pays where a core would idle.
    """

    path: Path
    out: Path | None = None
    seed: int | None = None
    keep_going: bool = False
    tasks: frozenset[str] | None = None
    gates: int = 4
    scale: bool = False
    ahead: bool = False
    known: tuple[Outcome, ...] = ()


PRECEDENCE = [Status.GRADER_ERROR, Status.NOT_IMPLEMENTED, Status.BLOCKED]


def worst(outcomes: Iterable[Outcome]) -> Outcome | None:
    """Return the outcome that speaks for all: ours to mend first, then undone, then the first."""
    bad = [o for o in outcomes if o.status is not Status.PASSED]
    for status in PRECEDENCE[:2]:
        for outcome in bad:
            if outcome.status is status:
                return outcome
    unblocked = [o for o in bad if o.status is not Status.BLOCKED]
    ranked = unblocked or bad
    return ranked[0] if ranked else None


class Report:
    """Turns outcomes into the tree of `results.json`."""

    def __init__(
        self,
        settings: Settings,
        isolation: sandbox.Isolation,
        staged: intake.Staged,
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
        self._keeper: ThreadPoolExecutor | None = None
        self._written = 0

    def keep(self, outcomes: list[Outcome]) -> None:
        """Write what there is so far, in a thread: no check waits for the disk.

        `outcomes` is the list that grows; what has joined it by the time of the write is written.
        """
        self._keeper = self._keeper or ThreadPoolExecutor(1)
        self._keeper.submit(self._keep, outcomes)

    def _keep(self, outcomes: list[Outcome]) -> None:
        latest = list(outcomes)
        if len(latest) > self._written:
            self._written = len(latest)
            with contextlib.suppress(OSError):  # the last write says what is wrong with the disk
                self.write(latest)

    def finish_keeping(self) -> None:
        """Wait until what there is so far is written."""
        if self._keeper is not None:
            self._keeper.shutdown()
            self._keeper = None

    def write(self, outcomes: list[Outcome], *, complete: bool = False) -> dict[str, Any]:
        """Write `results.json` where it was asked for, and return the tree."""
        tree = self.tree(outcomes, complete=complete)
        if self.request.out is not None:
            # Until it is whole, a file that is replaced after every check need not be pretty.
            write_json(self.request.out / "results.json", tree, indent=2 if complete else None)
        return tree

    def tree(self, outcomes: list[Outcome], *, complete: bool) -> dict[str, Any]:
        """Return the whole tree; `complete` is False until every check has ended."""
        parts = [self._part(task, outcomes) for task in FILES]
        gates = [self._gate(name, outcomes) for name in self.settings.points.gates]
        stretch = [self._stretch(stub, outcomes) for stub in self.settings.points.stretch]
        given = self._given(outcomes)
        graded = parts + given + gates
        ours = [o for o in outcomes if o.status is Status.GRADER_ERROR]
        passed = complete and all(e.status is Status.PASSED for e in graded)
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
            **({"given": [self._plain(e) for e in given]} if given else {}),
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
        return self._entry(FILES[task].removesuffix(".py"), task, own, points)

    def _stretch(self, stub: StretchStub, outcomes: list[Outcome]) -> Entry:
        own = [o for o in outcomes if o.stub == stub.id]
        return self._entry(", ".join(stub.functions), stub.id, own, {stub.id: stub.points})

    def _given(self, outcomes: list[Outcome]) -> list[Entry]:
        """Return the results of given code, which earns nothing, where it is the student's."""
        nothing = Fraction(0)
        found = []
        for code in checked_given(self.settings):
            own = [o for o in outcomes if o.stub == code.id]
            name = code.file.removesuffix(".py")
            found.append(entry(name, code.id, own, nothing, nothing, all_passed(own)))
        return found

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
        for name in SCALE:
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
    bad = worst(own)
    seconds = sum(o.seconds for o in own)
    if bad is None and good:
        evidence = {o.check.rsplit("::", 1)[-1]: o.evidence for o in own if o.evidence}
        text = f"{len(own)} checks passed" if len(own) > 1 else "passed"
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
