"""One training of gate 4: the student's loop in a worker of its own, the outcome in a fresh one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from grader import decoding, sequences
from grader.decoding import Decoded
from grader.draws import Row
from grader.frames import ProtocolError
from grader.sequences import Sequences
from grader.settings import Settings
from grader.submission import Question, Submission

TRAINED, UNTRAINED, SCRAMBLED = "trained", "untrained", "scrambled"
CONTROL_ROWS = 128
# What the worker says of the training while it runs: it is shown, and counts for nothing.
SHOWN = ("loss", "accuracy")
# The system counts processor time in hundredths of a second.
YARDSTICK_STEPS = 12
WARM_UP_STEPS = 2
# A step of the lab's own loop costs this many steps of the yardstick.
LAB_LOOP = 1.3

Values = dict[str, np.ndarray]


@dataclass
class Attempt:
    """A training and what came of it."""

    number: int
    seed: int
    batches: list[list[Row]] = field(default_factory=list)
    drawn: int = 0
    losses: list[float] = field(default_factory=list)
    parameters: Values = field(default_factory=dict)
    buffers: Values = field(default_factory=dict)
    initial: Values = field(default_factory=dict)
    step_seconds: float = 0.0  # of processor time
    decoded: dict[str, Decoded] = field(default_factory=dict)
    matches: dict[str, float] = field(default_factory=dict)

    @property
    def exact_match(self) -> float:
        """Return the share of held-out rows that the trained model answers."""
        return self.matches[TRAINED]


def begin(data: Sequences, number: int) -> Attempt:
    """Return a training that has not begun, with another seed at every number."""
    return Attempt(number, int(data.rng.child(f"seed {number}").integers((), 0, 2**31)))


def attempt(submission: Submission, data: Sequences, made: Attempt) -> Attempt:
    """Let a trained model answer the held-out rows."""
    restore(submission, data, made)
    made.decoded = decoding.decode(submission, (TRAINED,), data.held_out, data)
    trouble = made.decoded[TRAINED].trouble
    if trouble is not None:
        raise trouble
    some = data.held_out[:CONTROL_ROWS]
    made.decoded |= decoding.decode(submission, (UNTRAINED, SCRAMBLED), some, data)
    answers = data.answers(data.held_out)
    made.matches = {
        name: float(decoding.exact(found.tokens, answers[: len(found.tokens)]).mean())
        for name, found in made.decoded.items()
    }
    return made


def train(submission: Submission, data: Sequences, made: Attempt) -> None:
    """Let the student's loop draw its batches, and take back the trained values."""
    lab = data.lab
    submission.renew()
    made.batches = data.batches(made.number)
    first, respond = supply(submission, data, made)
    before = submission.worker.processor_seconds()
    question = Question("train", setting(lab) | {"recipe": asdict(lab.recipe), "seed": made.seed})
    answer = submission.stream(question, first, respond)
    spent = submission.worker.processor_seconds() - before
    made.step_seconds = spent / max(made.drawn, 1)
    # Nothing but the trained values goes on to the questions about held-out rows.
    submission.renew()
    made.losses = numbers(answer["losses"])
    if made.losses:
        done = {"done": made.drawn, "total": lab.recipe.steps, "what": "training steps"}
        submission.progress({"kind": "progress", "loss": made.losses[-1]} | done)
    made.parameters = arrays(answer["parameters"])
    made.buffers = arrays(answer["buffers"])


def yardstick(lab: Settings, steps: int) -> Question:
    """Ask for steps of the yardstick, at the lab's sizes."""
    sizes = {k: v for k, v in asdict(lab.model).items() if k in ("d_model", "num_heads", "d_ff")}
    sizes["length"] = lab.data.max_length
    arguments = {"sizes": sizes, "batch_size": lab.recipe.batch_size, "steps": steps}
    return Question("yardstick", arguments)


def measure_machine(submission: Submission, lab: Settings) -> float:
    """Return the processor time of one step of the lab's own loop, in a worker without a tree.

    It is 0 where the system tells no times: there is nothing to compare.
    """
    submission.renew()
    submission.ask(yardstick(lab, WARM_UP_STEPS))
    before = submission.worker.processor_seconds()
    submission.ask(yardstick(lab, YARDSTICK_STEPS))
    return (submission.worker.processor_seconds() - before) / YARDSTICK_STEPS * LAB_LOOP


def setting(lab: Settings) -> dict[str, Any]:
    """Return the arguments that make the student's model."""
    return {"config": asdict(lab.model)}


def supply(
    submission: Submission, data: Sequences, made: Attempt
) -> tuple[dict[str, Any], Callable[[dict[str, Any]], dict[str, Any] | None]]:
    """Return the first batch, and what answers a draw with the one after it, at last the end."""
    replies = [sequences.reply(rows, data.answers(rows)) for rows in made.batches]
    replies.append({"end": True})
    ended = False
    shown: dict[str, float] = {}

    def respond(message: dict[str, Any]) -> dict[str, Any] | None:
        nonlocal ended
        seen = {name: message.pop(name) for name in SHOWN if name in message}
        plain = all(type(value) is float for value in seen.values())
        if ended or message != {"draw": made.drawn} or not plain:
            raise ProtocolError("it asked for a batch that was not its turn")
        if made.drawn == len(made.batches):
            ended = True
            return None
        made.drawn += 1
        shown.update(seen)
        event = {"done": made.drawn, "total": len(made.batches), "what": "training steps"}
        submission.progress({"kind": "progress"} | event | shown)
        return replies[made.drawn]

    return replies[0], respond


def restore(submission: Submission, data: Sequences, made: Attempt) -> None:
    """Build the trained, the untrained and the scrambled model in a worker that never trained."""
    values = sequences.renamed(made.parameters | made.buffers, data.disguise)
    mixed = sequences.scrambled(made.parameters, data.rng.child("scramble"))
    built = {
        TRAINED: values,
        UNTRAINED: {},
        SCRAMBLED: mixed | made.buffers,
    }
    answers = submission.ask(*(
        Question("restore", setting(data.lab) | {"save": name, "seed": made.seed, "values": given})
        for name, given in built.items()
    ))  # fmt: skip
    made.initial = arrays(answers[1]["parameters"])


def arrays(values: dict[str, Any]) -> Values:
    """Keep what is an array of numbers."""
    return {str(k): v for k, v in values.items() if isinstance(v, np.ndarray)}


def numbers(losses: Any) -> list[float]:
    """Return the loop's losses; an answer that is no list of numbers has none."""
    good = isinstance(losses, list) and all(isinstance(v, (int, float)) for v in losses)
    return [float(v) for v in losses] if good else []
