"""What one run of the checks is about, and why a check of it does not run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from grader.asking import expectations
from grader.base.result import Diagnosis, Outcome, Status
from grader.base.settings import Settings
from grader.base.text import all_of
from grader.intake.policy import Breach, Inspected
from grader.link.workers import Worker
from grader.run.outcomes import Place, is_required, missing_file, policy_diagnosis, task_of

Blocked = tuple[Status, str, Diagnosis | None]


@dataclass
class Job:
    """What one run of the checks is about, and what it found."""

    settings: Settings
    seed: int
    start_worker: Callable[[], Worker]
    listen: Callable[[dict[str, Any]], None]
    breaches: dict[str, Breach] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    expectations: expectations.Expectations = field(default_factory=expectations.Expectations)
    keep_going: bool = False
    tasks: frozenset[str] | None = None
    gates: int | None = None
    slow: bool = True
    scale: bool = False
    outcomes: list[Outcome] = field(default_factory=list)
    planned: list[str] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    importing: bool = False  # Whether a file was never imported to its end.
    pending: list[Breach] = field(default_factory=list)  # Seen since the last outcome.

    def is_extra(self, place: Place) -> bool:
        """Tell whether a check is one of the larger size."""
        return place.gate_name in self.settings.scale.gates

    def wants(self, place: Place) -> bool:
        """Tell whether a check was asked for; what lab.toml does not name is none of the lab."""
        if place.stub:
            chosen = self.tasks is None or {place.stub, task_of(place.stub)} & self.tasks
            return bool(chosen) and place.stub in self.settings.points.ids
        if place.gate is None or (place.slow and not self.slow):
            return False
        if self.is_extra(place):
            return self.scale
        return self.gates is None or place.gate <= self.gates

    def haste(self, gate: bool) -> int:
        """Return how many times less than usual a check, or a gate, waits for an answer.

        A submission that never answers would cost its limit of time at every check: the further
        checks of the same stub are spared it, those of others are given less. What an optional part
        did must not cost a gate its time.
        """
        if gate:
            required = sum(is_required(stub) for stub in self.unanswered)
            return 10 if required > 3 else 3 if required else 1
        many = self.importing or len(self.unanswered) > 3
        return 30 if many else 10 if self.unanswered else 1

    def blocked(self, place: Place, file: str) -> Blocked | None:
        """Return the status, sentence and diagnosis of a check that cannot run, None if it can.

        `file` is the one that holds the check's stub.
        """
        return self._part_blocked(place.stub, file) if place.stub else self._gate_blocked(place)

    def sighted(self, seen: Inspected) -> None:
        """Take up what a worker saw the submission do."""
        self.pending += seen.breaches
        for flag in seen.flags:
            self.listen({"kind": "flag", "code": flag.code, "message": flag.message})

    def judged(self, found: Outcome, place: Place, files: dict[str, str]) -> Outcome:
        """Return a check's outcome in the light of what was seen meanwhile.

        A forbidden call fails every check of the part that made it, also those that had passed, and
        closes the gates, as if the source had shown it. `files` names the file of each stub.
        """
        found.stub, found.gate = place.stub, place.gate_name
        fresh, self.pending = self.pending, []
        if not fresh:
            return found
        asked = files.get(place.stub or "", "models.py").removesuffix(".py")
        for seen in fresh:
            part = seen.part or asked
            self.breaches.setdefault(part, replace(seen, part=part))
        for outcome in (*self.outcomes, found):
            part = files.get(outcome.stub or "", "").removesuffix(".py")
            if outcome is found and found.gate and not all(seen.part for seen in fresh):
                part = asked  # nothing shows whose call it was, but it was made for this gate
            self._rule(outcome, part)
        return found

    def _rule(self, outcome: Outcome, part: str) -> None:
        """Give an outcome the verdict that breaches leave it."""
        verdict: Blocked | None = None
        if part in self.breaches:
            breach = self.breaches[part]
            verdict = (Status.FAILED, breach.cause, policy_diagnosis(breach))
        elif outcome.gate and not self.keep_going:
            verdict = self._waits_for_part()
        if verdict is not None and outcome.status is not Status.GRADER_ERROR:
            outcome.status, outcome.summary, outcome.diagnosis = verdict
            outcome.evidence = {}

    def _part_blocked(self, stub: str, file: str) -> Blocked | None:
        if stub in self.unanswered:
            return Status.BLOCKED, f"an earlier check of {stub} got no answer", None
        if file in self.missing:
            return missing_file(file, self.missing[file])
        breach = self.breaches.get(file.removesuffix(".py"))
        return (Status.FAILED, breach.cause, policy_diagnosis(breach)) if breach else None

    def _gate_blocked(self, place: Place) -> Blocked | None:
        bad = [o for o in self.outcomes if o.gate and o.status is not Status.PASSED]
        if any(o.gate == place.gate_name for o in bad):
            return Status.BLOCKED, "an earlier check of this gate did not pass", None
        if self.is_extra(place):
            return self._closed(bad)
        if self.keep_going:
            return None
        if place.gate == 1:
            return self._waits_for_part()
        return (Status.BLOCKED, f"waits for gate {bad[0].gate}", None) if bad else None

    def _closed(self, bad: list[Outcome]) -> Blocked | None:
        """Keep the larger size closed until every gate has passed."""
        every = self.settings.points.gates
        gates = [o.gate for o in bad if o.gate in every]
        text = f"the larger size opens once {all_of(len(every), 'gate')} have passed;"
        return (Status.BLOCKED, f"{text} {gates[0]} has not", None) if gates else None

    def _waits_for_part(self) -> Blocked | None:
        files = self.settings.points.files
        for earlier in self.outcomes:
            if not earlier.stub or not is_required(earlier.stub):
                continue
            task = task_of(earlier.stub)
            if earlier.status is Status.NOT_IMPLEMENTED:
                state = "missing" if files[task] in self.missing else "not implemented yet"
                text = f"waits for task {task} ({files[task]}), which is {state}"
                return Status.BLOCKED, text, None
            if files[task].removesuffix(".py") in self.breaches:
                return Status.BLOCKED, f"waits for task {task}, which breaks the rules", None
        return None
