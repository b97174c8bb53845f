"""Checkpoints, conversion and metrics."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from transformer.checkpoint import load_checkpoint, save_checkpoint, verify_checkpoint
from transformer.config import FEED_FORWARDS, NORMS, PLACEMENTS, POSITIONS, ModelConfig
from transformer.convert import convert, old_name
from transformer.metrics import (
    exact_match,
    most_common_baseline,
    sequence_accuracy,
    token_accuracy,
)
from transformer.models import DecoderOnlyTransformer, Seq2SeqTransformer

CONFIG = ModelConfig(vocab_size=13, num_layers=2, d_ff=11)
COMBINATIONS = [
    {
        "positions": positions,
        "ffn": FEED_FORWARDS[index % 4],
        "norm": NORMS[index % 2],
        "placement": PLACEMENTS[index // 2 % 2],
        "num_kv_heads": (1, 2, 4)[index % 3],
        "bias": index % 2 == 0,
        "tied": (None, True, False)[index % 3],
        "pad_id": (0, None)[index % 2],
    }
    for index, positions in enumerate(POSITIONS * 2)
]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(53)


def ids(rows: int = 3, length: int = 7) -> torch.Tensor:
    return torch.randint(3, 13, (rows, length))


@pytest.mark.parametrize("parts", COMBINATIONS, ids=lambda parts: parts["positions"])
def test_checkpoint_reloads_to_an_identical_model(tmp_path, parts):
    config = replace(CONFIG, **parts)
    path = tmp_path / "model.safetensors"
    for model, inputs in (
        (Seq2SeqTransformer(config), (ids(), ids())),
        (DecoderOnlyTransformer(config), (ids(),)),
    ):
        save_checkpoint(model, path)
        verify_checkpoint(model, path, inputs)
        again = load_checkpoint(path)
        assert type(again) is type(model) and again.config == config and not again.training
        assert all(p.requires_grad for p in again.parameters())
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("seed", range(10))
def test_verification_of_a_single_token_finds_a_right_checkpoint_right(tmp_path, seed):
    torch.manual_seed(seed)
    path = tmp_path / "model.safetensors"
    for model in (Seq2SeqTransformer(ModelConfig()), DecoderOnlyTransformer(CONFIG)):
        save_checkpoint(model, path)
        token = torch.full((1, 1), 5)
        inputs = (token, token) if isinstance(model, Seq2SeqTransformer) else (token,)
        verify_checkpoint(model, path, inputs)


def test_loaded_model_does_not_change_with_its_file(tmp_path):
    path = tmp_path / "model.safetensors"
    model = DecoderOnlyTransformer(CONFIG)
    save_checkpoint(model, path)
    loaded, tokens = load_checkpoint(path), ids()
    before = loaded(tokens)
    whole = path.read_bytes()
    path.write_bytes(whole[:-4000] + bytes(4000))  # in place: the same file, other weights
    assert torch.equal(loaded(tokens), before)
    path.write_bytes(whole[:100])
    assert torch.equal(loaded(tokens), before)


def test_verification_notices_other_weights(tmp_path):
    model, path = DecoderOnlyTransformer(CONFIG), tmp_path / "model.safetensors"
    save_checkpoint(model, path)
    with torch.no_grad():
        model.token_embedding.weight[5, 7] += 0.5
    with pytest.raises(ValueError, match="does not answer like the saved model"):
        verify_checkpoint(model, path, (torch.full((2, 3), 5),))


def test_failed_save_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    save_checkpoint(DecoderOnlyTransformer(CONFIG), path)
    before = path.read_bytes()

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr("transformer.checkpoint.os.replace", full)
    with pytest.raises(OSError, match="no space left"):
        save_checkpoint(DecoderOnlyTransformer(CONFIG), path)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def test_loading_refuses_what_is_no_checkpoint(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        load_checkpoint(path)
    save_file({"x": torch.ones(2)}, path)
    with pytest.raises(ValueError, match="holds no model of this package"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "Expecting property name"),
        ("[1]", "must be a mapping"),
        ('{"alibi": true}', "alibi"),
        ('{"d_model": "32"}', "d_model must be an integer, got '32'"),
        ('{"d_model": 33}', "got 33 and 4"),
    ],
)
def test_loading_names_the_file_whose_configuration_it_does_not_know(tmp_path, config, message):
    path = tmp_path / "model.safetensors"
    save_file({"x": torch.ones(2)}, path, {"kind": "decoder-only", "config": config})
    with pytest.raises(ValueError, match=message) as refusal:
        load_checkpoint(path)
    assert str(refusal.value).startswith(f"{path} holds a configuration")


def test_a_folder_is_no_checkpoint_and_a_missing_one_holds_none(tmp_path):
    with pytest.raises(IsADirectoryError, match=f"{tmp_path} is a folder"):
        load_checkpoint(tmp_path)
    path = tmp_path / "missing" / "model.safetensors"
    with pytest.raises(OSError, match=f"{path} cannot be written"):
        save_checkpoint(DecoderOnlyTransformer(CONFIG), path)
    with pytest.raises(FileNotFoundError, match=str(path)):
        load_checkpoint(path)


def test_numbers_of_numpy_in_a_configuration_are_saved_as_plain_ones(tmp_path):
    config = replace(CONFIG, num_layers=np.int64(1), dropout=np.float32(0.5))
    path = tmp_path / "model.safetensors"
    save_checkpoint(DecoderOnlyTransformer(config), path)
    assert load_checkpoint(path).config == config


def test_loading_names_every_weight_that_does_not_fit(tmp_path):
    path = tmp_path / "model.safetensors"
    model = DecoderOnlyTransformer(CONFIG)
    save_checkpoint(model, path)
    with torch.no_grad():
        from safetensors import safe_open

        with safe_open(path, "pt") as file:
            metadata = file.metadata()
    weights = load_file(path)
    del weights["positions.weight"]
    weights["extra"] = torch.ones(2)
    weights["token_embedding.weight"] = torch.ones(13, 31)
    save_file(weights, path, metadata)
    with pytest.raises(ValueError) as refusal:
        load_checkpoint(path)
    for part in ("missing positions.weight", "unknown extra", "(13, 32), got (13, 31)"):
        assert part in str(refusal.value)


def old_checkpoint(config: ModelConfig) -> dict[str, torch.Tensor]:
    multi_head = DecoderOnlyTransformer(replace(config, num_kv_heads=config.num_heads))
    return {old_name(n): torch.randn_like(t) for n, t in multi_head.state_dict().items()}


@pytest.mark.parametrize("how", ["mean", "first", "random"])
def test_conversion_with_equal_head_counts_keeps_every_weight(how):
    old = old_checkpoint(CONFIG)
    new = convert(old, CONFIG, how).state_dict()
    assert {old_name(name) for name in new} == old.keys()
    assert all(torch.equal(tensor, old[old_name(name)]) for name, tensor in new.items())


@pytest.mark.parametrize("heads", [1, 2])
def test_conversion_merges_neighbouring_heads(heads):
    old, config = old_checkpoint(CONFIG), replace(CONFIG, num_kv_heads=heads)
    bias = old["blocks.1.self_attn.v_proj.bias"].view(heads, 4 // heads, 8)
    name = "stack.blocks.1.self_attention.v_proj.bias"
    mean = convert(old, config, "mean").state_dict()
    torch.testing.assert_close(mean[name], bias.mean(dim=1).flatten())
    assert torch.equal(convert(old, config, "first").state_dict()[name], bias[:, 0].flatten())
    torch.manual_seed(59)
    random = convert(old, config, "random").state_dict()
    assert random[name].shape == mean[name].shape
    assert not torch.allclose(random[name], mean[name])
    assert all(
        torch.equal(random[n], mean[n]) for n in mean if "k_proj" not in n and "v_proj" not in n
    )


def test_conversion_names_every_weight_that_does_not_fit():
    old = old_checkpoint(CONFIG)
    before = {name: tensor.clone() for name, tensor in old.items()}
    with pytest.raises(ValueError, match="mean, first, random, got 'last'"):
        convert(old, CONFIG, "last")
    old["blocks.0.ffn.middle.weight"] = old.pop("blocks.0.ffn.up.weight")
    with pytest.raises(
        ValueError, match="missing blocks.0.ffn.up.weight; unknown blocks.0.ffn.mid"
    ):
        convert(old, CONFIG)
    old["blocks.0.ffn.up.weight"] = old.pop("blocks.0.ffn.middle.weight").T
    with pytest.raises(ValueError, match=r"must have shape \(11, 32\), got \(32, 11\)"):
        convert(old, CONFIG)
    old["blocks.0.ffn.up.weight"] = old["blocks.0.ffn.up.weight"].T
    for unfit, found in ((3, "int"), (before["norm_f.bias"].long(), "torch.int64")):
        with pytest.raises(
            ValueError, match=f"norm_f.bias must be a tensor of floats, got {found}"
        ):
            convert({**old, "norm_f.bias": unfit}, CONFIG)
    assert all(torch.equal(old[name], tensor) for name, tensor in before.items())


def judged() -> tuple[torch.Tensor, torch.Tensor]:
    """Three rows: all right, one wrong, right but for padding."""
    targets = torch.tensor([[3, 4, 2], [5, 3, 2], [2, 0, 0]])
    predicted = torch.tensor([[3, 4, 2], [5, 4, 2], [2, 7, 7]])
    return torch.nn.functional.one_hot(predicted, 11).float(), targets


def test_accuracies_count_real_targets_only():
    assert token_accuracy(*judged()) == pytest.approx(6 / 7)
    assert sequence_accuracy(*judged()) == pytest.approx(2 / 3)
    baseline = most_common_baseline(judged()[1])
    assert baseline == (2, pytest.approx(3 / 7), pytest.approx(1 / 3))


def test_baseline_takes_its_token_from_the_training_targets():
    training = torch.tensor([[3, 3, 2, 0], [3, 2, 0, 0]])
    baseline = most_common_baseline(judged()[1], training_targets=training)
    assert baseline == (3, pytest.approx(2 / 7), 0.0)
    with pytest.raises(ValueError, match="every one of the 2 targets is padding"):
        most_common_baseline(judged()[1], training_targets=torch.zeros(2, dtype=torch.int64))


def test_exact_match_ends_at_eos_and_wants_it():
    generated = torch.tensor([[3, 4, 2, 9], [3, 4, 9, 2], [5, 2, 2, 2], [5, 6, 7, 8], [2, 2, 2, 2]])
    answers = [[3, 4], [3, 4], [5], [5, 6, 7, 8], []]
    assert exact_match(generated, answers) == pytest.approx(3 / 5)


def test_metrics_refuse_what_cannot_be_judged():
    logits, targets = judged()
    with pytest.raises(ValueError, match=r"got \(3, 3\) and \(3, 2\)"):
        token_accuracy(logits, targets[:, 1:])
    nothing = torch.zeros_like(targets)
    for metric in (token_accuracy, sequence_accuracy):
        with pytest.raises(ValueError, match="every one of the 9 targets is padding"):
            metric(logits, nothing)
    with pytest.raises(ValueError, match="every one of the 9 targets is padding"):
        most_common_baseline(nothing)
    with pytest.raises(ValueError, match="got 3 and 2"):
        exact_match(targets, [[3], [4]])
