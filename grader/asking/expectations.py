"""Expected values: computed by the oracle in the repository, read from a recorded file elsewhere.

The only module of the grader that may import the oracle, and only when it has to compute.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from grader.base.places import RECORDED
from grader.model.draws import Array, Weights, sharpened
from grader.model.parameters import ProbeConfig

Expected = dict[str, NDArray[Any]]
# Only a student's copy has this file, and no oracle.


class ExpectationMissing(LookupError):
    """The recorded file does not know these inputs: a grader error, never the student's."""


class Ask(Protocol):
    """A check's way to ask: `expected(name, **inputs)`."""

    def __call__(self, name: str, **inputs: Any) -> Expected:
        """Look up or compute the oracle's answer `name` to the inputs."""


class Expectations:
    """Answers of the oracle, remembered by check id and input digest."""

    def __init__(self, known: Mapping[str, NDArray[Any]] | None = None) -> None:
        """Compute with the oracle, or answer from what is known.

        Args:
            known: Recorded arrays, as `load` reads them; None = compute.
        """
        self._computes = known is None
        self._answers: dict[str, Expected] = {}
        for key, array in (known or {}).items():
            question, _, field = key.rpartition("|")
            self._answers.setdefault(question, {})[field] = array

    @classmethod
    def load(cls, path: Path) -> Expectations:
        """Answer from a recorded file."""
        return cls(load_file(path))

    def save(self, path: Path, seed: int = 0) -> None:
        """Record every answer given so far, and the seed of the draws they belong to."""
        arrays = {
            f"{question}|{field}": np.array(array, order="C")
            for question, answer in sorted(self._answers.items())
            for field, array in answer.items()
        }
        save_file(arrays, path, {"seed": str(seed)})

    def for_check(self, check_id: str) -> Ask:
        """Bind the check's id: the value of its `expected` fixture."""

        def expected(name: str, **inputs: Any) -> Expected:
            return self.expected(check_id, name, **inputs)

        return expected

    def expected(self, check_id: str, name: str, **inputs: Any) -> Expected:
        """Look up or compute what a right submission answers.

        Args:
            check_id: The check that asks.
            name: One of `grader.oracle.registry.ANSWERS`.
            inputs: Keyword arguments of that function; a module's also `config` and `weights`.

        Returns:
            Arrays by field name; a single result is called "value".

        Raises:
            ExpectationMissing: The answer was not recorded.
        """
        question = f"{check_id}|{name}|{_digest(inputs)}"
        if question not in self._answers:
            if not self._computes:
                raise ExpectationMissing(f"no expected value was recorded for {question}")
            self._answers[question] = _computed(name, inputs)
        return self._answers[question]


def public_seed(path: Path = RECORDED) -> int | None:
    """Return the one seed that a student's copy knows answers for, None in the repository."""
    if not path.is_file():
        return None
    with safe_open(path, "np") as recorded:
        return int(recorded.metadata()["seed"])


def sharpen(
    ask: Ask, kind: str, config: ProbeConfig, weights: Mapping[str, Array], peak: float,
    **inputs: Any,
) -> Weights:  # fmt: skip
    """Scale queries and keys until the largest |score| of every attention is `peak`.

    Args:
        ask: The check's `expected`.
        kind: Module or model the weights belong to, such as "seq2seq".
        config: Its configuration.
        weights: Its weights.
        peak: The score wanted.
        inputs: What it is run on; on other inputs the largest score is another one.
    """
    factors = ask(f"{kind}_sharpening", config=config, weights=weights, peak=peak, **inputs)
    return sharpened(weights, {name: float(factor) for name, factor in factors.items()})


def _computed(name: str, inputs: Mapping[str, Any]) -> Expected:
    from grader.oracle.registry import ANSWERS  # a handout has no oracle

    return _fields(ANSWERS[name](**inputs))


def _fields(result: Any) -> Expected:
    if isinstance(result, Mapping):
        return {name: np.asarray(value) for name, value in result.items()}
    if hasattr(result, "_asdict"):
        return _fields(result._asdict())
    return {"value": np.asarray(result)}


def _digest(inputs: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(inputs, sort_keys=True, default=_plain).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Stand for what JSON does not know."""
    if isinstance(value, ProbeConfig):
        return asdict(value)
    if isinstance(value, np.ndarray):
        content = hashlib.sha256(value.tobytes()).hexdigest()
        return [value.dtype.str, value.shape, content]
    raise TypeError(f"an oracle input must be plain data or an array, got {type(value)}")
