"""One training of gate 4: the student's loop in a worker of its own, the outcome in a fresh one."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from grader.asking.submission import Question, Submission
from grader.base.result import CheckFailed
from grader.base.settings import Settings
from grader.base.student_error import StudentError
from grader.gates import decoding, sequences
from grader.gates.decoding import Decoded
from grader.gates.sequences import Sequences
from grader.link.frames import ProtocolError
from grader.link.workers import WorkerLost

TRAINED, UNTRAINED, SCRAMBLED = "trained", "untrained", "scrambled"
LOOKED_AT = "looked at"
CONTROL_ROWS = 128
# The system counts processor time in hundredths of a second.
YARDSTICK_STEPS = 12
WARM_UP_STEPS = 2
# A step of the lab's own loop costs this many steps of the yardstick.
LAB_LOOP = 1.3

Values = dict[str, np.ndarray]


@dataclass
class Attempt:
    """A training and what came of it; `learned` ended before its budget, for the model could."""

    number: int
    seed: int
    budget: int
    drawn: int = 0
    learned: bool = False
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


def attempt(submission: Submission, data: Sequences, number: int, *, looks: bool) -> Attempt:
    """Train from the seed of this number, and let the trained model answer the held-out rows.

    With `looks` the training ends as soon as the model has learned.
    """
    seed = int(data.rng.child(f"seed {number}").integers((), 0, 2**31))
    made = Attempt(number, seed, data.lab.recipe.steps)
    train(submission, data, made, looks=looks)
    # Nothing but the trained values goes on to the questions about held-out rows.
    submission.renew()
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


def in_short(made: Attempt) -> str:
    """Say how long the training took."""
    if made.learned:
        return f"learned after {made.drawn} of at most {made.budget} steps"
    return f"trained for {made.drawn} of {made.budget} steps"


def train(submission: Submission, data: Sequences, made: Attempt, *, looks: bool) -> None:
    """Let the student's loop draw its batches, and take back the trained values."""
    lab = data.lab
    submission.renew()
    looking = Looking(submission.another(), data, made) if looks else None
    arguments = {"recipe": asdict(lab.recipe), "seed": made.seed}
    arguments["looks"] = looking.steps if looking else []
    before = submission.worker.processor_seconds()
    question = Question("train", setting(lab) | arguments)
    try:
        answer = submission.stream(question, Supply(submission, data, made, looking))
    finally:
        if looking:
            looking.elsewhere.close()
    spent = submission.worker.processor_seconds() - before
    made.step_seconds = spent / max(made.drawn, 1)
    made.losses = numbers(answer["losses"])
    if made.losses:
        done = {"done": made.drawn, "total": made.drawn, "what": "training steps"}
        submission.progress({"kind": "progress", "loss": made.losses[-1]} | done)
    made.parameters = arrays(answer["parameters"])
    made.buffers = arrays(answer["buffers"])


class Looking:
    """Looks at a model while it trains: another worker decodes rows that no verdict is about."""

    def __init__(self, elsewhere: Submission, data: Sequences, made: Attempt) -> None:
        """Decode with `elsewhere`, which must not be what trains."""
        self.elsewhere, self.data, self.made = elsewhere, data, made
        accuracy = data.lab.accuracy
        self.steps = list(range(accuracy.look_from, made.budget, accuracy.look_every))
        self.trouble = False

    def share(self, values: Values) -> float | None:
        """Return the share of the look rows that a model with these values answers.

        A model that fails to answer is not looked at again: its training goes on to the end, and
        whoever judges it will say what is wrong.
        """
        if self.trouble:
            return None
        data = self.data
        question = restoring(data, self.made, LOOKED_AT, sequences.renamed(values, data.disguise))
        try:
            self.elsewhere.ask(question)
            decoded = decoding.decode(self.elsewhere, (LOOKED_AT,), data.look, data)[LOOKED_AT]
        except (CheckFailed, StudentError, WorkerLost):
            decoded = None
        if decoded is None or decoded.trouble is not None:
            self.trouble = True
            return None
        return float(decoding.exact(decoded.tokens, data.answers(data.look)).mean())


class Supply:
    """Answers the draws of one training: with batch after batch, at last with the end."""

    def __init__(
        self, submission: Submission, data: Sequences, made: Attempt, looking: Looking | None
    ) -> None:
        """Tell `submission` of progress; end early when `looking` sees that the model can."""
        self.submission, self.data, self.made, self.looking = submission, data, made, looking
        self.ended = False

    def __call__(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the batch that was asked for, or the end.

        Raises:
            ProtocolError: it was not the turn of what was asked for.
        """
        made, seen = self.made, {}
        values = {key: message.pop(key) for key in ("parameters", "buffers") if key in message}
        if self.ended or message != {"draw": made.drawn}:
            raise ProtocolError("it asked for a batch that was not its turn")
        if self.looking and made.drawn in self.looking.steps and values:
            if not all(isinstance(value, dict) for value in values.values()):
                raise ProtocolError("what it handed over is no model")
            given = [arrays(value) for value in values.values()]
            share = self.looking.share({k: v for some in given for k, v in some.items()})
            made.learned = (share or 0.0) >= self.data.lab.accuracy.look_exact_match
            seen = {} if share is None else {"accuracy": share}
        self.ended = made.learned or made.drawn == made.budget
        event = {"done": made.drawn, "total": made.budget, "what": "training steps"}
        self.submission.progress({"kind": "progress"} | event | seen)
        if self.ended:
            return {"end": True}
        rows = self.data.batch(made.number, made.drawn)
        made.drawn += 1
        return sequences.reply(rows, self.data.answers(rows))


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
        restoring(data, made, name, given) for name, given in built.items()
    ))  # fmt: skip
    made.initial = arrays(answers[1]["parameters"])


def restoring(data: Sequences, made: Attempt, name: str, values: Values) -> Question:
    """Ask for the model that was trained, with these values in it."""
    arguments = {"save": name, "seed": made.seed, "values": values}
    return Question("restore", setting(data.lab) | arguments)


def arrays(values: dict[str, Any]) -> Values:
    """Keep what is an array of numbers."""
    return {str(k): v for k, v in values.items() if isinstance(v, np.ndarray)}


def numbers(losses: Any) -> list[float]:
    """Return the loop's losses; an answer that is no list of numbers has none."""
    good = isinstance(losses, list) and all(isinstance(v, (int, float)) for v in losses)
    return [float(v) for v in losses] if good else []
