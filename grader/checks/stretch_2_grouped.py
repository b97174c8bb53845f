"""Stretch task S2: grouped key and value heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from grader.asking.expectations import Ask
from grader.asking.submission import Submission, call
from grader.model.draws import Draws
from grader.model.parameters import ProbeConfig, parameter_shapes
from grader.parts.causes import suspect
from grader.parts.judging import Call, Case, Findings, Trial, built_on, try_calls, try_refusals
from grader.parts.trials import try_modules

REPEAT = "attention.repeat_kv_heads"
WHERE = "Look at which query heads are neighbours, and which of them share a key/value head."


@pytest.mark.part("S2")
def test_repeat_kv_heads_gives_neighbours_the_same_head(
    submission: Submission, rng: Draws, expected: Ask
) -> dict[str, Any]:
    """repeat_kv_heads copies each key/value head for a group of neighbouring query heads."""
    calls = []
    for own, heads in ((2, 6), (1, 5), (3, 3)):
        x = rng.child(str(own)).uniform((2, own, 5, 7), -1.0, 1.0)
        want = expected("repeat_kv_heads", x=x, num_heads=heads)["value"]
        alternating = np.tile(x, (1, heads // own, 1, 1))
        suspects = (suspect("grouped", "kv_heads_alternate", alternating),)
        what = f"repeat_kv_heads of {own} to {heads} heads"
        calls.append(Call(what, call(REPEAT, x, heads), want, suspects))
    return try_calls(submission, "attention", WHERE, *calls)


@pytest.mark.part("S2")
def test_repeat_kv_heads_refuses_uneven_groups(submission: Submission) -> dict[str, Any]:
    """repeat_kv_heads raises ValueError where the groups would differ in size."""
    uneven = call(REPEAT, np.ones((2, 2, 5, 7)), 5)
    refused = ("repeat_kv_heads of 2 to 5 heads", "ValueError", uneven)
    return try_refusals(submission, "attention", refused)


@pytest.mark.part("S2")
def test_grouped_attention_shares_keys_and_values(
    submission: Submission, rng: Draws, expected: Ask, findings: Findings
) -> dict[str, Any]:
    """Multi-head attention with fewer key/value heads equals one whose groups have equal heads."""
    trials = []
    for own in (2, 1):
        config = ProbeConfig(d_model=12, num_heads=4, num_kv_heads=own)
        weights = rng.child(str(own)).weights(parameter_shapes(config, "multi_head_attention"))
        query = rng.child("query").uniform((2, 5, 12), -1.7, 1.7)
        heads = f"4 query heads and {own} for keys and values"
        seen = rng.child("seen").integers((2, 4, 1, 5), 0, 2) > 0
        seen[..., 3] = True
        bias = rng.child("bias").uniform((1, 4, 1, 5), -1.7, 1.7)
        cases = (
            Case(f"attention with {heads}", {"query": query, "causal": True}),
            # As in cached decoding: one query, and what each head sees and prefers of the keys.
            Case(f"attention of one query with {heads}",
                 {"query": query[:, 4:], "key_value": query, "attention_mask": seen,
                  "score_bias": bias}),
        )  # fmt: skip
        trials.append(Trial("multi_head_attention", "attention.MultiHeadAttention", config,
                            weights, cases, {"rope": False}))  # fmt: skip
    with built_on("attention", findings, "1.2", "1.3", "2.1", "2.2", "2.3"):
        return try_modules(submission, expected, WHERE, *trials)
