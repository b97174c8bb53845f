"""Long sequences attend in pieces: the same answers and gradients, and the same refusals."""

from dataclasses import replace

import pytest
import torch

import transformer.attention
from transformer.attention import MultiHeadAttention
from transformer.config import ModelConfig
from transformer.models import DecoderOnlyTransformer
from transformer.pieces import LONG, QUERIES_AT_ONCE

T = LONG + QUERIES_AT_ONCE // 2 + 3
CONFIG = ModelConfig(d_model=12, num_heads=2, d_ff=7, max_len=T)


@pytest.fixture(autouse=True)
def in_64_bits():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(79)
    yield
    torch.set_default_dtype(torch.float32)


def both(monkeypatch, call):
    """Return what a call gives in pieces and at once."""
    in_pieces = call()
    monkeypatch.setattr(transformer.attention, "LONG", 10**9)
    return in_pieces, call()


@pytest.mark.parametrize("kv_heads", [2, 1])
@pytest.mark.parametrize("masked", ["nothing", "padding", "causal", "everything"])
def test_pieces_give_the_same_answers_and_gradients(monkeypatch, masked, kv_heads):
    layer = MultiHeadAttention(replace(CONFIG, num_kv_heads=kv_heads), rope=True)
    x = torch.randn(2, T, 12, requires_grad=True)
    options = {}
    if masked in ("padding", "everything"):
        valid = torch.ones(2, T, dtype=torch.bool)
        valid[0, T // 2 :] = False
        valid[1, :5] = False
        options |= {"key_valid": valid, "query_valid": valid}
    if masked in ("causal", "everything"):
        options |= {"causal": True}
    if masked == "everything":
        mask = torch.rand(2, 2, T, T) > 0.4
        options |= {"attention_mask": mask | torch.eye(T, dtype=torch.bool)}
        options |= {"score_bias": torch.randn(1, 2, T, T)}

    def call():
        out = layer(x, **options)
        return [out, *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])]

    for ours, whole in zip(*both(monkeypatch, call), strict=True):
        torch.testing.assert_close(ours, whole)


def test_window_leaves_out_what_is_too_far_behind(monkeypatch):
    model = DecoderOnlyTransformer(replace(CONFIG, window=17, positions="rope")).eval()
    ids = torch.randint(3, 16, (2, T))
    torch.testing.assert_close(*both(monkeypatch, lambda: model(ids)))


def test_long_sequences_refuse_what_short_ones_refuse():
    layer, x = MultiHeadAttention(CONFIG, rope=False), torch.randn(2, T, 12)
    valid = torch.ones(2, T, dtype=torch.bool)
    valid[1, 0] = False
    with pytest.raises(ValueError, match="at least one key"):
        layer(x, key_valid=valid, causal=True)
    mask = torch.ones(1, 3, T, T, dtype=torch.bool)
    with pytest.raises(ValueError, match="mask must broadcast"):
        layer(x, attention_mask=mask)
