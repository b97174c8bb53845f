"""Both models: what every part does in them, padding, the future, and what they refuse."""

import itertools
from dataclasses import replace

import pytest
import torch

from transformer.config import FEED_FORWARDS, NORMS, PLACEMENTS, POSITIONS, ModelConfig
from transformer.models import DecoderOnlyTransformer, Seq2SeqTransformer, count_params

CONFIG = ModelConfig(vocab_size=13, num_layers=2, d_ff=11)
PARTS = [
    {"ffn": ffn, "norm": norm, "placement": placement, "positions": positions}
    for ffn, norm, placement, positions in itertools.product(
        FEED_FORWARDS, NORMS, PLACEMENTS, POSITIONS
    )
]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(29)


def ids(rows: int, length: int) -> torch.Tensor:
    return torch.randint(1, 13, (rows, length))


def run(model, tokens, source):
    return model(source, tokens) if isinstance(model, Seq2SeqTransformer) else model(tokens)


@pytest.mark.parametrize("kind", [Seq2SeqTransformer, DecoderOnlyTransformer])
@pytest.mark.parametrize("parts", PARTS, ids=lambda parts: "-".join(parts.values()))
def test_every_combination_hides_the_future_and_the_padding_and_learns_everywhere(kind, parts):
    model = kind(replace(CONFIG, **parts))
    tokens, source = ids(3, 5), ids(3, 7)
    source[1, 4:], source[2, 1:] = 0, 0
    logits = run(model, tokens, source)
    wider = run(model, tokens, torch.nn.functional.pad(source, (0, 2)))
    torch.testing.assert_close(wider, logits, rtol=1e-5, atol=1e-5)
    alone = run(model, tokens[1:2], source[1:2, :4])
    torch.testing.assert_close(alone[0], logits[1], rtol=1e-5, atol=1e-5)
    prefix = run(model, tokens[:, :3], source)
    torch.testing.assert_close(prefix, logits[:, :3], rtol=1e-5, atol=1e-5)
    logits.square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("kind", [Seq2SeqTransformer, DecoderOnlyTransformer])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_padded_target_positions_have_logits_zero(kind, placement):
    model = kind(replace(CONFIG, placement=placement))
    tokens = ids(3, 5)
    tokens[0, 2:] = 0
    logits = run(model, tokens, ids(3, 7))
    assert logits[0, 2:].abs().max() == 0.0
    assert logits[1:].abs().min() > 0.0


def test_explicit_validity_overrules_the_padding_id():
    model, source, target = Seq2SeqTransformer(CONFIG), ids(3, 7), ids(3, 5)
    source_valid = torch.arange(7) < torch.tensor([[7], [4], [1]])
    target_valid = torch.arange(5) < torch.tensor([[2], [5], [3]])
    padded = model(source * source_valid, target * target_valid)
    told = model(source, target, source_valid, target_valid)
    torch.testing.assert_close(told, padded, rtol=1e-5, atol=1e-5)
    alone = DecoderOnlyTransformer(CONFIG)
    torch.testing.assert_close(alone(target, target_valid), alone(target * target_valid))


def test_without_a_padding_id_every_id_is_an_ordinary_token():
    model = Seq2SeqTransformer(replace(CONFIG, pad_id=None))
    with_zeros, length = ids(3, 7), 7
    with_zeros[:, 4:] = 0
    target = torch.zeros(3, 5, dtype=torch.int64)
    logits = model(with_zeros, target)
    assert logits.abs().min() > 0.0
    assert not torch.allclose(model(with_zeros[:, : length - 1], target), logits)


def test_tied_projection_is_the_embedding_table():
    assert Seq2SeqTransformer(CONFIG).output_projection is not None
    assert DecoderOnlyTransformer(CONFIG).output_projection is None
    for kind in (Seq2SeqTransformer, DecoderOnlyTransformer):
        untied = count_params(kind(replace(CONFIG, tied=False)))
        assert untied - count_params(kind(replace(CONFIG, tied=True))) == 13 * 32


@pytest.mark.parametrize("kind", [Seq2SeqTransformer, DecoderOnlyTransformer])
def test_only_pre_norm_stacks_end_in_a_norm(kind):
    names = {
        placement: {
            name for name, _ in kind(replace(CONFIG, placement=placement)).named_parameters()
        }
        for placement in PLACEMENTS
    }
    assert all("final_norm" in name for name in names["pre"] - names["post"])
    assert names["pre"] > names["post"]


def test_bias_false_concerns_the_linear_layers_only():
    names = [n for n, _ in Seq2SeqTransformer(replace(CONFIG, bias=False)).named_parameters()]
    assert all("norm" in name for name in names if name.endswith("bias"))
    assert any(name.endswith("norm.bias") for name in names)


@pytest.mark.parametrize("parts", [{"norm": "rmsnorm"}, {"positions": "rope", "rope_cross": True}])
def test_models_run_in_float64(parts):
    torch.set_default_dtype(torch.float64)
    try:
        model = Seq2SeqTransformer(replace(CONFIG, **parts))
        assert model(ids(3, 7), ids(3, 5)).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("kind", [Seq2SeqTransformer, DecoderOnlyTransformer])
def test_models_refuse_ids_that_are_no_batch_and_rows_without_a_token(kind):
    model, source = kind(CONFIG), ids(3, 7)
    with pytest.raises(ValueError, match=r"\(B, T\) with T at least 1, got \(5,\)"):
        run(model, ids(3, 5)[0], source)
    with pytest.raises(ValueError, match=r"T at least 1, got \(3, 0\)"):
        run(model, ids(3, 5)[:, :0], source)
    tokens = ids(3, 5)
    tokens[1] = 0
    with pytest.raises(ValueError, match="hold a real token, row 1 has none"):
        run(model, tokens, source)
    with pytest.raises(ValueError, match="below vocab_size 13 and not negative, got .* to 21"):
        run(model, torch.full((3, 5), 21), source)
    with pytest.raises(ValueError, match="got ids from -7 to -7"):
        run(model, torch.full((3, 5), -7), source)
    with pytest.raises(TypeError, match="must be int64 or int32, got torch.float32"):
        run(model, tokens.float(), source)
    with pytest.raises(TypeError, match="must be a tensor, got list"):
        run(model, tokens.tolist(), source)


def test_encoder_decoder_refuses_a_source_row_without_a_token():
    source = ids(3, 7)
    source[2] = 0
    with pytest.raises(ValueError, match="every row of source .* row 2 has none"):
        Seq2SeqTransformer(CONFIG)(source, ids(3, 5))


def test_models_refuse_validity_of_another_shape_or_type():
    model, tokens = DecoderOnlyTransformer(CONFIG), ids(3, 5)
    with pytest.raises(ValueError, match=r"\(3, 5\), got \(3, 4\)"):
        model(tokens, torch.ones(3, 4, dtype=torch.bool))
    with pytest.raises(TypeError, match="validity must be a bool tensor .* got torch.int64"):
        model(tokens, torch.ones(3, 5, dtype=torch.int64))


def test_inputs_are_never_changed():
    tokens, source = ids(3, 5), ids(3, 7)
    source[1, 4:], tokens[0, 3:] = 0, 0
    before = tokens.clone(), source.clone()
    Seq2SeqTransformer(CONFIG)(source, tokens).sum().backward()
    assert torch.equal(tokens, before[0]) and torch.equal(source, before[1])
