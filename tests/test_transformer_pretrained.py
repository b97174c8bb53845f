"""Published checkpoint folders against the library that wrote them, with small random models."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from transformer.__main__ import main
from transformer.cache import DecodingCache
from transformer.generation import generate_decoder_only
from transformer.pretrained import halves_to_pairs, load_tokenizer, read_config
from transformer.pretrained import load_pretrained as load_model

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

V, PROMPT = 61, 7
WEIGHTS = "model.safetensors"
SIZES = {
    "vocab_size": V,
    "hidden_size": 24,
    "intermediate_size": 35,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rms_norm_eps": 1e-5}),
    "llama_tied_biased": (
        "Llama",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "head_dim": 6},
    ),
    "mistral_window": ("Mistral", {"sliding_window": 5, "head_dim": 8}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True, "rms_norm_eps": 1e-6}),
    "qwen2_window": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0},
    ),
    "qwen3": ("Qwen3", {"head_dim": 10}),
    "gpt2": (
        "GPT2",
        {
            "vocab_size": V,
            "n_embd": 24,
            "n_layer": 2,
            "n_head": 6,
            "n_positions": 64,
            "bos_token_id": 1,
            "eos_token_id": None,
            "pad_token_id": 0,
        },
    ),
}


@dataclass(frozen=True)
class Theirs:
    """A model of theirs and the folder it was saved to."""

    model: Any
    folder: Path


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Theirs]:
    models = {}
    for name, (kind, fields) in CASES.items():
        torch.manual_seed(67)
        config = getattr(transformers, f"{kind}Config")(
            **({} if kind == "GPT2" else SIZES) | fields, attn_implementation="eager"
        )
        model = getattr(
            transformers, f"{kind}LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
        )(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():  # norms and biases too, which start at 1 and 0
                parameter += torch.randn_like(parameter) * 0.2
        folder = tmp_path_factory.mktemp(name)
        model.save_pretrained(folder)
        models[name] = Theirs(model, folder)
    return models


@pytest.fixture(params=CASES)
def theirs(request: pytest.FixtureRequest, saved: dict[str, Theirs]) -> Theirs:
    return saved[request.param]


def copied(folder: Path, target: Path) -> Path:
    shutil.copytree(folder, target)
    return target


def rewritten(folder: Path, name: str = "config.json", **changes: Any) -> None:
    """Change fields of a JSON file; None as a value stays in it as null, ... removes the field."""
    content = json.loads((folder / name).read_text())
    content.update(changes)
    content = {key: value for key, value in content.items() if value is not ...}
    (folder / name).write_text(json.dumps(content))


def old_dialect(folder: Path) -> None:
    """Write config.json as transformers 4 did."""
    content = json.loads((folder / "config.json").read_text())
    if "rope_parameters" in content:
        theta = content["rope_parameters"]["rope_theta"]
        rewritten(folder, rope_theta=theta, rope_scaling=None, rope_parameters=...)
    rewritten(folder, torch_dtype="float32", dtype=..., layer_types=..., unsloth_fixed=True)


def padded(side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Three prompts of 7, 4 and 1 tokens, padded on a side: ids and which of them are real."""
    torch.manual_seed(71)
    ids, real = torch.zeros(3, PROMPT, dtype=torch.int64), torch.zeros(3, PROMPT, dtype=torch.bool)
    for row, length in enumerate((7, 4, 1)):
        columns = slice(PROMPT - length, None) if side == "left" else slice(0, length)
        ids[row, columns] = torch.randint(1, V, (length,))
        real[row, columns] = True
    return ids, real


def logits_of_theirs(model: Any, ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    positions = (real.cumsum(dim=1) - 1).clamp(min=0)
    with torch.no_grad():
        return model(ids, attention_mask=real.long(), position_ids=positions).logits


def continued_by_theirs(model: Any, ids: torch.Tensor, real: torch.Tensor, steps: int = 12):
    """Write greedily with their logits alone, row by row."""
    rows = []
    for row, mask in zip(ids, real, strict=True):
        tokens = row[mask][None]
        for _ in range(steps):
            logits = logits_of_theirs(model, tokens, torch.ones_like(tokens, dtype=torch.bool))
            tokens = torch.cat((tokens, logits[:, -1:].argmax(dim=-1)), dim=1)
        rows.append(tokens[0, -steps:])
    return torch.stack(rows)


@pytest.mark.parametrize("dialect", ["old", "new"])
def test_logits_equal_theirs(theirs, tmp_path, dialect):
    folder = copied(theirs.folder, tmp_path / "folder")
    if dialect == "old":
        old_dialect(folder)
    model, published = load_model(folder)
    assert published.context == 64 and not published.end_ids
    ids = torch.randint(V, (3, 19))
    everything = torch.ones_like(ids, dtype=torch.bool)
    with torch.no_grad():
        logits = model(ids)
        cache = DecodingCache(2)
        pieces = [model(piece, cache=cache) for piece in ids.split([8, 1, 10], dim=1)]
    expected = logits_of_theirs(theirs.model, ids, everything)
    scale = expected.abs().max().item()
    assert (logits - expected).abs().max().item() <= 1e-5 * scale
    assert (torch.cat(pieces, dim=1) - expected).abs().max().item() <= 1e-5 * scale


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_prompts_give_the_logits_of_theirs_at_real_positions(theirs, side):
    model, _ = load_model(theirs.folder)
    ids, real = padded(side)
    expected = logits_of_theirs(theirs.model, ids, real)[real]
    cache = DecodingCache(2)
    pieces = zip(ids.split([5, 1, 1], dim=1), real.split([5, 1, 1], dim=1), strict=True)
    with torch.no_grad():
        at_once = model(ids, real)[real]
        cached = torch.cat([model.decode(*piece, cache) for piece in pieces], dim=1)[real]
    for logits in (at_once, cached):
        assert (logits - expected).abs().max().item() <= 1e-5 * expected.abs().max().item()


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("side", ["left", "right"])
def test_twelve_greedy_tokens_equal_theirs(theirs, side, use_cache):
    model, _ = load_model(theirs.folder)
    ids, real = padded(side)
    written = generate_decoder_only(
        model, ids, max_new_tokens=12, eos_id=None, valid_prompt=real, use_cache=use_cache
    )
    assert torch.equal(written[:, PROMPT:], continued_by_theirs(theirs.model, ids, real))
    if side == "left":
        library = theirs.model.generate(
            ids, attention_mask=real.long(), max_new_tokens=12, do_sample=False
        )
        assert torch.equal(written, library)


def stored(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / WEIGHTS, backend="pread")


def rewrite_weights(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / WEIGHTS)


def same_logits(folder: Path, theirs: Theirs) -> bool:
    model, _ = load_model(folder)
    reference, _ = load_model(theirs.folder)
    ids = torch.randint(V, (2, 9))
    with torch.no_grad():
        return torch.equal(model(ids), reference(ids))


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_weights_may_lie_in_several_files(saved, tmp_path, name):
    folder = tmp_path / "sharded"
    saved[name].model.save_pretrained(folder, max_shard_size="20KB")
    assert not (folder / WEIGHTS).exists() and len(list(folder.glob("*.safetensors"))) > 2
    assert same_logits(folder, saved[name])


@pytest.mark.parametrize(
    "file", ["../other.safetensors", "/etc/a.safetensors", "a/b.safetensors", "..", "", "a\\b", 3]
)
def test_index_may_not_name_files_elsewhere(saved, tmp_path, file):
    folder = copied(saved["llama"].folder, tmp_path / "folder")
    (folder / WEIGHTS).rename(tmp_path / "other.safetensors")
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": {"a.weight": file}}))
    with pytest.raises(ValueError, match="names a file that is not in its folder"):
        load_model(folder)


def test_missing_and_unknown_weights_are_listed_by_their_names(saved, tmp_path):
    folder = copied(saved["qwen2"].folder, tmp_path / "folder")
    weights = stored(folder)
    del weights["model.layers.1.self_attn.k_proj.bias"]
    weights["model.layers.0.self_attn.o_proj.bias"] = torch.zeros(24)
    weights["model.layers.2.mlp.up_proj.weight"] = torch.zeros(35, 24)
    weights["model.norm.weight"] = torch.ones(23)
    weights["model.layers.0.self_attn.k_proj.weight"] = torch.ones(3, 24)
    rewrite_weights(folder, weights)
    with pytest.raises(ValueError, match="missing") as refusal:
        load_model(folder)
    for part in (
        "missing model.layers.1.self_attn.k_proj.bias",
        "unknown model.layers.0.self_attn.o_proj.bias",
        "unknown model.layers.2.mlp.up_proj.weight",
        "model.norm.weight must become stack.final_norm.weight of shape (24,), got (23,)",
        "model.layers.0.self_attn.k_proj.weight must become",
    ):
        assert part in str(refusal.value)


def test_published_gpt2_has_no_prefix_and_holds_masks(saved, tmp_path):
    folder = copied(saved["gpt2"].folder, tmp_path / "folder")
    weights = {name.removeprefix("transformer."): w for name, w in stored(folder).items()}
    for layer in range(2):
        weights[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 64, 64).tril()
        weights[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    rewrite_weights(folder, weights)
    assert same_logits(folder, saved["gpt2"])
    weights["h.0.attn.other_bias"] = torch.ones(1)
    rewrite_weights(folder, weights)
    with pytest.raises(ValueError, match="unknown h.0.attn.other_bias"):
        load_model(folder)


def test_old_llama_files_hold_rotary_buffers(saved, tmp_path):
    folder = copied(saved["llama"].folder, tmp_path / "folder")
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    rewrite_weights(folder, stored(folder) | buffer)
    assert same_logits(folder, saved["llama"])


def test_tied_head_may_be_stored_but_not_differ_and_an_untied_one_not_be_absent(saved, tmp_path):
    tied = copied(saved["qwen2"].folder, tmp_path / "tied")
    weights = stored(tied)
    assert "lm_head.weight" not in weights
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    rewrite_weights(tied, weights)
    assert same_logits(tied, saved["qwen2"])
    weights["lm_head.weight"][5, 7] += 1
    rewrite_weights(tied, weights)
    with pytest.raises(ValueError, match="lm_head.weight is the embedding table, which it is not"):
        load_model(tied)
    untied = copied(saved["llama"].folder, tmp_path / "untied")
    weights = stored(untied)
    del weights["lm_head.weight"]
    rewrite_weights(untied, weights)
    with pytest.raises(ValueError, match="missing lm_head.weight"):
        load_model(untied)


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3"])
def test_weights_of_16_bits_stay_so_or_are_widened(saved, tmp_path, name):
    folder = tmp_path / "half"
    shutil.copytree(saved[name].folder, folder)
    rewrite_weights(folder, {key: w.bfloat16() for key, w in stored(folder).items()})
    model, _ = load_model(folder)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    wide, _ = load_model(folder, torch.float32)
    assert torch.get_default_dtype() == torch.float32
    theirs = type(saved[name].model).from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.randint(V, (2, 9))
    everything = torch.ones_like(ids, dtype=torch.bool)
    expected = logits_of_theirs(theirs, ids, everything)
    with torch.no_grad():
        torch.testing.assert_close(wide(ids), expected, rtol=1e-5, atol=1e-5)
        rough = model(ids)
    assert rough.dtype == torch.bfloat16
    assert (rough.float() - expected).abs().max() <= 0.05 * expected.abs().max()


def test_loaded_model_does_not_change_with_its_file(saved, tmp_path):
    folder = copied(saved["llama"].folder, tmp_path / "folder")
    model, _ = load_model(folder)
    ids = torch.randint(V, (2, 9))
    before = model(ids)
    size = (folder / WEIGHTS).stat().st_size
    with (folder / WEIGHTS).open("r+b") as file:
        file.seek(size // 2)
        file.write(bytes(size // 2))
    assert torch.equal(model(ids), before)


def test_null_and_absent_fields_mean_what_the_library_means(saved, tmp_path):
    folder = copied(saved["llama"].folder, tmp_path / "folder")
    rewritten(folder, head_dim=None, num_key_value_heads=None, rope_parameters=..., rope_theta=...)
    config = read_config(folder).config
    assert (config.d_head, config.kv_heads, config.rope_base) == (4, 6, 10000.0)
    folder = copied(saved["gpt2"].folder, tmp_path / "gpt2")
    rewritten(folder, n_inner=None, tie_word_embeddings=...)
    config = read_config(folder).config
    assert (config.d_ff, config.tied) == (96, True)
    folder = copied(saved["qwen2"].folder, tmp_path / "qwen2")
    rewritten(folder, sliding_window=4096, use_sliding_window=False, layer_types=...)
    assert read_config(folder).config.window is None


@pytest.mark.parametrize("name", ["qwen2", "mistral"])
def test_fields_that_the_library_does_not_read_are_ignored(saved, tmp_path, name):
    folder = copied(saved[name].folder, tmp_path / "folder")
    ignored = {"attention_bias": True, "partial_rotary_factor": None, "use_mrope": False}
    rewritten(folder, _name_or_path="elsewhere", **ignored)
    assert same_logits(folder, saved[name])


def test_end_ids_come_from_both_configurations(saved, tmp_path):
    folder = copied(saved["llama"].folder, tmp_path / "folder")
    rewritten(folder, eos_token_id=2)
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 7, 9]}')
    assert read_config(folder).end_ids == {2, 7, 9}
    rewritten(folder, "generation_config.json", eos_token_id="</s>")
    with pytest.raises(ValueError, match="eos_token_id .* must be an id or a list of ids"):
        read_config(folder)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("llama", {"model_type": "mamba"}, "'mamba'; known are gpt2, llama, mistral, qwen2, qwen3"),
        ("llama", {"model_type": ...}, "architecture None"),
        ("llama", {"hidden_size": ...}, "lacks 'hidden_size'"),
        ("llama", {"hidden_size": "24"}, "cannot be used"),
        ("llama", {"num_attention_heads": 0}, "cannot be used"),
        ("llama", {"vocab_size": 10**15}, "no model has the sizes in config.json"),
        ("llama", {"rope_parameters": "yarn"}, "rope_parameters must be an object, got 'yarn'"),
        ("qwen3", {"attention_bias": True}, "must agree, got True and False"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act must be 'silu', got 'gelu'"),
        ("llama", {"attention_bias": True}, "must agree, got True and False"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantised weights"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "llama3"}},
            "rope scaling of the kind 'llama3'",
        ),
        ("llama", {"rope_parameters": ..., "rope_scaling": {"type": "yarn"}}, "kind 'yarn'"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is not supported"),
        (
            "qwen2",
            {
                "use_sliding_window": True,
                "sliding_window": 4,
                "layer_types": ["full_attention", "sliding_attention"],
            },
            "some of the layers only",
        ),
        (
            "qwen2",
            {
                "use_sliding_window": True,
                "sliding_window": 4,
                "layer_types": ...,
                "max_window_layers": 1,
            },
            "some of the layers only",
        ),
        ("gpt2", {"activation_function": "quick_gelu"}, "got 'quick_gelu'"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "must be False, got True"),
        ("gpt2", {"scale_attn_weights": False}, "must be True, got False"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(saved, tmp_path, name, changes, message):
    folder = copied(saved[name].folder, tmp_path / "folder")
    rewritten(folder, **changes)
    with pytest.raises(ValueError, match=message):
        load_model(folder)


def test_damaged_and_missing_files_are_named(saved, tmp_path):
    folder = copied(saved["llama"].folder, tmp_path / "folder")
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-100])
    with pytest.raises(ValueError, match=f"{WEIGHTS} cannot be read"):
        load_model(folder)
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match="neither model.safetensors nor"):
        load_model(folder)
    (folder / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match="must hold an object, got list"):
        load_model(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        load_model(folder)


def test_reordering_for_another_number_of_heads_would_be_seen():
    weight = torch.arange(8.0)
    assert halves_to_pairs(weight, 1).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert halves_to_pairs(weight, 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


# Text ---------------------------------------------------------------------------------------------


@pytest.fixture
def folder_with_text(saved, tmp_path) -> Path:
    """Qwen2 of 61 ids with a tokenizer of fewer, which pads and cuts unless told not to."""
    tokenizers = pytest.importorskip("tokenizers")
    folder = copied(saved["qwen2"].folder, tmp_path / "text")
    vocabulary = {"<unk>": 0, "<s>": 1, "<end>": 2}
    for index, letter in enumerate("abcdefghijklmnopqrstuvwxyz .", start=3):
        vocabulary[letter] = index
    for byte in (0xC3, 0xA4):  # an umlaut takes two of these
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "<end>"])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=12)
    tokenizer.save(str(folder / "tokenizer.json"))
    rewritten(folder, eos_token_id=2)
    return folder


def test_prompt_is_continued_as_the_library_would(folder_with_text, saved, capsys):
    words = ["load", str(folder_with_text), "--prompt", "what is a lab", "--max-new-tokens", "9"]
    assert main([*words, "--threads", "1"]) == 0
    shown = capsys.readouterr()
    tokenizer = load_tokenizer(folder_with_text)
    ids = tokenizer.encode("what is a lab").ids
    assert ids[0] == 1 and len(ids) == 14
    known, tokens = tokenizer.get_vocab_size(), torch.tensor([ids])
    for _ in range(9):
        logits = logits_of_theirs(saved["qwen2"].model, tokens, torch.ones_like(tokens).bool())
        token = logits[:, -1:, :known].argmax(dim=-1)
        if int(token) == 2:
            break
        tokens = torch.cat((tokens, token), dim=1)
    written = tokenizer.decode(tokens[0, len(ids) :].tolist())
    assert shown.out == f"what is a lab{written}\n"
    assert "qwen2, " in shown.err and "a second" in shown.err


def test_drawn_text_depends_on_the_seed_alone(folder_with_text, capsys):
    words = ["load", str(folder_with_text), "--prompt", "a", "--temperature", "3", "--threads", "1"]
    texts = []
    for seed in ("1", "1", "2"):
        assert main([*words, "--top-p", "0.9", "--seed", seed, "--max-new-tokens", "30"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_special_token_in_the_prompt_counts_as_one(folder_with_text):
    assert load_tokenizer(folder_with_text).encode("a<end>b").ids == [1, 3, 2, 4]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prompt", "a" * 70], "--prompt has 71 tokens, the model was made for 64 in all"),
        (["--prompt", "a", "--top-p", "0.5"], "temperature must be positive"),
        (["--prompt", "a", "--temperature", "1", "--top-p", "2"], "top_p must be in"),
        (["--prompt", "a", "--max-new-tokens", "-1"], "--max-new-tokens must be at least 0"),
        (["--threads", "0"], "--threads must be at least 1"),
    ],
)
def test_options_that_do_not_fit_the_model_are_one_line_and_exit_2(
    folder_with_text, capsys, words, message
):
    assert main(["load", str(folder_with_text), *words]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_folder_without_tokenizer_says_what_it_holds_instead(saved, tmp_path, capsys):
    folder = copied(saved["llama"].folder, tmp_path / "folder")
    (folder / "tokenizer.model").touch()
    assert main(["load", str(folder), "--prompt", "a"]) == 2
    assert "no tokenizer.json; tokenizer.model, which it holds, is not read" in (
        capsys.readouterr().err
    )
    (folder / "tokenizer.json").write_text("{}")
    assert main(["load", str(folder), "--prompt", "a"]) == 2
    assert "tokenizer.json cannot be read" in capsys.readouterr().err
    assert main(["load", str(folder)]) == 0
    assert "llama, " in capsys.readouterr().err


def test_stopped_writing_is_one_line_and_130(folder_with_text, capsys, monkeypatch):
    def stopped(*_, **__):
        yield 3
        raise KeyboardInterrupt

    monkeypatch.setattr("transformer.__main__.write_on", stopped)
    assert main(["load", str(folder_with_text), "--prompt", "b"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "stopped"


def test_no_weight_is_drawn_only_to_be_replaced(saved):
    state = torch.get_rng_state()
    load_model(saved["qwen2"].folder)
    assert torch.equal(torch.get_rng_state(), state)
