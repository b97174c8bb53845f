"""What the checks of parts share: asking in either precision, judging modules, placing blame."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from grader.compare import TOLERANCE, Suspect, fail
from grader.draws import Weights
from grader.expectations import Ask, Expected
from grader.invariance import DTYPE_WORDS
from grader.parameters import ProbeConfig
from grader.result import CheckFailed, Diagnosis, Outcome
from grader.student_error import StudentError
from grader.submission import Question, Submission, build, config, forward

# For a tree that mixes precisions in float64 but is sound in the float32 it is trained in.
TOLERANCE_FLOAT32 = 1e-4

Causes = dict[str, tuple[str, str]]
Findings = list[Outcome]


@dataclass(frozen=True)
class Case:
    """One call of a module.

    Attributes:
        what: names the call in a sentence, such as "the block under both masks".
        inputs: arguments by name, as the oracle takes them.
        valid: (B, T) bool, where the answer stands for a real token; None = everywhere.
        causes: slips that this call can tell apart, with cause and advice, the likeliest first;
            one of a residual branch is called `<slip>:<branch>`.
    """

    what: str
    inputs: dict[str, Any]
    valid: np.ndarray | None = None
    causes: Causes = field(default_factory=dict)


@dataclass(frozen=True)
class Trial:
    """A module with weights, and the calls it is judged by.

    Attributes:
        oracle: its name among the oracle's answers.
        target: the class in the package.
        weights: by name; empty = those that it makes itself.
        positional: inputs that are handed over by position.
        sublayers: modules inside it, in order of execution, that may show where it goes wrong.
        options: further arguments of the constructor.
        told: inputs of the oracle that the module knows from its constructor.
        mode: "eval" or "train".
    """

    oracle: str
    target: str
    config: ProbeConfig
    weights: Weights
    cases: tuple[Case, ...]
    positional: tuple[str, ...] = ("x",)
    sublayers: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    told: Mapping[str, Any] = field(default_factory=dict)
    mode: str = "eval"

    @property
    def part(self) -> str:
        """The task file it stands in, without `.py`."""
        return self.target.split(".")[0]

    def build(self) -> Question:
        """Ask for the module."""
        fields = {k: v for k, v in asdict(self.config).items() if v is not None}
        weights = self.weights or None
        return build("module", self.target, config(**fields), weights=weights, **self.options)

    def call(self, case: Case, record: Sequence[str] = ()) -> Question:
        """Ask for one of its calls."""
        inputs = dict(case.inputs)
        args = [inputs.pop(name) for name in self.positional if name in inputs]
        call = {"args": args, "kwargs": inputs}
        return forward("module", call, mode=self.mode, record=list(record))

    def expect(self, expected: Ask, case: Case) -> Expected:
        """Return what every module inside is expected to answer; its own answer is called ""."""
        name = f"{self.oracle}_activations"
        given = {**case.inputs, **self.told}
        return expected(name, config=self.config, weights=self.weights, **given)

    def suspects(self, expected: Ask, case: Case) -> Iterator[Suspect]:
        """Yield what the slips of `case.causes` would answer."""
        if "x" in case.inputs:
            yield Suspect(
                "input_returned",
                real(case.inputs["x"], case.valid),
                "it returns its input as it came.",
                "Use what the sub-layers return.",
            )
        for slip, (cause, advice) in case.causes.items():
            answer = expected(
                f"wrong_{self.oracle}",
                config=self.config,
                weights=self.weights,
                slip=slip,
                **case.inputs,
            )
            value = real(answer["value"], case.valid)
            yield Suspect(slip, value, cause, advice)


@dataclass(frozen=True)
class Asked:
    """Questions and their answers."""

    submission: Submission
    questions: tuple[Question, ...]
    given: list[Any]

    def answers(self) -> tuple[list[Any], float]:
        """Return the answers, asked again in float32 where they cannot run in float64.

        Returns:
            The answers, errors among them, and the tolerance that belongs to the precision.
        """
        answers = self.given
        if not any(isinstance(a, StudentError) and _about_precision(a) for a in answers):
            return answers, TOLERANCE
        again = self.submission.attempt(*map(in_float32, self.questions))
        return again, TOLERANCE_FLOAT32


def post(submission: Submission, *questions: Question) -> Asked:
    """Ask the questions in float64."""
    return Asked(submission, questions, submission.attempt(*questions))


def ask(submission: Submission, *questions: Question) -> tuple[list[Any], float]:
    """Send the questions and wait for what `Asked.answers` returns."""
    return post(submission, *questions).answers()


def _about_precision(error: StudentError) -> bool:
    return error.kind == "raised" and any(word in error.message for word in DTYPE_WORDS)


def in_float32(question: Question) -> Question:
    """Return the question with float32 in place of float64."""
    if question.probe not in ("call", "build", "forward", "handed_on"):
        return question
    return Question(question.probe, _cast(question.arguments) | {"dtype": "float32"})


def _cast(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype == np.float64:
        return value.astype(np.float32)
    if isinstance(value, dict):
        return {k: _cast(v) for k, v in value.items()}
    return [_cast(v) for v in value] if isinstance(value, list) else value


def sure(answer: Any) -> Any:
    """Return the answer, or raise it if it is an error."""
    if isinstance(answer, StudentError):
        raise answer
    return answer


def returned(answer: Any, what: str, part: str) -> Any:
    """Return what a call or a single forward call returned, or fail as it deserves."""
    if sure(answer)["inputs_changed"]:
        fail("input_changed", part, f"{what}: it changed an argument in place.",
             f"Work on a new tensor in {part}.py: the caller still needs its own.")  # fmt: skip
    return answer["outputs"][0] if "outputs" in answer else answer["value"]


def must_raise(answer: Any, error: str, what: str, part: str) -> None:
    """Fail unless the answer is the error of this name."""
    if not isinstance(answer, StudentError):
        fail("error_missing", part, f"{what}: expected {error}, but it returned an answer.",
             f"Read what the docstring in {part}.py says under Raises.")  # fmt: skip
    unheard = ("not_implemented", "missing_name", "no_handle", "out_of_memory")
    if answer.kind in unheard or answer.while_importing or answer.waits_for_keyboard:
        raise answer
    if answer.type != error:
        fail("wrong_error", part, f"{what}: expected {error}, got {answer.type}: {answer.message}",
             f"Read what the docstring in {part}.py says under Raises.",
             {"type": answer.type, "message": answer.message})  # fmt: skip


@contextmanager
def built_on(part: str, findings: Findings, *stubs: str) -> Iterator[None]:
    """Blame a failure on the first of the earlier stubs that does not pass by itself.

    Where all of them pass, the code in `part` provoked what they raise.
    """
    earlier = [o for o in findings if o.stub in stubs and o.diagnosis is not None]
    try:
        yield
    except StudentError as error:
        if not earlier and error.kind == "raised":
            own = [i for i, f in enumerate(error.frames) if f["file"].endswith(f"/{part}.py")]
            error.frames = error.frames[: own[-1] + 1] if own else error.frames
        for outcome in earlier:
            known = outcome.diagnosis
            if known and known.code == "attended_has_no_names" and "'tuple' object" in str(error):
                raise _follows(outcome, f"{error.place()}: {error}.", {}) from None
        raise
    except CheckFailed as failure:
        for outcome in earlier:
            raise _follows(outcome, failure.diagnosis.cause, failure.evidence) from None
        raise


def _follows(outcome: Outcome, seen: str, evidence: dict[str, Any]) -> CheckFailed:
    """Return what to raise for something seen that an earlier task's failure explains."""
    known = outcome.diagnosis
    assert known is not None
    cause = (
        f"{seen} Task {outcome.stub}, which this one is built on, does not pass by itself: "
        f"{known.cause}"
    )
    advice = f"Mend task {outcome.stub} first. {known.advice}"
    found = Diagnosis("follows_from_earlier_task", known.part, cause, advice)
    return CheckFailed(found, evidence | {"built_on": outcome.stub})


def real(value: np.ndarray, valid: np.ndarray | None) -> np.ndarray:
    """Return value (B, T, D) with what stands at padded positions taken out."""
    return value if valid is None else np.where(valid[:, :, None], value, 0.0)


def chosen(causes: Causes, *names: str) -> Causes:
    """Return some of the causes, in the order of `names`."""
    return {name: causes[name] for name in names}


def without(causes: Causes, names: Iterable[str]) -> Causes:
    """Return the causes but for some of them."""
    left = set(names)
    return {name: why for name, why in causes.items() if name not in left}
