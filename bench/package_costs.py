"""What published models and long sequences cost the package, beside transformers and torch.

    python bench/package_costs.py --threads 1

Four ratios of one run on one machine, every figure the median of interleaved rounds:

    loading      building the model of a folder / reading its file (both warm)
    memory       anonymous memory that this takes / weights in the file's type
    token        a token of ours / of transformers, batch 1, with the cache, float32
    step         a training step at T 1,024 / nn.Transformer's

Times are processor seconds of all threads: on one thread those of the clock on an idle machine, and
much steadier than the clock on a busy one.

The folder holds random weights of Qwen2-0.5B's shape in bfloat16 (988 MB); it is made first,
where --folder has none. Only loading and memory use its type: the file is read as it is stored.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "solution")]
os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: E402

from transformer.config import ModelConfig  # noqa: E402
from transformer.data import PAD, sequence_batches  # noqa: E402
from transformer.generation import write_on  # noqa: E402
from transformer.models import Seq2SeqTransformer  # noqa: E402
from transformer.pretrained import load_pretrained  # noqa: E402
from transformer.training import masked_cross_entropy, teacher_forcing  # noqa: E402

QWEN2_HALF_BILLION: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
PROMPT_TOKENS, NEW_TOKENS = 16, 12
LENGTH, ROWS, WIDTH, HEADS = 1024, 4, 32, 4


def make_folder(folder: Path) -> None:
    """Write random weights of Qwen2-0.5B's shape in bfloat16, as transformers saves them."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    model = Qwen2ForCausalLM(Qwen2Config(**QWEN2_HALF_BILLION))
    torch.set_default_dtype(before)
    model.save_pretrained(folder)


def in_turns(rounds: int, **actions: Callable[[], float]) -> dict[str, list[float]]:
    """Take every action once per round, and return what each returned."""
    taken: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            taken[name].append(action())
    return taken


def timed(action: Callable[[], object]) -> Callable[[], float]:
    """Turn an action into one that returns its processor seconds."""

    def run() -> float:
        start = time.process_time()
        result = action()
        seconds = time.process_time() - start
        del result
        return seconds

    return run


def tell(name: str, ours: list[float], theirs: list[float], required: float) -> None:
    """Print the medians, and the median and range of the ratio of each round."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    medians = f"{statistics.median(ours):.3f} / {statistics.median(theirs):.3f}"
    print(
        f"{name:<9}{medians:<18}{statistics.median(ratios):.2f} x "
        f"({min(ratios):.2f} to {max(ratios):.2f}), required {required} x",
        flush=True,
    )


def loading(folder: Path, rounds: int) -> None:
    """Compare loading with reading the file."""
    file = folder / "model.safetensors"
    load, read = timed(lambda: load_pretrained(folder)), timed(file.read_bytes)
    load(), read()
    taken = in_turns(rounds, load=load, read=read)
    tell("loading", taken["load"], taken["read"], 1.5)


def anonymous_bytes() -> int:
    """Return the anonymous memory of this process (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def memory_of_one_load(folder: Path) -> None:
    """Print the bytes that loading takes at its peak and afterwards; for a process of its own."""
    peak, done = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, anonymous_bytes())
            time.sleep(0.002)

    before = anonymous_bytes()
    watcher = threading.Thread(target=watch)
    watcher.start()
    model, _ = load_pretrained(folder)
    after = anonymous_bytes()
    done.set()
    watcher.join()
    del model
    print(max(peak, after) - before, after - before)


def memory(folder: Path) -> None:
    """Compare the anonymous memory of loading with the size of the weights."""
    words = [sys.executable, __file__, "--folder", str(folder), "--one-load"]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    peak, after = map(int, shown.split())
    size = (folder / "model.safetensors").stat().st_size
    print(
        f"memory   {after / 1e6:.0f} MB kept, {peak / 1e6:.0f} MB at most, weights "
        f"{size / 1e6:.0f} MB: {after / size:.2f} x and {peak / size:.2f} x, required 1.1 x",
        flush=True,
    )


def tokens(folder: Path, rounds: int) -> None:
    """Compare the time of a token, prefill included, with that of transformers."""
    from transformers import Qwen2ForCausalLM

    theirs: Any = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    theirs.eval()
    ours, _ = load_pretrained(folder, torch.float32)
    prompt = torch.randint(3, 1000, (1, PROMPT_TOKENS))
    mask = torch.ones_like(prompt)

    def write() -> list[int]:
        return list(write_on(ours, prompt, max_new_tokens=NEW_TOKENS))

    def library() -> list[int]:
        written = theirs.generate(
            prompt, attention_mask=mask, do_sample=False, max_new_tokens=NEW_TOKENS
        )
        return list(written[0, PROMPT_TOKENS:].tolist())

    assert write() == library(), "the two models write different tokens"
    taken = in_turns(rounds, ours=timed(write), theirs=timed(library))
    per_token = {name: [s / NEW_TOKENS for s in seconds] for name, seconds in taken.items()}
    tell("token", per_token["ours"], per_token["theirs"], 1.5)


class Peer(torch.nn.Module):
    """nn.Transformer between embeddings and projection like those of our model."""

    def __init__(self, ours: Seq2SeqTransformer) -> None:
        super().__init__()
        encoder = torch.nn.TransformerEncoder(
            torch.nn.TransformerEncoderLayer(
                WIDTH, HEADS, 2 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
            ),
            ours.config.num_layers,
            torch.nn.LayerNorm(WIDTH),
            enable_nested_tensor=False,
        )
        self.core = torch.nn.Transformer(
            WIDTH, HEADS, num_decoder_layers=ours.config.num_layers, dim_feedforward=2 * WIDTH,
            dropout=0.0, activation="gelu", custom_encoder=encoder, batch_first=True,
            norm_first=True,
        )  # fmt: skip
        self.ends = Seq2SeqTransformer(ours.config)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Map source (B, S) and target (B, T) ids to logits (B, T, V)."""
        ends, length = self.ends, target.shape[1]
        x: torch.Tensor = self.core(
            ends.source_positions(ends.source_embedding(source)),
            ends.target_positions(ends.target_embedding(target)),
            tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(1),
            src_key_padding_mask=source == PAD,
            tgt_key_padding_mask=target == PAD,
            memory_key_padding_mask=source == PAD,
            tgt_is_causal=True,
        )
        assert ends.output_projection is not None
        return torch.nn.functional.linear(x, ends.output_projection.weight)


def step(rounds: int) -> None:
    """Compare a training step's forward and backward pass at T 1,024 with nn.Transformer's."""
    torch.manual_seed(0)
    ours = Seq2SeqTransformer(
        ModelConfig(d_model=WIDTH, num_heads=HEADS, d_ff=2 * WIDTH, max_len=LENGTH)
    ).train()
    peer = Peer(ours).train()
    (batch,) = sequence_batches(
        "reverse", steps=1, batch_size=ROWS, seed=0, min_length=LENGTH // 2, max_length=LENGTH - 1
    )
    inputs, targets = teacher_forcing(batch.answers)

    def step_of(model: torch.nn.Module) -> None:
        model.zero_grad()
        loss = masked_cross_entropy(model(*batch.context, inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]

    actions = {"ours": timed(lambda: step_of(ours)), "theirs": timed(lambda: step_of(peer))}
    in_turns(1, **actions)
    taken = in_turns(rounds, **actions)
    tell("step", taken["ours"], taken["theirs"], 1.3)


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("reports/qwen2_half_billion"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--one-load", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.one_load:
        memory_of_one_load(options.folder)
        return
    if not (options.folder / "model.safetensors").exists():
        make_folder(options.folder)
    step(options.rounds)
    loading(options.folder, options.rounds)
    memory(options.folder)
    tokens(options.folder, options.rounds)


if __name__ == "__main__":
    main()
