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

from grader import sandbox
from grader.asking import compare, expectations
from grader.base.places import CHECKS, RECORDED, originals
from grader.base.result import Outcome, Status
from grader.base.settings import Settings
from grader.intake import policy, staging
from grader.link.launchers import WorkersUnavailable
from grader.link.workers import Worker
from grader.link.workshop import Workshop
from grader.run import marks
from grader.run.context import Job
from grader.run.outcomes import Place
from grader.run.plugin import Plugin
from grader.run.results import Report, Request

__all__ = ["Referee", "Request", "default_seed", "run_checks"]

# What pytest would load for its users. The last two would end the referee over the files that an
# interrupted round leaves to the collector.
UNUSED = (
    "terminal cacheprovider faulthandler logging capture debugging unittest legacypath tmpdir "
    "monkeypatch recwarn pastebin junitxml doctest setuponly setupplan stepwise subtests "
    "unraisableexception threadexception"
)
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
        self.originals = originals()
        self.public_seed = expectations.public_seed()
        self.expectations: expectations.Expectations | None = None
        if self.public_seed is not None:
            self.expectations = expectations.Expectations.load(RECORDED)

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

    def grade(
        self,
        request: Request,
        listen: Listener = lambda event: None,
        staged: staging.Staged | None = None,
    ) -> dict[str, Any]:
        """Grade `request` and return the tree that `results.json` holds.

        Args:
            request: what to grade and how.
            listen: hears every event.
            staged: what was read of the submission already; its path is then not looked at.

        Raises:
            IntakeError: there is nothing to grade; the message says what was expected.
        """
        if request.seed not in (None, self.public_seed) and self.public_seed is not None:
            raise staging.IntakeError(
                f"this copy of the grader knows the answers for seed {self.public_seed} only, "
                f"got --seed {request.seed}: leave --seed out"
            )
        home = Path(self.workshop.trees / f"{self.workshop.workers}-{time.monotonic_ns()}")
        try:
            staged = staged or staging.examine(request.path, self.settings)
            staged = staging.lay_out(staged, home)
            staged = staging.overlay_given(staged, self.originals)
            return self._grade(request, staged, listen)
        finally:
            shutil.rmtree(home, ignore_errors=True)

    def _grade(self, request: Request, staged: staging.Staged, listen: Listener) -> dict[str, Any]:
        seed = self.public_seed if request.seed is None else request.seed
        if seed is None:
            seed = default_seed(self.settings.salt, staged.sha256)
        inspected = policy.inspect(staged)
        report = Report(self.settings, self.isolation, staged, request, seed, inspected.flags)
        try:
            report.write(list(request.known))
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise staging.IntakeError(f"cannot write into {request.out}: {why}") from error

        def started() -> Worker:
            worker = self.workshop.worker(staged.root)
            worker.sighted = lambda sightings: job.sighted(policy.sighted(sightings, staged))
            return worker

        job = Job(
            settings=self.settings,
            seed=seed,
            start_worker=started,
            listen=listen,
            breaches={b.part: b for b in reversed(inspected.breaches)},
            missing=staged.missing,
            keep_going=request.keep_going,
            tasks=request.tasks,
            gates=request.gates,
            slow=request.slow,
            scale=request.scale,
            outcomes=list(request.known),
            expectations=self.expectations or expectations.Expectations(),
        )

        def heard(event: dict[str, Any]) -> None:
            listen(event)
            if event["kind"] == "flag":
                flag = policy.Flag(event["code"], event["message"])
                if flag not in report.flags:
                    report.flags.append(flag)
            if event["kind"] == "end" and request.out is not None:
                report.keep(job.outcomes)

        job.listen = heard
        job.outcomes += run_checks(job)
        return report.write(job.outcomes, complete=True)


def default_seed(salt: str, sha256: str) -> int:
    """Return the seed that belongs to a submission: the same bytes, the same questions."""
    return int.from_bytes(hashlib.sha256(f"{salt}:{sha256}".encode()).digest()[:6], "big")


def check_files(job: Job) -> list[str]:
    """Return the files that hold a wanted check: the others are not even collected."""
    gates = [*job.settings.points.gates, *job.settings.scale.gates]

    def wanted(one: marks.Marked) -> bool:
        if not one.kind:  # the run says what is missing
            return True
        if one.kind == "part":
            return job.wants(Place(one.name, None, None))
        number = gates.index(one.name) + 1 if one.name in gates else None
        return job.wants(Place(None, number, one.name, slow=one.slow))

    return list(dict.fromkeys(str(one.file) for one in marks.marked() if wanted(one)))


def run_checks(job: Job) -> list[Outcome]:
    """Run the checks over the job's submission; return what the run itself got wrong."""
    plugin = Plugin(job)
    kept = {k: v for k, v in os.environ.items() if k.startswith("PYTEST_") or k == "PY_COLORS"}
    for key in kept:
        del os.environ[key]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    arguments = [
        *check_files(job), "-c", str(CHECKS / "pytest.ini"), "--rootdir", str(CHECKS),
        *(word for name in UNUSED.split() for word in ("-p", f"no:{name}")), "--assert=plain",
        "-p", "pytest_timeout", "--timeout", str(int(job.settings.limits.check_s)),
    ]  # fmt: skip
    trouble = ""
    compare.tolerances = job.settings.parts
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
