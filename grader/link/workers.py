"""The referee's side of a worker: ask it, watch its time and memory, end its processes."""

from __future__ import annotations

import contextlib
import math
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from grader import sandbox
from grader.base.files import written_bytes
from grader.base.settings import Limits
from grader.link import frames
from grader.link.launchers import START_S, Launcher, WorkersUnavailable
from grader.link.whereabouts import Whereabouts, without_dumps

HURRIED_TRAINING_S = 15.0
FLOOD = 1 << 21  # more bytes of output than anyone prints on purpose
FILES_HELD = 4  # files of the largest size that a worker may leave in its scratch folder


class WorkerLost(Exception):
    """A worker gave no valid answer; `status` is timeout, out_of_memory, crashed or protocol."""

    def __init__(self, status: str, detail: str, calls: Sequence[dict[str, Any]] = ()) -> None:
        """Keep the status, one sentence of detail and the calls that were active."""
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.calls = list(calls)

    @property
    def importing(self) -> str:
        """Return the name of the file that was still being imported, or an empty text."""
        files = [call["file"] for call in self.calls if call["function"] == "<module>"]
        return files[-1].rpartition("/")[2] if files else ""


class Worker:
    """One confined process and the only way to talk to it."""

    def __init__(self, launcher: Launcher, tree: Path, plan: sandbox.Plan, limits: Limits) -> None:
        """Start the worker for the staged `tree`; `plan.scratch` must be its own."""
        self.launcher = launcher
        self.limits = limits
        self.scratch = Path(plan.scratch)
        self.pid, connection, self.log = launcher.launch(plan, tree)
        self.whereabouts = Whereabouts(self.pid, self.log, tree)
        self.channel = frames.Channel(connection)
        self.alive = True
        self.count = 0
        self.layers: dict[str, str] = {}
        self.hurried = False
        self.late = math.inf
        self.heed: Callable[[], None] = lambda: None
        self.sighted: Callable[[Any], None] = lambda sightings: None
        # Gets what the student's code printed, as it came.
        self.tell: Callable[[str], None] = lambda _: None
        self.logged = 0

    def hurry(self, times: int) -> None:
        """Wait only 1 / `times` as long for an answer (but a second), and not long for a training.

        Used once the submission has failed to answer in time.
        """
        if times > 1:
            self.hurried = True
            usual = self.limits
            self.limits = replace(
                usual,
                question_s=min(usual.question_s, max(1.0, usual.question_s / times)),
                training_s=min(usual.training_s, HURRIED_TRAINING_S),
            )

    def hello(self) -> None:
        """Wait until the worker is confined and ready.

        Raises:
            WorkersUnavailable: it could not confine itself; its log says why.
        """
        try:
            message = self.channel.receive(0, time.monotonic() + START_S)
            self.layers = dict(message["layers"])
        except (frames.Closed, frames.DeadlinePassed, frames.ProtocolError, KeyError) as error:
            self.close()
            reason = self.log.text().strip() or type(error).__name__
            raise WorkersUnavailable(f"a worker could not start: {reason[-1000:]}") from None

    def ask(
        self, questions: list[dict[str, Any]], deadline_s: float | None = None
    ) -> list[dict[str, Any]]:
        """Send the questions in one frame and return their answers, in order.

        Raises:
            WorkerLost: a deadline passed, the process died, or the frame broke the rules.
        """
        seconds = deadline_s or self.limits.question_s
        with self._losing(seconds):
            self._send(questions, time.monotonic() + seconds)
            return self._answers(self._next(time.monotonic() + seconds), len(questions))

    def stream(
        self,
        question: dict[str, Any],
        respond: Callable[[dict[str, Any]], dict[str, Any]],
    ) -> dict[str, Any]:
        """Ask one question whose probe asks back: `respond` replies to each such frame.

        The limits are `training_s` for all of it and `step_s` between two frames, until a reply
        holds "end": after that the worker may use up what it drew in advance.

        Raises:
            WorkerLost: a deadline passed, the process died, or a frame broke the rules.
        """
        whole = self.limits.training_s
        deadline = time.monotonic() + whole
        patience = self.limits.step_s
        with self._losing(whole):
            self._send([question], deadline)
        while True:
            with self._losing(min(patience, whole)):
                message = self._next(min(deadline, time.monotonic() + patience))
                if "answers" in message:
                    return self._answers(message, 1)[0]
                reply = respond(message)
                patience = whole if "end" in reply else self.limits.step_s
                self.channel.send(reply, min(deadline, time.monotonic() + patience))

    def _send(self, questions: list[dict[str, Any]], deadline: float) -> None:
        self.count += 1
        self.logged = self.log.total
        self.channel.send({"id": self.count, "questions": questions}, deadline)

    def _next(self, deadline: float) -> dict[str, Any]:
        self.late = time.monotonic() + self.limits.import_s
        message = self.channel.receive(self.limits.reply_mib << 20, deadline, watch=self._watch)
        if not isinstance(message, dict):
            raise frames.ProtocolError("malformed message: expected a dictionary")
        return message

    def _answers(self, message: dict[str, Any], number: int) -> list[dict[str, Any]]:
        """Return the answers to the last questions, which must be `number`."""
        answers = message.get("answers")
        if message.get("id") != self.count or not isinstance(answers, list):
            raise frames.ProtocolError("the answers do not belong to the questions")
        right = all(isinstance(a, dict) and set(a) in ({"value"}, {"error"}) for a in answers)
        if len(answers) != number or not right:
            raise frames.ProtocolError("malformed answer: expected a value or an error for each")
        if "sightings" in message:
            self.sighted(message["sightings"])
        if isinstance(printed := message.get("printed"), str):
            self.tell(printed)
        return answers

    @contextlib.contextmanager
    def _losing(self, seconds: float) -> Iterator[None]:
        """Turn every failure of the connection into a lost worker."""
        try:
            yield
        except frames.ProtocolError as error:
            raise self._lost("protocol", str(error)) from None
        except frames.DeadlinePassed:
            why = ", because earlier questions got no answer either" if self.hurried else ""
            # In one second a flood of output may or may not be complete.
            flood = self.log.total > FLOOD and not self.hurried
            noise = " while it printed megabytes" if flood else ""
            words = f"no answer within {seconds:.3g} s{noise}{why}"
            raise self._lost("timeout", words, self.whereabouts.stuck()) from None
        except frames.Closed:
            raise self._closed() from None

    def processor_seconds(self) -> float:
        """Return the processor time that the worker and its children have used."""
        total = 0.0
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            for member in [process, *process.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    total += sum(member.cpu_times()[:4])
        return total

    def _watch(self) -> None:
        self.heed()
        if time.monotonic() > self.late:
            self.late = math.inf
            if self.whereabouts.importing():
                calls = self.whereabouts.stuck()
                raise self._lost("timeout", f"no answer within {self.limits.import_s:g} s", calls)
        if resident_bytes(self.pid) > self.limits.memory_mib << 20:
            words = f"it used more than the {self.limits.memory_mib} MiB that are allowed"
            raise self._lost("out_of_memory", words, self.whereabouts.stuck())
        if written_bytes(self.scratch) > FILES_HELD * self.limits.written_file_mib << 20:
            words = "it filled its scratch folder with files"
            raise self._lost("out_of_memory", words, self.whereabouts.stuck())

    def _closed(self) -> WorkerLost:
        code = self.launcher.exit_code(self.pid, 2.0)
        if code is None:
            words = "it closed its connection"
        elif code < 0:
            words = f"it was ended by signal {-code}"
            with contextlib.suppress(ValueError):
                words = f"{words} ({signal.strsignal(-code)})"
        else:
            words = f"it exited with code {code} before it answered"
        return self._lost("crashed", words, self.whereabouts.crashed())

    def lie(self, detail: str) -> WorkerLost:
        """End a worker whose answer cannot come from a probe; return the error to raise."""
        return self._lost("protocol", detail)

    def _lost(self, status: str, detail: str, calls: Sequence[dict[str, Any]] = ()) -> WorkerLost:
        self.close()
        # It had no answer to send its prints with; the log has them.
        self.tell(without_dumps(self.log.text(since=self.logged)))
        return WorkerLost(status, detail, calls)

    def close(self) -> None:
        """End the worker and everything it started, and remove its scratch folder."""
        if self.alive:
            self.alive = False
            self.launcher.end(self.pid)
            self.channel.close()
            shutil.rmtree(self.scratch, ignore_errors=True)


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process and of everything below it, in bytes."""
    total = 0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for member in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                total += member.memory_info().rss
    return total
