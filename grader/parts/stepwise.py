"""Cached decoding against the same model without a cache, at every step (stretch tasks)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from grader.asking import compare
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
from grader.model.parameters import ProbeConfig, parameter_shapes
from grader.parts.causes import fail
from grader.parts.judging import Findings, ask, built_on, sure

CLASSES = {
    "seq2seq": "models.Seq2SeqTransformer",
    "decoder_only": "models.DecoderOnlyTransformer",
}
LENGTH = 8
# A prompt of three, two at once, then one by one; row 1 holds padding between real tokens.
STEPS = [(0, 3), (3, 5), (5, 6), (6, 7), (7, 8)]
VALID = np.array([[1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 0, 1, 1, 1, 1, 1]], bool)
MEMORY_VALID = np.array([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]], bool)


def try_cached(
    submission: Submission,
    rng: Draws,
    findings: Findings,
    models: Mapping[str, ProbeConfig],
    earlier: Sequence[str],
    entry: str,
) -> dict[str, Any]:
    """Fail where cached decoding differs from uncached decoding.

    Args:
        submission: the tree.
        rng: draws everything.
        findings: the part checks that did not pass.
        models: what is built, by kind and position scheme, such as "seq2seq, learned".
        earlier: tasks whose mistakes make the two differ, whatever the cache does.
        entry: what to say of it in the catalogue.
    """
    kinds = [name.split(",")[0] for name in models]
    found: dict[str, list[float]] = {}
    for kind, (name, shape) in zip(kinds, models.items(), strict=True):
        # The second kind of block uses the attention that has just decoded for the first.
        with built_on("attention" if kind == kinds[0] else "decoder", findings, *earlier):
            found[name] = gaps(submission, rng.child(name), kind, shape)
    trouble = describe(found)
    with built_on("attention", findings, *earlier):
        if trouble:
            fail(trouble.part, "cache", "cached_differs", trouble.evidence, entry=entry,
                 seen=trouble.text)  # fmt: skip
    return {"largest_difference": max(max(steps) for steps in found.values())}


def gaps(submission: Submission, rng: Draws, kind: str, shape: ProbeConfig) -> list[float]:
    """Return for each step how far the cached logits are from the uncached ones.

    Args:
        submission: the tree.
        rng: draws weights, ids and memory.
        kind: "seq2seq" (its decoder alone, over a drawn memory) or "decoder_only".
        shape: the model's configuration; its dropout is 0.
    """
    ids = rng.child("ids").integers((2, LENGTH), 3, shape.vocab_size)
    earlier = rng.child("earlier")
    forgotten = earlier.integers(ids.shape, 3, shape.vocab_size)
    decoding = (
        # What the model reads with another cache must leave nothing behind.
        call("cache.DecodingCache", shape.num_layers, save="earlier"),
        _ask(earlier, kind, shape, forgotten, STEPS[:1], cache="earlier"),
        call("cache.DecodingCache", shape.num_layers, save="cache"),
        _ask(rng, kind, shape, ids, [(0, LENGTH)]),
        _ask(rng, kind, shape, ids, STEPS, cache="cache"),
    )
    answers, _ = ask(submission, _build(rng, kind, shape, own=False), *decoding)
    if isinstance(answers[0], StudentError) and answers[0].kind == "constructor_changed":
        # The comparison is with itself: any weights will do.
        answers, _ = ask(submission, _build(rng, kind, shape, own=True), *decoding)
    *_, whole, steps = map(sure, answers)
    full = (2, LENGTH, shape.vocab_size)
    reference = tensor(whole["outputs"][0], full, f"the {kind} model's logits", "decoder")
    found = []
    for (start, end), output in zip(STEPS, steps["outputs"], strict=True):
        what = f"the {kind} model's cached logits of positions {start} to {end - 1}"
        logits = tensor(output, (2, end - start, shape.vocab_size), what, "attention")
        gap = np.abs(logits - reference[:, start:end]).max(axis=-1)
        found.append(float(gap[VALID[:, start:end]].max()))
    return found


def _build(rng: Draws, kind: str, shape: ProbeConfig, *, own: bool) -> Question:
    weights = None if own else rng.child("weights").weights(parameter_shapes(shape, kind))
    return build("model", CLASSES[kind], config(**shape.given()), weights=weights)


def _ask(
    rng: Draws,
    kind: str,
    shape: ProbeConfig,
    ids: np.ndarray,
    steps: list[tuple[int, int]],
    cache: str = "",
) -> Question:
    extra: dict[str, Any] = {"cache": handle(cache)} if cache else {}
    if kind == "decoder_only":
        calls = [
            {"args": [ids[:, a:b]], "kwargs": {"valid_tokens": VALID[:, a:b]} | extra}
            for a, b in steps
        ]
        return forward("model", *calls)
    memory = rng.child("memory").uniform((2, MEMORY_VALID.shape[1], shape.d_model), -1.7, 1.7)
    masks = {"memory_valid": MEMORY_VALID}
    calls = [
        {"args": [ids[:, a:b], memory], "kwargs": masks | {"target_valid": VALID[:, a:b]} | extra}
        for a, b in steps
    ]
    return forward("model", *calls, method="decode")


class Trouble(NamedTuple):
    """Cached decoding that differs: where to look, what was seen, and the numbers."""

    part: str
    text: str
    evidence: dict[str, Any]


def describe(found: dict[str, list[float]]) -> Trouble | None:
    """Say where cached and uncached decoding part; None where they never do.

    Args:
        found: the gaps per model and position scheme, such as "seq2seq, learned".
    """
    tolerance = compare.tolerances.tolerance_float32
    wrong = {name: steps for name, steps in found.items() if max(steps) > tolerance}
    if not wrong:
        return None
    name, steps = next(iter(wrong.items()))
    step = next(i for i, gap in enumerate(steps) if gap > tolerance)
    start, end = STEPS[step]
    when = (
        "already in the prompt, which is the second one"
        if step == 0
        else f"first at positions {start} to {end - 1}"
    )
    others = "every model tried" if len(wrong) == len(found) else " and ".join(wrong)
    text = (
        f"cached decoding differs from uncached decoding by {steps[step]:.3g}, {when} ({name}). "
        f"It shows with {others}."
    )
    # What both kinds of block share is attention.
    kinds = {key.split(",")[0] for key in wrong}
    part = "attention" if kinds == {key.split(",")[0] for key in found} else "decoder"
    return Trouble(part, text, {"gaps": wrong, "tolerance": tolerance})
