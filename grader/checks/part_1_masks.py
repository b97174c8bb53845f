"""Task 1: masks, True = may attend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from grader.asking.compare import Suspect, judge
from grader.asking.expectations import Ask
from grader.asking.submission import Submission, call, tensor
from grader.model.draws import Draws
from grader.parts.causes import fail, suspect
from grader.parts.judging import Call, returned, try_calls, try_refusals

PADDING, COMBINE = "masks.padding_mask", "masks.combine_masks"
# Queries, keys and offset; some longer than any vector register.
CAUSAL = ((5, 5, 0), (3, 7, 4), (1, 5, 4), (7, 3, 0), (2, 11, 5), (3, 1, 0), (1, 5, 2),
          (67, 67, 0), (2, 257, 255))  # fmt: skip


@pytest.mark.part("1.1")
def test_padding_mask_marks_real_tokens(
    submission: Submission, rng: Draws, expected: Ask
) -> dict[str, Any]:
    """padding_mask is True exactly at the real tokens, whatever the padding id."""
    calls = []
    for pad_id in (0, 5):
        ids = rng.child(str(pad_id)).integers((5, 7), 0, 11)
        ids[1, 3:] = ids[2, 0] = ids[4] = pad_id  # at the end, in front, and nothing else
        ids[0, 0] = 5 - pad_id
        want = expected("padding_mask", ids=ids, pad_id=pad_id)["value"]
        what = f"padding_mask(ids, pad_id={pad_id})"
        suspects = (
            suspect("padding_mask", "padding_polarity_flipped", ~want),
            suspect("padding_mask", "wrong_pad_id", ids != 0),
            suspect("padding_mask", "no_padding_mask", np.ones_like(want)),
        )
        calls.append(Call(what, call(PADDING, ids, pad_id), want, suspects))
        calls.append(Call(f"{what} of one row", call(PADDING, ids[1:2], pad_id), want[1:2]))
    advice = "Compare each id with pad_id, element by element."
    return try_calls(submission, "masks", advice, *calls)


@pytest.mark.part("1.1")
def test_padding_mask_without_padding_id_hides_nothing(
    submission: Submission, rng: Draws, expected: Ask
) -> dict[str, Any]:
    """padding_mask with pad_id None is True everywhere."""
    ids = rng.integers((3, 5), 0, 7)
    want = expected("padding_mask", ids=ids, pad_id=None)["value"]
    whole = Call("padding_mask(ids, pad_id=None)", call(PADDING, ids, None), want)
    advice = "Without a padding id every token is an ordinary one."
    return try_calls(submission, "masks", advice, whole)


@pytest.mark.part("1.1")
def test_padding_mask_refuses_ids_that_are_no_batch(submission: Submission) -> dict[str, Any]:
    """padding_mask raises ValueError for ids that are not 2-dimensional."""
    what = "padding_mask with ids of 1 or 3 dimensions"
    refused = [(what, "ValueError", call(PADDING, np.ones(shape, int), 0))
               for shape in ((5,), (2, 3, 5))]  # fmt: skip
    return try_refusals(submission, "masks", *refused)


@pytest.mark.part("1.2")
def test_causal_mask_hides_later_positions(submission: Submission, expected: Ask) -> dict[str, Any]:
    """causal_mask lets query t see the keys up to position t + offset, itself included."""
    calls = []
    for queries, keys, offset in CAUSAL:
        want = expected("causal_mask", num_queries=queries, num_keys=keys, offset=offset)["value"]
        what = f"causal_mask({queries}, {keys}, offset={offset})"
        question = call("masks.causal_mask", queries, keys, offset=offset)
        calls.append(Call(what, question, want, causal_suspects(expected, want, offset)))
    advice = "Rows are queries, columns are keys; True where the key is no later than the query."
    return try_calls(submission, "masks", advice, *calls)


def causal_suspects(expected: Ask, want: np.ndarray, offset: int) -> Iterator[Suspect]:
    """Yield what the usual slips make of a causal mask (T, S)."""
    queries, keys = want.shape

    def with_offset(other: int) -> np.ndarray:
        return expected("causal_mask", num_queries=queries, num_keys=keys, offset=other)["value"]

    yield suspect("causal_mask", "causal_hides_itself", with_offset(offset - 1))
    yield suspect("causal_mask", "causal_too_wide", with_offset(offset + 1))
    yield suspect("causal_mask", "causal_polarity_flipped", ~want)
    yield suspect("causal_mask", "no_causal_mask", np.ones_like(want))
    yield suspect("causal_mask", "causal_offset_ignored", with_offset(0))
    yield suspect("causal_mask", "causal_offset_subtracted", with_offset(-offset))
    if queries == keys:
        yield suspect("causal_mask", "causal_transposed", want.T)


@pytest.mark.part("1.2")
def test_causal_mask_refuses_empty_sides(submission: Submission) -> dict[str, Any]:
    """causal_mask raises ValueError where there is no query or no key."""
    what = "causal_mask without queries or keys"
    refused = [
        (what, "ValueError", call("masks.causal_mask", *sizes)) for sizes in ((0, 5), (3, 0))
    ]
    return try_refusals(submission, "masks", *refused)


Given = dict[str, Any]
# Masks that are given, by the shapes (B, H, T, S) they are for. Square ones tell axes apart, and
# where B is T as well, no axis can be guessed from its size.
TOGETHER: list[tuple[tuple[int, int, int, int], dict[str, str]]] = [
    ((2, 3, 5, 5), {"key_valid": "BS"}),
    ((2, 3, 5, 7), {"causal": "TS"}),
    ((2, 3, 5, 7), {"attention_mask": "TS"}),
    ((3, 3, 5, 7), {"attention_mask": "BTS"}),
    ((2, 3, 5, 7), {"attention_mask": "BHTS"}),
    ((2, 3, 5, 7), {"attention_mask": "1HTS"}),
    ((2, 3, 5, 5), {"key_valid": "BS", "causal": "TS"}),
    ((5, 3, 5, 5), {"key_valid": "BS", "causal": "TS"}),
    ((2, 3, 5, 7), {"attention_mask": "TS", "causal": "TS"}),
    ((2, 3, 5, 7), {"attention_mask": "B1TS", "key_valid": "BS"}),
    ((2, 3, 5, 7), {"attention_mask": "BTS", "key_valid": "BS", "causal": "TS"}),
    ((2, 3, 5, 7), {"attention_mask": "BHTS", "key_valid": "BS", "causal": "TS"}),
]


@pytest.mark.part("1.3")
def test_combine_masks_allows_what_every_mask_allows(
    submission: Submission, rng: Draws, expected: Ask
) -> dict[str, Any]:
    """combine_masks allows a key exactly where every mask that was given allows it."""
    cases = [(full, _drawn(rng.child(str(i)), full, given))
             for i, (full, given) in enumerate(TOGETHER)]  # fmt: skip
    answers = submission.attempt(*[call(COMBINE, **given) for _, given in cases])
    for (full, given), answer in zip(cases, answers, strict=True):
        what = f"combine_masks({', '.join(f'{k} {v.shape}' for k, v in given.items())})"
        got = returned(answer, what, "masks")
        want = np.broadcast_to(expected("combine_masks", **given)["value"], full)
        judge(_spread(got, full, what), want, what=what, part="masks",
              suspects=combined_suspects(given, full),
              advice="Look at what happens to each of the masks that were given.")  # fmt: skip
    return {"combinations": len(cases)}


def _drawn(rng: Draws, full: tuple[int, ...], axes: dict[str, str]) -> Given:
    sizes = dict(zip("BHTS1", (*full, 1), strict=True))
    shapes = {name: tuple(sizes[axis] for axis in letters) for name, letters in axes.items()}
    return {name: rng.child(name).integers(shape, 0, 3) > 0 for name, shape in shapes.items()}


def _spread(got: Any, full: tuple[int, ...], what: str) -> np.ndarray:
    """Return a combined mask of 4 dimensions, broadcast to (B, H, T, S)."""
    fits = (
        isinstance(got, np.ndarray)
        and got.ndim == 4
        and all(size in (1, whole) for size, whole in zip(got.shape, full, strict=True))
    )
    if not fits and isinstance(got, np.ndarray):
        fail("masks", "combine_axes", "wrong_shape", what=what, got=got.shape, full=full)
    shape = got.shape if fits else full
    return np.broadcast_to(tensor(got, shape, what, "masks", "b"), full)


def combined_suspects(given: Given, full: tuple[int, ...]) -> Iterator[Suspect]:
    """Yield what the usual slips make of these masks (B, H, T, S)."""
    masks = {name: np.broadcast_to(_placed(name, mask), full) for name, mask in given.items()}
    nothing = np.ones(full, bool)

    def without(dropped: str) -> np.ndarray:
        left = [mask for name, mask in masks.items() if name != dropped]
        return np.asarray(np.logical_and.reduce([nothing, *left]))

    yield suspect("combine_masks", "combined_with_or", np.logical_or.reduce([*masks.values()]))
    yield suspect("combine_masks", "mask_polarity_flipped", ~without(""))
    for name in given:
        yield suspect("combine_masks", f"{name}_dropped", without(name))
    if "key_valid" in given and full[2] == full[3]:
        queries = given["key_valid"][:, None, :, None] & without("key_valid")
        yield suspect("combine_axes", "key_valid_on_queries", queries)
    mask = given.get("attention_mask")
    if mask is not None and mask.ndim == 3 and full[0] == full[1]:
        heads = np.broadcast_to(mask[None], full)
        yield suspect("combine_axes", "batch_axis_on_heads", heads)


def _placed(name: str, mask: np.ndarray) -> np.ndarray:
    """Give a mask its four dimensions."""
    if name == "key_valid":
        return mask[:, None, None]
    return mask[:, None] if mask.ndim == 3 else mask.reshape((1,) * (4 - mask.ndim) + mask.shape)


@pytest.mark.part("1.3")
def test_combine_masks_without_masks_is_none(submission: Submission) -> dict[str, Any]:
    """combine_masks without any mask returns None: nothing is hidden."""
    got = submission.call(COMBINE)
    if got is not None:
        fail("masks", "no_masks", "no_mask_not_none")
    return {"value": None}


@pytest.mark.part("1.3")
def test_combine_masks_refuses_other_masks(submission: Submission) -> dict[str, Any]:
    """combine_masks raises TypeError for a mask that is not bool, ValueError for a wrong shape."""
    good = np.ones((5, 7), bool)
    wrong: list[tuple[str, str, str, Any]] = [
        ("TypeError", "attention_mask", "of dtype int64", good.astype(np.int64)),
        ("TypeError", "key_valid", "of dtype float64", good.astype(np.float64)),
        ("TypeError", "causal", "of dtype uint8", good.astype(np.uint8)),
        ("ValueError", "attention_mask", "of 1 dimension", good[0]),
        ("ValueError", "key_valid", "of 3 dimensions", good[None]),
        ("ValueError", "causal", "of 3 dimensions", good[None]),
    ]
    refused = [(f"combine_masks with {name} {trait}", error, call(COMBINE, **{name: mask}))
               for error, name, trait, mask in wrong]  # fmt: skip
    return try_refusals(submission, "masks", *refused)
