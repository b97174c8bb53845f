"""Whatever a submission answers, a check judges it: no answer makes the grader itself fail.

Each check is run once over the solution, its answers are kept, and it is run again with some of
them replaced. A check may pass, fail, or blame the student's code or process; any other exception
would be the grader's own error.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import itertools
import random
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader import sandbox
from grader.asking.expectations import Expectations
from grader.asking.submission import Question, Submission, well_formed
from grader.base import settings
from grader.base.result import CheckFailed
from grader.base.student_error import StudentError
from grader.gates.model_pool import Benches
from grader.intake import staging
from grader.link.workers import WorkerLost
from grader.link.workshop import Workshop
from grader.model.draws import Draws
from grader.run.engine import CHECKS
from grader.run.plugin import MARKERS
from grader.upkeep import patching

LAB = settings.load()
SHORT = replace(LAB, recipe=replace(LAB.recipe, steps=2, batch_size=8))
EXPECTATIONS = Expectations()
TRIALS = 12
FILES = sorted(path.stem for path in CHECKS.glob("[a-z]*.py") if path.stem != "scale_larger_model")

Way = tuple[Any, ...]


def flat(value: Any, path: Way = ()) -> Iterator[tuple[Way, Any]]:
    """Yield every value of a tree of plain answers with the way to it, the tree itself included."""
    yield path, value
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flat(inner, (*path, key))


def put(tree: Any, path: Way, value: Any) -> Any:
    """Return a copy of the tree with `value` at the end of the way."""
    if not path:
        return value
    tree = copy.copy(tree)
    tree[path[0]] = put(tree[path[0]], path[1:], value)
    return tree


ODD: list[Callable[[Any], Any]] = [
    lambda v: None,
    lambda v: "text\x00" * 3,
    lambda v: 10**400,
    lambda v: -(2**63),
    lambda v: float("nan"),
    lambda v: float("-inf"),
    lambda v: True,
    lambda v: [],
    lambda v: {},
    lambda v: {"$object": "generator"},
    lambda v: [[1, [2.5, None]], "x"],
    lambda v: np.zeros((0,)),
    lambda v: np.zeros(()),
    lambda v: np.array(np.nan),
    lambda v: np.zeros((2, 0, 3), np.int32),
    lambda v: [v, v],
    lambda v: {"value": v},
]  # fmt: skip
ODD_ARRAYS: list[Callable[[np.ndarray], Any]] = [
    lambda v: np.full_like(v, np.nan, dtype=np.float64),
    lambda v: np.full_like(v, np.inf, dtype=np.float64),
    lambda v: np.full_like(v, 1.7e308, dtype=np.float64),
    lambda v: np.full_like(v, 2**63 - 1, dtype=np.int64),
    lambda v: np.full_like(v, -(2**63), dtype=np.int64),
    lambda v: np.full_like(v, 2**64 - 1, dtype=np.uint64),
    lambda v: np.zeros_like(v, dtype=np.bool_),
    lambda v: np.zeros_like(v),
    lambda v: v.astype(np.float16),
    lambda v: v.astype(np.int8),
    lambda v: v[..., None],
    lambda v: v[None],
    lambda v: v.T,
    lambda v: v[:0] if v.ndim else v,
    lambda v: v[..., :-1] if v.ndim else v,
    lambda v: np.concatenate([v, v], axis=-1) if v.ndim else v,
    lambda v: np.flip(v),
    lambda v: list(v) if v.ndim else [v.item()],
    lambda v: -v if v.dtype.kind == "f" else ~v if v.dtype.kind in "bi" else v,
    lambda v: np.where(np.arange(v.size).reshape(v.shape) == v.size // 2, np.nan, v),
]  # fmt: skip


def spoilt(answers: list[Any], chance: random.Random) -> list[Any]:
    """Return the answers with one to three values replaced."""
    for _ in range(chance.choice([1, 1, 2, 3])):
        places = list(flat(answers))[1:]
        if not places:
            break
        path, value = chance.choice(places)
        kinds = ODD_ARRAYS if isinstance(value, np.ndarray) and chance.random() < 0.8 else ODD
        answers = put(answers, path, chance.choice(kinds)(value))
    return answers


class Kept:
    """A submission's worker as far as a check sees it: nothing but its processor time."""

    alive = True

    def processor_seconds(self) -> float:
        """Return the same time at every look."""
        return 0.0

    def close(self) -> None:
        """End nothing."""

    def lie(self, detail: str) -> WorkerLost:
        """Return what a worker raises that is caught lying."""
        return WorkerLost("protocol", detail)


class Replay(Submission):
    """Answers as the solution did, in the same order, some of it spoilt."""

    def __init__(self, kept: list[list[Any]], chance: random.Random, spoil: int) -> None:
        super().__init__(Kept, lambda event: None)  # type: ignore[arg-type]
        self.kept, self.chance, self.spoil, self.turn = kept, chance, spoil, 0

    def reply(self, questions: tuple[Question, ...]) -> list[Any]:
        """Return the next answers; what the solution was never asked is answered at random."""
        turn, self.turn = self.turn, self.turn + 1
        if turn < len(self.kept) and len(self.kept[turn]) == len(questions):
            answers = self.kept[turn]
        else:
            pool = [a for answers in self.kept for a in answers]
            likely = [[a for a in pool if well_formed(q, a)] or [{}] for q in questions]
            answers = [self.chance.choice(fitting) for fitting in likely]
        if turn == self.spoil or turn >= len(self.kept):
            answers = spoilt(answers, self.chance)
        if not isinstance(answers, list) or len(answers) != len(questions):
            raise WorkerLost("protocol", "the answers do not belong to the questions")
        return answers

    def attempt(self, *questions: Question, deadline_s: float | None = None) -> list[Any]:
        """Answer at once."""
        return checked(questions, self.reply(questions))

    def another(self) -> Replay:
        """Answer in one order, whichever worker is asked."""
        return self

    def stream(self, question: Question, respond: Callable[..., Any]) -> Any:
        """Draw every batch, then answer."""
        for number in range(SHORT.recipe.steps + 1):
            respond({"draw": number})
        (answer,) = checked((question,), self.reply((question,)))
        if isinstance(answer, StudentError):
            raise answer
        return answer


def checked(questions: tuple[Question, ...], answers: list[Any]) -> list[Any]:
    """Return answers that their probes can have given."""
    for question, answer in zip(questions, answers, strict=True):
        if not isinstance(answer, StudentError) and not well_formed(question, answer):
            raise WorkerLost("protocol", f"{question.probe} cannot have given this answer")
    return answers


class Keeping(Submission):
    """The solution, whose answers are kept in the order in which they come."""

    kept: list[list[Any]]

    def another(self) -> Keeping:
        """Keep in one order what is asked of whichever worker."""
        return self

    def attempt(self, *questions: Question, deadline_s: float | None = None) -> list[Any]:
        """Ask, and keep the answers."""
        answers = super().attempt(*questions, deadline_s=LAB.limits.check_s)
        self.kept.append(answers)
        return answers

    def stream(self, question: Question, *args: Any, **kwargs: Any) -> Any:
        """Ask and keep the answer."""
        answer = super().stream(question, *args, **kwargs)
        self.kept.append([answer])
        return answer


def checks_of(stem: str) -> list[Callable[..., Any]]:
    """Return the checks of one file, in order."""
    module = importlib.import_module(f"grader.checks.{stem}")
    found = [v for k, v in vars(module).items() if k.startswith("test_") and callable(v)]
    return [check for check in found if check.__module__ == module.__name__]


def ways(check: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """Yield the parameters of every run of a check, as its parametrize marks give them."""
    marks = [m.args for m in getattr(check, "pytestmark", []) if m.name == "parametrize"]
    for values in itertools.product(*(values for _, values in marks)):
        yield dict(zip((name for name, _ in marks), values, strict=True))


def run(check: Callable[..., Any], way: dict[str, Any], submission: Submission) -> None:
    """Call the check as the plugin does."""
    rng = Draws(0, check.__name__)
    expected = EXPECTATIONS.for_check(check.__name__)
    benches = Benches(submission, rng, expected, SHORT)

    given = {"submission": submission, "rng": rng, "lab": SHORT, "findings": [],
             "expected": expected, "benches": benches, **way}  # fmt: skip
    with np.errstate(all="ignore"):
        check(**{name: given[name] for name in inspect.signature(check).parameters})


@pytest.fixture(scope="session")
def solution(pytestconfig: pytest.Config) -> Iterator[Keeping]:
    for marker in MARKERS:  # the checks are imported here, not run by their own plugin
        pytestconfig.addinivalue_line("markers", marker)
    with Workshop(sandbox.choose("portable"), LAB.limits) as workshop:
        staged = staging.examine(patching.SOLUTION, LAB)
        staged = staging.lay_out(staged, workshop.trees / "tree")
        keeping = Keeping(lambda: workshop.worker(staged.root), lambda event: None)
        yield keeping
        keeping.close()


@pytest.mark.slow
@pytest.mark.parametrize("stem", FILES)
def test_no_answer_is_the_fault_of_the_grader(solution: Keeping, stem: str) -> None:
    troubles = [
        trouble for check in checks_of(stem) for way in ways(check)
        for trouble in judged(solution, check, way, stem.startswith("gate_4"))
    ]  # fmt: skip
    assert not troubles, "\n".join(sorted(set(troubles)))


def judged(
    solution: Keeping, check: Callable[..., Any], way: dict[str, Any], fails: bool
) -> Iterator[str]:
    """Run a check over the solution, then over its spoilt answers; yield what went wrong."""
    solution.renew()
    solution.kept = []
    if fails:  # two steps teach nothing
        with pytest.raises(CheckFailed):
            run(check, way, solution)
    else:
        run(check, way, solution)
    kept = solution.kept
    chance = random.Random(check.__name__)
    for number in range(max(TRIALS, 2 * len(kept))):
        replay = Replay(kept, chance, number % len(kept))
        try:
            run(check, way, replay)
        except (CheckFailed, StudentError, WorkerLost):
            pass
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)[-3:]
            place = [f"{Path(f.filename).name}:{f.lineno}" for f in frames]
            yield f"{check.__name__}: {type(error).__name__}: {error} {place}"
