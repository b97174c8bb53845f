"""Grade one submission end to end: stage, check, score, write `results.json`."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grader import intake, policy, sandbox
from grader.launchers import WorkersUnavailable
from grader.plugin import Job, Plugin
from grader.report import Report, Request
from grader.result import Outcome, Status
from grader.settings import Settings
from grader.workers import Workshop

__all__ = ["Referee", "Request", "default_seed", "run_checks"]

CHECKS = Path(__file__).resolve().parent / "checks"
Listener = Callable[[dict[str, Any]], None]


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
            if event["kind"] == "end" and request.out is not None:
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
