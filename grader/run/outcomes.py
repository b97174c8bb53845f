"""Turns what a submission did into an outcome: a status, a sentence, a diagnosis."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from grader.base.result import Diagnosis, Outcome, Status
from grader.base.settings import shipped, task_files
from grader.base.student_error import StudentError, task_file
from grader.intake.policy import Breach
from grader.link.workers import WorkerLost


@dataclass(frozen=True)
class Place:
    """Where a check stands: its stub, or its gate.

    Attributes:
        stub: a task id, such as "2.1".
        gate: from 1; those of the larger size are counted on from the last gate of lab.toml.
        gate_name: its name.
        worker: the name of a worker of its own, for checks that meddle with what others use.
        slow: whether it trains a model.
    """

    stub: str | None
    gate: int | None
    gate_name: str | None
    worker: str = ""
    slow: bool = False

    @property
    def group(self) -> str:
        """Return what shares one worker: most parts, the optional tasks, a gate."""
        if self.gate:
            return f"gate {self.gate}"
        return self.worker or ("parts" if is_required(self.stub) else "optional")


def is_required(stub: str | None) -> bool:
    """Tell whether a stub id is that of a required task: "2.1" is, "S1" is not."""
    return (stub or "")[:1].isdigit()


def task_of(stub: str) -> str:
    """Return the task of a stub id: "2" of "2.1", "S1" of "S1"."""
    return stub.split(".")[0]


def file_of(stub: str | None) -> str:
    """Return the file of a required stub's task, nothing for another one."""
    return shipped().points.files.get(task_of(stub or ""), "")


def outcome(
    status: Status,
    summary: str,
    diagnosis: Diagnosis | None = None,
    evidence: dict[str, Any] | None = None,
) -> Outcome:
    """Return an outcome that `_record` will place."""
    return Outcome("", None, None, status, summary, diagnosis, evidence or {})


def missing_file(file: str, sentence: str) -> tuple[Status, str, Diagnosis]:
    """Say which task file did not come, and what was found in its place."""
    advice = f"Put {file} back under its own name, beside the other files of the package."
    words = sentence if sentence.endswith("?") else f"{sentence}."
    diagnosis = Diagnosis("missing_file", file.removesuffix(".py"), words, advice)
    return Status.NOT_IMPLEMENTED, words, diagnosis


def policy_diagnosis(breach: Breach) -> Diagnosis:
    """Say which forbidden name stands where."""
    return Diagnosis(
        "forbidden_name",
        breach.part,
        breach.cause,
        "Write this piece yourself from tensor operations; the lab's given modules may be used.",
    )


def student_outcome(error: StudentError, place: Place) -> Outcome:
    """Turn what the student's code raised into a status and a diagnosis."""
    own = task_of(place.stub) if place.stub else None
    if error.kind == "not_implemented":
        task = str(error.task or place.stub or "")
        file = f" ({file_of(task)})" if file_of(task) else ""
        if place.stub and (task == place.stub or task_of(task) == own):
            return outcome(Status.NOT_IMPLEMENTED, f"task {task} is not implemented yet{file}")
        return outcome(Status.BLOCKED, f"waits for task {task}{file}")
    evidence = {"type": error.type, "message": error.message, "frames": error.frames}
    part = error.part or file_of(own).removesuffix(".py") or "models"
    if error.kind == "out_of_memory":
        return outcome(
            Status.OUT_OF_MEMORY,
            f"{error.type}: {error.message}",
            Diagnosis(
                "out_of_memory",
                part,
                f"{error.place() or part + '.py'}: it asked for more memory than a worker may use.",
                "Look for a shape that multiplies sizes it should not.",
            ),
            evidence,
        )
    if error.kind == "constructor_changed":
        part = str(error.detail.get("file", part)).removesuffix(".py")
        return outcome(Status.FAILED, *constructor_changed(error, part), evidence)
    if error.kind == "missing_name":
        part = str(error.detail.get("file", part)).removesuffix(".py")
        name = str(error.detail.get("name") or error.message.rpartition(" has no ")[2])
        diagnosis = missing_name(name, part)
        return outcome(Status.FAILED, diagnosis.cause, diagnosis)
    if error.kind == "no_handle":
        return outcome(Status.GRADER_ERROR, error.message)
    if error.waits_for_keyboard:
        diagnosis = left_in(error, part, place.stub)
    elif error.while_importing:
        diagnosis = import_failed(error, part, own)
    else:
        diagnosis = raised(error, part)
    return outcome(Status.ERROR, diagnosis.cause, diagnosis, evidence)


def raised(error: StudentError, part: str) -> Diagnosis:
    """Say what was raised where."""
    said = f"{error.type}: {error.message}" if error.message else error.type
    cause = f"{error.place() or 'your code'}: {said}"
    where = error.place()
    advice = f"Look at {where or part + '.py'}: which shapes and types does it get there?"
    return Diagnosis("raised", part, cause, advice)


def left_in(error: StudentError, part: str, task: str | None) -> Diagnosis:
    """Say that the code stops for somebody at a keyboard, whom a check has not."""
    word = "a breakpoint()" if error.type == "BdbQuit" else "an input()"
    cause = f"{error.place() or part + '.py'}: {word} stops here, and the checks have no terminal."
    command = f"make run TASK={task}" if task else "make run TASK=2.1"
    advice = f"Take it out for the checks; it works in `{command}`, where you have a terminal."
    return Diagnosis("breakpoint_left", part, cause, advice)


def import_failed(error: StudentError, part: str, own: str | None) -> Diagnosis:
    """Say which line keeps a file from being imported, and with it all that needs the file."""
    circle = circle_of(error)
    if circle:
        first = task_file(circle[0]["file"])
        part = first if first in task_files() else file_of(own).removesuffix(".py") or part
        way = " -> ".join(f"{f['file']}, line {f['line']}" for f in circle)
        cause = f"the imports go round in a circle: {way} -> {circle[0]['file']}."
        advice = f"Look at the imports at the top of {part}.py: the handout's need no circle."
        return Diagnosis("circular_import", part, cause, advice)
    where = f"{error.place()}, `{error.line}`" if error.line else error.place()
    # A syntax error repeats file and line behind its message.
    message = re.sub(r" \([^()]*, line \d+\)$", "", error.message)
    said = f"{error.type}: {message}" if message else error.type
    cause = f"{part}.py cannot be imported: {where}: {said}"
    advice = f"Mend that line first: whatever uses {part}.py waits for it."
    return Diagnosis("import_failed", part, cause, advice)


def missing_name(name: str, part: str) -> Diagnosis:
    """Say which name a task file lacks."""
    cause = f"{part}.py has no {name}."
    advice = "Restore the name from the handout: the rest of the lab imports it."
    return Diagnosis("missing_name", part, cause, advice)


def circle_of(error: StudentError) -> list[dict[str, Any]]:
    """Return the imports that go round, the earliest task file first, or nothing.

    A file of the lab imports earlier ones only, so the earliest is where to look.
    """
    found = re.search(r"partially initialized module '([\w.]+)'", error.message)
    if found is None:
        return []
    file = found[1].replace(".", "/") + ".py"
    starts = [i for i, frame in enumerate(error.frames) if frame["file"] == file]
    circle = error.frames[starts[0] :] if starts else error.frames
    order = [*task_files()]
    places = [order.index(n) if (n := task_file(f["file"])) in order else 99 for f in circle]
    first = places.index(min(places)) if places else 0
    return [*circle[first:], *circle[:first]]


def constructor_changed(error: StudentError, part: str) -> tuple[str, Diagnosis]:
    """Name the first parameter that differs from the handout's constructors."""
    name = str(error.detail.get("name"))
    shapes = [
        f"shape {tuple(s)}" if isinstance(s, list) else "no such parameter"
        for s in (error.detail.get("expected"), error.detail.get("found"))
    ]
    cause = (
        f"The constructors were changed: for {name} the check expects {shapes[0]} "
        f"and found {shapes[1]}, so it cannot load its weights."
    )
    advice = "Restore the given constructors; the gates still judge your own parameters."
    return cause, Diagnosis("constructor_changed", part, cause, advice)


def lost_outcome(lost: WorkerLost, place: Place) -> Outcome:
    """Turn a lost worker into its status, and say where its code was if that is known."""
    words = {
        "timeout": "a loop or a wait that does not end",
        "out_of_memory": "a tensor or list that grows without bound",
        "crashed": "an exit call, or a recursion that breaks the interpreter",
    }
    stood = StudentError({"kind": lost.status, "frames": lost.calls})
    part = stood.part or file_of(place.stub).removesuffix(".py") or "models"
    cause = f"The process that ran your code gave no answer: {lost.detail}."
    if lost.status == "protocol":
        advice = "Return plain tensors; do not write to descriptors you did not open."
    elif not stood.place():
        advice = f"Look for {words[lost.status]}."
    else:
        meanwhile = f", while {lost.importing} is imported" if lost.importing else ""
        cause = f"{stood.place()}{meanwhile}: {lost.detail}."
        advice = f"Look there for {words[lost.status]}."
        if lost.importing:
            guard = 'if __name__ == "__main__":'
            advice = f"{advice} What is to run only with the file itself goes under `{guard}`."
    diagnosis = Diagnosis(lost.status, part, cause, advice)
    evidence = {"frames": stood.frames} if stood.frames else {}
    return outcome(Status(lost.status), cause, diagnosis, evidence)
