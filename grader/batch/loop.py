"""Every submission of a class once: from the store, or graded, or with a reason why not."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

from grader.batch import view
from grader.batch.earlier import READ, ROW, SEEN, Lines, mark, seen_head
from grader.batch.fleet import Engine
from grader.batch.keys import Inputs, causes
from grader.batch.reader import read
from grader.batch.rows import Row, Rows, no_verdict, row, verdict
from grader.batch.store import STATE, Output, compact
from grader.batch.task import graded, pack
from grader.batch.view import Who
from grader.collect import Collected
from grader.files import replace_file
from grader.intake import Staged
from grader.locate import PACKAGE
from grader.result import number
from grader.settings import Settings

# Of a required task; those of stretch tasks have a letter.
STUB = re.compile(rb"raise NotImplementedError\(.task \d")
# Submissions read ahead of those at work, so that no process waits for the next.
_AHEAD = 2


class Heard(NamedTuple):
    """What the loop tells as it goes: one submission is done."""

    name: str
    row: Row
    graded: bool
    seconds: float


@dataclass(frozen=True)
class Waiting:
    """A submission whose result is being made, and its place in the class."""

    place: int
    one: Collected
    notes: tuple[str, ...]
    inputs: Inputs

    @property
    def who(self) -> Who:
        """Return what the student's files say of it."""
        return Who.of(self.one, self.notes)

    def row(self, found: Row) -> Row:
        """Return the row that says so."""
        return row(self.one, self.notes, self.inputs, found)


class Loop:
    """Grades a class into an output folder; rows lie on disk, so that memory stays flat."""

    def __init__(
        self,
        lab: Settings,
        shared: Inputs,
        output: Output,
        engine: Engine | None,
        isolation: str,
        hear: Callable[[Heard], None],
        views: bool = True,
    ) -> None:
        """Prepare.

        Args:
            lab: the settings.
            shared: what all results of this run depend on.
            output: where they go.
            engine: what grades; None = what is not in the store is left ungraded.
            isolation: what the workers are to use.
            hear: is told of every submission that is done.
            views: whether the students' folders are written.
        """
        self.lab = lab
        self.shared = shared
        self.output = output
        self.engine = engine
        self.isolation = isolation
        self.hear = hear
        self.views = views
        self.max_score = number(Fraction(lab.points.maximum))
        self.submissions: Sequence[Collected] = ()
        self.rows = Rows(output.temporary)
        self.futures: dict[Future[bytes], str] = {}
        self.waiting: dict[str, list[Waiting]] = {}
        self.old = Lines(output.folder / STATE, ROW)
        self.seen = Lines(output.folder / SEEN, READ, seen_head(shared))

    def run(self, submissions: Sequence[Collected]) -> Rows:
        """Grade what has to be graded; return the rows in the order of the submissions.

        Args:
            submissions: in the order of their names.

        Raises:
            OSError: the output disk is full, or cannot be written; what is stored stays.
        """
        self.submissions = submissions
        self.rows = Rows(self.output.temporary, len(submissions))
        later = array("q")
        with closing(self.old), closing(self.seen):
            for place, one in enumerate(submissions):
                if not self._begin(place, one):
                    later.append(place)
            # Nothing was known of them, and what the last run left is not read a second time.
            for place in later:
                self._begin(place, submissions[place], last=True)
        while self.futures:
            self._finish()
        return self.rows

    def timings(self) -> Iterator[str]:
        """Yield the lines of `timings.csv`: the seconds of each grading of this run."""
        yield "submission,seconds\n"
        for place, seconds in enumerate(self.rows.seconds):
            if not math.isnan(seconds):
                yield f"{self.submissions[place].key},{seconds:.1f}\n"

    def _begin(self, place: int, one: Collected, last: bool = False) -> bool:
        """Begin with a submission; return False where it is unfinished and better begun `last`.

        The unfinished are graded within a second: they keep the other processes at work while one
        is still busy with a submission that takes long.
        """
        seen = self.seen.of(one.key)
        if seen is not None and seen["mark"] == mark(one):
            inputs = replace(self.shared, submission=seen["submission"])
            if self._known(Waiting(place, one, tuple(seen["notes"]), inputs)):
                return True
        found = read(one, self.lab, self.output.temporary / "submission")
        if found.staged is None:
            self._trouble(place, one, found.notes, None, "ungradable", found.trouble)
            return True
        waiting = Waiting(place, one, found.notes, self.shared.of(found.staged))
        key = waiting.inputs.key
        if key in self.waiting:
            self.waiting[key].append(waiting)
        elif self._known(waiting):
            return True
        elif self.engine is None:
            words = ("not_graded", "no shard has graded it")
            self._trouble(place, one, found.notes, waiting.inputs, *words)
        elif not last and unfinished(found.staged):
            return False
        else:
            while len(self.futures) >= _AHEAD * self.engine.slots:
                self._finish()
            self.waiting[key] = [waiting]
            self.futures[self.engine.submit(pack(found.staged, self.isolation, waiting.who))] = key
        return True

    def _known(self, waiting: Waiting) -> bool:
        """Take the result from the store, if it is there."""
        key = waiting.inputs.key
        old = self.old.of(waiting.one.key)
        if old is not None:
            new = waiting.row({name: old[name] for name in no_verdict("", "", 0)})
            same = all(old[k] == new[k] for k in ("key", "path", "notes"))
            if same and self.output.path(key).exists() and self._has_view(waiting.one):
                self._done(waiting, new, graded=False)
                return True
        stored = self.output.get(key)
        if stored is None:
            return False
        self._view(waiting, view.texts(stored["tree"], waiting.who))
        self._done(waiting, waiting.row(verdict(stored["tree"])), graded=False)
        return True

    def _has_view(self, one: Collected) -> bool:
        folder = self.output.student(one.key)
        return all((folder / name).exists() for name in view.NAMES)

    def _finish(self) -> None:
        """Wait for a result, or several, and keep it."""
        for future in wait(self.futures, return_when=FIRST_COMPLETED).done:
            key = self.futures.pop(future)
            waiting = self.waiting.pop(key)
            tree, made, seconds, trouble = heard(future, self.shared)
            if tree is not None:
                self.output.put(key, {"inputs": waiting[0].inputs.__dict__, "tree": tree})
            for each in waiting:
                if tree is None:
                    about = (each.place, each.one, each.notes, each.inputs)
                    self._trouble(*about, "grader_error", trouble, seconds)
                else:
                    own = made if each is waiting[0] else view.texts(tree, each.who)
                    self._view(each, own)
                    self._done(each, each.row(verdict(tree)), graded=True, seconds=seconds)
                seconds = 0.0

    def _done(self, waiting: Waiting, made: Row, *, graded: bool, seconds: float = 0.0) -> None:
        self.rows.put(waiting.place, compact(made), seconds if graded else math.nan)
        self.hear(Heard(waiting.one.key, made, graded, seconds))

    def _trouble(
        self,
        place: int,
        one: Collected,
        notes: tuple[str, ...],
        inputs: Inputs | None,
        status: str,
        cause: str,
        seconds: float = 0.0,
    ) -> None:
        """Keep a row without a result, and say why in the student's folder."""
        made = row(one, notes, inputs, no_verdict(status, cause, self.max_score))
        if self.views:
            folder = self.output.student(one.key)
            replace_file(folder / view.MESSAGE, f"{status}: {cause}\n".encode("utf-8", "replace"))
            for name in view.NAMES:
                (folder / name).unlink(missing_ok=True)
        self.rows.put(place, compact(made))
        self.hear(Heard(one.key, made, False, seconds))

    def _view(self, waiting: Waiting, made: dict[str, str]) -> None:
        """Write the student's folder."""
        folder = self.output.student(waiting.one.key)
        for name in view.NAMES if self.views else ():
            replace_file(folder / name, made[name].encode("utf-8", "replace"))
        if self.views:
            (folder / view.MESSAGE).unlink(missing_ok=True)


def unfinished(staged: Staged) -> bool:
    """Return whether a required task says of itself that it is not done."""
    tasks = (staged.files.get(f"{PACKAGE}/{name}", b"") for name in staged.tasks)
    return any(map(STUB.search, tasks))


def heard(
    future: Future[bytes], shared: Inputs
) -> tuple[dict[str, Any] | None, dict[str, str], float, str]:
    """Return the tree, the texts of the student's folder, the seconds, and what went wrong."""
    try:
        tree, seconds, inputs, texts = graded(future.result())
    except Exception as error:  # an engine may fail in any way; the class goes on
        return None, {}, 0.0, str(error) or type(error).__name__
    differing = [n for n in causes(shared.__dict__, inputs) if n != "submission"]
    if differing:
        words = f"the machine that graded it has another {' and '.join(differing)} than this one"
        return None, {}, seconds, words
    trouble = tree["grader_error"] or ("" if tree["complete"] else "the run did not finish")
    return None if trouble else tree, texts, seconds, trouble
