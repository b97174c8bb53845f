"""Every submission of a class once: from the store, or graded, or with a reason why not."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

from grader.base.files import replace_file
from grader.base.result import number
from grader.base.settings import Settings
from grader.base.text import one_line
from grader.classroom.collect import Collected, examine
from grader.classroom.keys import Inputs, causes
from grader.classroom.messages import MESSAGE, NAMES, Answer, Who, graded, pack, texts
from grader.classroom.rows import Row, no_verdict, row, verdict
from grader.classroom.store import Output
from grader.intake.locate import PACKAGE
from grader.intake.staging import IntakeError, Staged

# Of a required task; those of stretch tasks have a letter.
STUB = re.compile(rb"raise NotImplementedError\(.task \d")
# Submissions read ahead of those at work, so that no process waits for the next.
_AHEAD = 2


class Engine(Protocol):
    """Whatever grades: a pool of processes here, a cluster, or a stand-in that a test puts in."""

    @property
    def slots(self) -> int:
        """Return how many submissions it works on at a time."""

    def submit(self, task: bytes) -> Future[bytes]:
        """Begin a grading."""

    def close(self) -> None:
        """End it and all of its processes."""


@dataclass(frozen=True)
class Waiting:
    """A submission whose row is being made; it has no inputs where it cannot be graded."""

    one: Collected
    notes: tuple[str, ...]
    inputs: Inputs | None

    @property
    def key(self) -> str:
        """Return the key of its result, or ""."""
        return self.inputs.key if self.inputs else ""

    @property
    def who(self) -> Who:
        """Return what the student's files say of it."""
        return Who.of(self.one, self.notes)

    def row(self, found: Row) -> Row:
        """Return the row that says so."""
        return row(self.one, self.notes, self.inputs, found)


@dataclass
class Loop:
    """Grades a class into an output folder.

    Attributes:
        lab: the settings.
        shared: what all results of this run depend on.
        output: where they go.
        engine: what grades; None = what is not in the store is left ungraded.
        isolation: what the workers are to use.
        hear: is told of every submission that is done: its row, and whether it was graded now.
        views: whether the students' folders are written.
        only: picks of the last run's rows those that are graded again, even if nothing changed; the
            others stay as they are. What the last run does not know is graded.
        rows: by name, of the submissions that are done.
        seconds: by name, of those that were graded now.
        futures: what is being graded, by what key.
        waiting: for the result of each key.
    """

    lab: Settings
    shared: Inputs
    output: Output
    engine: Engine | None
    isolation: str
    hear: Callable[[Row, bool], None]
    views: bool = True
    only: Callable[[Row], bool] | None = None
    rows: dict[str, Row] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    futures: dict[Future[bytes], str] = field(default_factory=dict)
    waiting: dict[str, list[Waiting]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Look what the last run left."""
        self.old = self.output.old_rows()

    def run(self, submissions: Sequence[Collected]) -> list[Row]:
        """Grade what has to be graded; return the rows in the order of the submissions.

        Raises:
            OSError: the output disk is full, or cannot be written; what is stored stays.
        """
        kept = {name for name, row in self.old.items() if self.only and not self.only(row)}
        for one in submissions:
            if one.key in kept:
                self.rows[one.key] = self.old[one.key]
                self.hear(self.old[one.key], False)
        submissions, everybody = [one for one in submissions if one.key not in kept], submissions
        later = [one for one in submissions if not self._begin(one)]
        for one in later:
            self._begin(one, last=True)
        while self.futures:
            self._finish()
        return [self.rows[one.key] for one in everybody]

    def _begin(self, one: Collected, *, last: bool = False) -> bool:
        """Begin with a submission; return False where it is unfinished and better begun `last`.

        The unfinished are graded within a second: they keep the other processes at work while one
        is still busy with a submission that takes long.
        """
        staged, notes, trouble = read(one, self.lab)
        if staged is None:
            self._without(Waiting(one, notes, None), "ungradable", trouble)
            return True
        waiting = Waiting(one, notes, self.shared.of(staged))
        if waiting.key in self.waiting:
            self.waiting[waiting.key].append(waiting)
        elif (self.only is None or one.key not in self.old) and self._known(waiting):
            return True
        elif self.engine is None:
            self._without(waiting, "not_graded", "no shard has graded it")
        elif not last and unfinished(staged):
            return False
        else:
            while len(self.futures) >= _AHEAD * self.engine.slots:
                self._finish()
            self.waiting[waiting.key] = [waiting]
            future = self.engine.submit(pack(staged, self.isolation, waiting.who))
            self.futures[future] = waiting.key
        return True

    def _known(self, waiting: Waiting) -> bool:
        """Take the result from the store, if it is there."""
        old = self.old.get(waiting.one.key)
        if old is not None and self.output.path(waiting.key).exists():
            found = waiting.row({name: old[name] for name in no_verdict("", "", 0)})
            folder = self.output.student(waiting.one.key)
            same = all(old[name] == found[name] for name in ("key", "path", "notes"))
            if same and all((folder / name).exists() for name in NAMES):
                self._keep(waiting, found)
                return True
        stored = self.output.get(waiting.key)
        if stored is None:
            return False
        tree = stored["tree"]
        self._keep(waiting, waiting.row(verdict(tree)), texts(tree, waiting.who))
        return True

    def _finish(self) -> None:
        """Wait for a result, or several, and keep it."""
        for future in wait(self.futures, return_when=FIRST_COMPLETED).done:
            key = self.futures.pop(future)
            first, *others = self.waiting.pop(key)
            try:
                answer = heard(future, self.shared)
            except Exception as error:  # an engine may fail in any way; the class goes on
                for each in (first, *others):
                    self._without(each, "grader_error", str(error) or type(error).__name__)
                continue
            tree = answer.tree
            self.output.put(key, {"inputs": vars(first.inputs), "tree": tree})
            self._keep(first, first.row(verdict(tree)), answer.texts, answer.seconds)
            for each in others:
                self._keep(each, each.row(verdict(tree)), texts(tree, each.who), 0.0)

    def _without(self, waiting: Waiting, status: str, cause: str) -> None:
        """Keep a row without a result."""
        most = number(Fraction(self.lab.points.maximum))
        made = waiting.row(no_verdict(status, cause, most))
        self._keep(waiting, made, {MESSAGE: f"{status}: {cause}\n"})

    def _keep(
        self,
        waiting: Waiting,
        made: Row,
        files: dict[str, str] | None = None,
        seconds: float | None = None,
    ) -> None:
        """Keep a row and write the student's folder.

        Args:
            waiting: whose it is.
            made: the row.
            files: of the folder, which then holds no other of ours; None = they lie there.
            seconds: what the grading took; None = there was none now.
        """
        folder = self.output.student(waiting.one.key)
        if self.views and files is not None:
            for name in (*NAMES, MESSAGE):
                if name in files:
                    replace_file(folder / name, files[name].encode("utf-8", "replace"))
                else:
                    (folder / name).unlink(missing_ok=True)
        self.rows[waiting.one.key] = made
        if seconds is not None:
            self.seconds[waiting.one.key] = seconds
        self.hear(made, seconds is not None)


def read(one: Collected, lab: Settings) -> tuple[Staged | None, tuple[str, ...], str]:
    """Return what is graded of a submission, notes on how it came, and why nothing can be."""
    notes = list(one.notes)
    staged, trouble = None, ""
    try:
        staged = examine(one, lab, notes)
    except IntakeError as error:
        trouble = str(error)
    except Exception as error:  # nothing that was handed in may end the class
        trouble = f"it cannot be read ({type(error).__name__}: {error})"
    if one.path:  # where it lay is nobody's business
        trouble = trouble.replace(f"{one.path.parent}/", "")
    return staged, tuple(map(one_line, notes)), one_line(trouble)


def unfinished(staged: Staged) -> bool:
    """Return whether a required task says of itself that it is not done."""
    tasks = (staged.files.get(f"{PACKAGE}/{name}", b"") for name in staged.tasks)
    return any(map(STUB.search, tasks))


def heard(future: Future[bytes], shared: Inputs) -> Answer:
    """Return what came of a grading.

    Raises:
        Exception: something else than a result; it says what.
    """
    answer = graded(future.result())
    differing = [n for n in causes(vars(shared), answer.inputs) if n != "submission"]
    if differing:
        names = " and ".join(differing)
        raise RuntimeError(f"the machine that graded it has another {names} than this one")
    if answer.tree["grader_error"] or not answer.tree["complete"]:
        raise RuntimeError(answer.tree["grader_error"] or "the run did not finish")
    return answer
