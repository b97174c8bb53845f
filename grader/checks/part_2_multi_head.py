"""Task 2: multi-head attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from grader.asking.compare import agrees
from grader.asking.expectations import Ask
from grader.asking.submission import Submission, tensor
from grader.model.draws import Draws
from grader.model.parameters import ProbeConfig, parameter_shapes
from grader.parts import causes
from grader.parts.causes import chosen, fail
from grader.parts.judging import Case, Findings, Trial, ask, built_on, returned, sure, try_refusals
from grader.parts.trials import try_modules

# B, T, S and D differ, as do heads and head width; dropout must rest in eval().
CONFIG = ProbeConfig(d_model=15, num_heads=3, dropout=0.5)
AWAKE = replace(CONFIG, dropout=0.0)
BATCH, LENGTH, KEYS = 2, 5, 7
EARLIER = ("1.2", "1.3", "2.1", "2.2")
STEPS = "Follow the hints in the docstring one by one: project, split, mask, attend, merge."
# A hole among the real tokens: under a causal mask no real token sees padding at the end.
EVERY_ROW = np.array([[1, 1, 1, 1, 1], [1, 0, 1, 1, 0]], bool)
ONE_ROW = np.array([[1, 1, 1, 1, 0], [0, 0, 0, 0, 0]], bool)


def tokens(rng: Draws, name: str, length: int = LENGTH) -> np.ndarray:
    """Draw (B, T, D)."""
    return rng.child(name).uniform((BATCH, length, CONFIG.d_model), -1.7, 1.7)


def trial(rng: Draws, *cases: Case, mode: str = "eval") -> Trial:
    """Return multi-head attention with drawn weights."""
    shapes = parameter_shapes(CONFIG, "multi_head_attention")
    return Trial("multi_head_attention", "attention.MultiHeadAttention", CONFIG,
                 rng.child("weights").weights(shapes), cases, {"rope": False}, mode)  # fmt: skip


@pytest.mark.part("2.3")
def test_multi_head_attention_attends_with_every_head(
    submission: Submission, rng: Draws, expected: Ask, findings: Findings
) -> dict[str, Any]:
    """MultiHeadAttention projects, attends with every head, merges them and projects again."""
    query, same, other = (tokens(rng, name) for name in ("query", "same", "other"))
    longer = tokens(rng, "longer", KEYS)
    cases = (
        Case("cross-attention", {"query": query, "key_value": same},
             causes=causes.SOURCES | causes.PROJECTIONS | causes.SCORES),
        Case("self-attention", {"query": other}, causes=causes.PROJECTIONS),
        Case("cross-attention to more keys than queries", {"query": query, "key_value": longer}),
        Case("self-attention with inputs ten times as large", {"query": 10.0 * other}),
        Case("self-attention of a single token", {"query": other[:1, :1]}),
        Case("cross-attention to 67 keys",
             {"query": query[:1, :2], "key_value": tokens(rng, "many", 67)[:1]}),
    )  # fmt: skip
    with built_on("attention", findings, *EARLIER):
        return try_modules(submission, expected, STEPS, trial(rng, *cases))


@pytest.mark.part("2.3")
def test_multi_head_attention_obeys_every_mask(
    submission: Submission, rng: Draws, expected: Ask, findings: Findings
) -> dict[str, Any]:
    """MultiHeadAttention obeys masks, padding, offsets and bias; padded queries give exactly 0."""
    query, longer = tokens(rng, "query"), tokens(rng, "longer", KEYS)
    mask = rng.child("mask").integers((BATCH, 1, LENGTH, KEYS), 0, 2) > 0
    # Some keys are padding at places where the query of the same number is real.
    keys = np.array([[1, 1, 0, 1, 1, 0, 0], [1, 1, 1, 0, 1, 1, 0]], bool)
    mask[..., 0] = True
    bias = rng.child("bias").uniform((1, CONFIG.num_heads, LENGTH, KEYS), -2.0, 2.0)
    narrow = mask[:, 0, :, :LENGTH]
    # Longer than any vector register: some code does long rows another way.
    real = np.ones((BATCH, 67), bool)
    real[1, 3::5] = False
    padded = {"query": query, "key_valid": EVERY_ROW, "query_valid": EVERY_ROW}
    cases = (
        Case("self-attention under a causal mask", {"query": query, "causal": True},
             causes=chosen(causes.MASKS, "causal_ignored")),
        Case("self-attention with padded keys", {"query": query, "key_valid": EVERY_ROW},
             causes=chosen(causes.MASKS, "key_valid_ignored", "mask_of_other_rows")),
        Case("self-attention with padded queries and no mask",
             {"query": query, "query_valid": EVERY_ROW}, EVERY_ROW),
        Case("self-attention with padding", padded, EVERY_ROW,
             chosen(causes.MASKS, "key_valid_on_queries")),
        Case("self-attention under a causal mask and padding", padded | {"causal": True}, EVERY_ROW,
             chosen(causes.MASKS, "causal_lost_with_padding", "key_valid_lost_with_causal",
                    "masks_or")),
        Case("self-attention of one row, which is padded",
             {name: value[-1:] for name, value in padded.items()}, EVERY_ROW[-1:],
             chosen(causes.MASKS, "key_valid_ignored")),
        Case("self-attention with a mask per row", {"query": query, "attention_mask": narrow},
             causes=chosen(causes.MASKS, "attention_mask_ignored")),
        Case("cross-attention with a mask, padded keys and score_bias",
             {"query": query, "key_value": longer, "attention_mask": mask, "key_valid": keys,
              "query_valid": EVERY_ROW, "score_bias": bias}, EVERY_ROW,
             chosen(causes.MASKS, "attention_mask_ignored", "key_valid_ignored", "masks_or",
                    "mask_of_other_rows", "bias_ignored")),
        Case("causal attention with offsets",
             {"query": query[:, :3], "key_value": longer, "causal": True, "query_offset": 4,
              "key_offset": 1}, None, causes.OFFSETS),
        Case("self-attention with a row of padding only",
             {"query": query, "key_valid": ONE_ROW, "query_valid": ONE_ROW}, ONE_ROW,
             chosen(causes.MASKS, "key_valid_ignored")),
        Case("self-attention of 67 tokens under a causal mask and padding",
             {"query": tokens(rng, "many", 67), "key_valid": real, "query_valid": real,
              "causal": True}, real,
             chosen(causes.MASKS, "causal_ignored", "key_valid_ignored")),
    )  # fmt: skip
    # Without dropout train() is to change nothing, least of all what is hidden.
    again = [replace(case, what=f"{case.what} in train()") for case in cases]
    learning = replace(trial(rng, *again, mode="train"), config=AWAKE)
    with built_on("attention", findings, *EARLIER):
        return try_modules(submission, expected, STEPS, trial(rng, *cases), learning)


@pytest.mark.part("2.3")
def test_multi_head_attention_drops_weights_and_outputs_in_training(
    submission: Submission, rng: Draws, expected: Ask, findings: Findings
) -> dict[str, Any]:
    """In train() dropout falls on the weights and on the output; in eval() it rests."""
    case = Case("multi-head attention in train()", {"query": tokens(rng, "query")})
    training = trial(rng, case, mode="train")
    (built, answer), tolerance = ask(submission, training.build(), training.call(case))
    sure(built)
    want = training.expect(expected, case)[""]
    got = tensor(returned(answer, case.what, "attention"), want.shape, case.what, "attention")
    kept = got != 0
    scaled = np.where(kept, want / (1.0 - CONFIG.dropout), 0.0)
    # With both in place the answer is random; without one of them it is not.
    found = {
        "no_dropout": agrees(got, want, tolerance),
        "weights_not_dropped": agrees(got, scaled, tolerance),
        "output_not_dropped": bool(kept.all()),
    }
    share = {"share_of_zeros": float(1.0 - kept.mean())}
    with built_on("attention", findings, *EARLIER):
        for code, is_so in found.items():
            if is_so:
                fail("attention", "attention_dropout", code, share, what=case.what,
                     rate=CONFIG.dropout)  # fmt: skip
    return share


@pytest.mark.part("2.3")
def test_multi_head_attention_refuses_impossible_calls(
    submission: Submission, rng: Draws, findings: Findings
) -> dict[str, Any]:
    """MultiHeadAttention raises for a real query without a key, and for masks that are not bool."""
    query = tokens(rng, "query")
    wrong: dict[str, tuple[str, dict[str, Any]]] = {
        "a row whose keys are all padding": ("ValueError", {"key_valid": ONE_ROW}),
        "a padding mask of floats": ("TypeError", {"key_valid": EVERY_ROW.astype(float)}),
        "padded keys of another batch": ("ValueError", {"key_valid": EVERY_ROW[:1]}),
        "padded queries of another length": ("ValueError", {"query_valid": EVERY_ROW[:, 1:]}),
        "a query of another width": ("ValueError", {"query": query[..., 1:]}),
        "a negative offset": ("ValueError", {"causal": True, "query_offset": -1}),
    }
    module, own = trial(rng), {"query": query}
    refused = [
        (f"multi-head attention with {what}", error, module.call(Case(what, own | given)))
        for what, (error, given) in wrong.items()
    ]
    submission.ask(module.build())
    with built_on("attention", findings, *EARLIER):
        return try_refusals(submission, "attention", *refused)
