"""Grade one submission end to end: stage, check, score, write `results.json`."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from grader import intake, policy, sandbox
from grader.launchers import WorkersUnavailable
from grader.outcomes import FILES, task_of
from grader.plugin import Job, Plugin
from grader.result import SCHEMA, Entry, Outcome, Status, number, write_json
from grader.settings import Settings, StretchStub
from grader.workers import Workshop

SCALE = ("scale_reverse", "scale_copy")
CHECKS = Path(__file__).resolve().parent / "checks"
Listener = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Request:
    """What to grade and how.

    `gates` is the number of the last gate that runs; `scale` opens the larger size behind them.
    Without `out` nothing is written; `known` outcomes of an earlier run stand beside the new ones.
    """

    path: Path
    out: Path | None = None
    seed: int | None = None
    keep_going: bool = False
    tasks: frozenset[str] | None = None
    gates: int = 4
    scale: bool = False
    known: tuple[Outcome, ...] = ()


class Referee:
    """Owns the workshop; grades one submission after another."""

    def __init__(
        self, settings: Settings, isolation: str = "auto", workshop: Workshop | None = None
    ) -> None:
        """Choose the isolation and start preloading torch, unless a workshop did that already."""
        self.settings = settings
        self.workshop = workshop or Workshop(sandbox.choose(isolation), settings.limits)
        self.isolation = self.workshop.isolation

    def adopt(self, settings: Settings) -> None:
        """Grade what follows by other settings."""
        self.settings = settings
        self.workshop.limits = settings.limits

    def close(self) -> None:
        """End every process."""
        self.workshop.close()

    def __enter__(self) -> Referee:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def grade(self, request: Request, listen: Listener = lambda event: None) -> dict[str, Any]:
        """Grade `request` and return the tree that `results.json` holds.

        Raises:
            IntakeError: there is nothing to grade; the message says what was expected.
        """
        home = Path(self.workshop.trees / f"{self.workshop.workers}-{time.monotonic_ns()}")
        try:
            staged = intake.stage(request.path, home, self.settings)
            if self.settings.given == "original":
                staged = intake.overlay_given(staged, originals())
            return self._grade(request, staged, listen)
        finally:
            shutil.rmtree(home, ignore_errors=True)

    def _grade(self, request: Request, staged: intake.Staged, listen: Listener) -> dict[str, Any]:
        seed = request.seed
        if seed is None:
            seed = default_seed(self.settings.salt, staged.sha256)
        inspected = policy.inspect(staged)
        job = Job(
            settings=self.settings,
            seed=seed,
            start_worker=lambda: self.workshop.worker(staged.root),
            listen=listen,
            breaches={b.part: b for b in reversed(inspected.breaches)},
            missing=staged.missing,
            keep_going=request.keep_going,
            tasks=request.tasks,
            gates=request.gates,
            scale=request.scale,
            before_training=self.workshop.launcher.warm,
            outcomes=list(request.known),
        )
        report = Report(self.settings, self.isolation, staged, request, seed, inspected.flags)
        report.write(job.outcomes)

        def heard(event: dict[str, Any]) -> None:
            listen(event)
            if event["kind"] == "flag":
                flag = policy.Flag(event["code"], event["message"])
                if flag not in report.flags:
                    report.flags.append(flag)
            if event["kind"] == "end":
                report.write(job.outcomes)

        job.listen = heard
        job.outcomes += run_checks(job)
        return report.write(job.outcomes, complete=True)


def originals() -> Path:
    """Return a tree with the given files as they were handed out."""
    root = Path(__file__).resolve().parent.parent
    return next(p for p in (root / "solution", root / "starter") if p.is_dir())


def default_seed(salt: str, sha256: str) -> int:
    """Return the seed that belongs to a submission: the same bytes, the same questions."""
    return int.from_bytes(hashlib.sha256(f"{salt}:{sha256}".encode()).digest()[:6], "big")


def run_checks(job: Job) -> list[Outcome]:
    """Run the checks over the job's submission; return what the run itself got wrong."""
    plugin = Plugin(job)
    kept = {k: v for k, v in os.environ.items() if k.startswith("PYTEST_") or k == "PY_COLORS"}
    for key in kept:
        del os.environ[key]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    arguments = [
        str(CHECKS), "-c", str(CHECKS / "pytest.ini"), "--rootdir", str(CHECKS),
        "-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:faulthandler",
        "-p", "no:logging", "-p", "no:capture", "-p", "pytest_timeout",
        "--timeout", str(int(job.settings.limits.check_s)),
    ]  # fmt: skip
    trouble = ""
    try:
        code = pytest.main(arguments, plugins=[plugin])
        if code is pytest.ExitCode.INTERRUPTED:
            raise KeyboardInterrupt
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            trouble = f"pytest ended with {code!r}"
    except WorkersUnavailable as error:
        trouble = str(error)
    finally:
        del os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"]
        os.environ.update(kept)
    lost = [
        Outcome(name, None, None, Status.GRADER_ERROR, "this check did not run")
        for name in plugin.missing()
    ]
    if trouble or not job.planned:
        text = trouble or "no check was found"
        lost.append(Outcome("run", None, None, Status.GRADER_ERROR, text))
    return lost


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

    def write(self, outcomes: list[Outcome], *, complete: bool = False) -> dict[str, Any]:
        """Write `results.json` where it was asked for, and return the tree."""
        tree = self.tree(outcomes, complete=complete)
        if self.request.out is not None:
            write_json(self.request.out / "results.json", tree)
        return tree

    def tree(self, outcomes: list[Outcome], *, complete: bool) -> dict[str, Any]:
        """Return the whole tree; `complete` is False until every check has ended."""
        parts = [self._part(task, outcomes) for task in FILES]
        gates = [self._gate(name, outcomes) for name in self.settings.points.gates]
        stretch = [self._stretch(stub, outcomes) for stub in self.settings.points.stretch]
        graded = parts + gates
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
            "gates": [e.to_json() for e in gates],
            "parts": [e.to_json() for e in parts],
            "stretch": [e.to_json() for e in stretch],
            **self._scale(outcomes),
            "integrity": {"flags": [{"code": f.code, "message": f.message} for f in self.flags]},
            "isolation": {
                "level": self.isolation.level,
                "contained": self.isolation.contained,
                "layers": dict(self.isolation.layers),
            },
            "environment": environment(),
            "seed": self.seed,
            "replay": f"python -m grader grade {self.request.path} --seed {self.seed}",
        }

    def _part(self, task: str, outcomes: list[Outcome]) -> Entry:
        own = [o for o in outcomes if o.stub and task_of(o.stub) == task]
        points = {s.id: s.points for s in self.settings.points.stubs if s.task == task}
        return self._entry(FILES[task].removesuffix(".py"), task, own, points)

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


def environment() -> dict[str, str]:
    """Return the versions a score depends on."""
    names = ("torch", "numpy", "safetensors", "pytest")
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        **{name: metadata.version(name) for name in names},
        "executable": Path(sys.executable).name,
    }
