"""Stretch task S3: rotary positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from grader.asking.compare import Suspect, agrees, judge
from grader.asking.expectations import Ask
from grader.asking.submission import Submission, call, tensor
from grader.base.student_error import StudentError
from grader.model.draws import Draws
from grader.model.parameters import ProbeConfig, parameter_shapes
from grader.parts import stepwise
from grader.parts.causes import fail, suspect
from grader.parts.judging import (
    Call,
    Case,
    Findings,
    Trial,
    ask,
    built_on,
    returned,
    try_calls,
    try_refusals,
)
from grader.parts.trials import try_modules

# Whose mistakes make cached and uncached decoding differ, whatever the rotation does.
EARLIER = ("1.2", "1.3", "2.1", "2.2", "2.3", "5.1", "5.2", "5.3", "S1")
FILE = "rotary"
BASE = 100.0
SHAPE = (2, 3, 5, 14)  # B, H, T, K
PAIRS = "Look at which two numbers make a pair, and at the sign each of them gets."
ANGLES = "Look at what is multiplied with the cosines and what with the sines."


@pytest.mark.part("S3")
def test_rotate_pairs_turns_every_adjacent_pair(
    submission: Submission, rng: Draws, expected: Ask
) -> dict[str, Any]:
    """rotate_pairs turns each adjacent pair (a, b) into (-b, a), and refuses an odd width."""
    x = rng.child("x").uniform(SHAPE, -1.7, 1.7)
    want = expected("rotate_pairs", x=x)["value"]
    first, second = np.split(x, 2, axis=-1)
    exchanged = x.reshape(*SHAPE[:-1], -1, 2)[..., ::-1].reshape(x.shape)
    suspects = (
        suspect("rotate_pairs", "rotated_backwards", -want),
        suspect("rotate_pairs", "halves_paired", np.concatenate((-second, first), axis=-1)),
        suspect("rotate_pairs", "pairs_exchanged", np.abs(want) * np.sign(exchanged)),
    )
    turned = Call("rotate_pairs(x)", call(f"{FILE}.rotate_pairs", x), want, suspects)
    odd = call(f"{FILE}.rotate_pairs", x[..., 1:])
    found = try_calls(submission, FILE, PAIRS, turned)
    refused = ("rotate_pairs of an odd width", "ValueError", odd)
    return found | try_refusals(submission, FILE, refused)


@pytest.mark.part("S3")
def test_apply_rope_rotates_by_position_and_keeps_lengths(
    submission: Submission, rng: Draws, expected: Ask
) -> dict[str, Any]:
    """apply_rope turns every pair by the angle of its position and keeps its length."""
    x = rng.child("x").uniform(SHAPE, -1.7, 1.7)
    width = SHAPE[-1]
    for offset in (0, 6):
        position = np.arange(offset, offset + SHAPE[2])[:, None]
        angles = np.repeat(position * BASE ** (-np.arange(0, width, 2) / width), 2, axis=1)
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        what = f"apply_rope from position {offset} on"
        (answer,), tolerance = ask(submission, call(f"{FILE}.apply_rope", x, cos, sin))
        want = expected("apply_rope", x=x, offset=offset, base=BASE)["value"]
        got = tensor(returned(answer, what, FILE), want.shape, what, FILE)
        turned = expected("rotate_pairs", x=x)["value"]
        suspects = [
            suspect("rope", "rotated_backwards", x * cos - turned * sin),
            suspect("rope", "cosine_only", x * cos),
            suspect("rope", "cosine_and_sine_exchanged", x * sin + turned * cos),
            suspect("rope", "not_rotated", x),
        ]
        if not agrees(got, want, tolerance):
            _explain(got, x, what, suspects)
        judge(got, want, what=what, part=FILE, advice=ANGLES, suspects=suspects,
              tolerance=tolerance)  # fmt: skip
    return {"tolerance": tolerance}


def _explain(got: np.ndarray, x: np.ndarray, what: str, suspects: list[Suspect]) -> None:
    """Fail where the lengths of the vectors changed and no suspect explains it."""
    if any(agrees(got, s.value) for s in suspects):
        return
    before, after = (np.linalg.norm(v, axis=-1) for v in (x, got))
    if not np.allclose(before, after, rtol=1e-3):
        index = tuple(
            int(i) for i in np.unravel_index(np.abs(after - before).argmax(), after.shape)
        )
        fail(FILE, "rope", "length_not_kept", {"index": index}, what=what, index=index,
             before=before[index], after=after[index])  # fmt: skip


@pytest.mark.part("S3")
def test_rotary_attention_depends_on_distance_only(
    submission: Submission, rng: Draws, expected: Ask, findings: Findings
) -> dict[str, Any]:
    """Attention with rotary positions sees distances: moving both sequences changes nothing."""
    config = ProbeConfig(d_model=12, num_heads=2, rope_base=BASE, max_len=16)
    weights = rng.child("weights").weights(parameter_shapes(config, "multi_head_attention"))
    query, source = (rng.child(n).uniform((2, 5, 12), -1.7, 1.7) for n in ("query", "source"))
    both = {"query": query, "key_value": source}
    cases = (
        Case("rotary attention", both),
        Case("rotary attention with queries 3 positions later", both | {"query_offset": 3}),
        Case("rotary attention with both sequences 4 positions later",
             both | {"query_offset": 7, "key_offset": 4}),
    )  # fmt: skip
    trial = Trial("multi_head_attention", "attention.MultiHeadAttention", config, weights, cases,
                  {"rope": True})  # fmt: skip
    with built_on("attention", findings, "2.1", "2.2", "2.3"):
        return try_modules(submission, expected, "Look at which positions queries and keys are "
                           "rotated to.", trial)  # fmt: skip


@pytest.mark.part("S3")
def test_rotary_positions_survive_the_cache(
    submission: Submission, rng: Draws, findings: Findings
) -> dict[str, Any]:
    """With task S1 done, cached decoding with rotary positions equals uncached decoding."""
    shape = ProbeConfig(vocab_size=11, d_model=12, num_heads=2, d_ff=7, num_layers=2, max_len=13,
                        positions="rope", rope_cross=True)  # fmt: skip
    models = dict.fromkeys(("decoder_only, rope", "seq2seq, rope"), shape)
    try:
        return stepwise.try_cached(submission, rng, findings, models, EARLIER, "rotated_differs")
    except StudentError as error:
        if error.kind == "not_implemented" and error.task == "S1":
            return {"skipped": "task S1 is not implemented"}
        raise
