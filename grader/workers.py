"""The referee's side of its workers: ask, watch the clock and the memory, end the tree."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from grader import frames, sandbox
from grader.files import written_bytes
from grader.fork_launcher import ForkLauncher
from grader.launchers import START_S, Launcher, WorkersUnavailable, clean_environment
from grader.settings import Limits
from grader.spare_launcher import SpareLauncher

FLOOD = 1 << 21  # bytes of output that nobody prints on purpose
FILES_HELD = 4  # files of the largest size that a worker may leave in its scratch folder


class WorkerLost(Exception):
    """A worker that gave no answer; `status` is timeout, out_of_memory, crashed or protocol."""

    def __init__(self, status: str, detail: str) -> None:
        """Keep the status word and one sentence of detail."""
        super().__init__(detail)
        self.status = status
        self.detail = detail


class Ticket(NamedTuple):
    """A frame of questions that was sent: its number, how many, seconds its answer may take."""

    number: int
    questions: int
    seconds: float


class Worker:
    """One confined process and the only way to talk to it."""

    def __init__(self, launcher: Launcher, tree: Path, plan: sandbox.Plan, limits: Limits) -> None:
        """Start the worker for the staged `tree`; `plan.scratch` must be its own."""
        self.launcher = launcher
        self.limits = limits
        self.scratch = Path(plan.scratch)
        self.pid, connection, self.log = launcher.launch(plan, tree)
        self.channel = frames.Channel(connection)
        self.alive = True
        self.count = 0
        self.posted: deque[Ticket] = deque()
        self.kept: dict[int, list[dict[str, Any]]] = {}
        self.layers: dict[str, str] = {}
        self.hurried = False
        self.heed: Callable[[], None] = lambda: None

    def hurry(self, times: int) -> None:
        """Wait 1 / `times` as long for every answer, though never less than a second."""
        self.hurried = times > 1
        seconds = min(self.limits.question_s, max(1.0, self.limits.question_s / times))
        self.limits = replace(self.limits, question_s=seconds)

    def hello(self) -> None:
        """Wait until the worker is confined and ready.

        Raises:
            WorkersUnavailable: it could not confine itself; its own log says why.
        """
        try:
            message = self.channel.receive(0, time.monotonic() + START_S)
            self.layers = dict(message["layers"])
        except (frames.Closed, frames.DeadlinePassed, frames.ProtocolError, KeyError) as error:
            self.close()
            reason = self.log.text().strip() or type(error).__name__
            raise WorkersUnavailable(f"a worker could not start: {reason[-1000:]}") from None

    def post(self, questions: list[dict[str, Any]], deadline_s: float | None = None) -> Ticket:
        """Send the questions in one frame and go on; `collect` brings their answers.

        Raises:
            WorkerLost: the frame did not go out before the deadline, or the process died.
        """
        self.count += 1
        seconds = deadline_s or self.limits.question_s
        ticket = Ticket(self.count, len(questions), seconds)
        with self._losing(seconds):
            message = {"id": ticket.number, "questions": questions}
            self.channel.send(message, time.monotonic() + seconds, self.limits.reply_mib << 20)
        self.posted.append(ticket)
        return ticket

    def collect(self, ticket: Ticket) -> list[dict[str, Any]]:
        """Return the answers to posted questions, in order; earlier ones are kept for later.

        Raises:
            WorkerLost: the deadline passed, the process died, or the frame broke the rules.
        """
        while ticket.number not in self.kept:
            oldest = self.posted[0]
            with self._losing(oldest.seconds):
                self._keep(self._next(time.monotonic() + oldest.seconds))
        return self.kept.pop(ticket.number)

    def ask(
        self, questions: list[dict[str, Any]], deadline_s: float | None = None
    ) -> list[dict[str, Any]]:
        """Post the questions and collect their answers."""
        return self.collect(self.post(questions, deadline_s))

    def stream(
        self,
        question: dict[str, Any],
        first: dict[str, Any],
        respond: Callable[[dict[str, Any]], dict[str, Any] | None],
        deadline_s: float,
        step_s: float,
    ) -> dict[str, Any]:
        """Ask one question whose probe asks back: each such frame goes to `respond`.

        The replies are sent one frame ahead, so that the worker never waits for one.

        Args:
            question: The question; the last frame is its answer.
            first: The reply to the first frame.
            respond: Takes a frame and returns the reply to the next one; after one that holds
                "end" there is none to give, and it returns None.
            deadline_s: Seconds for all of it.
            step_s: Seconds between two frames, until the end is sent: what was drawn in advance may
                be used up after it.

        Raises:
            WorkerLost: a deadline passed, the process died, or a frame broke the rules.
        """
        deadline = time.monotonic() + deadline_s
        ticket = self.post([question], deadline_s)
        reply: dict[str, Any] | None = first
        patience = step_s
        while True:
            with self._losing(min(patience, deadline_s)):
                if reply is not None:
                    self.channel.send(reply, min(deadline, time.monotonic() + patience))
                message = self._next(min(deadline, time.monotonic() + patience))
                if "answers" not in message:
                    reply = respond(message)
                    patience = deadline_s if reply is None or "end" in reply else step_s
                    continue
                self._keep(message)
                if ticket.number in self.kept:
                    return self.kept.pop(ticket.number)[0]

    def _next(self, deadline: float) -> dict[str, Any]:
        message = self.channel.receive(self.limits.reply_mib << 20, deadline, watch=self._watch)
        if not isinstance(message, dict):
            raise frames.ProtocolError("the frame holds no message")
        return message

    def _keep(self, message: dict[str, Any]) -> None:
        """Keep the answers to the oldest posted questions, whose turn it is."""
        ticket = self.posted.popleft()
        answers = message.get("answers")
        if message.get("id") != ticket.number or not isinstance(answers, list):
            raise frames.ProtocolError("the answers do not belong to the questions")
        right = all(isinstance(a, dict) and set(a) in ({"value"}, {"error"}) for a in answers)
        if len(answers) != ticket.questions or not right:
            raise frames.ProtocolError("the answer has not the form of an answer")
        self.kept[ticket.number] = answers

    @contextlib.contextmanager
    def _losing(self, seconds: float) -> Iterator[None]:
        """Turn whatever breaks the connection into a lost worker."""
        try:
            yield
        except frames.ProtocolError as error:
            raise self._lost("protocol", str(error)) from None
        except frames.DeadlinePassed:
            why = ", for earlier questions got none either" if self.hurried else ""
            noise = " while it printed megabytes" if self.log.total > FLOOD else ""
            raise self._lost("timeout", f"no answer within {seconds:g} s{noise}{why}") from None
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
        resident = self.launcher.resident_bytes(self.pid)
        if resident > self.limits.memory_mib << 20:
            raise self._lost(
                "out_of_memory",
                f"it held {resident >> 20} MiB where {self.limits.memory_mib} MiB are allowed",
            )
        if written_bytes(self.scratch) > FILES_HELD * self.limits.written_file_mib << 20:
            raise self._lost("out_of_memory", "it filled its scratch folder with files")

    def _closed(self) -> WorkerLost:
        code = self.launcher.exit_code(self.pid, 2.0)
        if code is None:
            words = "it closed its connection"
        elif code < 0:
            words = f"it was ended by signal {-code}"
        else:
            words = f"it left with exit code {code} before it answered"
        return self._lost("crashed", words)

    def lie(self, detail: str) -> WorkerLost:
        """End a worker whose answer no probe can have given; return what to raise."""
        return self._lost("protocol", detail)

    def _lost(self, status: str, detail: str) -> WorkerLost:
        self.close()
        return WorkerLost(status, detail)

    def close(self) -> None:
        """End the worker and everything it started, and remove its scratch folder."""
        if self.alive:
            self.alive = False
            self.launcher.end(self.pid)
            self.channel.close()
            shutil.rmtree(self.scratch, ignore_errors=True)


class Workshop:
    """One referee's supply of workers: the chosen isolation, its launcher and its folders."""

    def __init__(
        self, isolation: sandbox.Isolation, limits: Limits, *, fork: bool | None = None
    ) -> None:
        """Make the working folder and start preloading torch at once.

        Args:
            isolation: the layers in use.
            limits: what each worker may use.
            fork: whether workers are forked from a zygote; None = wherever that is safe.
        """
        self.isolation = isolation
        self.limits = limits
        self.base = Path(tempfile.mkdtemp(prefix="grader-"))
        self.base.chmod(0o755)
        self.trees = self.base / "trees"
        self.scratches = self.base / "scratch"
        for folder in (self.trees, self.scratches):
            folder.mkdir()
        environment = clean_environment(self.scratches)
        self.launcher: Launcher
        # A forked worker costs next to nothing, a fresh one an import of torch.
        self.forks = fork if fork is not None else sys.platform.startswith("linux")
        if self.forks:
            command = isolation.command(self.trees, self.scratches)
            self.launcher = ForkLauncher(command, environment, self.base / "zygote.log")
        else:
            self.launcher = SpareLauncher(environment)
        self.workers = 0
        self.numbers = itertools.count(1)
        # Called some ten times a second while a worker is waited for; may raise to give up.
        self.heed: Callable[[], None] = lambda: None

    def worker(self, tree: Path) -> Worker:
        """Start a worker on the staged `tree`."""
        self.workers = number = next(self.numbers)
        scratch = self.scratches / str(number)
        scratch.mkdir(mode=0o700)
        plan = self.isolation.plan(tree=tree, scratch=scratch, limits=self.limits)
        worker = Worker(self.launcher, tree, plan, self.limits)
        worker.heed = self.heed
        try:
            worker.hello()
        except BaseException:
            worker.close()
            raise
        return worker

    def close(self) -> None:
        """End every process and remove every file."""
        self.launcher.close()
        shutil.rmtree(self.base, ignore_errors=True)

    def __enter__(self) -> Workshop:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()
