"""Published checkpoint folders against the library that wrote them, with small random models."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from transformer.cache import DecodingCache
from transformer.generation import generate_decoder_only
from transformer.pretrained import load_model

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

V, PROMPT = 61, 7
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
