"""Stretch task S1: the key/value cache."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from grader.asking.compare import judge
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
from grader.base.student_error import StudentError
from grader.model.draws import Draws
from grader.model.parameters import ProbeConfig
from grader.parts import stepwise
from grader.parts.causes import fail, suspect
from grader.parts.judging import Findings, ask, sure, try_refusals

CACHE = "kv_cache.KVCache"
FILE = CACHE.split(".")[0]
FIELDS = ["key", "value", "valid"]
BATCH, HEADS, WIDTH = 2, 3, 7
WHERE = "Look at which axis is time in each of the three tensors, and at the order of the two."
# Whose mistakes make cached and uncached decoding differ, whatever the cache does.
EARLIER = ("1.2", "1.3", "2.1", "2.2", "2.3", "5.1", "5.2", "5.3")
# One scheme that adds to the tokens, and one that adds to the scores.
DECODING = ProbeConfig(vocab_size=11, d_model=6, num_heads=2, d_ff=7, num_layers=2, max_len=13)
SCHEMES = {"decoder_only": ("learned", "t5bias"), "seq2seq": ("t5bias",)}


def columns(rng: Draws, length: int) -> list[np.ndarray]:
    """Draw key, value and valid of `length` positions."""
    key, value = (
        rng.child(name).uniform((BATCH, HEADS, length, WIDTH), -1.0, 1.0)
        for name in ("key", "value")
    )
    return [key, value, rng.child("valid").integers((BATCH, length), 0, 2) > 0]


def joined(*parts: list[np.ndarray]) -> list[np.ndarray]:
    """Join columns along time: axis 2 of keys and values, axis 1 of valid."""
    return [
        np.concatenate(same, axis=min(2, same[0].ndim - 1)) for same in zip(*parts, strict=True)
    ]


@pytest.mark.part("S1")
def test_append_joins_new_positions_and_keeps_the_old_cache(
    submission: Submission, rng: Draws
) -> dict[str, Any]:
    """KVCache.append puts new positions behind the old ones, in a cache of its own."""
    first, second, third, other = (
        columns(rng.child(str(n)), length) for n, length in enumerate((5, 2, 1, 2))
    )
    saved = {"old": first, "longer": joined(first, second),
             "longest": joined(first, second, third), "branch": joined(first, other)}  # fmt: skip
    questions = [
        call(CACHE, *first, save="old"),
        call("@old.append", *second, save="longer"),
        call("@longer.append", *third, save="longest"),
        call("@old.append", *other, save="branch"),
        *[Question("fields", {"handle": name, "names": FIELDS}) for name in saved],
    ]
    try:
        answers = submission.ask(*questions)
    except StudentError as error:
        if error.type == "AttributeError" and not error.frames:  # we asked, of what came back
            fail(FILE, "cache", "no_cache_returned", message=error.message)
        raise
    for (name, wanted), answer in zip(saved.items(), answers[len(saved) :], strict=True):
        for field, want, got in zip(FIELDS, wanted, answer["values"], strict=False):
            what = f"{field} of the {name} cache"
            if name == "old" and isinstance(got, np.ndarray) and got.size > want.size:
                fail(FILE, "cache", "old_cache_changed", what=what, old=want.shape,
                     new=got.shape)  # fmt: skip
            got = tensor(got, want.shape, what, FILE, want.dtype.kind)
            axis = min(2, want.ndim - 1)
            old = first[FIELDS.index(field)].shape[axis]
            turned = np.roll(want, want.shape[axis] - old, axis=axis)
            suspects = [suspect("cache", "new_before_old", turned)]
            if field == "valid":
                suspects.append(suspect("cache", "validity_lost", np.ones_like(want)))
            else:
                exchanged = wanted[field == "key"]
                suspects.append(suspect("cache", "keys_and_values_exchanged", exchanged))
            judge(got, want, what=what, part=FILE, advice=WHERE, suspects=suspects)
    return {"caches": len(saved)}


@pytest.mark.part("S1")
def test_append_refuses_another_batch_head_count_or_width(
    submission: Submission, rng: Draws
) -> dict[str, Any]:
    """KVCache.append raises ValueError for another batch size, number of heads or width."""
    held = columns(rng.child("held"), 5)
    key, value, valid = columns(rng.child("new"), 2)
    wrong = {
        "another batch size": (key[:1], value[:1], valid[:1]),
        "another number of heads": (key[:, :1], value[:, :1], valid),
        "another width": (key[..., :1], value[..., :1], valid),
        "values unlike the keys": (key, value[..., :1], valid),
    }
    submission.ask(call(CACHE, *held, save="cache"))
    refused = [
        (f"append with {what}", "ValueError", call("@cache.append", *new))
        for what, new in wrong.items()
    ]
    return try_refusals(submission, FILE, *refused)


@pytest.mark.part("S1")
def test_attention_refuses_a_cache_that_does_not_fit(
    submission: Submission, rng: Draws
) -> dict[str, Any]:
    """MultiHeadAttention raises ValueError for a cache that does not go with the rest of a call."""
    fields = {"d_model": 6, "num_heads": 2, "dropout": 0.5}
    x = rng.child("x").uniform((BATCH, 3, 6), -1.0, 1.0)
    wrong: dict[str, tuple[list[np.ndarray], dict[str, Any], str]] = {
        "dropout at work": ([x], {}, "train"),
        "a key_offset": ([x], {"key_offset": 1}, "eval"),
        "a query_offset that is not its length": ([x], {"query_offset": 1}, "eval"),
        "keys of a memory that it holds already": ([x, x], {}, "eval"),
    }
    before = [build("module", "attention.MultiHeadAttention", config(**fields), rope=False)]
    refused = []
    for what, (args, options, mode) in wrong.items():
        given = {"args": args, "kwargs": {**options, "cache": handle(what)}}
        asked = forward("module", given, mode=mode)
        before.append(call("cache.CacheSlot", save=what))
        if len(args) > 1:  # the first of two calls fills it
            before.append(asked)
        refused.append((f"attention with a cache and {what}", "ValueError", asked))
    for answer in ask(submission, *before)[0]:
        sure(answer)
    return try_refusals(submission, "attention", *refused)


@pytest.mark.part("S1")
def test_cached_decoding_equals_uncached_at_every_step(
    submission: Submission, rng: Draws, findings: Findings
) -> dict[str, Any]:
    """Cached decoding equals uncached decoding at every step, in steps of one or several tokens."""
    models = {
        f"{kind}, {positions}": replace(DECODING, positions=positions)
        for kind, schemes in SCHEMES.items()
        for positions in schemes
    }
    return stepwise.try_cached(submission, rng, findings, models, EARLIER, "cached_differs")
