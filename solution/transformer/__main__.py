"""Train a model and show what it learned: python -m transformer seq2seq | decoder-only."""

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from .checkpoint import KINDS, Model, save_checkpoint, verify_checkpoint
from .config import LAB, LAB_RECIPE, LARGER, LLAMA_STYLE, VANILLA_2017, ModelConfig
from .data import BOS, PAD, TASKS, SequenceBatch, cyclic_batches, sequence_batches
from .generation import evaluating, generate_decoder_only, generate_seq2seq
from .metrics import exact_match, most_common_baseline, sequence_accuracy, token_accuracy
from .models import Seq2SeqTransformer, count_params
from .training import masked_cross_entropy, teacher_forcing, train

CONFIGS = {"lab": LAB, "vanilla-2017": VANILLA_2017, "llama-style": LLAMA_STYLE}
HELD_OUT_ROWS = 512
LARGEST_SEED = 2**63 - 1  # held-out rows take the next one
QUICK_STEPS = 40
QUICK_ROWS = 32

FIRST_TOKEN_NOTE = """\
Rows are decoded from BOS and their first data token, and that token does not count: a row may
start anywhere in the cycle, so nothing before the token tells which row is meant."""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line.

    Args:
        arguments: The words after the program's name; None takes them from sys.argv.
    """
    parser = argparse.ArgumentParser(prog="python -m transformer", description=__doc__)
    models = parser.add_subparsers(dest="model", required=True)
    seq2seq = models.add_parser("seq2seq", help="encoder-decoder that copies or reverses")
    seq2seq.add_argument("--task", choices=TASKS, default="reverse")
    seq2seq.add_argument("--min-length", type=int, default=3)
    seq2seq.add_argument("--max-length", type=int, default=7)
    seq2seq.add_argument("--fixed-length", action="store_true", help="only the longest length")
    decoder_only = models.add_parser("decoder-only", help="decoder alone, on a cyclic pattern")
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


def draw(
    options: argparse.Namespace, config: ModelConfig, steps: int, rows: int, held_out: bool = False
) -> Iterator[SequenceBatch]:
    """Draw the batches that the command line asks for.

    Args:
        options: The command line.
        config: Its vocabulary is used.
        steps: Number of batches.
        rows: Rows per batch.
        held_out: Whether they are for judging rather than for training.
    """
    seed = options.seed + held_out
    if options.model == "decoder-only":
        return cyclic_batches(
            steps=steps,
            batch_size=rows,
            seed=seed,
            vocab_size=config.vocab_size,
            pattern=options.pattern,
            length=options.length,
        )
    return sequence_batches(
        options.task,
        steps=steps,
        batch_size=rows,
        seed=seed,
        vocab_size=config.vocab_size,
        min_length=options.max_length if options.fixed_length else options.min_length,
        max_length=options.max_length,
        held_out=held_out,
    )


def free_running_accuracy(model: Model, batch: SequenceBatch) -> float:
    """Return the exact-match accuracy of the answers that the model writes by itself.

    Args:
        model: Either model.
        batch: Held-out rows. The decoder-only model is given the first token of every answer.
    """
    longest = max(map(len, batch.answers)) + 1
    if isinstance(model, Seq2SeqTransformer):
        (source,) = batch.context
        written = generate_seq2seq(model, source, max_new_tokens=longest)
        return exact_match(written[:, 1:], batch.answers)
    prompt = torch.tensor([[BOS, answer[0]] for answer in batch.answers])
    written = generate_decoder_only(model, prompt, max_new_tokens=longest - 1)
    return exact_match(written[:, 2:], [answer[1:] for answer in batch.answers])


def evaluate(model: Model, batch: SequenceBatch) -> tuple[Tensor, ...]:
    """Print how the model does on held-out rows and return what it was called with.

    Args:
        model: Either model.
        batch: Held-out rows.
    """
    decoder_inputs, targets = teacher_forcing(batch.answers)
    if batch.source is None:
        targets = targets.clone()
        targets[:, 0] = PAD
    inputs = (*batch.context, decoder_inputs)
    with evaluating(model):
        logits = model(*inputs)
    baseline = most_common_baseline(targets)
    report("held-out loss", f"{masked_cross_entropy(logits, targets).item():.4f} nats per token")
    report("most common token", f"id {baseline.token_id}, {baseline.token_accuracy:.4f} of targets")
    report("teacher-forced token accuracy", f"{token_accuracy(logits, targets):.4f}")
    report("teacher-forced exact accuracy", f"{sequence_accuracy(logits, targets):.4f}")
    report("free-running exact accuracy", f"{free_running_accuracy(model, batch):.4f}")
    return inputs


def report(name: str, value: str) -> None:
    """Print one aligned line."""
    print(f"{name:<31}{value}")


def require_file_name(path: Path) -> None:
    """Refuse, before the training rather than after it, what a checkpoint cannot be called.

    Args:
        path: Where the checkpoint will be.

    Raises:
        ValueError: The path is a folder, or the folder that it names does not exist.
    """
    if path.is_dir():
        raise ValueError(f"--checkpoint must name a file, got the folder {path}")
    if not path.parent.is_dir():
        raise ValueError(f"--checkpoint must be in a folder that exists, got {path}")


def run(options: argparse.Namespace) -> None:
    """Train, evaluate and, when asked, save.

    Args:
        options: The command line.

    Raises:
        ValueError: Options out of range.
    """
    if options.checkpoint is not None:
        require_file_name(options.checkpoint)
    if not 0 <= options.seed < LARGEST_SEED:
        raise ValueError(f"--seed must be from 0 to 2**63 - 2, got {options.seed}")
    config = CONFIGS[options.config]
    if options.large:
        size = {name: getattr(LARGER, name) for name in ("d_model", "num_layers", "d_ff")}
        config = replace(config, **size)
    recipe, rows = LAB_RECIPE, HELD_OUT_ROWS
    if options.quick:
        recipe, rows = replace(recipe, steps=QUICK_STEPS, batch_size=QUICK_ROWS), QUICK_ROWS
    if options.steps is not None:
        recipe = replace(recipe, steps=options.steps)
    batches = draw(options, config, recipe.steps, recipe.batch_size)
    held_out = next(draw(options, config, 1, rows, held_out=True))
    torch.manual_seed(options.seed)
    model = KINDS[options.model](config)

    decoder_inputs, targets = teacher_forcing(held_out.answers)
    report("parameters", f"{count_params(model):,}")
    for source in held_out.context:
        report("held-out source", f"{tuple(source.shape)}")
    report("held-out decoder inputs", f"{tuple(decoder_inputs.shape)}")
    report("held-out targets", f"{tuple(targets.shape)}")
    report("held-out logits", f"{(*targets.shape, config.vocab_size)}")
    if held_out.source is None:
        print(FIRST_TOKEN_NOTE)
    losses = train(model, batches, recipe)
    report("ln V", f"{math.log(config.vocab_size):.4f} nats per token")
    report("first loss", f"{losses[0]:.4f} nats per token")
    report(f"final loss, step {recipe.steps}", f"{losses[-1]:.4f} nats per token")
    inputs = evaluate(model, held_out)
    if options.checkpoint is not None:
        save_checkpoint(model, options.checkpoint)
        verify_checkpoint(model, options.checkpoint, inputs)
        report("checkpoint", f"{options.checkpoint}, reloads to identical outputs")


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
