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

from grader import draws, early, expectations, tracing
from grader.ahead import Ahead
from grader.benches import Benches
from grader.job import LAST_GATE, Blocked, Job
from grader.outcomes import (
    Place,
    is_given,
    is_required,
    lost_outcome,
    outcome,
    student_outcome,
    task_of,
)
from grader.result import CheckFailed, Outcome, Status
from grader.settings import Settings, checked_given
from grader.student_error import StudentError
from grader.submission import Submission
from grader.workers import Worker, WorkerLost

# The models of gates 1 to 3 live in so many workers, and are drawn under this name.
LANES = 2
BENCHES = "benches"
MARKERS = (
    "part(stub): a check of the stub with this task id",
    "gate(number, name): a check of this gate",
    "early(questions): what a check asks, of another worker while earlier ones are judged",
)
SLOW = ("timeout", "out_of_memory")
# A training that runs ahead begins once these tasks have passed: most trees that are wrong or not
# finished show it there.
FIRST_TASKS = ("1", "2")


def place_of(item: pytest.Item) -> Place:
    """Read a check's marker."""
    part = item.get_closest_marker("part")
    gate = item.get_closest_marker("gate")
    if (part is None) == (gate is None):
        raise pytest.UsageError(f"{item.nodeid} needs one marker, part or gate")
    if part is not None:
        return Place(str(part.args[0]), None, None)
    assert gate is not None
    return Place(None, int(gate.args[0]), str(gate.args[1]))


class Plugin:
    """One run over one submission."""

    def __init__(self, job: Job) -> None:
        """Run for `job`."""
        self.job = job
        self.group: str | None = None
        self.current: Submission | None = None
        self.shared: Benches | None = None
        self.early: Ahead | None = None
        self.beside: early.Beside | None = None
        self.training = ""
        self.recorded: set[str] = set()
        points = job.settings.points
        self.files = {stub.id: stub.file for stub in points.stubs}
        self.files |= {stub.id: stub.file for stub in points.stretch}
        self.files |= {code.id: code.file for code in points.given}
        self.functions: dict[str, set[str]] = {}
        for stub in points.stubs:
            names = {name.split(".")[0] for name in stub.functions}
            self.functions.setdefault(stub.file, set()).update(names)
        self.given = {code.id for code in checked_given(job.settings)}

    # Collection -----------------------------------------------------------------------------

    def pytest_configure(self, config: pytest.Config) -> None:
        """Declare the markers."""
        for marker in MARKERS:
            config.addinivalue_line("markers", marker)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep what was asked for, in order."""
        wanted = [item for item in items if self._wanted(place_of(item))]
        items[:] = sorted(wanted, key=lambda item: place_of(item).order)
        self.job.planned = [item.nodeid for item in items]
        training = [item.name for item in items if place_of(item).gate == LAST_GATE]
        self.training = training[0] if self.job.ahead and training else ""
        self.job.listen({"kind": "plan", "checks": len(items)})

    def _wanted(self, place: Place) -> bool:
        if place.gate:
            return self.job.scale if place.gate > LAST_GATE else place.gate <= self.job.gates
        chosen = self.job.tasks
        stub = place.stub or ""
        if is_given(stub) and stub not in self.given:
            return False
        return chosen is None or stub in chosen or task_of(stub) in chosen

    # Running --------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Record a blocked check and skip it."""
        place, why = place_of(item), self._blocked(item)
        if why is not None:
            self._record(item, Outcome("", None, None, why[0], why[1], why[2]), 0.0)
            pytest.skip(why[1])
        if self.training:
            self._begin_training(place)
        self.job.listen(
            {"kind": "start", "check": item.nodeid, "place": place, "title": title(item)}
        )

    def _blocked(self, item: pytest.Item) -> Blocked | None:
        place = place_of(item)
        return self.job.blocked(place, self.files.get(place.stub or "", ""))

    def _begin_training(self, place: Place) -> None:
        """Let gate 4 train from now on, if the first tasks have passed; a failure gives it up."""
        promising = self.job.promising
        if promising and place.stub and task_of(place.stub) in FIRST_TASKS:
            return
        if promising:
            rng = draws.Draws(self.job.seed, self.training)
            self.early = Ahead(self.job.start_worker, rng, self.job.settings)
        self.training = ""

    def _give_up_training(self) -> None:
        if self.early is not None:
            self.early.close()
            self.early = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool:
        """Run one check and record how it ended."""
        names = inspect.signature(pyfuncitem.obj).parameters
        arguments = {name: pyfuncitem.funcargs[name] for name in names}
        began = time.monotonic()
        outcome = self._run(pyfuncitem, arguments)
        self._record(pyfuncitem, outcome, time.monotonic() - began)
        return True

    def _run(self, item: pytest.Function, arguments: dict[str, Any]) -> Outcome:
        place = place_of(item)
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
        return tracing.traced(found, place, parts, self.job.missing, self.functions)

    def pytest_exception_interact(self, node: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """Record what no check should do: raise something else."""
        if isinstance(node, pytest.Item) and node.nodeid not in self.recorded:
            error = call.excinfo.value if call.excinfo else None
            text = f"{type(error).__name__}: {error}"
            self._record(node, outcome(Status.GRADER_ERROR, text), 0.0)

    def _record(self, item: pytest.Item, found: Outcome, seconds: float) -> None:
        place = place_of(item)
        found.check = item.nodeid.rsplit("/", 1)[-1]
        found = self.job.judged(found, place, self.files)
        found.seconds = seconds
        self.recorded.add(item.nodeid)
        self.job.outcomes.append(found)
        needed = place.gate or is_required(place.stub)
        if needed and found.status is not Status.PASSED and not self.job.keep_going:
            self._give_up_training()
        self.job.listen({"kind": "end", "place": place, "title": title(item), "outcome": found})

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """End the last workers."""
        self._give_up_training()
        self._close()

    def _close(self) -> None:
        for open_one in (self.current, self.shared, self.beside):
            if open_one is not None:
                open_one.close()
        self.current = self.shared = self.beside = None

    def missing(self) -> list[str]:
        """Return the planned checks that left no outcome."""
        return [name for name in self.job.planned if name not in self.recorded]

    # Fixtures -------------------------------------------------------------------------------

    @pytest.fixture
    def submission(self, request: pytest.FixtureRequest) -> Submission:
        """The mounted tree, through a worker shared by the checks of one task or gate."""
        place = place_of(request.node)
        if self.current is None or place.group != self.group:
            self._close()
            self.group = place.group
            start = partial(self._start_worker, gate=bool(place.gate))
            self.current = Submission(start, self.job.listen)
            self._ask_beside(request.node)
        return self.current

    def _ask_beside(self, first: pytest.Item) -> None:
        """Let a second worker begin with what later checks of the same task ask early."""
        asking = {
            item.name: partial(early.questions_of, item, self.job)
            for item in first.session.items
            if item.get_closest_marker("early")
            if place_of(item).group == self.group and self._blocked(item) is None
        }
        # Early checks know of each other's traces in the process, as they would in turn.
        if asking and first.name not in asking and self.job.forks:
            self.beside = early.Beside(partial(self._start_worker, gate=False), asking)

    @pytest.fixture
    def asked(self, request: pytest.FixtureRequest, submission: Submission) -> early.Answering:
        """Returns what a check asks early, answered by another worker or else now."""

        def answered() -> early.Asked:
            found = self.beside.take(request.node.name) if self.beside else None
            if found is not None:
                return found
            questions = early.questions_of(request.node, self.job)
            return early.Asked(submission.attempt(*questions), submission)

        return answered

    def _start_worker(self, gate: bool) -> Worker:
        worker = self.job.start_worker()
        worker.hurry(self.job.haste(gate))
        return worker

    @pytest.fixture
    def benches(self) -> Benches:
        """The models of gates 1 to 3, which share them and their workers."""
        if self.shared is None:
            self._close()
            start = partial(self._start_worker, gate=True)
            lanes = [Submission(start, self.job.listen) for _ in range(LANES)]
            rng = draws.Draws(self.job.seed, BENCHES)
            ask = self.job.expectations.for_check(BENCHES)
            self.shared = Benches(lanes, rng, ask, self.job.settings)
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

    @pytest.fixture
    def ahead(self) -> Ahead | None:
        """The training that was begun before its gate, if it was."""
        return self.early


def title(item: pytest.Item) -> str:
    """Return the sentence a student reads: the first line of the check's docstring."""
    return (inspect.getdoc(getattr(item, "obj", None)) or item.name).split("\n")[0]
