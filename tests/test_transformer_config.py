"""Configurations: what they refuse, and what the named ones are."""

import math

import pytest
import torch

from transformer.config import (
    LAB,
    LARGER,
    LLAMA_STYLE,
    VANILLA_2017,
    ModelConfig,
    TrainingRecipe,
)
from transformer.data import cyclic_batches, sequence_batches
from transformer.models import (
    DecoderOnlyTransformer,
    Seq2SeqTransformer,
    count_params,
    kv_cache_elements,
)
from transformer.training import masked_cross_entropy, teacher_forcing


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": 30}, "30 and 4"),
        ({"num_kv_heads": 3}, "4 and 3"),
        ({"num_kv_heads": 8}, "4 and 8"),
        ({"num_kv_heads": 0}, "at least 1, got 0"),
        ({"d_model": 20, "positions": "rope"}, "20 / num_heads 4 = 5"),
        ({"d_model": 20, "rope_cross": True}, "20 / num_heads 4 = 5"),
        ({"d_model": 9, "num_heads": 3, "positions": "sinusoidal"}, "even d_model, got 9"),
        ({"ffn": "silu"}, "relu, gelu, gelu_tanh, swiglu, geglu, got 'silu'"),
        ({"norm": "batchnorm"}, "layernorm, rmsnorm, got 'batchnorm'"),
        ({"placement": "both"}, "pre, post, got 'both'"),
        ({"positions": "alibi"}, "t5bias, rope, none, got 'alibi'"),
        ({"dropout": 1.0}, r"\[0, 1\), got 1.0"),
        ({"dropout": math.nan}, "got nan"),
        ({"pad_id": 16}, "pad_id must be below vocab_size 16, got 16"),
        ({"pad_id": -1}, "pad_id must be at least 0, got -1"),
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"rope_base": 0.0}, "rope_base must be positive and finite, got 0.0"),
        ({"rope_base": math.inf}, "rope_base must be positive and finite, got inf"),
        ({"positions": "t5bias", "t5_buckets": 7}, "at least 4, got 7"),
        ({"positions": "t5bias", "t5_max_distance": 16}, "t5_buckets 32, got 16"),
    ],
)
def test_config_refuses_what_cannot_work_and_names_the_numbers(fields, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": 32.0}, "d_model must be an integer, got 32.0"),
        ({"num_heads": "4"}, "num_heads must be an integer, got '4'"),
        ({"num_layers": True}, "num_layers must be an integer, got True"),
        ({"num_kv_heads": 2.0}, "num_kv_heads must be an integer, got 2.0"),
        ({"t5_buckets": 32.0}, "t5_buckets must be an integer, got 32.0"),
        ({"pad_id": 1.5}, "pad_id must be an integer, got 1.5"),
        ({"rope_base": "10000"}, "rope_base must be a number, got '10000'"),
        ({"dropout": None}, "dropout must be a number, got None"),
        ({"bias": "no"}, "bias must be one of .*, got 'no'"),
        ({"tied": 1}, "tied must be one of .*, got 1"),
    ],
)
def test_config_refuses_values_of_another_type(fields, message):
    with pytest.raises(TypeError, match=message):
        ModelConfig(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"learning_rate": 0.0}, "learning_rate must be positive and finite, got 0.0"),
        ({"clip_norm": -1.0}, "clip_norm must be positive and finite, got -1.0"),
        ({"warmup_fraction": 1.0}, r"warmup_fraction must be in \[0, 1\), got 1.0"),
        ({"weight_decay": -0.1}, "weight_decay must be finite and not negative, got -0.1"),
        ({"learning_rate": math.nan}, "learning_rate must be positive and finite, got nan"),
        ({"betas": (0.9, 1.0)}, r"each of betas must be in \[0, 1\), got 1.0"),
        ({"betas": 0.9}, "betas must be two numbers, got 0.9"),
        ({"betas": (0.9,)}, r"betas must be two numbers, got \(0.9,\)"),
        ({"decay_power": -1.0}, "decay_power must be finite and not negative, got -1.0"),
    ],
)
def test_recipe_refuses_what_cannot_work_and_names_the_number(fields, message):
    with pytest.raises(ValueError, match=message):
        TrainingRecipe(**fields)


@pytest.mark.parametrize(("config", "count"), [(VANILLA_2017, 106_368), (LLAMA_STYLE, 106_560)])
def test_named_config_has_its_parameter_count(config, count):
    assert count_params(DecoderOnlyTransformer(config)) == count


def test_lab_is_the_default_and_larger_differs_in_size_only():
    assert ModelConfig() == LAB
    size = {"d_model": 64, "num_layers": 2, "d_ff": 128}
    assert ModelConfig(**size) == LARGER


@pytest.mark.parametrize("config", [LAB, LARGER, VANILLA_2017, LLAMA_STYLE], ids=repr)
@pytest.mark.parametrize("kind", [Seq2SeqTransformer, DecoderOnlyTransformer])
def test_first_loss_is_that_of_a_model_that_knows_nothing(config, kind):
    torch.manual_seed(7)
    if kind is Seq2SeqTransformer:
        drawn = sequence_batches(
            "reverse", steps=1, batch_size=128, seed=3, vocab_size=config.vocab_size
        )
    else:
        drawn = cyclic_batches(steps=1, batch_size=128, seed=3, vocab_size=config.vocab_size)
    batch = next(drawn)
    decoder_inputs, targets = teacher_forcing(batch.answers)
    loss = masked_cross_entropy(kind(config)(*batch.context, decoder_inputs), targets).item()
    assert loss == pytest.approx(math.log(config.vocab_size), rel=0.15)


def test_grouped_heads_shrink_the_cache_by_their_ratio():
    sizes = [
        kv_cache_elements(ModelConfig(num_heads=8, num_kv_heads=heads, num_layers=3), 5, 7)
        for heads in (8, 4, 2, 1)
    ]
    assert sizes == [2 * 3 * 5 * 8 * 7 * 4 // share for share in (1, 2, 4, 8)]
