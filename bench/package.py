"""The package beside torch's own transformer, and generation with and without its cache."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from bench.timing import interleave, seconds
from transformer.config import LAB, LARGER
from transformer.data import FIRST_DATA_ID, PAD, sequence_batches
from transformer.generation import generate_decoder_only, generate_seq2seq
from transformer.models import DecoderOnlyTransformer, Seq2SeqTransformer
from transformer.training import masked_cross_entropy, teacher_forcing

torch.set_num_threads(1)
warnings.filterwarnings("ignore", "enable_nested_tensor is True")  # and of no use to norm_first

STEP_ROUNDS = 9
SHORTEST_S = 0.1  # of a round: shorter ones measure the clock
TOKENS, ROWS = 256, 8
GENERATION_ROUNDS = 5


class Peer(nn.Module):
    """`nn.Transformer` between the embeddings and the output of one of our pre-norm models."""

    def __init__(self, ours: Seq2SeqTransformer) -> None:
        super().__init__()
        config = ours.config
        self.core = nn.Transformer(
            config.d_model, config.num_heads, config.num_layers, config.num_layers, config.d_ff,
            config.dropout, config.ffn, batch_first=True, norm_first=True,
        )  # fmt: skip
        self.source = nn.Sequential(ours.source_embedding, ours.source_positions)
        self.target = nn.Sequential(ours.target_embedding, ours.target_positions)
        self.output = ours.output_projection

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Map source (B, S) and target (B, T) ids to logits (B, T, V)."""
        no_source, no_target = source == PAD, target == PAD  # True = hidden, as torch has it
        future = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        x = self.core(
            self.source(source),
            self.target(target),
            tgt_mask=future,
            src_key_padding_mask=no_source,
            tgt_key_padding_mask=no_target,
            memory_key_padding_mask=no_source,
            tgt_is_causal=True,
        )
        assert self.output is not None
        return nn.functional.linear(x, self.output.weight)  # (B, T, V)


def step(name: str, d_model: int, length: int, batch_size: int) -> Iterator[dict[str, float]]:
    """Yield forward plus backward of our encoder-decoder / that of torch's.

    Args:
        name: of the figure.
        d_model: D; F is 2 D.
        length: T; sources are one token shorter, and rows from half of it to all of it long.
        batch_size: B.
    """
    torch.manual_seed(0)
    config = replace(
        LAB, d_model=d_model, d_ff=2 * d_model, num_heads=4 if d_model < 256 else 8,
        max_len=max(512, length),
    )  # fmt: skip
    ours = Seq2SeqTransformer(config)
    (batch,) = sequence_batches(
        "reverse", steps=1, batch_size=batch_size, seed=0,
        min_length=length // 2, max_length=length - 1,
    )  # fmt: skip
    inputs, targets = teacher_forcing(batch.answers)

    def take(model: nn.Module, count: int) -> None:
        for _ in range(count):
            model.zero_grad()
            loss = masked_cross_entropy(model(*batch.context, inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]

    models = {"ours": ours.train(), "torch": Peer(Seq2SeqTransformer(config)).train()}
    take(ours, 1)
    count = math.ceil(SHORTEST_S / seconds(partial(take, ours, 1)))
    subjects = {whose: partial(take, model, count) for whose, model in models.items()}
    for taken in interleave(subjects, STEP_ROUNDS):
        yield {name: taken["ours"] / taken["torch"]}


def generation() -> Iterator[dict[str, float]]:
    """Yield, for both models, the time without the cache / with it."""
    torch.manual_seed(0)
    config = replace(LARGER, max_len=TOKENS + 1)
    source = torch.randint(FIRST_DATA_ID, config.vocab_size, (ROWS, 8))
    continued = partial(
        generate_decoder_only, DecoderOnlyTransformer(config), source[:, :1],
        max_new_tokens=TOKENS, eos_id=None,
    )  # fmt: skip
    answered = partial(
        generate_seq2seq, Seq2SeqTransformer(config), source, max_new_tokens=TOKENS, eos_id=None
    )
    subjects = {
        f"{name} {use_cache}": partial(generate, use_cache=use_cache)
        for name, generate in (("decoder_only", continued), ("seq2seq", answered))
        for use_cache in (True, False)
    }
    for taken in interleave(subjects, GENERATION_ROUNDS):
        yield {
            f"cache_{name}": taken[f"{name} False"] / taken[f"{name} True"]
            for name in ("decoder_only", "seq2seq")
        }
