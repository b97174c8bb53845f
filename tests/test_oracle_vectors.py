"""The oracle against the reference vectors, which come from elsewhere.

The vectors are float32 results; 1e-5 relative to the largest number is what their README grants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vector_cases import ATTENTION_NAMES, RENAMED, Case, modern_config, modern_name, our_config

from grader.model.parameters import ProbeConfig, parameter_shapes
from grader.oracle import attention, layers, models, training
from grader.oracle.scope import Scope
from transformer.config import ModelConfig

Outcome = dict[str, Any]
PATHS = sorted((Path(__file__).parent / "vectors").glob("*.safetensors"))


def probe_of(config: ModelConfig) -> ProbeConfig:
    """The configuration as the oracle knows it, without the fields of published models."""
    known = [field.name for field in fields(ProbeConfig)]
    return ProbeConfig(**{name: getattr(config, name) for name in known})


def scope_of(case: Case, prefix: str = "", **changes: Any) -> Scope:
    """The weights of a case under our names, with `prefix` before what is not an embedding."""
    weights = {}
    for name, tensor in case.weights.items():
        for theirs, ours in RENAMED:
            name = name.replace(theirs, ours)
        weights[name if "embedding" in name else prefix + name] = tensor.numpy()
    return Scope(probe_of(our_config(case, **changes)), weights)


def norm(case: Case, inputs: Outcome) -> Outcome:
    run = {"layer_norm": layers.layer_norm, "rms_norm": layers.rms_norm}[case.settings["op"]]
    return {
        "y": run(Scope(ProbeConfig(), {k: v.numpy() for k, v in case.weights.items()}), **inputs)
    }


def feed_forward(case: Case, inputs: Outcome) -> Outcome:
    return {"y": layers.feed_forward(scope_of(case, ffn=case.settings["kind"]), **inputs)}


def rope(case: Case, inputs: Outcome) -> Outcome:
    turned = attention.apply_rope(inputs["x"], case.settings["offset"], case.settings["base"])
    return {"y": turned, "rotated": attention.rotate_pairs(inputs["x"])}


def buckets(case: Case, inputs: Outcome) -> Outcome:
    return {
        f"bucket_{number}_{furthest}": [
            layers.t5_bucket(-int(steps), number, furthest, bidirectional=False)
            for steps in inputs["distance"]
        ]
        for number, furthest in case.settings["settings"]
    }


def attend(case: Case, inputs: Outcome) -> Outcome:
    inputs = {ATTENTION_NAMES.get(name, name): array for name, array in inputs.items()}
    options = case.settings.get("kwargs", {"causal": True})  # cached steps see what came before
    options = {ATTENTION_NAMES.get(name, name): value for name, value in options.items()}
    scope = scope_of(case)
    y = attention.multi_head_attention(scope, **inputs, **options, rope=case.settings["rope"])
    return {"y": y}


def stack(case: Case, inputs: Outcome) -> Outcome:
    return {"y": getattr(models, case.settings["op"])(scope_of(case), **inputs)}


def seq2seq(case: Case, inputs: Outcome) -> Outcome:
    return {"logits": models.seq2seq(scope_of(case), **inputs)}


def decoder_only(case: Case, inputs: Outcome) -> Outcome:
    scope = scope_of(case, prefix="stack.")
    return {
        "logits": models.decoder_only(scope, inputs["ids"]),
        "padded_logits": models.decoder_only(scope, inputs["padded"]),
    }


def loss(case: Case, inputs: Outcome) -> Outcome:
    return {"loss": training.masked_cross_entropy(**inputs, pad_id=case.settings["pad_id"])}


def modern(case: Case, inputs: Outcome) -> Outcome:
    theirs = modern_config(case)
    config = probe_of(theirs)
    # A converted checkpoint lies among the outputs.
    given = case.weights if case.settings["op"] == "modern_lm" else case.expected
    prefix = "" if case.settings["op"] == "modern_lm" else "new."
    names = parameter_shapes(config, "decoder_only")
    weights = {name: given[prefix + modern_name(name, theirs)].numpy() for name in names}
    return {"logits": models.decoder_only(Scope(config, weights), inputs["ids"])}


REPLAYS: dict[str, Callable[[Case, Outcome], Outcome]] = {
    "layer_norm": norm,
    "rms_norm": norm,
    "feed_forward": feed_forward,
    "apply_rope": rope,
    "t5_bucket": buckets,
    "attention": attend,
    "attention_cached": attend,
    "encoder_block": stack,
    "encoder": stack,
    "decoder_block": stack,
    "decoder": stack,
    "seq2seq": seq2seq,
    "decoder_only": decoder_only,
    "metrics": loss,
    "modern_lm": modern,
    "upcycle": modern,
}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_oracle_agrees_with_the_vector(path):
    case = Case.load(path)
    inputs = {name: tensor.numpy() for name, tensor in case.inputs.items()}
    outcome = REPLAYS[case.settings["op"]](case, inputs)
    assert outcome
    for name, array in outcome.items():
        expected = case.expected[name].numpy()
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(array, expected, rtol=0, atol=1e-5 * scale, err_msg=name)
