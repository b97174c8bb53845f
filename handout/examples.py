"""Call one of your functions on a small example: `make run TASK=2.1`, or start this file.

Everything happens in this one process, so `print`, `breakpoint()` and your editor's debugger work
as in any program. Nothing is judged here, and you may change the examples as you like.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
LARGEST = 96  # numbers of a tensor that are shown in full
EXAMPLES: dict[str, Callable[[], None]] = {}


def example(task: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register the example of a task."""

    def register(function: Callable[[], None]) -> Callable[[], None]:
        EXAMPLES[task] = function
        return function

    return register


def show(name: str, value: Any) -> None:
    """Print a value under its name, a tensor with its shape."""
    if isinstance(value, Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        print(f"{name}: shape {tuple(value.shape)}, {kind}")
        if value.numel() <= LARGEST:
            print("   ", str(value.detach()).replace("\n", "\n    "))
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for field in value._fields:
            show(f"{name}.{field}", getattr(value, field))
    elif isinstance(value, Tensor | int | float | list | nn.Module) or not callable(value):
        print(f"{name}: {value}")
    else:
        print(f"{name}: {getattr(value, '__name__', value)}")


def call(name: str, function: Callable[..., Any], *args: Any, **given: Any) -> Any:
    """Show the arguments, call the function, show and return what comes back."""
    for label, value in [*((f"argument {i}", a) for i, a in enumerate(args, 1)), *given.items()]:
        show(f"  {label}", value)
    result = function(*args, **given)
    show(f"-> {name}", result)
    print()
    return result


def small(**changes: Any) -> Any:
    """Return a small configuration: D = 8, H = 2, so K = 4."""
    from transformer.config import ModelConfig

    plain: Mapping[str, Any] = {
        "vocab_size": 8, "d_model": 8, "num_heads": 2, "num_layers": 1, "d_ff": 16, "dropout": 0.0,
    }  # fmt: skip
    return ModelConfig(**{**plain, **changes})


# Two rows of three tokens; the last token of the second row is padding.
VALID = torch.tensor([[True, True, True], [True, True, False]])


def tokens(length: int = 3) -> Tensor:
    """Return (2, length, 8) numbers."""
    return torch.randn(2, length, 8)


@example("1.1")
def _padding_mask() -> None:
    from transformer.masks import padding_mask

    call("padding_mask", padding_mask, torch.tensor([[5, 6, 7], [5, 6, 0]]), pad_id=0)


@example("1.2")
def _causal_mask() -> None:
    from transformer.masks import causal_mask

    call("causal_mask", causal_mask, num_queries=3, num_keys=3)
    call("causal_mask", causal_mask, num_queries=1, num_keys=4, offset=3)


@example("1.3")
def _combine_masks() -> None:
    from transformer.masks import combine_masks

    causal = torch.tensor([[True, False, False], [True, True, False], [True, True, True]])
    call("combine_masks", combine_masks, key_valid=VALID, causal=causal)


@example("2.1")
def _attention() -> None:
    from transformer.attention import scaled_dot_product_attention

    # B = 1, H = 1, T = 2, S = 3, K = 2; on paper: the first query fits the first key best.
    query = torch.tensor([[[[2.0, 0.0], [0.0, 2.0]]]])
    key = torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]]])
    value = torch.tensor([[[[10.0, 0.0], [0.0, 10.0], [5.0, 5.0]]]])
    mask = torch.tensor([[[[True, True, True], [True, True, False]]]])
    call("attended", scaled_dot_product_attention, query, key, value, mask=mask)


@example("2.2")
def _heads() -> None:
    from transformer.attention import merge_heads, split_heads

    x = torch.arange(12.0).view(1, 2, 6)
    pieces = call("split_heads", split_heads, x, num_heads=2)
    call("merge_heads", merge_heads, pieces)


@example("2.3")
def _multi_head() -> None:
    from transformer.attention import MultiHeadAttention

    layer = MultiHeadAttention(small(), rope=False)
    call("forward", layer, tokens(), key_valid=VALID, query_valid=VALID, causal=True)


@example("3.1")
def _residual() -> None:
    from transformer.residual import ResidualBranch

    for placement in ("pre", "post"):
        print(f"placement {placement}, a sublayer that answers 0 everywhere:")
        call("forward", ResidualBranch(small(placement=placement)), tokens(2), torch.zeros_like)


@example("4.1")
def _encoder_block() -> None:
    from transformer.encoder import EncoderBlock

    call("forward", EncoderBlock(small()), tokens(), VALID)


@example("4.2")
def _encoder() -> None:
    from transformer.encoder import Encoder

    call("forward", Encoder(small(num_layers=2)), tokens(), VALID)


@example("5.1")
def _decoder_block() -> None:
    from transformer.decoder import DecoderBlock

    call("forward", DecoderBlock(small()), tokens(2), tokens(3), memory_valid=VALID)


@example("5.2")
def _decoder() -> None:
    from transformer.decoder import Decoder

    call("forward", Decoder(small(num_layers=2)), tokens(2), tokens(3), memory_valid=VALID)


@example("5.3")
def _causal_block() -> None:
    from transformer.decoder import CausalBlock

    call("forward", CausalBlock(small()), tokens(), valid=VALID)


@example("6.1")
def _teacher_forcing() -> None:
    from transformer.training import teacher_forcing

    call("forced", teacher_forcing, [[5, 6, 7], [4]])


@example("6.2")
def _loss() -> None:
    from transformer.training import masked_cross_entropy

    print("With equal logits, every token has the loss ln 4 = 1.386, padding none:")
    call("loss", masked_cross_entropy, torch.zeros(1, 3, 4), torch.tensor([[3, 2, 0]]))


@example("6.3")
def _optimizer() -> None:
    from transformer.config import LAB_RECIPE
    from transformer.training import make_optimizer

    call("optimizer", make_optimizer, nn.Linear(3, 2), LAB_RECIPE)


@example("6.4")
def _train() -> None:
    from dataclasses import replace

    from transformer.config import LAB, LAB_RECIPE
    from transformer.data import sequence_batches
    from transformer.models import Seq2SeqTransformer
    from transformer.training import train

    recipe = replace(LAB_RECIPE, steps=20)
    batches = sequence_batches("reverse", steps=20, batch_size=32, seed=0)
    losses = train(Seq2SeqTransformer(LAB), batches, recipe)
    print("losses of 20 steps (a guess among 16 tokens costs ln 16 = 2.77):")
    print("   ", " ".join(f"{loss:.2f}" for loss in losses))


@example("S1")
def _cache() -> None:
    from transformer.kv_cache import KVCache

    seen = KVCache(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), torch.ones(1, 3).bool())
    new = torch.ones(1, 2, 1, 4)
    grown = seen.append(new, new, torch.ones(1, 1).bool())
    show("-> key", grown.key)
    show("-> valid", grown.valid)


@example("S2")
def _grouped() -> None:
    from transformer.attention import repeat_kv_heads

    call("repeat_kv_heads", repeat_kv_heads, torch.arange(8.0).view(1, 2, 2, 2), num_heads=4)


@example("S3")
def _rotary() -> None:
    from transformer.rotary import apply_rope, rope_tables, rotate_pairs

    call("rotate_pairs", rotate_pairs, torch.arange(1.0, 5.0))
    cos, sin = rope_tables(3, 4)
    call("apply_rope", apply_rope, torch.ones(1, 1, 3, 4), cos, sin)


@example("S4")
def _convert() -> None:
    from transformer.convert import convert, old_name
    from transformer.models import DecoderOnlyTransformer

    old = DecoderOnlyTransformer(small()).state_dict()
    model = convert({old_name(k): w for k, w in old.items()}, small(num_kv_heads=1))
    show("-> k_proj before", old["stack.blocks.0.self_attention.k_proj.weight"])
    show("-> k_proj after", model.state_dict()["stack.blocks.0.self_attention.k_proj.weight"])


def main(arguments: list[str] | None = None) -> int:
    """Run the example of one task; what your code raises comes with its whole traceback."""
    parser = argparse.ArgumentParser(prog="examples.py", description=__doc__.split("\n")[0])
    known = ", ".join(EXAMPLES)
    parser.add_argument("task", nargs="?", default="", help=known)
    parser.add_argument("--tree", type=Path, default=HERE / "starter", help="folder (starter)")
    options = parser.parse_args(arguments)
    if options.task not in EXAMPLES:
        asked = f"there is no example for task {options.task}" if options.task else "which task?"
        print(f"{asked}; say one of {known}, as in: make run TASK=2.1", file=sys.stderr)
        return 2
    if not (options.tree / "transformer").is_dir():
        print(f"expected the folder transformer/ in {options.tree}", file=sys.stderr)
        return 2
    sys.path.insert(0, str(options.tree.resolve()))
    torch.manual_seed(0)
    torch.set_printoptions(precision=3, sci_mode=False, linewidth=100)
    try:
        EXAMPLES[options.task]()
    except NotImplementedError as missing:
        print(f"not written yet: {missing}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
