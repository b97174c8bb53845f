"""Try the layers in forked children, and report which work and what a child can still read."""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import asdict, dataclass
from typing import Any

from grader.sandbox.confine import LayerFailed, Plan, enter

# The order in which layers are dropped when a child dies without an answer.
INNER_LAYERS = ("seccomp", "landlock", "uid")


@dataclass(frozen=True)
class Task:
    """What to try.

    Attributes:
        layers: of `INNER_LAYERS`.
        uid: the user to become for the layer of that name.
        scratch: a folder of its own, which that user may write.
        readable: what a worker may read.
        must_read: what it must be able to read.
        witness: a file that no worker needs, to test whether the grader's files are hidden.
    """

    layers: tuple[str, ...]
    uid: int
    scratch: str
    readable: tuple[str, ...]
    must_read: tuple[str, ...]
    witness: str

    def to_json(self) -> str:
        """Return the task as one line of JSON."""
        return json.dumps(asdict(self))

    def plan(self, layers: list[str]) -> Plan:
        """Return the plan for these layers."""
        return Plan(
            scratch=self.scratch,
            readable=self.readable,
            landlock="landlock" in layers,
            seccomp="seccomp" in layers,
            uid=self.uid if "uid" in layers else None,
        )


@dataclass(frozen=True)
class Answer:
    """The layers that work together, why the others do not, and whether the witness is hidden."""

    layers: tuple[str, ...]
    skipped: dict[str, str]
    hidden: bool


def try_layers(task: Task) -> Answer:
    """Try the task's layers together; drop the one that fails, and try the rest again."""
    layers = list(task.layers)
    skipped: dict[str, str] = {}
    while layers:
        seen = _try(task, layers)
        if "failed" not in seen:
            return Answer(tuple(layers), skipped, bool(seen["hidden"]))
        failed = seen["failed"] if seen["failed"] in layers else layers[0]
        layers.remove(failed)
        skipped[failed] = seen["reason"]
    return Answer((), skipped, not _readable(task.witness))


def main() -> None:
    """Answer the task on the command line; `isolation` runs this below bwrap."""
    values: dict[str, Any] = json.loads(sys.argv[1])
    task = Task(**values)
    print(json.dumps(asdict(try_layers(task))))


def _try(task: Task, layers: list[str]) -> dict[str, Any]:
    """Return what a child confined by these layers saw, or which layer failed and why."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        # Other threads may hold locks at the fork, but nothing the child does takes any.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            os.write(write_end, json.dumps(_look(task, layers)).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        text = pipe.read()
    status = os.waitpid(pid, 0)[1]
    if text:
        answer: dict[str, Any] = json.loads(text)
        return answer
    code = os.waitstatus_to_exitcode(status)
    return {"failed": "", "reason": f"a process confined by it ended with code {code}"}


def _look(task: Task, layers: list[str]) -> dict[str, Any]:
    try:
        enter(task.plan(layers))
    except LayerFailed as error:
        return {"failed": error.layer, "reason": error.reason}
    for path in task.must_read:
        if not _readable(path):
            failed = next(name for name in reversed(INNER_LAYERS) if name in layers)
            return {"failed": failed, "reason": f"the interpreter's own {path} cannot be read"}
    return {"hidden": not _readable(task.witness)}


def _readable(path: str) -> bool:
    try:
        if os.path.isdir(path):
            os.listdir(path)
        else:
            with open(path, "rb") as file:
                file.read(1)
    except OSError:
        return False
    return True
