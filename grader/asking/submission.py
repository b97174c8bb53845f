"""The proxy a check talks to: it asks the worker and never trusts what comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from grader.base.result import CheckFailed, Diagnosis
from grader.base.student_error import StudentError
from grader.link.workers import Worker

Json = dict[str, Any]


# What the probes answer, by key, and what their lists and dicts hold where only one kind of value
# can be in them; a worker that answers otherwise is no longer ours.
FORMS: dict[str, dict[str, type | tuple[type, type]]] = {
    "call": {"value": object, "inputs_changed": list},
    "build": {"parameters": dict},
    "forward": {
        "outputs": list,
        "records": list,
        "losses": list,
        "inputs_changed": list,
        "mode_kept": bool,
    },
    "fields": {"values": list},
    "parameters": {"parameters": dict},
    "gradients": {
        "names": (list, str),
        "sizes": np.ndarray,
        "frozen": (list, str),
        "losses": np.ndarray,
        "norms": np.ndarray,
    },
    "losses_along": {
        "norms": np.ndarray,
        "products": (list, np.ndarray),
        "ahead": (list, np.ndarray),
        "behind": (list, np.ndarray),
    },
    "train": {"losses": object, "parameters": dict, "buffers": dict},
    "restore": {"parameters": dict},
    "attention_weights": {"weights": list},
    "handed_on": {"calls": list},
    "teacher_forcing": {"value": object, "answers_changed": bool},
    "optimizer": {
        "times": (dict, int),
        "others": int,
        "rates": (list, float),
        "moved": (dict, float),
    },
    "spy_on_training": {
        "events": list,
        "losses": object,
        "kinds": (list, str),
        "own_losses": (list, float),
        "inputs": list,
        "own_inputs": list,
        "left_training": bool,
        "schedules": list,
    },
}


@dataclass(frozen=True)
class Question:
    """One probe and its arguments."""

    probe: str
    arguments: Json

    def to_json(self) -> Json:
        """Return the question as a frame holds it."""
        return {"probe": self.probe, "arguments": self.arguments}


def handle(name: str) -> Json:
    """Refer to the object that an earlier question saved as `name`."""
    return {"$handle": name}


def config(**fields: Any) -> Json:
    """Stand for a `ModelConfig` with these fields."""
    return {"$config": fields}


def call(
    target: str, *args: Any, save: str | None = None, dtype: str = "float64", **kwargs: Any
) -> Question:
    """Ask for `module.function`, `@handle` or `@handle.method` with these arguments."""
    arguments = {"target": target, "args": list(args), "kwargs": kwargs}
    return Question("call", arguments | {"save": save, "dtype": dtype, "give": save is None})


def build(save: str, target: str, *args: Any, **options: Any) -> Question:
    """Ask for the module `target(*args)`.

    `options`: weights, seed, dtype, scale; anything else is a keyword of the constructor.
    """
    own = {k: options.pop(k) for k in ("weights", "seed", "dtype", "scale") if k in options}
    return Question(
        "build", {"save": save, "target": target, "args": list(args)} | own | {"kwargs": options}
    )


def forward(model: str, *calls: Json, **options: Any) -> Question:
    """Ask the saved `model` for its outputs on each of `calls` ({"args": [], "kwargs": {}})."""
    return Question("forward", {"model": model, "calls": list(calls)} | options)


def read(worker: Worker, question: Question, answer: Json) -> Any | StudentError:
    """Return the answer to a question; an error is an answer too.

    Raises:
        WorkerLost: its probe cannot have given it.
    """
    if "error" in answer:
        return described(answer["error"])
    if not well_formed(question, answer["value"]):
        raise worker.lie(f"{question.probe} cannot have given this answer")
    return answer["value"]


def well_formed(question: Question, value: Any) -> bool:
    """Tell whether `value` has the form that the question's probe gives."""
    form = FORMS.get(question.probe)
    if form is None:
        return True
    if not isinstance(value, dict) or set(value) != set(form):
        return False
    calls = len(question.arguments.get("calls", []))
    return all(fits(value[k], kind) for k, kind in form.items()) and (
        question.probe != "forward" or len(value["outputs"]) == len(value["records"]) == calls
    )


def fits(value: Any, kind: type | tuple[type, type]) -> bool:
    """Tell whether a value is of a kind, or a list or dict of values of one kind."""
    if isinstance(kind, type):
        return isinstance(value, kind)
    whole, inner = kind
    items = value.values() if isinstance(value, dict) else value
    return isinstance(value, whole) and all(type(item) is inner for item in items)


def described(error: Any) -> StudentError:
    """Return what the worker says it caught; a description of another form is a lie."""
    return StudentError(error if isinstance(error, dict) else {"type": "unknown"})


class Submission:
    """Answers checks' questions through one worker, replaced when it is lost."""

    def __init__(self, start: Callable[[], Worker], progress: Callable[[Json], None]) -> None:
        """Start workers with `start`; report long work to `progress`."""
        self._start = start
        self._worker: Worker | None = None
        self.progress = progress

    def flag(self, code: str, message: str) -> None:
        """Note something for a person to read; it changes no verdict."""
        self.progress({"kind": "flag", "code": code, "message": message})

    @property
    def worker(self) -> Worker:
        """Return a living worker, started now if need be."""
        if self._worker is None or not self._worker.alive:
            self._worker = self._start()
        return self._worker

    def another(self) -> Submission:
        """Return a second proxy to the same tree, with a worker of its own."""
        return Submission(self._start, self.progress)

    def renew(self) -> None:
        """Forget everything asked so far: the next question goes to a fresh worker."""
        self.close()

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def attempt(
        self, *questions: Question, deadline_s: float | None = None
    ) -> list[Any | StudentError]:
        """Return each question's answer; an error is an answer too.

        Raises:
            WorkerLost: no answer came, or one that its probe cannot have given.
        """
        worker = self.worker
        given = worker.ask([question.to_json() for question in questions], deadline_s)
        return [read(worker, q, answer) for q, answer in zip(questions, given, strict=True)]

    def ask(self, *questions: Question, deadline_s: float | None = None) -> list[Any]:
        """Return each question's answer.

        Raises:
            StudentError: the first question that the submission's code failed.
            WorkerLost: no answer came.
        """
        answers = self.attempt(*questions, deadline_s=deadline_s)
        for answer in answers:
            if isinstance(answer, StudentError):
                raise answer
        return answers

    def call(self, target: str, *args: Any, **kwargs: Any) -> Any:
        """Return what `target` returns, having changed none of its inputs."""
        (answer,) = self.ask(call(target, *args, **kwargs))
        if answer["inputs_changed"]:
            where = target.split(".")[0]
            raise CheckFailed(
                Diagnosis(
                    "input_changed",
                    where,
                    f"{target} changed its argument {answer['inputs_changed'][0]} in place.",
                    f"Work on a new tensor in {where}.py; the caller still needs its own.",
                )
            )
        return answer["value"]

    def stream(self, question: Question, respond: Callable[[Json], Json]) -> Any:
        """Ask a question whose probe asks back (see `Worker.stream`)."""
        worker = self.worker
        answer = read(worker, question, worker.stream(question.to_json(), respond))
        if isinstance(answer, StudentError):
            raise answer
        return answer


def tensor(value: Any, shape: tuple[int, ...], what: str, part: str, kind: str = "f") -> np.ndarray:
    """Return `value` as an array of exactly `shape` and dtype kind, all of it finite.

    Raises:
        CheckFailed: it is no tensor, has another shape or dtype, or holds NaN or infinity.
    """
    kinds = {"f": "a floating", "b": "a bool", "i": "an integer"}
    if not isinstance(value, np.ndarray):
        found = "None: is a return missing?" if value is None else f"{type(value).__name__}."
        if isinstance(value, dict) and "$object" in value:
            found = f"a {value['$object']}."
        raise _wrong("no_tensor", part, f"{what}: expected a tensor, got {found}")
    if value.shape != shape:
        raise _wrong("wrong_shape", part, f"{what}: expected shape {shape}, got {value.shape}.")
    if value.dtype.kind != kind:
        raise _wrong(
            "wrong_dtype", part, f"{what}: expected {kinds[kind]} tensor, got {value.dtype}."
        )
    if kind == "f" and not np.isfinite(value).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(value))[0])
        raise CheckFailed(
            Diagnosis(
                "not_finite",
                part,
                f"{what}: {value[where]} at {where}.",
                f"Find the first operation in {part}.py that makes it: often a softmax over "
                "a row with no allowed key, or a division by zero.",
            ),
            {"index": where},
        )
    return value


def _wrong(code: str, part: str, cause: str) -> CheckFailed:
    advice = f"Compare with the shapes and types in the docstring in {part}.py."
    return CheckFailed(Diagnosis(code, part, cause, advice))
