"""What is measured and what it should be: experiments, figures, targets, verdicts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Round = Mapping[str, Any]  # numbers by name; a table's rounds hold words too


class Spread(NamedTuple):
    """The median of the rounds, and how far they went."""

    median: float
    low: float
    high: float


Reduce = Callable[[Sequence[Round]], Spread]


@dataclass(frozen=True)
class Experiment:
    """A program that measures, and that several figures may read.

    Args:
        name: How `--only` calls it.
        sentence: What it does.
        module: The program, run as `python -m module`; it prints one JSON object per round.
        arguments: Its command line.
        rounds: How many rounds it prints; every round measures each subject once, in turn.
        threads: Threads of each process in it.
        timed: Whether it measures time or memory, which another machine would give otherwise.
    """

    name: str
    sentence: str
    module: str
    arguments: tuple[str, ...] = ()
    rounds: int = 1
    threads: int = 1
    timed: bool = True


@dataclass(frozen=True)
class Target:
    """The bounds of a figure; `at_least` turns both of them round."""

    required: float | None = None
    goal: float | None = None
    at_least: bool = False

    def met(self, value: float) -> str:
        """Return "goal met", "met", "short of the goal", "missed" or "no target"."""
        if self.required is None and self.goal is None:
            return "no target"
        if self.required is not None and not self._within(value, self.required):
            return "missed"
        if self.goal is None:
            return "met"
        if self._within(value, self.goal):
            return "goal met"
        return "met" if self.required is not None else "short of the goal"

    def _within(self, value: float, bound: float) -> bool:
        return value >= bound if self.at_least else value <= bound


@dataclass(frozen=True)
class Figure:
    """One number with a target.

    Args:
        name: How `--only` calls it.
        sentence: What the number is.
        experiment: Name of the experiment it is read from.
        unit: "x" for a ratio.
        target: What it should be.
        reduce: Makes the number of the experiment's rounds.
    """

    name: str
    sentence: str
    experiment: str
    unit: str
    target: Target
    reduce: Reduce


@dataclass(frozen=True)
class Curve:
    """How series grow: every round of the experiment is one point of each.

    Args:
        name: How `--only` calls it; also the stem of its picture.
        sentence: What it shows.
        experiment: Name of the experiment it is read from.
        x: Key of the rounds that holds the abscissa.
        series: Keys of the rounds that are drawn, with their labels.
        unit: Of the series.
    """

    name: str
    sentence: str
    experiment: str
    x: str
    series: Mapping[str, str]
    unit: str


@dataclass(frozen=True)
class Tabled:
    """A table: every round of the experiment is a row.

    Args:
        name: How `--only` calls it.
        sentence: What it shows.
        experiment: Name of the experiment it is read from.
        columns: Keys of the rounds, with their headings; a round may lack some.
    """

    name: str
    sentence: str
    experiment: str
    columns: Mapping[str, str]


@dataclass(frozen=True)
class Result:
    """A figure after its experiment: the spread, or why there is none."""

    figure: Figure
    spread: Spread | None
    rounds: int
    threads: int
    trouble: str = ""

    @property
    def verdict(self) -> str:
        """Return the target's word, or "not measured"."""
        return self.figure.target.met(self.spread.median) if self.spread else "not measured"

    @property
    def fails(self) -> bool:
        """Tell whether a required figure is missed, or unknown."""
        required = self.figure.target.required is not None
        return required and self.verdict in ("missed", "not measured")


def spread(values: Sequence[float]) -> Spread:
    """Return median, smallest and largest."""
    return Spread(statistics.median(values), min(values), max(values))


def value(key: str) -> Reduce:
    """Read one key of every round."""
    return lambda rounds: spread([r[key] for r in rounds])


def paired(ours: str, peer: str) -> Reduce:
    """Divide within every round: what disturbs the machine disturbs both."""
    return lambda rounds: spread([r[ours] / r[peer] for r in rounds])


def of_medians(ours: str, peer: str) -> Reduce:
    """Divide the medians, for rounds that are different problems; the spread is within rounds."""

    def reduce(rounds: Sequence[Round]) -> Spread:
        low, high = paired(ours, peer)(rounds)[1:]
        above = statistics.median(r[ours] for r in rounds)
        return Spread(above / statistics.median(r[peer] for r in rounds), low, high)

    return reduce


def worst(key: str) -> Reduce:
    """Let the largest value of one key stand for all rounds."""
    return lambda rounds: spread([r[key] for r in rounds])._replace(
        median=max(r[key] for r in rounds)
    )


def thousandfold(key: str) -> Reduce:
    """Read one key of every round, in seconds, as milliseconds."""
    return lambda rounds: spread([1e3 * r[key] for r in rounds])


def difference_ratio(above: tuple[str, str], below: tuple[str, str]) -> Reduce:
    """Divide the difference of two keys by that of two others, within every round."""
    return lambda rounds: spread(
        [(r[above[0]] - r[above[1]]) / (r[below[0]] - r[below[1]]) for r in rounds]
    )
