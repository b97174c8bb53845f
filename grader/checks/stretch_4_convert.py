"""Stretch task S4: from multi-head to grouped-query attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from grader.asking.compare import agrees, judge
from grader.asking.submission import Json, Question, Submission, build, call, config, tensor
from grader.model.draws import Draws, Weights
from grader.model.parameters import ProbeConfig, parameter_shapes
from grader.parts.causes import fail, suspect
from grader.parts.judging import try_refusals

GROUPED = ProbeConfig(vocab_size=11, d_model=12, num_heads=6, num_kv_heads=2, d_ff=7, num_layers=2,
                      max_len=13)  # fmt: skip
MULTI_HEAD = replace(GROUPED, num_kv_heads=6)
METHODS = ("mean", "first", "random")
OLD_NAMES = {
    "token_embedding": "emb",
    "positions": "pos_emb",
    "stack.final_norm": "norm_f",
    "stack.blocks": "blocks",
    "self_attention": "self_attn",
    "out_proj": "o_proj",
    "feed_forward.input_projection": "ffn.up",
    "feed_forward.output_projection": "ffn.down",
    "attention_branch.norm": "n1",
    "feed_forward_branch.norm": "n3",
}
GROUPS = "Ask which rows of a weight make up one head, and which heads share one afterwards."


def checkpoint(weights: Weights) -> Weights:
    """Return the weights of a multi-head model under the older checkpoint's names."""
    old = {}
    for name, weight in weights.items():
        for ours, theirs in OLD_NAMES.items():
            name = name.replace(ours, theirs)
        old[name] = weight
    return old


def merged(weight: np.ndarray, how: str) -> np.ndarray:
    """Merge the six heads of a key or value weight into two groups of neighbours."""
    heads = weight.reshape(2, 3, 2, *weight.shape[1:])  # group, head within it, K, ...
    one = {"mean": heads.mean(axis=1), "first": heads[:, 0]}[how]
    return np.asarray(one.reshape(4, *weight.shape[1:]))


def alternating(weight: np.ndarray) -> np.ndarray:
    """Average every other head: the groups that neighbours do not make."""
    heads = weight.reshape(3, 2, 2, *weight.shape[1:])
    return np.asarray(heads.mean(axis=0).reshape(4, *weight.shape[1:]))


def fields(shape: ProbeConfig) -> Json:
    """Return the configuration as a question holds it."""
    return config(**shape.given())


def shared(name: str) -> bool:
    """Tell whether a weight belongs to the key or value projections."""
    return "k_proj" in name or "v_proj" in name


@pytest.mark.part("S4")
def test_convert_merges_the_heads_of_each_group(
    submission: Submission, rng: Draws
) -> dict[str, Any]:
    """A group of heads becomes its mean, its first or a fresh head; all else stays as it was."""
    weights = rng.weights(parameter_shapes(MULTI_HEAD, "decoder_only"))
    for how, got in converted(submission, weights, GROUPED):
        for name, weight in weights.items():
            what = f'convert(..., "{how}"), {name}'
            if shared(name) and how == "random":
                value = tensor(got.get(name), (4, *weight.shape[1:]), what, "convert")
                old = any(agrees(value, merged(weight, kind)) for kind in ("mean", "first"))
                if old or not value.any():
                    found = "made of the old heads" if old else "all zero"
                    fail("convert", "convert", "random_is_not_fresh", what=what, found=found)
                continue
            want = merged(weight, how) if shared(name) else weight
            value = tensor(got.get(name), want.shape, what, "convert")
            # Whatever stands there instead: it is not what the checkpoint holds.
            suspects = [suspect("convert", "weight_not_loaded", value)]
            if shared(name):
                other = merged(weight, "first" if how == "mean" else "mean")
                suspects = [
                    suspect("convert", "groups_alternate", alternating(weight)),
                    suspect("convert", "heads_summed", 3.0 * merged(weight, "mean")),
                    suspect("convert", "other_method", other),
                ]
            judge(value, want, what=what, part="convert", advice=GROUPS, suspects=suspects)
    return {"weights": len(weights)}


@pytest.mark.part("S4")
def test_convert_to_the_same_heads_changes_nothing(
    submission: Submission, rng: Draws
) -> dict[str, Any]:
    """With equal head counts every weight stays what it was, whatever the method."""
    weights = rng.weights(parameter_shapes(MULTI_HEAD, "decoder_only"))
    for how, got in converted(submission, weights, MULTI_HEAD):
        for name, weight in weights.items():
            what = f'convert(..., "{how}") to as many heads, {name}'
            value = tensor(got.get(name), weight.shape, what, "convert")
            judge(value, weight, what=what, part="convert", suspects=(),
                  advice="With one head to a group there is nothing to merge.")  # fmt: skip
    return {"weights": len(weights)}


def converted(
    submission: Submission, weights: Weights, shape: ProbeConfig
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each method, and by name the parameters of the model it gives."""
    old = checkpoint(weights)
    # Refuses a tree with other parameters by their name.
    own = build("model", "models.DecoderOnlyTransformer", fields(MULTI_HEAD), weights=weights)
    submission.ask(own)
    for how in METHODS:
        _, answer = submission.ask(
            call("convert.convert", old, fields(shape), how, save=how),
            Question("parameters", {"handle": how}),
        )
        yield how, dict(answer["parameters"])


@pytest.mark.part("S4")
def test_convert_refuses_what_it_cannot_load(submission: Submission, rng: Draws) -> dict[str, Any]:
    """An unknown method, and a missing or unknown weight, raise ValueError."""
    old = checkpoint(rng.weights(parameter_shapes(MULTI_HEAD, "decoder_only")))
    less = {name: weight for name, weight in old.items() if name != "norm_f.bias"}
    wrong = {
        "an unknown method": (old, "median"),
        "a missing weight": (less, "mean"),
        "an unknown weight": (old | {"ffn.extra": np.ones(3)}, "mean"),
    }
    refused = [
        (f"convert with {what}", "ValueError", call("convert.convert", given, fields(GROUPED), how))
        for what, (given, how) in wrong.items()
    ]
    return try_refusals(submission, "convert", *refused)
