"""The worker: a confined process that imports the mounted tree and answers questions about it.

It holds no expected values, no seeds and no report. Its answers are data that the referee judges.
"""

from __future__ import annotations

import faulthandler
import io
import os
import re
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from grader import sandbox
from grader.link import frames
from grader.probes import gradients, loop, modules, toolkit, training  # noqa: F401

TASK_ID = re.compile(r"task ([0-9S][0-9.]*)")
MAX_TEXT = 2000
MAX_FRAMES = 6
LOG = 2  # the descriptor of what is printed
MAX_PRINTED = 4000


class Printed(io.TextIOWrapper):
    """The student's `sys.stdout`: the log gets every line, the next answer the first ones."""

    def __init__(self) -> None:
        """Write to descriptor 1."""
        output = open(1, "wb", closefd=False)  # noqa: SIM115
        super().__init__(output, "utf-8", errors="replace", newline="", line_buffering=True)
        self.kept = ""

    def write(self, text: str) -> int:
        """Write and keep what there is room for."""
        if len(self.kept) < MAX_PRINTED:
            self.kept += text[: MAX_PRINTED - len(self.kept)]
        return super().write(text)

    def take(self) -> dict[str, str]:
        """Return what was printed since the last time as a field of a frame, if anything was."""
        kept, self.kept = self.kept, ""
        return {"printed": kept} if kept else {}


def serve(connection: socket.socket, plan: sandbox.Plan, tree: str) -> None:
    """Confine this process, mount `tree`, then answer one frame of questions after another."""
    channel = frames.Channel(connection)
    say_whereabouts()
    layers = sandbox.enter(plan)
    sys.dont_write_bytecode = True
    sys.pycache_prefix = str(Path(plan.scratch) / "bytecode")
    sys.path.append(tree)
    sys.stdout = printed = Printed()
    channel.send({"ready": True, "layers": layers})
    session = toolkit.Session(channel)
    from grader.worker.forbidden_calls import take

    watch_calls, sightings = take()
    while True:
        try:
            request = channel.receive(max_payload=1 << 30)
        except frames.Closed:
            return
        answers = []
        for question in request["questions"]:
            if question["probe"] != "yardstick":  # it runs torch's own transformer, not the tree
                watch_calls(tree)
            answers.append(_answer(session, question, tree))
        said = sightings() | printed.take()
        channel.send({"id": request["id"], "answers": answers} | said)


def say_whereabouts() -> None:
    """Let this process print its active calls when it crashes or gets a signal of the referee."""
    # Only its own thread: others cannot be stopped, and their calls change while they are read.
    faulthandler.enable(LOG, all_threads=False)
    if sys.platform != "win32":
        faulthandler.register(signal.SIGUSR1, LOG, all_threads=False)


def _answer(session: toolkit.Session, question: dict[str, Any], tree: str) -> dict[str, Any]:
    """Answer one question; what the student's code raises becomes the answer."""
    try:
        return {"value": toolkit.run(session, question["probe"], question["arguments"])}
    except frames.Closed:
        os._exit(0)
    except BaseException as error:
        return {"error": describe(error, tree)}


def describe(error: BaseException, tree: str) -> dict[str, Any]:
    """Describe what the student's code raised, with frames of the student's files only."""
    kind = "raised"
    task = None
    if isinstance(error, toolkit.Refused):
        kind = error.kind
    elif isinstance(error, NotImplementedError):
        kind = "not_implemented"
        found = TASK_ID.search(_text(error))
        task = found.group(1).rstrip(".") if found else None
    elif isinstance(error, MemoryError) or "can't allocate memory" in _text(error):
        kind = "out_of_memory"
    return {
        "kind": kind,
        "task": task,
        "type": type(error).__name__[:100],
        # The place of the tree is left out: it differs from run to run.
        "message": _text(error).replace(os.path.realpath(tree) + os.sep, ""),
        "frames": _student_frames(error, tree),
        "detail": getattr(error, "detail", None) if isinstance(error, toolkit.Refused) else None,
    }


def _text(error: BaseException) -> str:
    try:
        return str(error)[:MAX_TEXT]
    except BaseException:  # a student's exception may fail in its own __str__
        return "(the exception's own text could not be read)"


def _student_frames(error: BaseException, tree: str) -> list[dict[str, Any]]:
    """Return the last few frames inside `tree`, outermost first."""
    root = os.path.realpath(tree) + os.sep
    found = []
    if isinstance(error, SyntaxError) and error.filename:
        name = os.path.realpath(error.filename)
        if name.startswith(root):
            line = (error.text or "").strip()
            found.append((name, error.lineno or 0, "", line))
    for item in traceback.extract_tb(error.__traceback__):
        name = os.path.realpath(item.filename)
        if name.startswith(root):
            found.append((name, item.lineno or 0, item.name, item.line or ""))
    if isinstance(error, SyntaxError) and len(found) > 1:
        found = found[1:] + found[:1]
    return [
        {"file": name[len(root) :], "line": line, "function": function, "text": text[:200]}
        for name, line, function, text in found[-MAX_FRAMES:]
    ]
