"""Wall time until a model answers held-out rows, for ours and for torch's transformer."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from bench.options import parse
from bench.peer import Peer
from grader.bench.rounds import tell
from transformer.config import LAB, LAB_RECIPE, TrainingRecipe
from transformer.data import BOS, EOS, PAD, SequenceBatch, sequence_batches
from transformer.generation import evaluating
from transformer.metrics import exact_match, sequence_accuracy
from transformer.models import Seq2SeqTransformer
from transformer.training import teacher_forcing, train

TASK = "reverse"
TARGET = 0.995
HELD_OUT_ROWS = 512
EVERY = 5  # steps between two looks
SOURCE_BATCH = 64
SOURCE_RATE = 3e-3
SOURCE_STEPS = 600
WARM_UP_STEPS = 4

Rest = Callable[[], None]
Loop = Callable[[nn.Module, Iterator[SequenceBatch]], object]


def source_recipe(model: nn.Module, batches: Iterator[SequenceBatch]) -> None:
    """Train as the source's script does: AdamW at a constant 3e-3."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=SOURCE_RATE)
    judge = nn.CrossEntropyLoss(ignore_index=PAD)
    model.train()
    for batch in batches:
        decoder_inputs, targets = teacher_forcing(batch.answers)
        logits = model(*batch.context, decoder_inputs)
        loss = judge(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def our_recipe(model: nn.Module, batches: Iterator[SequenceBatch]) -> None:
    """Train with the lab's own loop and recipe."""
    train(model, batches, LAB_RECIPE)


class Race:
    """One training with a clock that stands still while held-out rows are looked at.

    Args:
        model: What is trained.
        batches: All batches it may see, drawn beforehand.
        held_out: What it must answer.
    """

    def __init__(
        self, model: nn.Module, batches: Sequence[SequenceBatch], held_out: SequenceBatch
    ) -> None:
        self.model = model
        self.batches = batches
        self.held_out = held_out
        self.steps = 0
        self.reached = False
        self.seconds = 0.0

    def run(self, loop: Loop, rest: Rest) -> None:
        """Train until the target, or to the last batch; call `rest` at every look."""
        self.began = time.perf_counter()
        loop(self.model, self.draw(rest))
        self.seconds += time.perf_counter() - self.began
        self.reached = self.reached or answered(self.model, self.held_out)

    def draw(self, rest: Rest) -> Iterator[SequenceBatch]:
        """Yield batches until the target is reached."""
        for batch in self.batches:
            if self.steps and self.steps % EVERY == 0:
                self.seconds += time.perf_counter() - self.began
                self.reached = answered(self.model, self.held_out)
                rest()
                self.began = time.perf_counter()
                if self.reached:
                    return
            self.steps += 1
            yield batch


def in_turn(runs: Sequence[Callable[[Rest], None]]) -> None:
    """Run all, one at a time: each goes on until it rests, then the next one does.

    What disturbs the machine for a while disturbs all of them alike.
    """
    turns = [threading.Semaphore(0) for _ in runs]
    alive = list(range(len(runs)))

    def pass_on(own: int) -> None:
        later = [number for number in alive if number > own]
        turns[(later or alive)[0]].release()

    def rest(own: int) -> None:
        pass_on(own)
        turns[own].acquire()

    def run(own: int) -> None:
        turns[own].acquire()
        try:
            runs[own](functools.partial(rest, own))
        finally:
            alive.remove(own)
            if alive:
                pass_on(own)

    with ThreadPoolExecutor(len(runs)) as pool:
        ended = [pool.submit(run, own) for own in alive.copy()]
        turns[0].release()
    for each in ended:
        each.result()


def answered(model: nn.Module, held_out: SequenceBatch) -> bool:
    """Tell whether the model, decoding freely, answers enough of the rows."""
    assert held_out.source is not None
    with evaluating(model):
        # Cheap first: who fails with the true past at hand fails without it too.
        forced = teacher_forcing(held_out.answers)
        logits = model(held_out.source, forced.decoder_inputs)
        if sequence_accuracy(logits, forced.targets) < TARGET:
            return False
        tokens = decode(model, held_out.source, forced.targets.shape[1])
    return exact_match(tokens[:, 1:], held_out.answers) >= TARGET


def decode(model: nn.Module, source: Tensor, length: int) -> Tensor:
    """Decode greedily by running the whole prefix again: any model can."""
    tokens = torch.full((len(source), 1), BOS)
    ended = torch.zeros(len(source), dtype=torch.bool)
    for _ in range(length):
        new = model(source, tokens)[:, -1].argmax(dim=-1).masked_fill(ended, EOS)
        ended = ended | (new == EOS)
        tokens = torch.cat((tokens, new[:, None]), dim=1)
    return tokens


def drawn(steps: int, batch_size: int, seed: int, held_out: bool = False) -> list[SequenceBatch]:
    """Draw batches."""
    return list(
        sequence_batches(TASK, steps=steps, batch_size=batch_size, seed=seed, held_out=held_out)
    )


def race(seed: int, recipe: TrainingRecipe) -> dict[str, float]:
    """Train the three of one seed, from the same weights; return their seconds and steps."""
    torch.manual_seed(seed)
    start = Seq2SeqTransformer(LAB)
    (held_out,) = drawn(1, HELD_OUT_ROWS, seed, held_out=True)
    batches = drawn(recipe.steps, recipe.batch_size, seed)
    source_batches = drawn(SOURCE_STEPS, SOURCE_BATCH, seed)
    races = {
        "peer_source": Race(Peer(start), source_batches, held_out),
        "peer_ours": Race(Peer(start), batches, held_out),
        "ours": Race(start, batches, held_out),
    }
    loops = (source_recipe, our_recipe, our_recipe)
    in_turn([
        functools.partial(ended.run, loop)
        for ended, loop in zip(races.values(), loops, strict=True)
    ])  # fmt: skip
    found: dict[str, float] = {"seed": seed}
    for name, ended in races.items():
        if not ended.reached:
            raise SystemExit(f"seed {seed}: {name} stayed below {TARGET} for {ended.steps} steps")
        found |= {name: ended.seconds, f"{name}_steps": ended.steps}
    return found


def warm_up() -> None:
    """Take a few steps of each loop, so that no race pays for what the first step imports."""
    model = Seq2SeqTransformer(LAB)
    for loop in (source_recipe, our_recipe):
        loop(Peer(model), iter(drawn(WARM_UP_STEPS, SOURCE_BATCH, 0)))
        loop(model, iter(drawn(WARM_UP_STEPS, SOURCE_BATCH, 0)))


def main() -> None:
    """Race for as many seeds as there are rounds."""
    options = parse(__doc__ or "")
    torch.set_num_threads(1)
    warm_up()
    for seed in range(options.rounds):
        tell(race(seed, LAB_RECIPE))


if __name__ == "__main__":
    main()
