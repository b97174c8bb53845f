"""Every setting of lab.toml has an effect: each is read, and no second home holds its number."""

from __future__ import annotations

import ast
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader.asking import compare
from grader.asking.compare import agrees
from grader.asking.submission import call
from grader.base import settings
from grader.base.student_error import StudentError
from grader.gates import invariance, sequences
from grader.model.draws import Draws
from grader.parts.judging import ask
from grader.run.context import Job
from grader.run.outcomes import Place

ROOT = Path(__file__).resolve().parent.parent
LAB = settings.load()
# They are handed over as a whole, by name: `asdict(lab.model)`.
WHOLE = (settings.Model, settings.Recipe)


def leaves(value: Any) -> set[str]:
    """Return the names of all settings below a table, but for those handed over as a whole."""
    found = set()
    for field in fields(value):
        inner = getattr(value, field.name)
        found.add(field.name)
        if is_dataclass(inner) and not isinstance(inner, WHOLE):
            found |= leaves(inner)
        elif isinstance(inner, tuple) and inner and is_dataclass(inner[0]):
            found |= leaves(inner[0])
    return found


def test_every_setting_is_read() -> None:
    read = set()
    for path in (ROOT / "grader").rglob("*.py"):
        if path.name not in ("settings.py", "lint.py", "facts.py"):
            tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            read |= {node.attr for node in tree if isinstance(node, ast.Attribute)}
    # Only the larger size's own settings are read where they take the place of the usual ones.
    larger = {"d_model", "num_layers", "d_ff", "learning_rate"}
    assert leaves(LAB) - read - larger - {"maximum"} == set()


@pytest.mark.parametrize("name", ["d_model", "num_layers", "d_ff"])
def test_larger_size_is_that_of_lab_toml(name: str) -> None:
    changed = replace(LAB, scale=replace(LAB.scale, **{name: 7}))
    assert getattr(settings.enlarged(changed, "copy").model, name) == 7


def test_larger_recipe_is_that_of_lab_toml() -> None:
    scale = replace(LAB.scale, steps=7, learning_rate=0.5, exact_match=0.25, max_length=9)
    found = settings.enlarged(replace(LAB, scale=scale), "copy")
    assert (found.recipe.steps, found.recipe.learning_rate) == (7, 0.5)
    assert (found.accuracy.exact_match, found.data.max_length) == (0.25, 9)


def test_answers_must_come_as_near_as_lab_toml_says(monkeypatch: pytest.MonkeyPatch) -> None:
    got, want = np.array([1.0]), np.array([1.0 + 4 * LAB.parts.tolerance])
    assert not agrees(got, want)
    monkeypatch.setattr(compare, "tolerances", replace(LAB.parts, tolerance=1e-3))
    assert agrees(got, want)


def test_float32_has_a_tolerance_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mixed:
        """A tree that cannot run in float64."""

        def attempt(self, *questions: Any) -> list[Any]:
            error = {"kind": "raised", "message": "expected scalar type Double", "type": "Error"}
            wide = questions[0].arguments["dtype"] == "float64"
            return [StudentError(error) if wide else {"value": 1.0}]

    monkeypatch.setattr(compare, "tolerances", replace(LAB.parts, tolerance_float32=0.125))
    question = call("masks.causal_mask", 2, 2)
    assert ask(Mixed(), question)[1] == 0.125  # type: ignore[arg-type]


def test_sharpened_score_is_the_one_that_is_drawn() -> None:
    asked = []

    def expected(name: str, **inputs: Any) -> dict[str, Any]:
        asked.append(inputs["peak"])
        return {}

    changed = replace(LAB, invariance=replace(LAB.invariance, sharpened_score=33.0))
    bench = invariance.first_choice(changed, "decoder_only", 1)
    rng = Draws(1, "bench")
    batch = invariance.draw_batch(rng, bench, padded=False)
    invariance.building(bench, bench.models, batch, rng, expected)
    assert asked == [33.0] * LAB.invariance.weight_draws


def test_task_to_learn_is_the_one_of_lab_toml() -> None:
    data = sequences.draw(Draws(1, "data"), replace(LAB, data=replace(LAB.data, task="copy")))
    assert data.plain_answers([[3, 4, 5]]) == [[3, 4, 5]]
    assert replace(data, lab=LAB).plain_answers([[3, 4, 5]]) == [[5, 4, 3]]


@pytest.mark.parametrize(("gates", "slow", "wanted"), [(None, True, True), (3, True, False),
                                                       (None, False, False)])  # fmt: skip
def test_gates_are_counted_as_lab_toml_lists_them(gates: int, slow: bool, wanted: bool) -> None:
    job = Job(LAB, 1, lambda: None, lambda event: None, gates=gates, slow=slow)  # type: ignore
    assert job.wants(Place(None, 4, "greedy_accuracy", slow=True)) is wanted
    assert not job.wants(Place("9.9", None, None))
    assert not job.wants(Place(None, 5, "scale_copy", slow=True))
