"""What the checks of parts share: asking in either precision, judging modules, placing blame."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from grader.compare import TOLERANCE, Suspect, agrees, fail, judge
from grader.draws import Weights
from grader.expectations import Ask, Expected
from grader.invariance import DTYPE_WORDS
from grader.parameters import ProbeConfig
from grader.result import CheckFailed, Diagnosis, Outcome
from grader.submission import (
    Question,
    StudentError,
    Submission,
    build,
    config,
    forward,
    tensor,
)

# For a tree that mixes precisions in float64 but is sound in the float32 it is trained in.
TOLERANCE_FLOAT32 = 1e-4

Causes = Mapping[str, tuple[str, str]]
Findings = list[Outcome]


@dataclass(frozen=True)
class Case:
    """One call of a module.

    Attributes:
        what: names the call in a sentence, such as "the block under both masks".
        inputs: arguments by name, as the oracle takes them.
        valid: (B, T) bool, where the answer stands for a real token; None = everywhere.
        causes: slips that this call can tell apart, with cause and advice, the likeliest first.
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
        weights = self.weights
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
            yield Suspect("input_returned", _real(case.inputs["x"], case.valid),
                          "it returns its input as it came.", "Use what the sub-layers return.")
        for slip, (cause, advice) in case.causes.items():
            answer = expected(f"wrong_{self.oracle}", config=self.config, weights=self.weights,
                              slip=slip, **case.inputs)
            value = _real(answer["value"], case.valid)
            yield Suspect(slip.split(":")[0], value, cause, advice)  # fmt: skip


def ask(submission: Submission, *questions: Question) -> tuple[list[Any], float]:
    """Ask in float64, and again in float32 what cannot run in float64.

    Returns:
        The answers, errors among them, and the tolerance that belongs to the precision.
    """
    answers = submission.attempt(*questions)
    if not any(isinstance(a, StudentError) and _about_precision(a) for a in answers):
        return answers, TOLERANCE
    return submission.attempt(*map(_in_float32, questions)), TOLERANCE_FLOAT32


def _about_precision(error: StudentError) -> bool:
    return error.kind == "raised" and any(word in error.message for word in DTYPE_WORDS)


def _in_float32(question: Question) -> Question:
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
    if answer.kind in ("not_implemented", "missing_name", "no_handle", "out_of_memory"):
        raise answer
    if answer.type != error:
        fail("wrong_error", part, f"{what}: expected {error}, got {answer.type}: {answer.message}",
             f"Read what the docstring in {part}.py says under Raises.",
             {"type": answer.type, "message": answer.message})  # fmt: skip


def try_modules(
    submission: Submission, expected: Ask, advice: str, *trials: Trial
) -> dict[str, Any]:
    """Judge every call of every trial; one frame asks them all."""
    questions = []
    for trial in trials:
        questions += [trial.build(), *map(trial.call, trial.cases)]
    answers, tolerance = ask(submission, *questions)
    largest = 0.0
    for trial in trials:
        built, *given = [answers.pop(0) for _ in range(1 + len(trial.cases))]
        sure(built)
        for case, answer in zip(trial.cases, given, strict=True):
            gap = _judge_case(submission, expected, trial, case, answer, advice, tolerance)
            largest = max(largest, gap)
    return {"largest_difference": largest, "tolerance": tolerance}


def _judge_case(
    submission: Submission, expected: Ask, trial: Trial, case: Case, answer: Any, advice: str,
    tolerance: float,
) -> float:  # fmt: skip
    """Return the largest difference at real positions; padded ones must hold exactly 0."""
    want = trial.expect(expected, case)
    value = returned(answer, case.what, trial.part)
    whole = isinstance(value, np.ndarray) and value.shape == want[""].shape
    got = tensor(_real(value, case.valid) if whole else value, want[""].shape, case.what,
                 trial.part)  # fmt: skip
    try:
        evidence = judge(got, _real(want[""], case.valid), what=case.what, part=trial.part,
                         advice=advice, suspects=trial.suspects(expected, case),
                         tolerance=tolerance)  # fmt: skip
    except CheckFailed as failure:
        if failure.diagnosis.code == "values_differ":
            _explain(submission, trial, case, got, want, failure)
        raise
    if case.valid is not None:
        _check_padding(value, case, trial.part)
    return float(evidence["largest_difference"])


def _real(value: np.ndarray, valid: np.ndarray | None) -> np.ndarray:
    """Return value (B, T, D) with what stands at padded positions taken out."""
    return value if valid is None else np.where(valid[:, :, None], value, 0.0)


def _check_padding(value: np.ndarray, case: Case, part: str) -> None:
    wrong = (value != 0).any(axis=-1) & ~np.asarray(case.valid)
    if wrong.any():
        row, place = (int(i) for i in np.argwhere(wrong)[0])
        fail("padding_not_zeroed", part,
             f"{case.what}: padded position {place} of row {row} holds "
             f"{value[row, place].ravel()[0]:.3g} where exactly 0 is expected.",
             f"Look at the end of the function in {part}.py: what its docstring says of padded "
             "positions.", {"row": row, "position": place})  # fmt: skip


def _explain(
    submission: Submission, trial: Trial, case: Case, got: np.ndarray, want: Expected,
    failure: CheckFailed,
) -> None:  # fmt: skip
    """Fail with more than the difference itself, where more can be said."""
    first = got if case.valid is None else got[np.asarray(case.valid)]
    if first.size > 1 and not np.ptp(first):
        fail("does_not_respond", trial.part,
             f"{case.what}: it answers {first.flat[0]:.3g} everywhere, whatever it is given.",
             "Return what was computed from the input.", failure.evidence)  # fmt: skip
    if not trial.sublayers:
        return
    questions = trial.build(), trial.call(case, trial.sublayers)
    *_, again = ask(submission, *questions)[0]
    records = {} if isinstance(again, StudentError) else again["records"][0]
    for name in trial.sublayers:
        seen = records.get(name) if isinstance(records, dict) else None
        right = want[name]
        if not isinstance(seen, np.ndarray) or seen.shape != right.shape:
            continue
        if not agrees(_real(seen, case.valid), _real(right, case.valid), TOLERANCE_FLOAT32):
            cause = f"{failure.diagnosis.cause} The first wrong value comes out of {name}."
            advice = f"Look at what {name} is given. {failure.diagnosis.advice}"
            fail("values_differ", trial.part, cause, advice,
                 failure.evidence | {"first_wrong": name})  # fmt: skip


def silenced(trial: Trial) -> Trial:
    """Return the trial with sub-layers that answer 0: their last projections are 0."""
    last = ("out_proj.", "output_projection.")
    weights = {
        name: weight * 0.0 if any(part in name for part in last) else weight
        for name, weight in trial.weights.items()
    }
    return replace(trial, weights=weights)


@contextmanager
def built_on(findings: Findings, *stubs: str) -> Iterator[None]:
    """Blame a failure on the first of the earlier stubs that failed by itself in this run."""
    try:
        yield
    except CheckFailed as failure:
        for outcome in findings:
            if outcome.stub in stubs and outcome.diagnosis is not None:
                earlier = outcome.diagnosis
                cause = (
                    f"{failure.diagnosis.cause} Task {outcome.stub}, which this one is built on, "
                    f"does not pass by itself: {earlier.cause}"
                )
                advice = f"Mend task {outcome.stub} first. {earlier.advice}"
                code = "follows_from_earlier_task"
                raise CheckFailed(
                    Diagnosis(code, earlier.part, cause, advice), failure.evidence
                ) from None
        raise


def chosen(causes: Causes, *names: str) -> Causes:
    """Return some of the causes, in the order of `names`."""
    return {name: causes[name] for name in names}


def without(causes: Causes, names: Iterable[str]) -> Causes:
    """Return the causes but for some of them."""
    left = set(names)
    return {name: why for name, why in causes.items() if name not in left}

