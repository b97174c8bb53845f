"""What the commonest errors mean: raised here by torch and Python themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from grader.base.student_error import StudentError
from grader.run import blame, hints
from grader.run.outcomes import Place, student_outcome

X = torch.ones(2, 3)


@dataclasses.dataclass(frozen=True)
class Frozen:
    key: int = 0


class Module(nn.Module):
    def forward(self, x: Any, *, mask: Any = None) -> Any:
        return x


def twice_backward() -> None:
    loss = X.clone().requires_grad_().exp().sum()
    loss.backward()
    loss.backward()


def in_place() -> None:
    x = X.clone().requires_grad_()
    y = x.exp()
    y += 1
    y.sum().backward()


def recursion() -> None:
    recursion()


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "if of a tensor": (lambda: bool(X), "is not None"),
    "not of floats": (lambda: ~X, "bool tensors"),
    "call of a tensor": (lambda: X(1), "hand over the function"),
    "call of a number": (lambda: (lambda n: n())(1), "no function"),
    "attribute of None": (lambda: None.shape, "is None"),
    "sum with None": (lambda: X + None, "is None"),
    "None for a tensor": (lambda: nn.functional.layer_norm(None, (3,)), "is None"),
    "sum with a tuple": (lambda: X + (X, None), "tuple"),
    "attribute of a tuple": (lambda: (X, X).shape, "tuple"),
    "attribute of a list": (lambda: [X].detach(), "list"),
    "attribute of a number": (lambda: (1.5).backward(), "plain number"),
    "attribute of a bool": (lambda: True.dtype, "bool tensor"),
    "misspelt layer": (lambda: Module().o_proj, "letter by letter"),
    "misspelt name": (lambda: eval("merge_head"), "letter by letter"),
    "unnamed argument": (lambda: Module().forward(X, X), "have to be named"),
    "unknown argument": (lambda: Module().forward(X, msk=X), "name by name"),
    "too few names": (lambda: exec("a, b = 1, 2, 3"), "Count both sides"),
    "frozen": (lambda: setattr(Frozen(), "key", 1), "new one"),
    "in place": (in_place, "x = x + ..."),
    "no history": (lambda: X.sum().backward(), "history"),
    "twice": (twice_backward, "from one step to the next"),
    "loss not flattened": (
        lambda: nn.functional.cross_entropy(torch.ones(2, 5, 7), torch.ones(2, 5).long()),
        "flatten",
    ),
    "float ids": (lambda: nn.functional.embedding(X, X), "integers"),
    "recursion": (recursion, "calls itself"),
    "absent library": (lambda: exec("import einops_that_is_absent"), "is missing where"),
    "tabs": (lambda: compile("if 1:\n\tx\n        y\n", "f", "exec"), "four spaces"),
    "no body": (lambda: compile("for x in y:\nz\n", "f", "exec"), "four spaces"),
    "no colon": (lambda: compile("for x in y\n", "f", "exec"), "one before it"),
    "open bracket": (lambda: compile("f(x\ny = 1\n", "f", "exec"), "one before it"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_common_error_is_explained(name):
    raises, words = CASES[name]
    with pytest.raises(Exception) as caught:
        raises()
    assert words in (hints.hint(f"{type(caught.value).__name__}: {caught.value}") or "")


@pytest.mark.parametrize(
    "raises",
    [
        lambda: X @ X,
        lambda: X.view(4),
        lambda: torch.cat([X, X[:1, :1]]),
        lambda: 1 / 0,
        lambda: exec("import transformer.absent_file"),
    ],
)
def test_other_errors_keep_the_advice_on_shapes(raises):
    with pytest.raises(Exception) as caught:
        raises()
    assert hints.hint(f"{type(caught.value).__name__}: {caught.value}") is None


def traced(**error: Any) -> Any:
    place = Place("1.1", None, None)
    found = student_outcome(StudentError({"kind": "raised", **error}), place)
    return blame.traced(found, place, [], {}, {}).diagnosis


FRAME = {"file": "transformer/masks.py", "line": 5, "function": "padding_mask", "text": "x"}


def test_hint_becomes_the_advice_and_tabs_are_no_text():
    found = traced(type="TypeError", message="\tand 'NoneType'", frames=[FRAME])
    assert "is None" in found.advice and "\t" not in found.cause and "line 5" in found.cause


def test_call_that_does_not_fit_is_a_changed_signature():
    found = traced(type="TypeError", message="padding_mask() takes 1 positional argument but 2")
    assert found.advice == blame.SIGNATURE


def test_layers_in_a_plain_list_are_called_so():
    detail = {"name": "blocks.0.weight", "expected": [2], "found": None, "file": "encoder.py"}
    error = StudentError({"kind": "constructor_changed", "type": "Refused", "detail": detail})
    place = Place("4.2", None, None)
    found = blame.traced(student_outcome(error, place), place, [], {}, {}).diagnosis
    assert "nn.ModuleList" in found.advice


def test_an_exit_is_told_from_a_wrong_shape() -> None:
    assert "ends the program" in (hints.hint("SystemExit: None") or "")


def test_a_stop_for_input_is_one_mistake_wherever_it_shows() -> None:
    error = {"kind": "raised", "type": "EOFError", "message": "EOF when reading a line"}
    frames = [{"file": f"transformer/{n}.py", "line": 5, "function": "<module>", "text": "x"}
              for n in ("decoder", "attention")]  # fmt: skip
    first = student_outcome(StudentError(error | {"frames": frames}), Place("5.1", None, None))
    later = student_outcome(StudentError(error | {"frames": frames[:1]}), Place("5.1", None, None))
    assert later.diagnosis and later.diagnosis.part == "decoder"
    found = blame.traced(later, Place("5.1", None, None), [first], {}, {})
    assert found.diagnosis == first.diagnosis and found.summary == first.summary
