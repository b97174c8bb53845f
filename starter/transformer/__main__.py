"""Train a model and show what it learned: python -m transformer seq2seq | decoder-only."""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from .checkpoint import Model, save_checkpoint, verify_checkpoint
from .config import LAB, LAB_RECIPE, LARGER, LLAMA_STYLE, VANILLA_2017, ModelConfig
from .data import BOS, PAD, TASKS, SequenceBatch, cyclic_batches, sequence_batches
from .generation import evaluating, generate_decoder_only, generate_seq2seq
from .metrics import exact_match, most_common_baseline, sequence_accuracy, token_accuracy
from .models import DecoderOnlyTransformer, Seq2SeqTransformer, count_params, uniform_loss
from .training import TeacherForcing, masked_cross_entropy, teacher_forcing, train

QUICK_STEPS = 40
QUICK_BATCH = 32
HELD_OUT_ROWS = 512
QUICK_HELD_OUT_ROWS = 64
CONFIGS = {"lab": LAB, "vanilla-2017": VANILLA_2017, "llama-style": LLAMA_STYLE}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line.

    Args:
        arguments: The words after the program's name; None takes them from sys.argv.
    """
    parser = argparse.ArgumentParser(prog="python -m transformer", description=__doc__)
    models = parser.add_subparsers(dest="model", required=True)
    seq2seq = models.add_parser("seq2seq", help="encoder-decoder on copy or reverse")
    seq2seq.add_argument("--task", choices=TASKS, default="reverse")
    seq2seq.add_argument("--min-length", type=int, default=3)
    seq2seq.add_argument("--max-length", type=int, default=7)
    seq2seq.add_argument("--fixed-length", action="store_true", help="only the longest length")
    decoder_only = models.add_parser("decoder-only", help="decoder-only model on a cyclic pattern")
    decoder_only.add_argument("--pattern", type=int, default=5, help="number of ids in the cycle")
    decoder_only.add_argument("--length", type=int, default=12)
    for model in (seq2seq, decoder_only):
        model.add_argument("--config", choices=CONFIGS, default="lab")
        model.add_argument("--large", action="store_true", help="width 64 and 2 layers")
        model.add_argument("--steps", type=int, help=f"default {LAB_RECIPE.steps}")
        model.add_argument("--quick", action="store_true", help=f"{QUICK_STEPS} small steps")
        model.add_argument("--seed", type=int, default=0)
        model.add_argument("--checkpoint", type=Path, help="save here and prove that it reloads")
    return parser.parse_args(arguments)


def batches(
    options: argparse.Namespace, config: ModelConfig, **size: int
) -> Iterator[SequenceBatch]:
    """Draw training batches, or held-out ones when held_out is 1.

    Args:
        options: The command line.
        config: Its vocabulary is used.
        size: steps, batch_size, seed and held_out.
    """
    held_out = bool(size.pop("held_out", 0))
    if options.model == "decoder-only":
        return cyclic_batches(
            vocab_size=config.vocab_size, pattern=options.pattern, length=options.length, **size
        )
    shortest = options.max_length if options.fixed_length else options.min_length
    return sequence_batches(
        options.task,
        vocab_size=config.vocab_size,
        min_length=shortest,
        max_length=options.max_length,
        held_out=held_out,
        **size,
    )


def free_running(model: Model, batch: SequenceBatch) -> float:
    """Return the exact-match accuracy of answers that the model wrote by itself.

    Args:
        model: Either model.
        batch: Held-out rows. Without a source the first token of every answer is given.
    """
    longest = max(map(len, batch.answers)) + 1
    if isinstance(model, Seq2SeqTransformer):
        assert batch.source is not None
        written = generate_seq2seq(model, batch.source, max_new_tokens=longest)
        return exact_match(written[:, 1:], batch.answers)
    prompt = torch.tensor([[BOS, answer[0]] for answer in batch.answers])
    written = generate_decoder_only(model, prompt, max_new_tokens=longest - 1)
    return exact_match(written[:, 2:], [answer[1:] for answer in batch.answers])


def held_out_questions(batch: SequenceBatch) -> TeacherForcing:
    """Return decoder inputs and targets; a first token that cannot be known does not count."""
    decoder_inputs, targets = teacher_forcing(batch.answers)
    if batch.source is None:
        targets = torch.cat((torch.full_like(targets[:, :1], PAD), targets[:, 1:]), dim=1)
    return TeacherForcing(decoder_inputs, targets)


def report(name: str, value: str) -> None:
    """Print one aligned line."""
    print(f"{name:<34}{value}")


def evaluate(model: Model, batch: SequenceBatch) -> tuple[Tensor, ...]:
    """Print how the model does on held-out rows and return what it was called with.

    Args:
        model: Either model.
        batch: Held-out rows.
    """
    decoder_inputs, targets = held_out_questions(batch)
    inputs = (*batch.context, decoder_inputs)
    with evaluating(model):
        logits = model(*inputs)
    loss = masked_cross_entropy(logits, targets).item()
    baseline = most_common_baseline(targets)
    report("held-out loss", f"{loss:.4f} nats per token")
    report("most common token", f"id {baseline.token_id}, {baseline.token_accuracy:.4f} of targets")
    report("teacher-forced token accuracy", f"{token_accuracy(logits, targets):.4f}")
    report("teacher-forced exact accuracy", f"{sequence_accuracy(logits, targets):.4f}")
    report("free-running exact accuracy", f"{free_running(model, batch):.4f}")
    return inputs


def run(options: argparse.Namespace) -> None:
    """Train, evaluate and, when asked, save.

    Args:
        options: The command line.

    Raises:
        ValueError: Options out of range.
    """
    config = CONFIGS[options.config]
    if options.large:
        config = replace(
            config, d_model=LARGER.d_model, num_layers=LARGER.num_layers, d_ff=LARGER.d_ff
        )
    recipe = replace(LAB_RECIPE, batch_size=QUICK_BATCH) if options.quick else LAB_RECIPE
    steps = options.steps
    if steps is None:
        steps = QUICK_STEPS if options.quick else recipe.steps
    recipe = replace(recipe, steps=steps)
    size = {"batch_size": recipe.batch_size, "seed": options.seed}
    training = batches(options, config, steps=steps, **size)
    rows = QUICK_HELD_OUT_ROWS if options.quick else HELD_OUT_ROWS
    held_out = next(
        batches(options, config, steps=1, batch_size=rows, seed=options.seed + 1, held_out=1)
    )

    torch.manual_seed(options.seed)
    kind = Seq2SeqTransformer if options.model == "seq2seq" else DecoderOnlyTransformer
    model: Model = kind(config)
    report("parameters", f"{count_params(model):,}")
    decoder_inputs, targets = teacher_forcing(held_out.answers)
    if held_out.source is not None:
        report("source", f"{tuple(held_out.source.shape)}")
    report("decoder inputs and targets", f"{tuple(decoder_inputs.shape)}, {tuple(targets.shape)}")
    report("logits", f"{(*targets.shape, config.vocab_size)}")
    if held_out.source is None:
        print(
            "Rows are decoded from BOS and their first data token: every row starts anywhere in\n"
            "the cycle, so nothing before that token could tell which row is meant."
        )
    losses = train(model, training, recipe)
    report("ln V", f"{uniform_loss(config.vocab_size):.4f} nats per token")
    report("first loss", f"{losses[0]:.4f} nats per token")
    report(f"final loss, after {steps} steps", f"{losses[-1]:.4f} nats per token")
    inputs = evaluate(model, held_out)
    if options.checkpoint is not None:
        save_checkpoint(model, options.checkpoint)
        verify_checkpoint(model, options.checkpoint, inputs)
        report("checkpoint", f"{options.checkpoint} reloads to identical outputs")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code.

    Args:
        arguments: The words after the program's name; None takes them from sys.argv.
    """
    options = parse(arguments)
    try:
        run(options)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
