"""The parts that published models have and the lab's do not, each against its definition."""

from dataclasses import replace

import pytest
import torch

from transformer.attention import MultiHeadAttention
from transformer.cache import DecodingCache
from transformer.checkpoint import load_checkpoint, save_checkpoint
from transformer.config import ModelConfig
from transformer.feedforward import FeedForward
from transformer.models import DecoderOnlyTransformer, Seq2SeqTransformer
from transformer.norms import make_norm
from transformer.rotary import RotaryTables, apply_rope, rope_tables

PUBLISHED = ModelConfig(
    vocab_size=29,
    d_model=22,
    num_heads=6,
    num_kv_heads=2,
    head_width=10,
    num_layers=2,
    d_ff=13,
    ffn="gelu_tanh",
    norm="rmsnorm",
    norm_eps=1e-3,
    positions="rope",
    rope_width=4,
    qk_norm=True,
    window=3,
    bias=False,
    qkv_bias=True,
    scale_embedding=False,
    pad_id=None,
)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(61)


def test_heads_may_be_of_another_width_than_the_model_divided():
    attention = MultiHeadAttention(PUBLISHED, rope=True)
    assert attention.q_proj.weight.shape == (60, 22) and attention.k_proj.weight.shape == (20, 22)
    assert attention.out_proj.weight.shape == (22, 60)
    assert attention(torch.randn(2, 5, 22)).shape == (2, 5, 22)


def test_biases_may_be_those_of_queries_keys_and_values_alone():
    names = {n for n, _ in DecoderOnlyTransformer(PUBLISHED).named_parameters() if "bias" in n}
    block = "stack.blocks.{}.self_attention.{}_proj.bias"
    assert names == {block.format(layer, part) for layer in range(2) for part in "qkv"}


def test_normalised_queries_and_keys_forget_their_length():
    config = replace(PUBLISHED, norm_eps=0.0, qkv_bias=False)
    attention, x = MultiHeadAttention(config, rope=True), torch.randn(2, 5, 22)
    before = attention(x)
    with torch.no_grad():
        attention.q_proj.weight *= 7.0
        attention.k_proj.weight *= 0.125
    torch.testing.assert_close(attention(x), before)
    with torch.no_grad():
        attention.query_norm.weight *= 2.0
    assert (attention(x) - before).abs().max() > 1e-3


def test_norms_take_their_epsilon_from_the_configuration():
    for norm, default in (("layernorm", 1e-5), ("rmsnorm", 1e-6)):
        assert make_norm(ModelConfig(norm=norm)).eps == default
        assert make_norm(ModelConfig(norm=norm, norm_eps=0.25)).eps == 0.25


def test_tanh_gelu_is_not_the_exact_one():
    layer = FeedForward(ModelConfig(d_model=1, num_heads=1, d_ff=1, ffn="gelu_tanh", bias=False))
    with torch.no_grad():
        layer.input_projection.weight.fill_(1.0)
        layer.output_projection.weight.fill_(1.0)
    x = torch.tensor([[[1.0]]])
    assert layer(x).item() == pytest.approx(0.841192, abs=1e-6)
    layer.activation = torch.nn.functional.gelu
    assert layer(x).item() == pytest.approx(0.841345, abs=1e-6)


def test_partial_rotation_leaves_the_rest_of_each_head_alone():
    x = torch.randn(2, 3, 5, 10)
    turned = RotaryTables(4, 16, 100.0)(x, 7)
    assert torch.equal(turned[..., 4:], x[..., 4:])
    torch.testing.assert_close(turned[..., :4], apply_rope(x[..., :4], *rope_tables(5, 4, 7, 100)))


@pytest.mark.parametrize("positions", ["rope", "t5bias", "learned"])
def test_tokens_beyond_the_window_do_not_matter(positions):
    config = replace(PUBLISHED, positions=positions, num_layers=1)
    model, ids = DecoderOnlyTransformer(config).eval(), torch.randint(29, (2, 9))
    logits = model(ids)
    changed = ids.clone()
    changed[:, 4] = (ids[:, 4] + 1) % 29
    moved = (model(changed) - logits).abs().amax(dim=(0, 2)) > 1e-6
    assert moved.tolist() == [False] * 4 + [True] * 3 + [False] * 2
    wide = DecoderOnlyTransformer(replace(config, window=9)).eval()
    wide.load_state_dict(model.state_dict())
    unlimited = DecoderOnlyTransformer(replace(config, window=None)).eval()
    unlimited.load_state_dict(model.state_dict())
    assert torch.equal(wide(ids), unlimited(ids))


def test_window_and_padding_go_together():
    model = DecoderOnlyTransformer(replace(PUBLISHED, pad_id=0)).eval()
    ids = torch.randint(1, 29, (1, 7))
    for side in ((3, 0), (0, 3)):
        padded = torch.nn.functional.pad(ids, side)
        logits = model(padded)[:, side[0] : side[0] + 7]
        torch.testing.assert_close(logits, model(ids))
        assert logits.isfinite().all()


@pytest.mark.parametrize("pieces", [[1] * 9, [4, 1, 4], [2, 7]])
def test_cached_logits_equal_uncached_ones(pieces):
    model, ids = DecoderOnlyTransformer(PUBLISHED).eval(), torch.randint(29, (2, 9))
    cache = DecodingCache(PUBLISHED.num_layers)
    logits = torch.cat([model(piece, cache=cache) for piece in ids.split(pieces, dim=1)], dim=1)
    torch.testing.assert_close(logits, model(ids), rtol=1e-5, atol=1e-5)


def test_embedding_may_go_unscaled():
    assert DecoderOnlyTransformer(PUBLISHED).token_embedding.scale == 1.0
    assert Seq2SeqTransformer(PUBLISHED).source_embedding.scale == 1.0
    assert DecoderOnlyTransformer(ModelConfig()).token_embedding.scale == pytest.approx(32**0.5)


def test_configuration_of_published_parts_is_saved_and_loaded(tmp_path):
    model = DecoderOnlyTransformer(PUBLISHED).eval()
    save_checkpoint(model, tmp_path / "a")
    again, ids = load_checkpoint(tmp_path / "a"), torch.randint(29, (2, 5))
    assert again.config == PUBLISHED and torch.equal(again(ids), model(ids))


@pytest.mark.parametrize(
    ("field", "error", "message"),
    [
        ({"head_width": 0}, ValueError, "head_width must be at least 1, got 0"),
        ({"head_width": 7, "rope_width": None}, ValueError, "even head width, got head_width = 7"),
        ({"rope_width": 12}, ValueError, "at most the head width 10, got 12"),
        ({"rope_width": 3}, ValueError, "rope_width must be even"),
        ({"norm_eps": -1.0}, ValueError, "norm_eps must be not negative and finite, got -1.0"),
        ({"window": 0}, ValueError, "window must be at least 1, got 0"),
        ({"qk_norm": 1}, TypeError, "qk_norm must be one of"),
        ({"qkv_bias": "yes"}, TypeError, "qkv_bias must be one of"),
        ({"scale_embedding": None}, TypeError, "scale_embedding must be one of"),
    ],
)
def test_values_out_of_range_are_refused(field, error, message):
    with pytest.raises(error, match=message):
        replace(PUBLISHED, **field)
