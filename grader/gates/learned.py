"""What a trained model does, in numbers, and from a training that was not enough to its cause."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from grader.asking.compare import fail
from grader.asking.submission import Submission, forward
from grader.base.settings import task_files
from grader.gates import sequences
from grader.gates.decoding import exact
from grader.gates.influence import Findings, explained
from grader.gates.invariance import pick_logits
from grader.gates.sequences import Answers, Sequences
from grader.gates.training import TRAINED, Attempt
from grader.model.draws import EOS, PAD, Ids

CURVE_POINTS = 20


@dataclass(frozen=True)
class Signs:
    """What the trained model does, in shares of rows or tokens; losses in nats per token."""

    exact_match: float
    plain_match: float
    content: float
    ended: float
    forced: float
    repeats: float
    skips: float
    by_length: dict[str, float]
    by_position: list[float]
    unmoved: list[str]
    first_loss: float
    highest_loss: float
    lowest_loss: float
    last_loss: float


def read(submission: Submission, made: Attempt, data: Sequences) -> Signs:
    """Compare what the trained model writes with the answers, freely and with teacher forcing."""
    answers = data.answers(data.held_out)
    tokens = made.decoded[TRAINED].tokens
    right = exact(tokens, answers)
    _, targets = sequences.forced(answers, data.steps)
    real = targets != PAD
    hits = (tokens == targets) & real
    lengths = real.sum(axis=1)
    inputs, lesson, forced = teacher_forced(submission, made, data)
    later = np.roll(lesson, -1, axis=1)
    later[:, -1] = PAD
    smooth = smoothed(made.losses)
    return Signs(
        exact_match=float(right.mean()),
        plain_match=float(exact(tokens, data.plain_answers(data.held_out)).mean()),
        content=float(content_right(tokens, answers).mean()),
        ended=float((tokens == EOS).any(axis=1).mean()),
        forced=share(forced == lesson, lesson != PAD),
        repeats=share(forced == inputs, lesson != PAD),
        skips=share(forced == later, later != PAD),
        by_length={str(n - 1): float(right[lengths == n].mean()) for n in np.unique(lengths)},
        by_position=(hits.sum(axis=0) / np.maximum(real.sum(axis=0), 1)).tolist(),
        unmoved=unmoved(made),
        first_loss=float(smooth[0]),
        highest_loss=float(smooth.max()),
        lowest_loss=float(smooth.min()),
        last_loss=float(smooth[-1]),
    )


def teacher_forced(submission: Submission, made: Attempt, data: Sequences) -> tuple[Ids, Ids, Ids]:
    """Return inputs, targets and predictions (B, T) of the last batch that was trained on.

    The targets of held-out rows never enter a worker, so they cannot serve here.
    """
    rows = data.batch(made.number, max(made.drawn, 1) - 1)
    inputs, targets = sequences.forced(data.answers(rows), data.steps)
    source = data.disguise[sequences.padded(rows, data.lab.data.max_length)]
    call = {"args": [source, data.disguise[inputs]]}
    (answer,) = submission.ask(forward(TRAINED, call, dtype="float32"))
    shape = (*inputs.shape, data.lab.model.vocab_size)
    logits = pick_logits(answer["outputs"][0], shape)
    if not isinstance(logits, np.ndarray) or logits.shape != shape:
        return inputs, targets, np.full_like(targets, PAD)
    return inputs, targets, np.argsort(data.disguise)[np.nan_to_num(logits).argmax(axis=-1)]


def share(hits: np.ndarray, among: np.ndarray) -> float:
    """Return the share of the places `among` that are hits."""
    return float(hits[among].mean()) if among.any() else 0.0


def content_right(tokens: Ids, answers: Answers) -> np.ndarray:
    """Return (N,) bool: the rows that begin with their answer, wherever they end."""
    return np.array([
        row[: len(answer)] == answer for row, answer in zip(tokens.tolist(), answers, strict=True)
    ])  # fmt: skip


def smoothed(losses: list[float]) -> np.ndarray:
    """Return the losses averaged over a few steps, at `CURVE_POINTS` places."""
    if not losses:
        return np.array([np.nan])
    pieces = np.array_split(np.array(losses), min(CURVE_POINTS, len(losses)))
    return np.array([piece.mean() for piece in pieces])


def unmoved(made: Attempt) -> list[str]:
    """Name the parameters that training left as they were, or that only shrank as a whole."""
    still = []
    for name, before in made.initial.items():
        after = made.parameters.get(name)
        if after is None or after.shape != before.shape:
            continue
        length = float(np.square(before).sum())
        scale = float((after * before).sum()) / length if length else 0.0
        if np.abs(after - scale * before).max() <= 1e-6 * max(float(np.abs(before).max()), 1e-12):
            still.append(name)
    return still


# Of ln V; the ids alone, without their order, are worth a tenth of it.
LEARNED_NOTHING = 0.75
NO_CAUSE = "learned_in_part"
# A hundredth of the recipe's learning rate moves weights by a tenth of their size.
STILL = 1e-3
OPTIMIZER_ADVICE = (
    "Compare the optimiser with the docstring of make_optimizer (task 6.3): kind, learning rate, "
    "betas, weight decay."
)
Cause = tuple[str, str, str, str]  # code, part, cause, advice


def explain(
    made: Attempt, data: Sequences, signs: Signs, findings: Findings,
    evidence: dict[str, Any],
) -> NoReturn:  # fmt: skip
    """Fail gate 4 with the cause that the signs show, the surest first."""
    code, part, cause, advice = (
        of_values(made)
        or of_supply(made, data, signs)
        or of_forcing(signs)
        or of_losses(made, signs, data.lab.model.vocab_size)
        or of_shape(signs)
    )
    blamed = tuple(task_files()) if code == NO_CAUSE else (part,)
    part, advice = explained(findings, blamed, part, advice)
    wanted = data.lab.accuracy.exact_match
    text = f"{signs.exact_match:.3f} of the held-out rows are answered, {wanted:g} are wanted: "
    witness = first_wrong(made, data)
    fail(code, part, f"{text}{cause}.", advice, evidence | witness | {
        "ended": signs.ended, "right_but_for_the_end": signs.content,
        "teacher_forced_tokens": signs.forced, "accuracy_by_length": signs.by_length,
        "token_accuracy_by_position": signs.by_position, "not_trained": untouched(made, signs),
        "only_shrank": [n for n in signs.unmoved if n not in untouched(made, signs)],
    })  # fmt: skip


def first_wrong(made: Attempt, data: Sequences) -> dict[str, Any]:
    """Return the first held-out row that was answered wrongly."""
    tokens, answers = made.decoded[TRAINED].tokens, data.answers(data.held_out)
    index = int(np.argmin(exact(tokens, answers)))
    wanted = [*answers[index], EOS]
    got = tokens[index].tolist()
    place = next((i for i, (a, b) in enumerate(zip(wanted, got, strict=False)) if a != b), 0)
    return {"source": data.held_out[index], "expected": wanted, "got": got, "first_wrong": place}


def of_values(made: Attempt) -> Cause | None:
    """Read what can be seen in the numbers alone."""
    bad = [i for i, loss in enumerate(made.losses) if not np.isfinite(loss)]
    if bad or not all(np.isfinite(v).all() for v in made.parameters.values()):
        where = f"at step {bad[0]}" if bad else "in the weights"
        return (
            "training_diverged",
            "training",
            f"training ran into NaN or infinity {where}",
            "Look at the learning rate, at clipping, and at the first loss that is odd.",
        )
    for stack in ("encoder", "decoder"):
        # A stack of which only its norm is left has lost its blocks.
        if not any(n.startswith(f"{stack}.") and v.ndim > 1 for n, v in made.parameters.items()):
            return (
                "layers_not_registered",
                stack,
                f"the blocks of the {stack} are no part of the model, so no optimiser sees them",
                "Look at what kind of list holds the blocks.",
            )
    return None


def of_supply(made: Attempt, data: Sequences, signs: Signs) -> Cause | None:
    """Read what was trained, and on how much."""
    if signs.plain_match > 0.5:
        return (
            "answers_not_learned",
            "decoder",
            "the answers are those of the lab's plain task. "
            "This run renamed the ids in every answer, and the batches taught it",
            "Let the answers come from the trained weights.",
        )
    still = untouched(made, signs)
    if len(still) == len(made.initial):
        return (
            "weights_not_trained",
            "training",
            "training left every weight as it was",
            "Look at whether the optimiser takes a step, and on which parameters.",
        )
    furthest = furthest_move(made)
    if furthest < STILL:
        return (
            "steps_too_small",
            "training",
            f"after all steps no weight has moved by more than {furthest:.1g} of its tensor's "
            "largest",
            "Look at the learning rate (tasks 6.3 and 6.4).",
        )
    if silent := [name for name in still if not name.endswith("bias")]:
        return (
            "part_not_trained",
            "training",
            f"{len(silent)} weights were never trained, {which_of(silent)} among them",
            "Look at which parameters the optimiser gets (task 6.3), "
            "and whether their gradient arrives.",
        )
    if shrunk := [name for name in signs.unmoved if not name.endswith("bias")]:
        gone = all(left_of(made, name) < STILL for name in shrunk)
        return (
            "weights_only_shrank",
            "training",
            f"{len(shrunk)} weights "
            + ("ended where nothing is left of them" if gone else "only shrank, each as a whole")
            + f", {which_of(shrunk)} among them",
            OPTIMIZER_ADVICE
            if gone
            else f"Look at whether their gradient arrives. {OPTIMIZER_ADVICE}",
        )
    if made.drawn < data.lab.recipe.steps and not made.learned:
        return (
            "batches_unused",
            "training",
            f"the loop used {made.drawn} of {data.lab.recipe.steps} batches",
            "Look at what ends the loop (task 6.4).",
        )
    return None


def untouched(made: Attempt, signs: Signs) -> list[str]:
    """Name the parameters that are exactly as they were before training."""
    return [n for n in signs.unmoved if np.array_equal(made.parameters[n], made.initial[n])]


def which_of(names: list[str]) -> str:
    """Say in a few words which weights these are."""
    sides = {name.split(".")[0].split("_")[0] for name in names}
    return "the whole source side" if {"source", "encoder"} <= sides else names[0]


def left_of(made: Attempt, name: str) -> float:
    """Return the largest weight of a tensor after training, relative to the largest before."""
    before, after = np.abs(made.initial[name]).max(), np.abs(made.parameters[name]).max()
    return float(after / before) if before else 0.0


def furthest_move(made: Attempt) -> float:
    """Return how far training moved a weight, relative to the largest of its tensor."""
    moves = [0.0]
    for name, before in made.initial.items():
        after = made.parameters.get(name)
        if after is not None and after.shape == before.shape and before.any():
            moves.append(float(np.abs(after - before).max() / np.abs(before).max()))
    return max(moves)


def of_forcing(signs: Signs) -> Cause | None:
    """Read how free running differs from teacher forcing."""
    if signs.ended < 0.1 and signs.content > 0.5:
        return (
            "eos_never_produced",
            "training",
            "the rows are right up to their end, but EOS never comes",
            "Look at whether EOS stands in the targets (task 6.1) and counts in "
            "the loss (task 6.2).",
        )
    if signs.repeats > 0.7 > signs.forced:
        return (
            "target_not_shifted",
            "training",
            "the model repeats the token it has just read: it was taught to answer its own input",
            "Look at the shift between the two rows (task 6.1) and at which of them train hands "
            "to the model (task 6.4).",
        )
    if signs.skips > 0.5 > signs.forced:
        return (
            "target_shifted_by_two",
            "training",
            "the model answers the token after the next one",
            "Look at the shift between decoder inputs and targets (task 6.1).",
        )
    if signs.forced > 0.9 and signs.exact_match < 0.5:
        return (
            "free_running_differs",
            "decoder",
            f"with the right tokens as input "
            f"{signs.forced:.2f} of the next tokens are right, so what the model learned needs "
            "an input that it does not have when it decodes",
            "Look at what a position can see in training beyond the tokens before it.",
        )
    return None


def of_losses(made: Attempt, signs: Signs, size: int) -> Cause | None:
    """Read the shape of the loss curve."""
    if not made.losses:
        return None
    first, low, last = signs.first_loss, signs.lowest_loss, signs.last_loss
    if last < 0.1 * first and signs.forced < 0.5:
        return (
            "loss_misses_the_task",
            "training",
            f"the loop's loss fell to {last:.3g}, but only "
            f"{signs.forced:.2f} of the next tokens are right: it compares something else",
            "Look at how logits and targets are brought together (tasks 6.1 and 6.2).",
        )
    chance = math.log(size)
    if signs.highest_loss > 2 * chance or last > max(low + 0.2, 1.3 * low):
        return (
            "training_unstable",
            "training",
            f"the loss went from {first:.3g} as high as "
            f"{signs.highest_loss:.3g} and as low as {low:.3g}, and ended at {last:.3g}",
            "Look at the learning rate, and at the order of the steps in the loop: gradients "
            "that add up, clipping that comes too late.",
        )
    if last > LEARNED_NOTHING * chance:
        return (
            "loss_does_not_fall",
            "training",
            f"the loss ended at {last:.3g}, not far below "
            f"the {chance:.3g} of a model that knows nothing: at best it knows how often each "
            "id occurs",
            "Look at the learning rate at every step, and at whether targets, "
            "logits and sources belong to one another.",
        )
    return None


def of_shape(signs: Signs) -> Cause:
    """Read which rows are wrong; otherwise say what was observed and no more."""
    lengths = sorted(signs.by_length, key=int)
    short, long = signs.by_length[lengths[0]], signs.by_length[lengths[-1]]
    # A model that has learned too little answers short rows better as well: it is no sign.
    if abs(short - long) > 0.5 and max(short, long) > 0.9:
        which = "short" if short < long else "long"
        return (
            "fails_by_length",
            "masks",
            f"{which} rows fail ({short:.2f} of the shortest and "
            f"{long:.2f} of the longest are right)",
            "Look at what depends on the number of columns or on padding.",
        )
    return (
        NO_CAUSE,
        "training",
        f"after all steps {signs.forced:.2f} of the next tokens "
        f"are right with teacher forcing, and the loss is {signs.last_loss:.3g}: the model "
        "learns, but not enough",
        "Let the part checks speak first; then look at the learning rate and its schedule.",
    )
