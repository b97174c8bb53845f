"""Replay reference cases from safetensors files and measure how far the package is from them.

Run on a folder: python tests/vector_cases.py DIR prints one line per file, whatever the others
hold, and exits 1 when one disagrees by more than 1e-5 or cannot be replayed. The difference is
counted as a share of the largest expected value where that is above 1. (Post-norm stacks without
positions amplify rounding: the expected logits of such a file are themselves 4e-5 away from the
same computation in float64.)
"""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "solution"))

from transformer.attention import MultiHeadAttention
from transformer.cache import CacheSlot, DecodingCache
from transformer.config import ModelConfig
from transformer.convert import convert, old_name
from transformer.decoder import Decoder, DecoderBlock
from transformer.encoder import Encoder, EncoderBlock
from transformer.feedforward import FeedForward
from transformer.generation import generate_decoder_only, generate_seq2seq
from transformer.metrics import most_common_baseline, sequence_accuracy, token_accuracy
from transformer.models import (
    DecoderOnlyTransformer,
    Seq2SeqTransformer,
    count_params,
    kv_cache_elements,
)
from transformer.norms import LayerNorm, RMSNorm
from transformer.positions import relative_buckets
from transformer.rotary import apply_rope, rope_tables, rotate_pairs
from transformer.training import masked_cross_entropy

TOLERANCE = 1e-5

# Theirs -> ours, in this order.
RENAMED = (
    ("layers.", "blocks."),
    ("attention_norm.", "attention_branch.norm."),
    ("ffn_norm.", "feed_forward_branch.norm."),
    ("self_norm.", "self_branch.norm."),
    ("cross_norm.", "cross_branch.norm."),
)

# Theirs -> ours, among the arguments of attention.
ATTENTION_NAMES = {
    "key_padding_mask": "key_valid",
    "query_padding_mask": "query_valid",
    "query_position_offset": "query_offset",
    "key_position_offset": "key_offset",
}


@dataclass(frozen=True)
class Case:
    """One file: what to do, with which weights and inputs, and what must come out."""

    settings: dict[str, Any]
    weights: dict[str, Tensor]
    inputs: dict[str, Tensor]
    expected: dict[str, Tensor]

    @classmethod
    def load(cls, path: Path) -> "Case":
        """Read a case from its file.

        Raises:
            SafetensorError: The file is cut short, or no safetensors file.
            ValueError: Nothing in it says what to replay.
        """
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if "case" not in metadata:
            raise ValueError("its metadata hold no case: nothing says what to replay")
        settings = json.loads(metadata["case"])
        groups: dict[str, dict[str, Tensor]] = {"w": {}, "in": {}, "out": {}}
        for name, tensor in tensors.items():
            group, rest = name.split(".", 1)
            groups[group][rest] = tensor
        return cls(settings, groups["w"], groups["in"], groups["out"])


Outcome = dict[str, Tensor]
REPLAYS: dict[str, Callable[[Case], Outcome]] = {}


def replays(*operations: str) -> Callable[[Callable[[Case], Outcome]], Callable[[Case], Outcome]]:
    """Register a function as the replay of some operations."""

    def register(function: Callable[[Case], Outcome]) -> Callable[[Case], Outcome]:
        REPLAYS.update(dict.fromkeys(operations, function))
        return function

    return register


def largest_difference(path: Path) -> float:
    """Replay the case of a file and return the largest difference to what it expects.

    The difference is a share of the largest expected value where that is above 1.

    Raises:
        ValueError: An operation without replay, or outputs of other names or shapes.
    """
    case = Case.load(path)
    if case.settings["op"] not in REPLAYS:
        raise ValueError(f"no replay for operation {case.settings['op']!r}")
    with torch.no_grad():
        outcome = REPLAYS[case.settings["op"]](case)
    if outcome.keys() != case.expected.keys():
        raise ValueError(f"got {sorted(outcome)}, expected {sorted(case.expected)}")
    largest = 0.0
    for name, expected in case.expected.items():
        got = outcome[name]
        if got.shape != expected.shape:
            raise ValueError(
                f"{name} has shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
            )
        scale = max(1.0, expected.abs().max().item())
        difference = (got.double() - expected.double()).abs().max().item() / scale
        largest = max(largest, difference if math.isfinite(difference) else math.inf)
    return largest


def our_config(case: Case, **changes: Any) -> ModelConfig:
    """Build the configuration of a case in which 0 is padding."""
    settings = case.settings
    width = settings["d_model"]
    choices: dict[str, Any] = {
        "vocab_size": settings.get("vocab_size", 16),
        "d_model": width,
        "num_heads": settings.get("num_heads", 1),
        "num_layers": settings.get("num_layers", 1),
        "d_ff": settings.get("hidden_dim", width),
        "positions": "rope",
        "rope_cross": True,
        "pad_id": settings.get("padding_id", 0),
    }
    return ModelConfig(**{**choices, **changes})


def filled(module: nn.Module, weights: dict[str, Tensor]) -> Any:
    """Load weights under their names or ours, and switch to eval mode."""
    renamed = {}
    for name, tensor in weights.items():
        for theirs, ours in RENAMED:
            name = name.replace(theirs, ours)
        renamed[name] = tensor
    module.load_state_dict(renamed)
    return module.eval()


@replays("layer_norm", "rms_norm")
def replay_norm(case: Case) -> Outcome:
    """Normalise."""
    kind = LayerNorm if case.settings["op"] == "layer_norm" else RMSNorm
    norm = filled(kind(case.settings["width"], case.settings["eps"]), case.weights)
    return {"y": norm(case.inputs["x"])}


@replays("feed_forward")
def replay_feed_forward(case: Case) -> Outcome:
    """Transform position by position."""
    layer = FeedForward(our_config(case, ffn=case.settings["kind"]))
    return {"y": filled(layer, case.weights)(case.inputs["x"])}


@replays("apply_rope")
def replay_rope(case: Case) -> Outcome:
    """Rotate by positions."""
    x = case.inputs["x"]
    length, width = x.shape[-2:]
    cos, sin = rope_tables(length, width, case.settings["offset"], case.settings["base"])
    return {"cos": cos, "sin": sin, "rotated": rotate_pairs(x), "y": apply_rope(x, cos, sin)}


@replays("t5_bucket")
def replay_buckets(case: Case) -> Outcome:
    """Sort distances into buckets."""
    distance = case.inputs["distance"]
    return {
        f"bucket_{buckets}_{furthest}": relative_buckets(distance, buckets, furthest, False)
        for buckets, furthest in case.settings["settings"]
    }


def attention_of(case: Case) -> Any:
    """Build the attention layer of a case."""
    config = our_config(case)
    return filled(MultiHeadAttention(config, rope=case.settings["rope"]), case.weights)


@replays("attention")
def replay_attention(case: Case) -> Outcome:
    """Attend with whatever masks the case has."""
    tensors = {ATTENTION_NAMES.get(name, name): tensor for name, tensor in case.inputs.items()}
    kwargs = {
        ATTENTION_NAMES.get(name, name): value for name, value in case.settings["kwargs"].items()
    }
    return {"y": attention_of(case)(**tensors, **kwargs)}


@replays("attention_cached")
def replay_cached_attention(case: Case) -> Outcome:
    """Attend token by token through a cache."""
    attention, query, slot = attention_of(case), case.inputs["query"], CacheSlot()
    steps = [
        attention(query[:, t : t + 1], causal=True, query_offset=t, cache=slot)
        for t in range(query.shape[1])
    ]
    assert slot.held is not None
    return {"y": torch.cat(steps, dim=1), "key": slot.held.key, "value": slot.held.value}


@replays("encoder_block", "encoder")
def replay_encoder(case: Case) -> Outcome:
    """Encode."""
    kind = Encoder if case.settings["op"] == "encoder" else EncoderBlock
    encoder = filled(kind(our_config(case)), case.weights)
    return {"y": encoder(case.inputs["x"], case.inputs.get("valid"))}


@replays("decoder_block", "decoder")
def replay_decoder(case: Case) -> Outcome:
    """Decode with a given memory."""
    kind = Decoder if case.settings["op"] == "decoder" else DecoderBlock
    decoder = filled(kind(our_config(case)), case.weights)
    return {"y": decoder(**case.inputs)}


@replays("seq2seq")
def replay_seq2seq(case: Case) -> Outcome:
    """Run the encoder-decoder forward and let it generate, with and without a cache."""
    model = filled(Seq2SeqTransformer(our_config(case)), case.weights)
    source, settings = case.inputs["source"], case.settings
    options = {name: settings[name] for name in ("bos_id", "eos_id", "max_new_tokens")}
    generated = generate_seq2seq(model, source, **options)
    require_equal(generated, generate_seq2seq(model, source, **options, use_cache=False))
    return {"logits": model(source, case.inputs["target"]), "generated": generated}


@replays("decoder_only")
def replay_decoder_only(case: Case) -> Outcome:
    """Run the decoder-only model forward and let it generate, with and without a cache."""
    weights = {
        name if name.startswith("token_embedding") else f"stack.{name}": tensor
        for name, tensor in case.weights.items()
    }
    model = filled(DecoderOnlyTransformer(our_config(case)), weights)
    ids = case.inputs["ids"]
    options = {
        "max_new_tokens": case.settings["max_new_tokens"],
        "eos_id": case.settings.get("eos_id"),
    }
    generated = generate_decoder_only(model, ids, **options)
    require_equal(generated, generate_decoder_only(model, ids, **options, use_cache=False))
    return {
        "logits": model(ids),
        "padded_logits": model(case.inputs["padded"]),
        "generated": generated,
    }


def require_equal(cached: Tensor, uncached: Tensor) -> None:
    """Refuse a cache that changes what is generated."""
    if not torch.equal(cached, uncached):
        raise ValueError("cached and uncached generation differ")


@replays("metrics")
def replay_metrics(case: Case) -> Outcome:
    """Judge given logits."""
    logits, targets = case.inputs["logits"], case.inputs["targets"]
    pad_id = case.settings["pad_id"]
    # The source takes the most common token of the training targets. These files hold none, so
    # it is that of the targets themselves here, scored on whole rows.
    baseline = most_common_baseline(targets, pad_id).sequence_accuracy
    return {
        "loss": masked_cross_entropy(logits, targets, pad_id),
        "token_accuracy": torch.tensor(token_accuracy(logits, targets, pad_id)),
        "sequence_accuracy": torch.tensor(sequence_accuracy(logits, targets, pad_id)),
        "baseline": torch.tensor(baseline),
    }


def modern_config(case: Case) -> ModelConfig:
    """Build the configuration of a case in which every id is an ordinary token."""
    settings = case.settings
    same = ("d_model", "d_ff", "ffn", "norm", "bias", "max_len", "rope_base")
    return ModelConfig(
        vocab_size=settings["vocab"],
        num_heads=settings["n_heads"],
        num_kv_heads=settings["n_kv_heads"],
        num_layers=settings["n_layers"],
        placement=settings["norm_pos"],
        positions=settings["pos"],
        t5_buckets=settings["t5_buckets"],
        t5_max_distance=settings["t5_max_distance"],
        pad_id=None,
        **{name: settings[name] for name in same},
    )


def modern_name(name: str, config: ModelConfig) -> str:
    """Translate one of our names into that of the cases with every part swapped."""
    if name == "positions.weight" and config.positions == "t5bias":
        return "rel_bias.weight"
    return old_name(name).replace("self_attn", "attn").replace("n3.", "n2.")


@replays("modern_lm")
def replay_modern(case: Case) -> Outcome:
    """Run a decoder-only model forward, at once and through a cache, and count."""
    config, ids = modern_config(case), case.inputs["ids"]
    model = DecoderOnlyTransformer(config)
    names = {name: modern_name(name, config) for name in model.state_dict()}
    filled(model, {ours: case.weights[theirs] for ours, theirs in names.items()})
    cache = DecodingCache(config.num_layers)
    prefill = case.settings["prefill"]
    ends = [prefill, *range(prefill + 1, ids.shape[1] + 1)]
    pieces = [ids[:, start:end] for start, end in zip([0, *ends], ends, strict=False)]
    cached = torch.cat([model(piece, cache=cache) for piece in pieces], dim=1)
    counted = (count_params(model), kv_cache_elements(config, *ids.shape), cache.elements)
    elements = case.settings["kv_cache_elements"]
    if counted != (case.settings["params"], elements, elements):
        raise ValueError(f"counted {counted} parameters and cache elements, not {case.settings}")
    return {"logits": model(ids), "cached_logits": cached}


@replays("upcycle")
def replay_conversion(case: Case) -> Outcome:
    """Convert an older checkpoint and run the new model."""
    config = modern_config(case)
    model = convert(case.weights, config, case.settings["kv_init"]).eval()
    outcome = {
        f"new.{modern_name(name, config)}": tensor for name, tensor in model.state_dict().items()
    }
    return {**outcome, "logits": model(case.inputs["ids"])}


def main(folder: Path) -> int:
    """Print one line per file of a folder and tell whether all of them agree."""
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        print(f"no .safetensors files in {folder}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    agreeing = 0
    for path in paths:
        try:
            difference = largest_difference(path)
        except Exception as error:  # whatever a file holds, the next one gets its line
            reason = " ".join(str(error).split()) or type(error).__name__
            print(f"FAILS             {path.name}: {reason}")
            continue
        agrees = difference <= TOLERANCE
        agreeing += agrees
        print(f"{'agrees ' if agrees else 'DIFFERS'} {difference:8.1e}  {path.name}")
    print(f"{agreeing} of {len(paths)} files agree to {TOLERANCE:g}")
    return 0 if agreeing == len(paths) else 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tests/vector_cases.py DIR")
    sys.exit(main(Path(sys.argv[1])))
