"""Every figure with its required and its goal value: the one place that holds them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from bench import grading, package

# Each program yields rounds: the value of each of its figures, by name.
Program = Callable[[], Iterator[dict[str, float]]]


@dataclass(frozen=True)
class Figure:
    """What is measured, by which program, and where it has to be.

    Attributes:
        required: the bound that `--check` holds it to.
        goal: the better one that we would like.
        at_least: whether the bounds are lower ones.
    """

    name: str
    what: str
    unit: str
    program: Program
    required: float
    goal: float | None = None
    at_least: bool = False

    def meets(self, value: float, bound: float) -> bool:
        """Tell whether `value` is on the right side of `bound`."""
        return value >= bound if self.at_least else value <= bound

    def verdict(self, value: float) -> str:
        """Return what the targets say of `value`."""
        if self.goal is not None and self.meets(value, self.goal):
            return "goal met"
        return "met" if self.meets(value, self.required) else "missed"

    def shown(self, value: float) -> str:
        """Return a value with its unit."""
        return f"{value:,.0f} {self.unit}" if value >= 1000 else f"{value:.3g} {self.unit}"


@dataclass(frozen=True)
class Measured:
    """The rounds of one figure, or why there are none."""

    figure: Figure
    rounds: Sequence[float] = ()
    trouble: str = ""

    @property
    def verdict(self) -> str:
        """Return what the targets say of the median."""
        if not self.rounds:
            return f"not measured: {self.trouble}"
        return self.figure.verdict(statistics.median(self.rounds))

    @property
    def fails(self) -> bool:
        """Tell whether a required figure is missed, or not measured."""
        return self.verdict not in ("met", "goal met")

    @property
    def row(self) -> list[str]:
        """Return the cells of the table that `HEADINGS` names."""
        figure, shown = self.figure, self.figure.shown
        sign = ">=" if figure.at_least else "<="
        goal = "" if figure.goal is None else f"{sign} {shown(figure.goal)}"
        median = shown(statistics.median(self.rounds)) if self.rounds else ""
        spread = f"{shown(min(self.rounds))} to {shown(max(self.rounds))}" if self.rounds else ""
        return [
            f"`{figure.name}`", figure.what, f"{sign} {shown(figure.required)}", goal, median,
            spread, str(len(self.rounds)), self.verdict,
        ]  # fmt: skip


HEADINGS = (
    "figure", "what it is", "required", "goal", "median", "smallest to largest", "rounds", "verdict"
)  # fmt: skip

SMALL = partial(package.step, "step_small", 32, 8, 128)
LARGE = partial(package.step, "step_large", 512, 512, 2)
STEP = "forward plus backward at {} / nn.Transformer of the same shape and norm placement"

FIGURES = (
    Figure("lines", "lines of Python in grader/", "lines", grading.lines, 22_000, 18_000),
    Figure("cold_grade", "whole grade of the solution, cold / a process that imports torch and "
           "takes one AdamW step", "x", grading.cold_grade, 1.8, 1.5),
    Figure("class_pace", "a class of correct submissions on two processes: seconds of each on its "
           "process / those of 300 bare training steps alone", "x", grading.class_pace, 1.3, 0.9),
    Figure("class_share", "a mixed class of 40 on two processes: the submissions' own seconds / "
           "what two processes had", "%", grading.class_share, 90, 95, at_least=True),
    Figure("watch", "watch: from saving a file to the verdict of its task", "s", grading.watch,
           0.5, 0.3),
    Figure("gates_1_to_3", "gates 1 to 3 together, in turn, warm", "s", grading.warm, 1.5, 1),
    Figure("slowest_part", "the slowest of the six parts, looked at alone, warm", "ms",
           grading.warm, 300),
    Figure("endless_loop", "grade of a submission that loops without end in a gate, or in `train`: "
           "the longer of both", "s", grading.endless_loop, 40, 20),
    Figure("worker_memory", "the largest worker's own memory", "MB", grading.worker_memory, 150),
    Figure("step_small", STEP.format("D 32, T 8, B 128"), "x", SMALL, 1),
    Figure("step_large", STEP.format("D 512, T 512, B 2"), "x", LARGE, 1.2),
    Figure("cache_decoder_only", "decoder-only, 256 tokens: running the prefix again / cache", "x",
           package.generation, 5, at_least=True),
    Figure("cache_seq2seq", "the same for the encoder-decoder", "x", package.generation, 5,
           at_least=True),
    Figure("make_test", "make test", "s", grading.make_test, 300, 180),
)  # fmt: skip
