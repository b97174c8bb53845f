"""The pytest plugin that runs the checks: order, blocking, statuses, evidence, live progress.

pytest sees the checks, never the submission. Every outcome is recorded here; a check that did not
run, or returned nothing, is the grader's own error.
"""

from __future__ import annotations

import inspect
import time
from functools import partial
from typing import Any

import numpy as np
import pytest

from grader.asking import expectations
from grader.asking.submission import Submission
from grader.base.result import MAX_TEXT, CheckFailed, Outcome, Status
from grader.base.settings import Settings
from grader.base.student_error import StudentError
from grader.base.text import printed
from grader.gates.model_pool import Benches
from grader.link.workers import Worker, WorkerLost
from grader.model import draws
from grader.run import blame
from grader.run.context import Job
from grader.run.outcomes import Place, is_required, lost_outcome, outcome, student_outcome

# The models of gates 1 to 3 are drawn under this name.
BENCHES = "benches"
MARKERS = (
    "part(stub, worker): a check of the stub with this task id; in a worker of this name",
    "gate(name): a check of this gate, which lab.toml counts",
    "slow: a check that trains a model",
)
SLOW = ("timeout", "out_of_memory")


def place_of(item: pytest.Item, lab: Settings) -> Place:
    """Read a check's marker."""
    part = item.get_closest_marker("part")
    gate = item.get_closest_marker("gate")
    if (part is None) == (gate is None):
        raise pytest.UsageError(f"{item.nodeid} needs one marker, part or gate")
    if part is not None:
        return Place(str(part.args[0]), None, None, str(part.kwargs.get("worker", "")))
    assert gate is not None
    name, gates = str(gate.args[0]), [*lab.points.gates, *lab.scale.gates]
    number = gates.index(name) + 1 if name in gates else None
    return Place(None, number, name, slow=item.get_closest_marker("slow") is not None)


class Plugin:
    """One run over one submission."""

    def __init__(self, job: Job) -> None:
        """Run for `job`."""
        self.job = job
        self.group: str | None = None
        self.current: Submission | None = None
        self.shared: Benches | None = None
        self.recorded: set[str] = set()
        self.said: list[str] = []
        points = job.settings.points
        self.files = {stub.id: stub.file for stub in points.stubs}
        self.files |= {stub.id: stub.file for stub in points.stretch}
        self.functions: dict[str, set[str]] = {}
        for stub in points.stubs:
            names = {name.split(".")[0] for name in stub.functions}
            self.functions.setdefault(stub.file, set()).update(names)

    # Collection -----------------------------------------------------------------------------

    def pytest_configure(self, config: pytest.Config) -> None:
        """Declare the markers."""
        for marker in MARKERS:
            config.addinivalue_line("markers", marker)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep what was asked for, in order."""
        wanted = [item for item in items if self.job.wants(self.place_of(item))]
        items[:] = sorted(wanted, key=lambda item: self._order(self.place_of(item)))
        self.job.planned = [item.nodeid for item in items]
        self.job.listen({"kind": "plan", "checks": len(items)})

    def place_of(self, item: pytest.Item) -> Place:
        """Return where a check stands in this lab."""
        return place_of(item, self.job.settings)

    def _order(self, place: Place) -> tuple[int, int]:
        """Return the sort key: parts and stretch parts as lab.toml has them, then gates."""
        if place.stub:
            return 0, self.job.settings.points.ids.index(place.stub)
        return 1, place.gate or 0

    # Running --------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Record a blocked check and skip it."""
        place = self.place_of(item)
        why = self.job.blocked(place, self.files.get(place.stub or "", ""))
        if why is not None:
            self._record(item, Outcome("", None, None, why[0], why[1], why[2]), 0.0)
            pytest.skip(why[1])
        self.job.listen(
            {"kind": "start", "check": item.nodeid, "place": place, "title": title(item)}
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool:
        """Run one check and record how it ended."""
        names = inspect.signature(pyfuncitem.obj).parameters
        arguments = {name: pyfuncitem.funcargs[name] for name in names}
        began = time.monotonic()
        self.said.clear()
        outcome = self._run(pyfuncitem, arguments)
        outcome.printed = printed("".join(self.said))
        self._record(pyfuncitem, outcome, time.monotonic() - began)
        return True

    def _run(self, item: pytest.Function, arguments: dict[str, Any]) -> Outcome:
        place = self.place_of(item)
        try:
            # Whatever numbers a submission answers with are its own fault, not the arithmetic's.
            with np.errstate(all="ignore"):
                evidence = item.obj(**arguments)
        except CheckFailed as failure:
            return outcome(
                Status.FAILED, failure.diagnosis.cause, failure.diagnosis, failure.evidence
            )
        except StudentError as error:
            return self._traced(student_outcome(error, place), place)
        except WorkerLost as lost:
            if lost.status in SLOW and place.stub:
                self.job.unanswered.append(place.stub)
                self.job.importing |= bool(lost.importing)
            return self._traced(lost_outcome(lost, place), place)
        if not isinstance(evidence, dict):
            text = f"{item.name} returned {type(evidence).__name__}, not its evidence"
            return outcome(Status.GRADER_ERROR, text)
        return outcome(Status.PASSED, title(item), None, evidence)

    def _traced(self, found: Outcome, place: Place) -> Outcome:
        parts = [o for o in self.job.outcomes if is_required(o.stub)]
        return blame.traced(found, place, parts, self.job.missing, self.functions)

    def pytest_exception_interact(self, node: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """Record what no check should do: raise something else."""
        if isinstance(node, pytest.Item) and node.nodeid not in self.recorded:
            error = call.excinfo.value if call.excinfo else None
            text = f"{type(error).__name__}: {error}"
            self._record(node, outcome(Status.GRADER_ERROR, text), 0.0)

    def _record(self, item: pytest.Item, found: Outcome, seconds: float) -> None:
        place = self.place_of(item)
        found.check = item.nodeid.rsplit("/", 1)[-1]
        found = self.job.judged(found, place, self.files)
        found.seconds = seconds
        self.recorded.add(item.nodeid)
        self.job.outcomes.append(found)
        self.job.listen({"kind": "end", "place": place, "title": title(item), "outcome": found})

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """End the last workers."""
        self._close()

    def _close(self) -> None:
        for open_one in (self.current, self.shared):
            if open_one is not None:
                open_one.close()
        self.current = self.shared = None

    def missing(self) -> list[str]:
        """Return the planned checks that left no outcome."""
        return [name for name in self.job.planned if name not in self.recorded]

    # Fixtures -------------------------------------------------------------------------------

    @pytest.fixture
    def submission(self, request: pytest.FixtureRequest) -> Submission:
        """The mounted tree, through a worker shared by the checks of one task or gate."""
        place = self.place_of(request.node)
        if self.current is None or place.group != self.group:
            self._close()
            self.group = place.group
            start = partial(self._start_worker, gate=bool(place.gate))
            self.current = Submission(start, self.job.listen)
        return self.current

    def _start_worker(self, gate: bool) -> Worker:
        worker = self.job.start_worker()
        worker.hurry(self.job.haste(gate))
        worker.tell = self._hear
        return worker

    def _hear(self, text: str) -> None:
        """Keep what the student's code printed, as much as a check shows."""
        if sum(map(len, self.said)) < MAX_TEXT:
            self.said.append(text[:MAX_TEXT])

    @pytest.fixture
    def benches(self) -> Benches:
        """The models of gates 1 to 3, which share them."""
        if self.shared is None:
            self._close()
            start = partial(self._start_worker, gate=True)
            rng = draws.Draws(self.job.seed, BENCHES)
            ask = self.job.expectations.for_check(BENCHES)
            submission = Submission(start, self.job.listen)
            self.shared = Benches(submission, rng, ask, self.job.settings)
        return self.shared

    @pytest.fixture
    def rng(self, request: pytest.FixtureRequest) -> draws.Draws:
        """Draws that depend on the run's seed and the check's name."""
        return draws.Draws(self.job.seed, request.node.name)

    @pytest.fixture
    def lab(self) -> Settings:
        """The settings of lab.toml."""
        return self.job.settings

    @pytest.fixture
    def expected(self, request: pytest.FixtureRequest) -> expectations.Ask:
        """Expected values by name, from the oracle or from what was recorded of it."""
        return self.job.expectations.for_check(request.node.name)

    @pytest.fixture
    def findings(self) -> list[Outcome]:
        """The part checks that did not pass in this run, in order."""
        return [o for o in self.job.outcomes if o.stub and o.status is not Status.PASSED]


def title(item: pytest.Item) -> str:
    """Return the sentence a student reads: the first line of the check's docstring."""
    return (inspect.getdoc(getattr(item, "obj", None)) or item.name).split("\n")[0]
