"""Task 2: attention, and the heads it is split into."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from grader.asking.compare import Suspect, judge
from grader.asking.expectations import Ask, Expected
from grader.asking.submission import (
    Question,
    Submission,
    build,
    call,
    config,
    forward,
    handle,
    tensor,
)
from grader.base.result import CheckFailed
from grader.base.student_error import StudentError
from grader.model.draws import Draws
from grader.parts import causes
from grader.parts.causes import fail, suspect
from grader.parts.judging import Call, ask, in_float32, returned, sure, try_calls, try_refusals

FUNCTION = "attention.scaled_dot_product_attention"
SHAPE = (2, 3, 5, 7, 11)  # B, H, T, S, K
# More keys, or queries, than any vector register holds: some code does long rows another way.
MANY_KEYS, MANY_QUERIES, MANY = (1, 1, 2, 67, 3), (1, 1, 67, 2, 3), (1, 1, 67, 67, 3)
# What float32 may round of weights whose scores are in the hundreds.
ROUNDED = 2e-3
STEPS = "Compare with the formula in the docstring, step by step."
Inputs = dict[str, Any]
# How a sentence names the call, what it is given, and the slips that it can tell apart.
Case = tuple[str, Inputs, causes.Causes]


def draw(rng: Draws, scale: float = 1.0, shape: tuple[int, ...] = SHAPE) -> Inputs:
    """Draw queries and keys around `scale`, and values around 1."""
    batch, heads, num_queries, num_keys, width = shape
    lengths = {"query": num_queries, "key": num_keys, "value": num_keys}
    drawn = {
        name: rng.child(name).uniform((batch, heads, length, width), -1.7, 1.7)
        for name, length in lengths.items()
    }
    return drawn | {"query": drawn["query"] * scale, "key": drawn["key"] * scale}


def draw_mask(rng: Draws, shape: tuple[int, ...]) -> np.ndarray:
    """Draw a mask that leaves every query its first key."""
    mask = rng.integers(shape, 0, 2) > 0
    mask[..., 0] = True
    return mask


def draw_rows(rng: Draws) -> np.ndarray:
    """Draw a padding mask (B, 1, 1, S) whose rows hide and show their last keys differently."""
    rows = draw_mask(rng, (SHAPE[0], 1, 1, SHAPE[3]))
    rows[0, ..., -2:], rows[1, ..., -2:] = (True, False), (False, True)
    return rows


def extreme(rng: Draws) -> Inputs:
    """Draw scores near -240 where keys are allowed, and near 240 where they are hidden."""
    inputs = draw(rng)
    batch, _, _, num_keys, width = SHAPE
    mask = draw_mask(rng.child("mask"), (batch, 1, 1, num_keys))
    mask[..., -1] = False
    # One direction carries the height of a score, the others tell the keys apart.
    inputs["query"][..., 0] = 8.0 * np.sqrt(width)
    inputs["key"][..., 0] = np.where(mask[:, :, 0], -30.0, 30.0)
    return inputs | {"mask": mask}


@pytest.mark.part("2.1")
def test_attention_averages_values_by_softmax_of_scaled_scores(
    submission: Submission, rng: Draws, expected: Ask
) -> dict[str, Any]:
    """Attention averages the values with the softmax over the allowed keys' scaled scores."""
    batch, heads, num_queries, num_keys, _ = SHAPE
    mask = draw_mask(rng.child("mask"), (batch, heads, num_queries, num_keys))
    bias = rng.child("bias").uniform((1, heads, num_queries, num_keys), -2.0, 2.0)
    many = {
        "mask": draw_mask(rng.child("many masked"), (1, 1, 67, 67)),
        "score_bias": rng.child("many biased").uniform((1, 1, 67, 67), -2.0, 2.0),
    }
    cases: list[Case] = [
        ("without a mask", draw(rng.child("plain")), causes.SCORES),
        ("with a padding mask", draw(rng.child("rows")) | {"mask": draw_rows(rng.child("rows"))},
         causes.MASKED),
        ("with a mask per head", draw(rng.child("masked")) | {"mask": mask}, causes.MASKED),
        ("with score_bias", draw(rng.child("biased")) | {"mask": mask, "score_bias": bias},
         causes.BIASED),
        ("with inputs ten times as large", draw(rng.child("large"), 10.0) | {"mask": mask}, {}),
        ("with large scores at hidden keys", extreme(rng.child("extreme")), {}),
        ("with 67 keys", draw(rng.child("keys"), shape=MANY_KEYS), causes.SCORES),
        ("with 67 queries", draw(rng.child("queries"), shape=MANY_QUERIES), causes.SCORES),
        ("with 67 queries and keys, a mask and score_bias",
         draw(rng.child("many"), shape=MANY) | many, causes.ATTENTION),
    ]  # fmt: skip
    questions = [call(FUNCTION, **inputs) for _, inputs, _ in cases]
    (*answers, _, fields), tolerance = ask(submission, *questions, *NAMED)
    found = judge_attended(expected, cases, answers, tolerance)
    names_its_parts(submission, fields)
    return found


@pytest.mark.part("2.1")
def test_attention_hides_keys_by_the_mask_only(
    submission: Submission, rng: Draws, expected: Ask
) -> dict[str, Any]:
    """Attention gives weight to keys whose scores are exactly 0: the mask alone hides keys."""
    inputs = draw(rng) | {"mask": draw_rows(rng.child("rows"))}
    some_keys, one_query = inputs["key"].copy(), inputs["query"].copy()
    some_keys[:, :, :3] = 0.0
    one_query[:, :, 1] = 0.0
    cases: list[Case] = [
        ("with keys of 0", inputs | {"key": some_keys}, causes.ZERO_SCORES),
        ("with a query of 0", inputs | {"query": one_query}, causes.ZERO_SCORES),
    ]
    answers, tolerance = ask(submission, *[call(FUNCTION, **given) for _, given, _ in cases])
    return judge_attended(expected, cases, answers, tolerance)


@pytest.mark.part("2.1")
def test_attention_is_right_in_float32(
    submission: Submission, rng: Draws, expected: Ask
) -> dict[str, Any]:
    """Attention stays in float32 and is right there, with scores in the hundreds too."""
    cases: list[Case] = [
        ("with float32 inputs", draw(rng.child("plain")), {}),
        ("with scores of up to 1000 in float32",
         draw(rng.child("large"), 20.0) | {"mask": draw_rows(rng.child("rows"))}, {}),
        ("with large scores at hidden keys in float32", extreme(rng.child("extreme")), {}),
    ]  # fmt: skip
    questions = [in_float32(call(FUNCTION, **inputs)) for _, inputs, _ in cases]
    answers = submission.attempt(*questions)
    for (name, _, _), answer in zip(cases, answers, strict=True):
        judge_float32(answer, f"attention {name}")
    return judge_attended(expected, cases, answers, ROUNDED)


def judge_float32(answer: Any, what: str) -> None:
    """Fail where another type comes back, which the model's layers would refuse, or no numbers."""
    value = returned(answer, what, "attention")
    pair = value if isinstance(value, list) and len(value) == 2 else ()
    for name, part in zip(("context", "weights"), pair, strict=False):
        if isinstance(part, np.ndarray) and part.dtype != np.float32:
            fail("attention", "attended", "precision_changed", {"dtype": str(part.dtype)},
                 what=what, name=name, dtype=part.dtype)  # fmt: skip
        if name == "weights" and isinstance(part, np.ndarray) and not np.isfinite(part).all():
            place = tuple(int(i) for i in np.argwhere(~np.isfinite(part))[0])
            fail("attention", "attended", "softmax_out_of_range", what=what, place=place,
                 found=part[place])  # fmt: skip


def judge_attended(
    expected: Ask, cases: list[Case], answers: list[Any], tolerance: float
) -> dict[str, Any]:
    """Judge the weights of every answer, then what they average."""
    largest = 0.0
    for (name, inputs, slips), answer in zip(cases, answers, strict=True):
        what = f"attention {name}"
        want = expected("scaled_dot_product_attention", **inputs)
        context, weights = unpack(returned(answer, what, "attention"), want, what)
        try:
            judge(weights, want["weights"], what=f"{what}, weights", part="attention",
                  advice=STEPS, suspects=attention_suspects(expected, inputs, slips),
                  tolerance=tolerance)  # fmt: skip
        except CheckFailed as failure:
            if failure.diagnosis.code == "values_differ":
                look_at_weights(weights, inputs.get("mask"), what, tolerance, failure.evidence)
            raise
        found = judge(context, want["context"], what=f"{what}, context", part="attention",
                      advice="The weights are right: look at what they average.", suspects=(),
                      tolerance=tolerance)  # fmt: skip
        largest = max(largest, found["largest_difference"])
    return {"largest_difference": largest, "tolerance": tolerance, "calls": len(cases)}


# Asks for what attention returns by the names of its two parts.
NAMED = (
    call(FUNCTION, *[np.ones((1, 1, 2, 3))] * 3, save="attended"),
    Question("fields", {"handle": "attended", "names": ["context", "weights"]}),
)


def names_its_parts(submission: Submission, fields: Any) -> None:
    """Fail on a plain tuple, unless the multi-head attention of this tree can live with it."""
    if any(value is not None for value in sure(fields)["values"]):
        return
    shape = config(d_model=6, num_heads=2)
    asked = (build("module", "attention.MultiHeadAttention", shape, rope=False),
             forward("module", {"args": [np.ones((1, 3, 6))], "kwargs": {}}))  # fmt: skip
    if any(isinstance(answer, StudentError) for answer in submission.attempt(*asked)):
        fail("attention", "attended", "attended_has_no_names")


def unpack(value: Any, want: Expected, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Return context and weights, finite and of the right shapes."""
    if not isinstance(value, list) or len(value) != 2:
        found = "one tensor" if isinstance(value, np.ndarray) else "something else"
        fail("attention", "attended", "no_pair", what=what, found=found)
    weights = tensor(value[1], want["weights"].shape, f"{what}, weights", "attention")
    return tensor(value[0], want["context"].shape, f"{what}, context", "attention"), weights


def attention_suspects(expected: Ask, inputs: Inputs, slips: causes.Causes) -> Iterator[Suspect]:
    """Yield the weights that attention with each of the slips would return."""
    for slip, (cause, advice) in slips.items():
        answer = expected("wrong_scaled_dot_product_attention", **inputs, slip=slip)
        yield Suspect(slip, answer["weights"], cause, advice)


def look_at_weights(
    weights: np.ndarray,
    mask: np.ndarray | None,
    what: str,
    tolerance: float,
    evidence: dict[str, Any],
) -> None:
    """Fail with what the weights themselves show, where no slip explains them."""
    hidden = np.zeros_like(weights) if mask is None else np.where(mask, 0.0, weights)
    if np.abs(hidden).max() > tolerance:
        place = place_of_largest(np.abs(hidden))
        fail("attention", "attended", "mask_leaks", evidence, what=what, place=place,
             found=hidden[place])  # fmt: skip
    sums = weights.sum(axis=-1)
    if np.abs(sums - 1.0).max() > 1e-3:
        place = place_of_largest(np.abs(sums - 1.0))
        fail("attention", "attended", "weights_do_not_sum_to_1", evidence, what=what, place=place,
             found=sums[place])  # fmt: skip


def place_of_largest(values: np.ndarray) -> tuple[int, ...]:
    """Return where the largest value stands."""
    return tuple(int(i) for i in np.unravel_index(values.argmax(), values.shape))


@pytest.mark.part("2.1")
def test_attention_refuses_what_it_cannot_average(
    submission: Submission, rng: Draws
) -> dict[str, Any]:
    """Attention raises for a query without any key, a mask that is not bool and other shapes."""
    batch, heads, num_queries, num_keys, width = SHAPE
    inputs = draw(rng)
    empty = np.ones((batch, 1, num_queries, num_keys), bool)
    empty[1, 0, 2] = False
    more = {"value": np.ones((batch, heads, num_keys + 1, width))}
    return try_refusals(
        submission,
        "attention",
        ("attention with a query that may attend to no key", "ValueError",
         call(FUNCTION, **inputs, mask=empty)),
        ("attention with a mask of floats", "TypeError",
         call(FUNCTION, **inputs, mask=empty.astype(float))),
        ("attention with more values than keys", "ValueError", call(FUNCTION, **inputs | more)),
    )  # fmt: skip


WHERE = "Look at what goes through dropout, and at what is returned."
RATE = 0.5


@pytest.mark.part("2.1")
def test_attention_drops_weights_out_before_they_average(
    submission: Submission, rng: Draws, expected: Ask
) -> dict[str, Any]:
    """Dropout is applied to the weights that average the values, not to those returned."""
    inputs = draw(rng)
    questions = (
        Question("dropout", {"save": "drop", "rate": 1.0}),
        call(FUNCTION, **inputs, dropout=handle("drop")),
    )
    (_, answer), tolerance = ask(submission, *questions)
    what = "attention whose dropout drops everything"
    want = expected("scaled_dot_product_attention", **inputs)
    context, weights = unpack(returned(answer, what, "attention"), want, what)
    averaged = np.broadcast_to(inputs["value"].mean(axis=2, keepdims=True), context.shape)
    judge(context, np.zeros_like(context), what=f"{what}, context", part="attention",
          advice=WHERE, tolerance=tolerance, suspects=(
              suspect("dropout", "dropout_ignored", want["context"]),
              suspect("dropout", "dropout_before_softmax", averaged)))  # fmt: skip
    judge(weights, want["weights"], what=f"{what}, weights", part="attention", advice=WHERE,
          tolerance=tolerance, suspects=(
              suspect("dropout", "weights_after_dropout", np.zeros_like(weights)),))  # fmt: skip
    return {"tolerance": tolerance}


@pytest.mark.part("2.1")
def test_attention_averages_with_the_weights_that_are_left(
    submission: Submission, rng: Draws, expected: Ask
) -> dict[str, Any]:
    """Dropout falls on each weight by itself, and what is left of them averages the values."""
    batch, heads, _, num_keys, _ = SHAPE
    inputs = {name: value[..., :num_keys] for name, value in draw(rng).items()}
    # Values that pick one key each: the context shows the very weights that averaged them.
    inputs["value"] = np.tile(np.eye(num_keys), (batch, heads, 1, 1))
    questions = (
        Question("dropout", {"save": "drop", "rate": RATE}),
        call(FUNCTION, **inputs, dropout=handle("drop")),
    )
    (_, answer), tolerance = ask(submission, *questions)
    what = f"attention with dropout {RATE:g}"
    want = expected("scaled_dot_product_attention", **inputs)
    used, _ = unpack(returned(answer, what, "attention"), want, what)
    kept = used != 0
    right = np.where(kept, want["weights"] / (1.0 - RATE), 0.0)
    judge(used, right, what=f"{what}, weights that average", part="attention",
          suspects=(suspect("dropout", "dropout_ignored", want["weights"]),), tolerance=tolerance,
          advice="Each weight is dropped or divided by 1 - rate, by dropout itself: average with "
                 "what it returns.")  # fmt: skip
    # Which of many weights are dropped never agrees by chance; heads and rows may share it.
    for axis, whole in ((2, "every query loses the same keys, as if values were dropped"),
                        (3, "a query keeps or loses all of its keys at once")):  # fmt: skip
        if (kept == kept.take([0], axis=axis)).all():
            fail("attention", "dropout", "dropout_not_on_weights", what=what, cause=whole)
    return {"tolerance": tolerance}


# Tensors that are split and merged (B, H, T, K): also one row, one token and one head, of which
# some code makes axes that are gone.
SPLITS = ((2, 3, 5, 7), (1, 3, 5, 7), (2, 3, 1, 7), (2, 1, 5, 7))
BY_TOKEN = "Look at the order in which the axis is cut up and moved."


@pytest.mark.part("2.2")
def test_split_and_merge_keep_each_head_with_its_token(
    submission: Submission, rng: Draws, expected: Ask
) -> dict[str, Any]:
    """split_heads gives head h the h-th piece of every token, and merge_heads puts it back."""
    calls = []
    for sizes in SPLITS:
        own, (batch, heads, length, width) = rng.child(str(sizes)), sizes
        x = own.child("x").uniform((batch, length, heads * width), -1.0, 1.0)
        pieces = own.child("pieces").uniform(sizes, -1.0, 1.0)
        by_turns = x.reshape(batch, length, width, heads).transpose(0, 3, 1, 2)
        calls.append(Call(
            f"split_heads of shape {x.shape} into {heads}",
            call("attention.split_heads", x, heads),
            expected("split_heads", x=x, num_heads=heads)["value"],
            (suspect("heads", "heads_split_without_transpose", x.reshape(sizes)),
             suspect("heads", "heads_interleaved", by_turns)),
        ))  # fmt: skip
        interleaved = pieces.transpose(0, 2, 3, 1).reshape(x.shape)
        calls.append(Call(
            f"merge_heads of shape {sizes}",
            call("attention.merge_heads", pieces),
            expected("merge_heads", x=pieces)["value"],
            (suspect("heads", "heads_merged_without_transpose", pieces.reshape(x.shape)),
             suspect("heads", "heads_interleaved", interleaved)),
        ))  # fmt: skip
    return try_calls(submission, "attention", BY_TOKEN, *calls)


@pytest.mark.part("2.2")
def test_split_and_merge_refuse_other_shapes(submission: Submission) -> dict[str, Any]:
    """split_heads raises ValueError for a width that H does not divide, merge_heads for 3 axes."""
    return try_refusals(
        submission,
        "attention",
        ("split_heads with width 7 and 3 heads", "ValueError",
         call("attention.split_heads", np.ones((2, 5, 7)), 3)),
        ("merge_heads of 3 axes", "ValueError",
         call("attention.merge_heads", np.ones((2, 5, 21)))),
    )  # fmt: skip
