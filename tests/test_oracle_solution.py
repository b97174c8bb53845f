"""The oracle against the solution, which shares nothing with it, over all combinations of parts.

Both compute in float64: 1e-9 is far above rounding and far below any difference of method.
Rotary angles are float32 in the package (by contract), which moves scores by some 1e-7.
"""

from __future__ import annotations

from dataclasses import asdict, fields

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from grader.model.draws import PAD, Draws
from grader.model.parameters import ProbeConfig, parameter_shapes
from grader.oracle.models import decoder_only, seq2seq
from grader.oracle.scope import Scope
from transformer import config as package_config
from transformer.config import ModelConfig
from transformer.models import DecoderOnlyTransformer, Seq2SeqTransformer

MODELS = {"seq2seq": Seq2SeqTransformer, "decoder_only": DecoderOnlyTransformer}
ORACLES = {"seq2seq": seq2seq, "decoder_only": decoder_only}

configs = st.builds(
    ProbeConfig,
    vocab_size=st.just(13),
    d_model=st.just(24),
    num_heads=st.just(6),
    num_kv_heads=st.sampled_from([None, 1, 2, 3, 6]),
    num_layers=st.sampled_from([1, 2]),
    d_ff=st.just(11),
    ffn=st.sampled_from([kind for kind in package_config.FEED_FORWARDS if kind != "gelu_tanh"]),
    norm=st.sampled_from(package_config.NORMS),
    placement=st.sampled_from(package_config.PLACEMENTS),
    positions=st.sampled_from(package_config.POSITIONS),
    rope_cross=st.booleans(),
    bias=st.booleans(),
    tied=st.sampled_from([None, False, True]),
    pad_id=st.sampled_from([None, PAD]),
    max_len=st.just(17),
    t5_buckets=st.sampled_from([8, 32]),
    t5_max_distance=st.just(19),
)


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def build(kind, config):
    """The solution's model with drawn weights, and the same weights for the oracle."""
    weights = Draws(0, kind).weights(parameter_shapes(config, kind))
    model = MODELS[kind](ModelConfig(**asdict(config))).eval()
    model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    return model, Scope(config, weights)


def test_probe_config_has_the_fields_and_defaults_of_the_model_config():
    ours = [(field.name, field.type, field.default) for field in fields(ProbeConfig)]
    theirs = [
        (field.name, getattr(field.type, "__name__", str(field.type)), field.default)
        for field in fields(ModelConfig)
    ]
    assert ours == theirs[: len(ours)]
    # What only published models have; the lab's models and so the oracle keep the defaults.
    assert [name for name, *_ in theirs[len(ours) :]] == [
        "norm_eps",
        "head_width",
        "qkv_bias",
        "qk_norm",
        "rope_width",
        "window",
        "scale_embedding",
    ]
    with pytest.raises(ValueError, match="'width'"):
        ProbeConfig.from_dict({"width": 3})


@settings(
    deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(config=configs, kind=st.sampled_from(sorted(MODELS)), seed=st.integers(0, 999))
def test_every_combination_of_parts_agrees_with_the_solution(config, kind, seed):
    model, scope = build(kind, config)
    draws = Draws(seed, "ids")
    longest = {"seq2seq": (7, 5), "decoder_only": (7,)}[kind]
    ids = [draws.ids(draws.lengths(3, 1, length), config.vocab_size) for length in longest]
    with torch.no_grad():
        logits = model(*map(torch.from_numpy, ids))
    tolerance = 1e-6 if config.positions == "rope" or config.rope_cross else 1e-9
    np.testing.assert_allclose(
        ORACLES[kind](scope, *ids), logits.numpy(), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_explicit_validity_agrees_with_the_solution(kind):
    model, scope = build(kind, ProbeConfig(num_layers=2, max_len=7))
    sides = 2 if kind == "seq2seq" else 1
    ids = [np.array([[0, 5, 6], [3, 4, 7]])] * sides
    valid = [np.array([[True, True, True], [True, False, False]])] * sides
    with torch.no_grad():
        logits = model(*map(torch.from_numpy, [*ids, *valid])).numpy()
    np.testing.assert_allclose(ORACLES[kind](scope, *ids, *valid), logits, rtol=1e-9, atol=1e-9)


@settings(
    deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(config=configs, kind=st.sampled_from(sorted(MODELS)))
def test_every_recorded_module_is_one_of_the_model_and_gives_the_same(config, kind):
    assume(config.positions != "rope" and not config.rope_cross)
    model, scope = build(kind, config)
    outputs = {}
    for name, module in model.named_modules():
        module.register_forward_hook(lambda _m, _i, out, name=name: outputs.update({name: out}))
    ids = [np.array([[5, 6, 7], [3, 4, 0]])] * (2 if kind == "seq2seq" else 1)
    with torch.no_grad():
        model(*map(torch.from_numpy, ids))
    ORACLES[kind](scope, *ids)
    real = np.ones((2, 3), bool) if config.pad_id is None else ids[0] != PAD
    for name, activation in scope.trace.activations.items():
        np.testing.assert_allclose(
            activation[real], outputs[name].numpy()[real], rtol=1e-9, atol=1e-9, err_msg=name
        )
    assert {name for name in outputs if name.endswith(("attention", "branch", "forward"))} <= set(
        scope.trace.activations
    )
