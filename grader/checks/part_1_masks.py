"""Task 1: masks, True = may attend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from grader.compare import Suspect, judge
from grader.draws import Draws
from grader.expectations import Ask
from grader.submission import Submission, tensor

FLIPPED = "it is the opposite: the lab's masks say True where a token may be attended to."
POLARITY = "Compare with the sentence on polarity at the top of masks.py."


@pytest.mark.part("1.1")
def test_padding_mask_marks_real_tokens(
    submission: Submission, rng: Draws, expected: Ask
) -> dict[str, Any]:
    """padding_mask is True exactly at the real tokens, whatever the padding id."""
    evidence = {}
    for pad_id in (0, 5):
        ids = rng.child(str(pad_id)).integers((5, 7), 0, 11)
        ids[1, 3:] = pad_id
        ids[0, 0] = 5 - pad_id
        want = expected("padding_mask", ids=ids, pad_id=pad_id)["value"]
        got = submission.call("masks.padding_mask", ids, pad_id)
        what = f"padding_mask(ids, pad_id={pad_id})"
        got = tensor(got, want.shape, what, "masks", "b")
        suspects = [
            Suspect("padding_polarity_flipped", ~want, FLIPPED, POLARITY),
            Suspect("wrong_pad_id", ids != 0, "it compares with 0, not with pad_id.",
                    "Use the argument pad_id."),
            Suspect("no_padding_mask", np.ones_like(want), "it calls every token real.",
                    "Compare each id with pad_id."),
        ]  # fmt: skip
        evidence = judge(got, want, what=what, part="masks", suspects=suspects,
                         advice="Compare each id with pad_id, element by element.")  # fmt: skip
    return evidence


@pytest.mark.part("1.1")
def test_padding_mask_without_padding_id_hides_nothing(
    submission: Submission, rng: Draws, expected: Ask
) -> dict[str, Any]:
    """padding_mask with pad_id None is True everywhere."""
    ids = rng.integers((3, 5), 0, 7)
    want = expected("padding_mask", ids=ids, pad_id=None)["value"]
    got = submission.call("masks.padding_mask", ids, None)
    what = "padding_mask(ids, pad_id=None)"
    got = tensor(got, want.shape, what, "masks", "b")
    return judge(got, want, what=what, part="masks", suspects=[],
                 advice="Without a padding id every token is an ordinary one.")  # fmt: skip


@pytest.mark.part("1.2")
@pytest.mark.parametrize("sizes", [(5, 5, 0), (3, 7, 4), (1, 5, 4), (7, 3, 0), (2, 11, 5)])
def test_causal_mask_hides_later_positions(
    submission: Submission, expected: Ask, sizes: tuple[int, int, int]
) -> dict[str, Any]:
    """causal_mask lets query t see the keys up to position t + offset, itself included."""
    num_queries, num_keys, offset = sizes
    given = {"num_queries": num_queries, "num_keys": num_keys}
    want = expected("causal_mask", **given, offset=offset)["value"]
    what = f"causal_mask({num_queries}, {num_keys}, offset={offset})"
    got = submission.call("masks.causal_mask", num_queries, num_keys, offset=offset)
    got = tensor(got, want.shape, what, "masks", "b")

    def other(shift: int) -> np.ndarray:
        return np.asarray(expected("causal_mask", **given, offset=shift)["value"])

    suspects = [
        Suspect("causal_hides_itself", other(offset - 1), "each query misses its own position.",
                "Look at the diagonal: position t may see itself."),
        Suspect("causal_too_wide", other(offset + 1), "each query sees one position too many: "
                "the token it has to predict.", "Look at the diagonal: t may see t, not t + 1."),
        Suspect("causal_polarity_flipped", ~want, FLIPPED, POLARITY),
        Suspect("no_causal_mask", np.ones_like(want), "it hides nothing.",
                "Compare key positions with query positions."),
        Suspect("causal_offset_ignored", other(0), "it ignores offset.",
                "Query t stands at position t + offset."),
    ]  # fmt: skip
    if num_queries == num_keys:
        suspects.append(
            Suspect("causal_transposed", want.T, "queries and keys are exchanged: it lets "
                    "a query see later keys only.", "Rows are queries, columns are keys.")
        )  # fmt: skip
    return judge(got, want, what=what, part="masks", suspects=suspects,
                 advice="Rows are queries, columns are keys; True where the key is no later "
                        "than the query.")  # fmt: skip
