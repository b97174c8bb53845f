"""Task 2: attention, and the heads it is split into."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from grader import causes
from grader.compare import Suspect, fail, judge
from grader.draws import Draws
from grader.expectations import Ask, Expected
from grader.parts import (
    Causes,
    ask,
    chosen,
    in_float32,
    must_raise,
    post,
    returned,
    sure,
    without,
)
from grader.result import CheckFailed
from grader.student_error import StudentError
from grader.submission import (
    Question,
    Submission,
    build,
    call,
    config,
    forward,
    tensor,
)

SHAPE = (2, 3, 5, 7, 11)  # B, H, T, S, K
# More keys, or queries, than any vector register holds: some code does long rows another way.
MANY_KEYS, MANY_QUERIES, MANY = (1, 1, 2, 67, 3), (1, 1, 67, 2, 3), (1, 1, 67, 67, 3)
FUNCTION = "attention.scaled_dot_product_attention"
MASKED = ("mask_ignored", "mask_flipped", "mask_fill_zero", "mask_after_softmax",
          "mask_of_other_rows")  # fmt: skip
BIASED = ("bias_ignored", "bias_scaled")
SMALL = [np.ones((1, 1, 2, 3))] * 3
# Asks for what attention returns by the names of its two parts.
NAMED = (call(FUNCTION, *SMALL, save="attended"),
         Question("fields", {"handle": "attended", "names": ["context", "weights"]}))  # fmt: skip
# B, H, T, K: also one row, one token and one head, of which some code makes axes that are gone.
SPLITS = ((2, 3, 5, 7), (1, 3, 5, 7), (2, 3, 1, 7), (2, 1, 5, 7))
BY_TOKEN = "Look at the order in which the axis is cut up and moved."
MIXED = "numbers of different tokens are mixed: the axes are cut up in the wrong order."
TURNED = "a head gets every H-th number of a token, not the numbers side by side."
STEPS = "Compare with the formula in the docstring, step by step."
Inputs = dict[str, Any]


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


def extreme(rng: Draws) -> Inputs:
    """Draw scores near -240 where keys are allowed, and near 240 where they are hidden."""
    inputs = draw(rng)
    batch, heads, num_queries, num_keys, width = SHAPE
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
    full = (batch, heads, num_queries, num_keys)
    mask = draw_mask(rng.child("mask"), full)
    bias = rng.child("bias").uniform((1, heads, num_queries, num_keys), -2.0, 2.0)
    rows = draw_mask(rng.child("rows"), (batch, 1, 1, num_keys))
    # Each row hides a key and shows another, at different places.
    rows[0, ..., -2:], rows[1, ..., -2:] = (True, False), (False, True)
    many = {
        "mask": draw_mask(rng.child("many masked"), (1, 1, 67, 67)),
        "score_bias": rng.child("many biased").uniform((1, 1, 67, 67), -2.0, 2.0),
    }
    plain = without(causes.ATTENTION, (*MASKED, *BIASED))
    cases: list[tuple[str, Inputs, Causes]] = [
        ("without a mask", draw(rng.child("plain")), plain),
        ("with a padding mask", draw(rng.child("rows")) | {"mask": rows},
         chosen(causes.ATTENTION, *MASKED)),
        ("with a mask per head", draw(rng.child("masked")) | {"mask": mask},
         chosen(causes.ATTENTION, *MASKED)),
        ("with score_bias", draw(rng.child("biased")) | {"mask": mask, "score_bias": bias},
         chosen(causes.ATTENTION, *BIASED)),
        ("with inputs ten times as large", draw(rng.child("large"), 10.0) | {"mask": mask}, {}),
        ("with large scores at hidden keys", extreme(rng.child("extreme")), {}),
        ("with 67 keys", draw(rng.child("keys"), shape=MANY_KEYS), plain),
        ("with 67 queries", draw(rng.child("queries"), shape=MANY_QUERIES), plain),
        ("with 67 queries and keys, a mask and score_bias",
         draw(rng.child("many"), shape=MANY) | many, causes.ATTENTION),
    ]  # fmt: skip
    questions = [call(FUNCTION, **inputs) for _, inputs, _ in cases]
    asked = post(submission, *questions, in_float32(questions[0]), *NAMED)
    wanted = [expected("scaled_dot_product_attention", **inputs) for _, inputs, _ in cases]
    answers, tolerance = asked.answers()
    single, _, fields = answers[len(cases) :]
    largest = 0.0
    for (name, inputs, slips), want, answer in zip(cases, wanted, answers, strict=False):
        what = f"attention {name}"
        context, weights = unpack(returned(answer, what, "attention"), want, what)
        explain = suspects(expected, inputs, slips, "weights")
        try:
            judge(weights, want["weights"], what=f"{what}, weights", part="attention",
                  advice=STEPS, suspects=explain, tolerance=tolerance)  # fmt: skip
        except CheckFailed as failure:
            look_at_weights(weights, inputs.get("mask"), what, tolerance, failure)
            raise
        evidence = judge(context, want["context"], what=f"{what}, context", part="attention",
                         advice="The weights are right: look at what they average.",
                         suspects=(), tolerance=tolerance)  # fmt: skip
        largest = max(largest, evidence["largest_difference"])
    keeps_precision(single, wanted[0])
    names_its_parts(submission, fields)
    return {"largest_difference": largest, "tolerance": tolerance, "calls": len(cases)}


def keeps_precision(answer: Any, want: Expected) -> None:
    """Fail when float32 inputs come back as another type, which the model's layers would refuse."""
    what = "attention with float32 inputs"
    pair = unpack(returned(answer, what, "attention"), want, what)
    for name, value in zip(("context", "weights"), pair, strict=True):
        if value.dtype != np.float32:
            fail("precision_changed", "attention", f"{what}: the {name} is {value.dtype}, expected "
                 "float32.", "Look for a type that is set by hand: compute in the type of the "
                 "inputs, or go back to it.", {"dtype": str(value.dtype)})  # fmt: skip


def names_its_parts(submission: Submission, fields: Any) -> None:
    """Fail on a plain tuple, unless the multi-head attention of this tree can live with it."""
    if any(value is not None for value in sure(fields)["values"]):
        return
    shape = config(d_model=6, num_heads=2)
    asked = (build("module", "attention.MultiHeadAttention", shape, rope=False),
             forward("module", {"args": [np.ones((1, 3, 6))], "kwargs": {}}))  # fmt: skip
    if any(isinstance(answer, StudentError) for answer in submission.attempt(*asked)):
        fail("attended_has_no_names", "attention",
             "attention returns a plain tuple or list where Attended(context, weights) is "
             "expected: whoever reads attended.context finds nothing of that name.",
             "Look at what the docstring names under Returns.")  # fmt: skip


def unpack(value: Any, want: Expected, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Return context and weights, finite and of the right shapes."""
    if not isinstance(value, list) or len(value) != 2:
        fail("no_pair", "attention", f"{what}: expected Attended(context, weights), got "
             f"{'one tensor' if isinstance(value, np.ndarray) else 'something else'}.",
             "Return both, as the docstring says.")  # fmt: skip
    weights = tensor(value[1], want["weights"].shape, f"{what}, weights", "attention")
    return tensor(value[0], want["context"].shape, f"{what}, context", "attention"), weights


def suspects(expected: Ask, inputs: Inputs, slips: Causes, field: str) -> Iterator[Suspect]:
    """Yield what attention with each of the slips would answer."""
    for slip, (cause, advice) in slips.items():
        value = expected("wrong_scaled_dot_product_attention", **inputs, slip=slip)[field]
        yield Suspect(slip, value, cause, advice)


def look_at_weights(
    weights: np.ndarray, mask: np.ndarray | None, what: str, tolerance: float, failure: CheckFailed
) -> None:
    """Fail with what the weights themselves show, where no slip explains them."""
    if failure.diagnosis.code != "values_differ":
        return
    if mask is not None:
        hidden = np.where(mask, 0.0, weights)
        if np.abs(hidden).max() > tolerance:
            index = tuple(int(i) for i in np.unravel_index(np.abs(hidden).argmax(), hidden.shape))
            fail("mask_leaks", "attention",
                 f"{what}: the hidden key at {index} has weight {hidden[index]:.3g} where 0 is "
                 "expected.", "Look at the score that hidden keys get before the softmax: is it "
                 "low enough beside any other score?", failure.evidence)  # fmt: skip
    sums = weights.sum(axis=-1)
    if np.abs(sums - 1.0).max() > 1e-3:
        index = tuple(int(i) for i in np.unravel_index(np.abs(sums - 1.0).argmax(), sums.shape))
        fail("weights_do_not_sum_to_1", "attention",
             f"{what}: the weights of the query at {index} sum to {sums[index]:.6g}, not to 1.",
             "Look at the axis of the softmax and at what is done to the weights after it.",
             failure.evidence)  # fmt: skip


@pytest.mark.part("2.1")
def test_attention_refuses_what_it_cannot_average(
    submission: Submission, rng: Draws
) -> dict[str, Any]:
    """Attention raises for a query without any key, a mask that is not bool and other shapes."""
    batch, heads, num_queries, num_keys, width = SHAPE
    inputs = draw(rng)
    empty = np.ones((batch, 1, num_queries, num_keys), bool)
    empty[1, 0, 2] = False
    wrong: list[tuple[str, str, Inputs]] = [
        ("a query that may attend to no key", "ValueError", inputs | {"mask": empty}),
        ("a mask of floats", "TypeError", inputs | {"mask": empty.astype(float)}),
        ("more values than keys", "ValueError",
         inputs | {"value": np.ones((batch, heads, num_keys + 1, width))}),
    ]  # fmt: skip
    answers = submission.attempt(*[call(FUNCTION, **given) for *_, given in wrong])
    for (what, error, _), answer in zip(wrong, answers, strict=True):
        must_raise(answer, error, f"attention with {what}", "attention")
    return {"refused": len(wrong)}


@pytest.mark.part("2.2")
def test_split_and_merge_keep_each_head_with_its_token(
    submission: Submission, rng: Draws, expected: Ask
) -> dict[str, Any]:
    """split_heads gives head h the h-th piece of every token, and merge_heads puts it back."""
    drawn = []
    for sizes in SPLITS:
        own, (batch, heads, length, width) = rng.child(str(sizes)), sizes
        x = own.child("x").uniform((batch, length, heads * width), -1.0, 1.0)
        drawn.append((heads, x, own.child("pieces").uniform(sizes, -1.0, 1.0)))
    asked = [
        question for heads, x, pieces in drawn
        for question in (call("attention.split_heads", x, heads),
                         call("attention.merge_heads", pieces))
    ]  # fmt: skip
    answers = ask(submission, *asked)[0]
    for (heads, x, pieces), split, merged in zip(drawn, answers[::2], answers[1::2], strict=True):
        judge_split(expected, heads, x, split)
        judge_merged(expected, pieces, merged)
    return {"shapes": len(drawn)}


def judge_split(expected: Ask, heads: int, x: np.ndarray, answer: Any) -> None:
    """Judge the heads that one tensor was split into."""
    batch, length, whole = x.shape
    what = f"split_heads of shape {x.shape} into {heads}"
    want = expected("split_heads", x=x, num_heads=heads)["value"]
    interleaved = x.reshape(batch, length, whole // heads, heads).transpose(0, 3, 1, 2)
    judge(shaped(answer, want, what), want, what=what, part="attention", advice=BY_TOKEN, suspects=[
        Suspect("heads_split_without_transpose", x.reshape(want.shape), MIXED, BY_TOKEN),
        Suspect("heads_interleaved", interleaved, TURNED, BY_TOKEN)])  # fmt: skip


def judge_merged(expected: Ask, pieces: np.ndarray, answer: Any) -> None:
    """Judge what the pieces of one tensor were put together to."""
    what = f"merge_heads of shape {pieces.shape}"
    want = expected("merge_heads", x=pieces)["value"]
    interleaved = pieces.transpose(0, 2, 3, 1).reshape(want.shape)
    judge(shaped(answer, want, what), want, what=what, part="attention", advice=BY_TOKEN, suspects=[
        Suspect("heads_merged_without_transpose", pieces.reshape(want.shape), MIXED, BY_TOKEN),
        Suspect("heads_interleaved", interleaved, TURNED, BY_TOKEN)])  # fmt: skip


def shaped(answer: Any, want: np.ndarray, what: str) -> np.ndarray:
    """Return an answer of the expected shape; float32 is as good as float64 here."""
    return tensor(returned(answer, what, "attention"), want.shape, what, "attention")


@pytest.mark.part("2.2")
def test_split_and_merge_refuse_other_shapes(submission: Submission) -> dict[str, Any]:
    """split_heads raises ValueError for a width that H does not divide, merge_heads for 3 axes."""
    asked = (call("attention.split_heads", np.ones((2, 5, 7)), 3),
             call("attention.merge_heads", np.ones((2, 5, 21))))  # fmt: skip
    for what, answer in zip(("split_heads with width 7 and 3 heads", "merge_heads of 3 axes"),
                            submission.attempt(*asked), strict=True):  # fmt: skip
        must_raise(answer, "ValueError", what, "attention")
    return {"refused": len(asked)}
