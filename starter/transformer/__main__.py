"""Train a model and show what it learned, or let a published one write.

python -m transformer seq2seq | decoder-only | load FOLDER --prompt "..."
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from .checkpoint import KINDS, Model, save_checkpoint, verify_checkpoint
from .config import (
    LAB,
    LAB_RECIPE,
    LARGER,
    LLAMA_STYLE,
    VANILLA_2017,
    ModelConfig,
    check_at_least,
    check_id,
)
from .data import (
    BOS,
    FIRST_DATA_ID,
    PAD,
    TASKS,
    SequenceBatch,
    cyclic_batches,
    held_out_starts,
    sequence_batches,
)
from .generation import (
    Sampler,
    evaluating,
    generate_decoder_only,
    generate_seq2seq,
    most_likely,
    write_on,
)
from .metrics import exact_match, most_common_baseline, sequence_accuracy, token_accuracy
from .models import Seq2SeqTransformer, count_params
from .pretrained import DTYPES, load_pretrained, load_tokenizer
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
    parser = argparse.ArgumentParser(
        prog="python -m transformer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    models = parser.add_subparsers(dest="model", required=True)
    seq2seq = models.add_parser("seq2seq", help="encoder-decoder that copies or reverses")
    seq2seq.add_argument("--task", choices=TASKS, default="reverse")
    seq2seq.add_argument("--min-length", type=int, default=3)
    seq2seq.add_argument("--max-length", type=int, default=7)
    seq2seq.add_argument("--fixed-length", action="store_true", help="only the longest length")
    decoder_only = models.add_parser("decoder-only", help="decoder alone, on a cyclic pattern")
    decoder_only.add_argument("--pattern", type=int, help="ids in the cycle (default: all)")
    decoder_only.add_argument("--length", type=int, default=16)
    for model in (seq2seq, decoder_only):
        model.add_argument("--config", choices=CONFIGS, default="lab")
        model.add_argument("--large", action="store_true", help="width 64 and 2 layers")
        model.add_argument("--steps", type=int, help=f"default {LAB_RECIPE.steps}")
        model.add_argument("--quick", action="store_true", help=f"{QUICK_STEPS} small steps")
        model.add_argument("--seed", type=int, default=0)
        model.add_argument("--checkpoint", type=Path, help="save here and prove that it reloads")
        model.add_argument(
            "--threads", type=int, default=1, help="default 1: a small model gains nothing by more"
        )
    load = models.add_parser("load", help="published checkpoint folder that continues a prompt")
    load.add_argument("folder", type=Path, help="holds config.json, weights and tokenizer.json")
    load.add_argument("--prompt", help="text to continue; without it the model is only described")
    load.add_argument("--max-new-tokens", type=int, default=64)
    load.add_argument("--temperature", type=float, default=0.0, help="0 (default) = most likely")
    load.add_argument("--top-p", type=float, default=1.0, help="with a temperature: see Sampler")
    load.add_argument("--seed", type=int, default=0, help="of what is drawn")
    load.add_argument("--dtype", choices=DTYPES, help="default: as stored")
    load.add_argument("--threads", type=int, help="default: as many as torch takes")
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
            pattern=cycle_of(options, config),
            length=options.length,
            held_out=held_out,
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


def cycle_of(options: argparse.Namespace, config: ModelConfig) -> int:
    """Return the number of ids in the cycle: as asked for, or all that carry data."""
    return config.vocab_size - FIRST_DATA_ID if options.pattern is None else options.pattern


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


def evaluate(
    model: Model, batch: SequenceBatch, training_targets: Tensor
) -> tuple[tuple[Tensor, ...], dict[str, float]]:
    """Print how the model does on held-out rows.

    Args:
        model: Either model.
        batch: Held-out rows.
        training_targets: Where the most common token is counted, int64 of any shape.

    Returns:
        What the model was called with, and the figures by name.
    """
    decoder_inputs, targets = judged(batch)
    inputs = (*batch.context, decoder_inputs)
    with evaluating(model):
        logits = model(*inputs)
    baseline = most_common_baseline(targets, training_targets=training_targets)
    figures = {
        "held_out_loss": masked_cross_entropy(logits, targets).item(),
        "baseline_token": baseline.token_id,
        "baseline_accuracy": baseline.token_accuracy,
        "token_accuracy": token_accuracy(logits, targets),
        "exact_accuracy": sequence_accuracy(logits, targets),
        "free_running_accuracy": free_running_accuracy(model, batch),
    }
    report("held-out loss", f"{figures['held_out_loss']:.4f} nats per token")
    report(
        "most common training token",
        f"id {baseline.token_id}, {baseline.token_accuracy:.4f} of held-out targets",
    )
    report("teacher-forced token accuracy", f"{figures['token_accuracy']:.4f}")
    report("teacher-forced exact accuracy", f"{figures['exact_accuracy']:.4f}")
    report("free-running exact accuracy", f"{figures['free_running_accuracy']:.4f}")
    return inputs, figures


def judged(batch: SequenceBatch) -> tuple[Tensor, Tensor]:
    """Return decoder inputs and the targets that count, PAD elsewhere, (B, T) int64 each."""
    decoder_inputs, targets = teacher_forcing(batch.answers)
    if batch.source is None:
        targets = targets.clone()
        targets[:, 0] = PAD
    return decoder_inputs, targets


def report(name: str, value: str) -> None:
    """Print one aligned line."""
    say(f"{name:<31}{value}")


def say(text: str, end: str = "\n") -> bool:
    """Print at once, also into a pipe, and tell whether anybody still reads.

    A reader that has left (as in `| head`) is no error: from then on the text goes nowhere.
    """
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def prepare_checkpoint(path: Path) -> None:
    """Make the folder of a checkpoint, and refuse what it cannot be called before the training.

    Args:
        path: Where the checkpoint will be.

    Raises:
        OSError: The folder cannot be made.
        ValueError: The path is a folder.
    """
    if path.is_dir():
        raise ValueError(f"--checkpoint must name a file, got the folder {path}")
    path.parent.mkdir(parents=True, exist_ok=True)


class Taught:
    """The batches of a training on their way to it, with progress on a terminal.

    Args:
        batches: The batches.
        steps: How many there are.
    """

    def __init__(self, batches: Iterable[SequenceBatch], steps: int) -> None:
        self.batches = batches
        self.steps = steps
        self.targets: list[Tensor] = []  # of every batch so far, those that count

    def __iter__(self) -> Iterator[SequenceBatch]:
        from rich.console import Console
        from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("training"), MofNCompleteColumn(), TimeRemainingColumn())
        console = Console(stderr=True)
        shown = console.is_terminal
        with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
            for batch in progress.track(self.batches, total=self.steps):
                self.targets.append(judged(batch)[1].flatten())
                yield batch


def run(options: argparse.Namespace) -> dict[str, float]:
    """Train, save when asked, and evaluate.

    Args:
        options: The command line.

    Returns:
        What was measured, by name: parameters, first_loss, final_loss and the figures on
        held-out rows.

    Raises:
        KeyboardInterrupt: Somebody stopped the training; what was asked for is saved by then.
        OSError: The checkpoint cannot be written.
        ValueError: Options out of range.
    """
    if not 0 <= options.seed < LARGEST_SEED:
        raise ValueError(f"--seed must be from 0 to 2**63 - 2, got {options.seed}")
    use_threads(options.threads)
    config = CONFIGS[options.config]
    if options.large:
        size = {name: getattr(LARGER, name) for name in ("d_model", "num_layers", "d_ff")}
        config = replace(config, **size)
    recipe, rows = LAB_RECIPE, HELD_OUT_ROWS
    if options.quick:
        recipe, rows = replace(recipe, steps=QUICK_STEPS, batch_size=QUICK_ROWS), QUICK_ROWS
    if options.steps is not None:
        recipe = replace(recipe, steps=options.steps)
    batches = Taught(draw(options, config, recipe.steps, recipe.batch_size), recipe.steps)
    held_out = next(draw(options, config, 1, rows, held_out=True))
    if options.checkpoint is not None:
        prepare_checkpoint(options.checkpoint)
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
        starts = cycle_of(options, config)
        apart = len(held_out_starts(starts))
        report("held-out starts", f"{apart} of {starts}; no training row begins there")
        say(FIRST_TOKEN_NOTE)
    try:
        losses = train(model, batches, recipe)
    except KeyboardInterrupt:
        stopped = f"stopped at step {len(batches.targets)} of {recipe.steps}"
        if options.checkpoint is not None:
            save_checkpoint(model, options.checkpoint)
            stopped += f", the weights so far are in {options.checkpoint}"
        raise KeyboardInterrupt(stopped) from None
    if options.checkpoint is not None:
        save_checkpoint(model, options.checkpoint)
    report("ln V", f"{math.log(config.vocab_size):.4f} nats per token")
    report("first loss", f"{losses[0]:.4f} nats per token")
    report(f"final loss, step {recipe.steps}", f"{losses[-1]:.4f} nats per token")
    inputs, figures = evaluate(model, held_out, torch.cat(batches.targets))
    if options.checkpoint is not None:
        verify_checkpoint(model, options.checkpoint, inputs)
        report("checkpoint", f"{options.checkpoint}, reloads to identical outputs")
    losses_by_name = {"first_loss": losses[0], "final_loss": losses[-1]}
    return {"parameters": count_params(model), **losses_by_name, **figures}


def use_threads(number: int | None) -> None:
    """Set the number of threads; None leaves it to torch.

    Raises:
        ValueError: The number is below 1.
    """
    if number is not None:
        if number < 1:
            raise ValueError(f"--threads must be at least 1, got {number}")
        torch.set_num_threads(number)


def run_load(options: argparse.Namespace) -> None:
    """Build the model of a folder and let it continue the prompt; figures go to stderr.

    A special token written in the prompt counts as that token: the prompt is yours, and chat
    models want theirs.

    Args:
        options: The command line.

    Raises:
        KeyboardInterrupt: Somebody stopped the writing.
        OSError: A file is missing.
        ValueError: Options out of range, or a folder that cannot be used.
    """
    check_at_least("--max-new-tokens", options.max_new_tokens, 0)
    use_threads(options.threads)
    pick = most_likely
    if options.temperature or options.top_p != 1.0:
        generator = torch.Generator().manual_seed(options.seed)
        pick = Sampler(options.temperature, options.top_p, generator)
    tokenizer = None if options.prompt is None else load_tokenizer(options.folder)
    dtype = None if options.dtype is None else DTYPES[options.dtype]
    start = time.perf_counter()
    model, published = load_pretrained(options.folder, dtype)
    loaded = f"{published.architecture}, {count_params(model):,} parameters"
    weight = next(model.parameters())
    tell(f"{loaded} of {weight.dtype}, loaded in {time.perf_counter() - start:.1f} s")
    if tokenizer is None:
        return

    from tokenizers.decoders import DecodeStream

    ids = tokenizer.encode(options.prompt).ids
    if not ids:
        raise ValueError("--prompt holds no token, and the tokenizer puts none in front of it")
    room = published.context - len(ids)
    if room < 1:
        raise ValueError(
            f"--prompt has {len(ids)} tokens, the model was made for {published.context} in all"
        )
    known = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    check_id("a token of the prompt", max(ids), model.config.vocab_size)
    stream, written, start = DecodeStream(skip_special_tokens=True), 0, time.perf_counter()
    say(options.prompt, end="")
    try:
        for token in write_on(
            model,
            torch.tensor([ids]),
            max_new_tokens=min(options.max_new_tokens, room),
            end_ids=published.end_ids,
            pick=pick,
            num_ids=known,
        ):
            written += 1
            # A character may take several tokens; nothing is shown until it is whole.
            piece = stream.step(tokenizer, token)
            if piece is not None and not say(piece, end=""):
                break
    finally:
        say("")
    seconds = time.perf_counter() - start
    tell(f"{written} tokens in {seconds:.1f} s, {written / seconds:.1f} a second")


def tell(text: str) -> None:
    """Print about the work, beside the text that is written."""
    print(text, file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code.

    Args:
        arguments: The words after the program's name; None takes them from sys.argv.
    """
    options = parse(arguments)
    try:
        if options.model == "load":
            run_load(options)
        else:
            run(options)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stopped:
        print(str(stopped) or "stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
