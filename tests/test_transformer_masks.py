"""Masks: True = may attend, everywhere."""

import pytest
import torch

from transformer.masks import causal_mask, combine_masks, padding_mask, zero_padding

B, H, T, S = 2, 3, 5, 7


def random_mask(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(11)) > 0.4


def test_padding_mask_marks_every_id_but_the_padding():
    ids = torch.tensor([[3, 0, 5], [4, 9, 9]])
    assert padding_mask(ids, 9).tolist() == [[True, True, True], [True, False, False]]
    assert padding_mask(ids, None).tolist() == [[True] * 3] * 2


def test_padding_mask_refuses_ids_that_are_no_batch():
    with pytest.raises(ValueError, match=r"\(B, S\), got \(3,\)"):
        padding_mask(torch.tensor([3, 4, 5]), 0)


@pytest.mark.parametrize("offset", [-2, 0, 3])
def test_causal_mask_hides_the_keys_that_come_later(offset):
    expected = [[s <= t + offset for s in range(S)] for t in range(T)]
    assert causal_mask(T, S, offset).tolist() == expected


@pytest.mark.parametrize("sizes", [(0, S), (T, 0)])
def test_causal_mask_refuses_an_empty_side(sizes):
    with pytest.raises(ValueError, match=f"at least 1, got {sizes[0]} and {sizes[1]}"):
        causal_mask(*sizes)


@pytest.mark.parametrize("shape", [(T, S), (B, T, S), (B, H, T, S), (1, H, T, S)])
def test_combined_mask_allows_what_every_mask_allows(shape):
    mask, valid, causal = random_mask(*shape), random_mask(B, S), causal_mask(T, S, 2)
    while mask.dim() < 4:
        mask = mask.unsqueeze(-3)
    expected = mask.logical_and(valid[:, None, None]).logical_and(causal)
    got = combine_masks(random_mask(*shape), valid, causal)
    assert got is not None
    assert got.dtype == torch.bool
    torch.testing.assert_close(got, expected)


def test_each_mask_alone_gets_four_dimensions_and_none_gives_none():
    assert combine_masks() is None
    for given, shape in (
        ({"attention_mask": random_mask(T, S)}, (1, 1, T, S)),
        ({"attention_mask": random_mask(B, T, S)}, (B, 1, T, S)),
        ({"key_valid": random_mask(B, S)}, (B, 1, 1, S)),
        ({"causal": random_mask(T, S)}, (1, 1, T, S)),
    ):
        combined = combine_masks(**given)
        assert combined is not None and combined.shape == shape


@pytest.mark.parametrize("name", ["attention_mask", "key_valid", "causal"])
def test_combining_refuses_masks_that_are_not_bool_or_not_shaped_like_masks(name):
    with pytest.raises(TypeError, match=f"{name} must be bool .* got torch.float32"):
        combine_masks(**{name: torch.ones(T, S)})
    with pytest.raises(ValueError, match=f"{name} must have .* got shape \\(5,\\)"):
        combine_masks(**{name: random_mask(T)})


def test_zero_padding_clears_even_what_is_not_a_number():
    x = torch.arange(12.0).view(2, 2, 3)
    x[1, 1] = float("nan")
    valid = torch.tensor([[True, True], [True, False]])
    expected = torch.arange(12.0).view(2, 2, 3)
    expected[1, 1] = 0.0
    torch.testing.assert_close(zero_padding(x, valid), expected, rtol=0, atol=0)
    assert zero_padding(x, None) is x
