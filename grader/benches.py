"""The models that gates 1 to 3 ask: built once, in two workers that compute side by side."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from grader import invariance
from grader.draws import Draws
from grader.expectations import Ask
from grader.invariance import CLASSES, Batch, Bench
from grader.settings import Settings
from grader.student_error import StudentError
from grader.submission import Posted, Question, Submission
from grader.workers import Worker

T = TypeVar("T")
Pair = tuple[Batch, Batch]
# A gate's questions to one bench, and what it wants to have beside their answers.
Asking = Callable[[Bench, Pair], tuple[T, list[Question]]]


@dataclass(frozen=True)
class Round(Generic[T]):
    """One bench's answers, and where more can be asked of it."""

    submission: Submission
    bench: Bench
    asked: T
    answers: list[Any]


@dataclass
class Posting(Generic[T]):
    """Questions on their way to one bench, after those that build it."""

    bench: Bench
    building: int
    asked: T
    posted: Posted


class Benches:
    """Both kinds of model at each depth; each is built when the first gate asks it.

    Questions that need the same models travel together, and while the caller judges one bench
    the workers compute the next ones.
    """

    def __init__(
        self, lanes: Sequence[Submission], rng: Draws, expected: Ask, lab: Settings
    ) -> None:
        """Ask through `lanes`, each of which has a worker of its own."""
        self.lanes = lanes
        self.rng, self.expected, self.lab = rng, expected, lab
        self.built: dict[tuple[str, int], tuple[Bench, Worker]] = {}
        self.unfinished = False

    def close(self) -> None:
        """End the workers."""
        for lane in self.lanes:
            lane.close()

    def rounds(self, asking: Asking[T], seen: dict[str, Any]) -> Iterator[Round[T]]:
        """Ask every bench and yield the answers, for each submission in the same order.

        Args:
            asking: makes the questions to a bench, given its unpadded and its padded batch.
            seen: notes how far equal calls were apart.

        Raises:
            StudentError: the first question that the submission's code failed.
            WorkerLost: no answer came.
            CheckFailed: a model is not deterministic.
        """
        if self.unfinished:
            self.close()  # what an earlier gate left unanswered is nobody's business any more
        self.unfinished = True
        turns = [
            # The deep model of one kind shares a worker with the shallow one of the other.
            ((number + place) % len(self.lanes), kind, depth)
            for number, kind in enumerate(CLASSES)
            for place, depth in enumerate(self.lab.invariance.num_layers)
        ]
        waiting = [deque(turn for turn in turns if turn[0] == n) for n in range(len(self.lanes))]
        posted = [self._post(queue, asking) for queue in waiting]
        for lane, _, _ in turns:
            posting = posted[lane]
            assert posting is not None
            answered = self._collect(self.lanes[lane], posting, asking, seen)
            posted[lane] = self._post(waiting[lane], asking)
            yield answered
        self.unfinished = False

    def batches(self, bench: Bench) -> Pair:
        """Draw the unpadded and the padded batch that a bench is asked with."""
        unpadded, padded = (
            invariance.draw_batch(self.rng, bench, padded=padded) for padded in (False, True)
        )
        return unpadded, padded

    def _post(self, queue: deque[tuple[int, str, int]], asking: Asking[T]) -> Posting[T] | None:
        """Send the next bench of a queue its questions, and before them those that build it."""
        if not queue:
            return None
        lane, kind, depth = queue.popleft()
        submission = self.lanes[lane]
        bench, worker = self.built.get((kind, depth), (None, None))
        first: list[Question] = []
        if bench is None or worker is not submission.worker:
            bench = invariance.first_choice(self.lab, kind, depth)
            first = invariance.building(bench, self.batches(bench)[1], self.rng, self.expected)
        asked, questions = asking(bench, self.batches(bench))
        if first:
            questions = [*invariance.determinism(bench, self.batches(bench)[1]), *questions]
        return Posting(bench, len(first), asked, submission.post(*first, *questions))

    def _collect(
        self, submission: Submission, posting: Posting[T], asking: Asking[T], seen: dict[str, Any]
    ) -> Round[T]:
        """Take a bench's answers; ask again if it had to be built in another way."""
        bench, asked = posting.bench, posting.asked
        answers = posting.posted.attempt()
        built, answers = answers[: posting.building], answers[posting.building :]
        trouble = first_error(built)
        if trouble is not None:
            bench = self._fall_back(submission, bench, trouble)
            asked, questions = asking(bench, self.batches(bench))
            batch = self.batches(bench)[1]
            answers = submission.attempt(*invariance.determinism(bench, batch), *questions)
        error = first_error(answers)
        if error is not None:
            raise error
        if built:
            batch = self.batches(bench)[1]
            invariance.judge_determinism(bench, batch, answers[:2], seen)
            answers = answers[2:]
            place = bench.kind, bench.config.num_layers
            self.built[place] = bench, submission.worker
        return Round(submission, bench, asked, answers)

    def _fall_back(self, submission: Submission, bench: Bench, trouble: StudentError) -> Bench:
        """Judge a tree by its own weights, or in float32, where it cannot be judged otherwise."""
        for other in (invariance.by_own_weights, invariance.in_float32):
            choice = other(bench, trouble, self.lab)
            if choice is None:
                continue
            bench = choice
            batch = self.batches(bench)[1]
            questions = invariance.building(bench, batch, self.rng, self.expected)
            found = first_error(submission.attempt(*questions))
            if found is None:
                return bench
            trouble = found
        raise trouble


def first_error(answers: list[Any | StudentError]) -> StudentError | None:
    """Return the first answer that is an error."""
    return next((a for a in answers if isinstance(a, StudentError)), None)
