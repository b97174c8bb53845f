"""The models that gates 1 to 3 ask: built once, in two workers that compute side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from grader import invariance
from grader.draws import Draws
from grader.expectations import Ask
from grader.invariance import CLASSES, Batch, Bench, Model
from grader.settings import Settings
from grader.student_error import StudentError
from grader.submission import Posted, Question, Submission
from grader.workers import Worker

T = TypeVar("T")
Pair = tuple[Batch, Batch]
Place = tuple[str, int]
# A gate's questions to each model of a bench, and what it wants to have beside their answers.
Asking = Callable[[Bench, Pair], tuple[T, dict[Model, list[Question]]]]


@dataclass(frozen=True)
class Round(Generic[T]):
    """One bench's answers by model, and where more can be asked of each."""

    bench: Bench
    asked: T
    answers: dict[Model, list[Any]]
    lanes: Sequence[Submission]

    def submission(self, model: Model) -> Submission:
        """Return the proxy to the worker that holds the model."""
        return self.lanes[lane_of(model, len(self.lanes))]


@dataclass
class Sheet(Generic[T]):
    """What one bench is asked: for each lane the questions that build its models, then the gate's.

    `counted` tells how many each model is asked.
    """

    bench: Bench
    batches: Pair
    asked: T
    building: list[list[Question]]
    questions: list[list[Question]]
    counted: dict[Model, int]
    posted: list[Posted]


def lane_of(model: Model, lanes: int) -> int:
    """Return the lane of a model: each gets ordinary and sharpened ones and about as much to do.

    The first draw's ordinary weights are asked most, so the last draw is left to another lane.
    """
    turn = 1 if model.draw > 1 else model.draw + model.sharpened + model.twin
    return turn % lanes


class Benches:
    """Both kinds of model at each depth; each is built when the first gate asks it.

    Questions that need the same model travel together. While the workers compute one bench, the
    next one's questions are made and the last one's answers judged.
    """

    def __init__(
        self, lanes: Sequence[Submission], rng: Draws, expected: Ask, lab: Settings
    ) -> None:
        """Ask through `lanes`, each of which has a worker of its own."""
        self.lanes = lanes
        self.rng, self.expected, self.lab = rng, expected, lab
        self.built: dict[Place, tuple[Bench, list[Worker]]] = {}
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
        with ThreadPoolExecutor(len(self.lanes)) as starting:  # side by side
            list(starting.map(lambda lane: lane.worker, self.lanes))
        places = [(kind, depth) for kind in CLASSES for depth in self.lab.invariance.num_layers]
        sheet = self._write(places[0], asking)
        self._post(sheet)
        for following in [*places[1:], None]:
            coming = self._write(following, asking) if following else None
            answered = self._collect(sheet, asking, seen, coming)
            if coming is not None:
                sheet = coming
            yield answered
        self.unfinished = False

    def batches(self, bench: Bench) -> Pair:
        """Draw the unpadded and the padded batch that a bench is asked with."""
        unpadded, padded = (
            invariance.draw_batch(self.rng, bench, padded=padded) for padded in (False, True)
        )
        return unpadded, padded

    def _write(self, place: Place, asking: Asking[T]) -> Sheet[T]:
        """Make the questions to a bench, with those that build it where it does not stand."""
        bench, workers = self.built.get(place, (None, []))
        if bench is not None and workers == [lane.worker for lane in self.lanes]:
            return self._sheet(bench, asking, build=False)
        return self._sheet(invariance.first_choice(self.lab, *place), asking, build=True)

    def _sheet(self, bench: Bench, asking: Asking[T], *, build: bool) -> Sheet[T]:
        lanes = range(len(self.lanes))
        batches = self.batches(bench)
        asked, wanted = asking(bench, batches)
        sheet: Sheet[T] = Sheet(
            bench, batches, asked, [[] for _ in lanes], [[] for _ in lanes],
            {model: len(questions) for model, questions in wanted.items()}, [],
        )  # fmt: skip
        if build:
            made = invariance.building(bench, batches[1], self.rng, self.expected)
            for model, question in made.items():
                sheet.building[lane_of(model, len(lanes))].append(question)
            sheet.building[0] += invariance.trying(bench, batches[1])
            sheet.questions[0] += invariance.determinism(bench, batches[1])
        for model, questions in wanted.items():
            sheet.questions[lane_of(model, len(lanes))] += questions
        return sheet

    def _post(self, sheet: Sheet[T]) -> None:
        for lane in range(len(self.lanes)):
            self._post_to(lane, sheet)

    def _post_to(self, lane: int, sheet: Sheet[T]) -> None:
        """Send a lane its next questions."""
        posted = self.lanes[lane].post(*sheet.building[lane], *sheet.questions[lane])
        sheet.posted.append(posted)

    def _collect(
        self, sheet: Sheet[T], asking: Asking[T], seen: dict[str, Any], coming: Sheet[T] | None
    ) -> Round[T]:
        """Take a bench's answers; ask again if it had to be built in another way.

        A lane that has answered gets the questions of the bench that is `coming`.
        """
        built, answers = self._split(sheet, coming)
        trouble = first_error(built)
        for other in (invariance.by_own_weights, invariance.in_float32):
            bench = other(sheet.bench, trouble, self.lab) if trouble else None
            if bench is not None:
                sheet = self._sheet(bench, asking, build=True)
                self._post(sheet)
                built, answers = self._split(sheet, None)
                trouble = first_error(built)
        error = trouble or first_error([a for lane in answers for a in lane])
        if error is not None:
            raise error
        bench = sheet.bench
        if built:
            tried = built[len(sheet.building[0]) - 1]
            repeated = [tried, *(answers[0].pop(0) for _ in invariance.MODES)]
            invariance.judge_determinism(bench, sheet.batches[1], repeated, seen)
            place = bench.kind, bench.config.num_layers
            self.built[place] = bench, [lane.worker for lane in self.lanes]
        found: dict[Model, list[Any]] = {}
        for model, count in sheet.counted.items():
            lane = answers[lane_of(model, len(self.lanes))]
            found[model] = [lane.pop(0) for _ in range(count)]
        return Round(bench, sheet.asked, found, self.lanes)

    def _split(self, sheet: Sheet[T], coming: Sheet[T] | None) -> tuple[list[Any], list[list[Any]]]:
        """Return the answers to what builds the models, and the others lane by lane."""
        built, others = [], []
        for lane, (posted, first) in enumerate(zip(sheet.posted, sheet.building, strict=True)):
            answers = posted.attempt()
            if coming is not None:
                self._post_to(lane, coming)
            built += answers[: len(first)]
            others.append(answers[len(first) :])
        return built, others


def first_error(answers: list[Any | StudentError]) -> StudentError | None:
    """Return the first answer that is an error."""
    return next((a for a in answers if isinstance(a, StudentError)), None)
