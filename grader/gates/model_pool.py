"""The models that gates 1 to 3 ask: built once in a worker, and a twin of some in another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from grader.asking.expectations import Ask
from grader.asking.submission import Question, Submission
from grader.base.settings import Settings
from grader.base.student_error import StudentError
from grader.gates import invariance
from grader.gates.invariance import CLASSES, MODES, Batch, Bench, Model
from grader.link.workers import Worker
from grader.model.draws import Draws

T = TypeVar("T")
Pair = tuple[Batch, Batch]
# A gate's questions to each model of a bench, and what it wants to have beside their answers.
Asking = Callable[[Bench, Pair], tuple[T, dict[Model, list[Question]]]]


@dataclass(frozen=True)
class Round(Generic[T]):
    """One bench, what was prepared for it, and its answers by model."""

    bench: Bench
    asked: T
    answers: dict[Model, list[Any]]


class Benches:
    """Both kinds of model at each depth; each is built when the first gate asks it."""

    def __init__(self, submission: Submission, rng: Draws, expected: Ask, lab: Settings) -> None:
        """Ask through `submission`; a twin lives in a worker of its own."""
        self.submission, self.elsewhere = submission, submission.another()
        self.rng, self.expected, self.lab = rng, expected, lab
        self.built: dict[tuple[str, int], Bench] = {}
        self.worker: Worker | None = None

    def close(self) -> None:
        """End the workers."""
        self.submission.close()
        self.elsewhere.close()

    def rounds(self, asking: Asking[T], seen: dict[str, Any]) -> Iterator[Round[T]]:
        """Ask one bench after another and yield the answers.

        Args:
            asking: makes the questions to a bench, given its unpadded and its padded batch.
            seen: notes how far equal calls were apart.

        Raises:
            StudentError: the first question that the submission's code failed.
            WorkerLost: no answer came.
            CheckFailed: a model is not deterministic.
        """
        for kind in CLASSES:
            for depth in self.lab.invariance.num_layers:
                bench = self._bench(kind, depth, seen)
                asked, questions = asking(bench, self.batches(bench))
                answers = iter(self.submission.ask(*(q for own in questions.values() for q in own)))
                found = {model: [next(answers) for _ in own] for model, own in questions.items()}
                yield Round(bench, asked, found)

    def batches(self, bench: Bench) -> Pair:
        """Draw the unpadded and the padded batch that a bench is asked with."""
        unpadded, padded = (
            invariance.draw_batch(self.rng, bench, padded=padded) for padded in (False, True)
        )
        return unpadded, padded

    def ask_twin(self, bench: Bench, question: Question) -> Any:
        """Ask the bench's twin: the same model in a process that has seen nothing before."""
        build = invariance.building(
            bench, [bench.twin], self.batches(bench)[1], self.rng, self.expected
        )
        return self.elsewhere.ask(*build, question)[-1]

    def _bench(self, kind: str, depth: int, seen: dict[str, Any]) -> Bench:
        """Return a bench whose models stand in the worker, built now if they do not."""
        if self.submission.worker is not self.worker:  # a lost one took its models along
            self.worker = self.submission.worker
            self.built.clear()
        if (kind, depth) not in self.built:
            bench = invariance.first_choice(self.lab, kind, depth)
            answers = self._build(bench)
            for other_way in (invariance.by_own_weights, invariance.in_float32):
                trouble = first_error(answers)
                other = other_way(bench, trouble, self.lab) if trouble else None
                if other is not None:
                    bench, answers = other, self._build(other)
            if trouble := first_error(answers):
                raise trouble
            tried = answers[-1 - len(MODES) :]
            invariance.judge_determinism(bench, self.batches(bench)[1], tried, seen)
            self.built[kind, depth] = bench
        return self.built[kind, depth]

    def _build(self, bench: Bench) -> list[Any | StudentError]:
        """Build every model and call the first a few times; an error is an answer too."""
        batch = self.batches(bench)[1]
        return self.submission.attempt(
            *invariance.building(bench, bench.models, batch, self.rng, self.expected),
            *invariance.trying(bench, batch),
            *invariance.determinism(bench, batch),
        )


def first_error(answers: list[Any | StudentError]) -> StudentError | None:
    """Return the first answer that is an error."""
    return next((a for a in answers if isinstance(a, StudentError)), None)
