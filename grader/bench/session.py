"""One run of the bench: the chosen experiments, one after another, kept as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Protocol

from grader.bench.figure import Curve, Experiment, Figure, Result, Round, Tabled
from grader.bench.rounds import MeasurementFailed

Run = Callable[[Experiment], Iterator[Round]]


class Watcher(Protocol):
    """Whoever shows how far the run is."""

    def start(self, experiment: Experiment) -> None:
        """Take note that the experiment starts."""

    def advance(self, done: int) -> None:
        """Take note of the number of rounds measured."""

    def end(self, results: Sequence[Result]) -> None:
        """Take note of what the experiment's figures are."""


@dataclass(frozen=True)
class Catalogue:
    """Everything that can be measured."""

    experiments: tuple[Experiment, ...]
    figures: tuple[Figure, ...]
    curves: tuple[Curve, ...] = ()
    tables: tuple[Tabled, ...] = ()

    @property
    def readings(self) -> list[Figure | Curve | Tabled]:
        """Return all that is read from experiments."""
        return [*self.figures, *self.curves, *self.tables]

    def names(self) -> list[str]:
        """Return what `--only` accepts."""
        return [item.name for item in (*self.experiments, *self.readings)]

    def chosen(self, only: Sequence[str]) -> Catalogue:
        """Keep the named items and what they are read from; no names keep all.

        Raises:
            ValueError: an unknown name.
        """
        if not only:
            return self
        unknown = [name for name in only if name not in self.names()]
        if unknown:
            raise ValueError(f"nothing is called {', '.join(unknown)}; --list lists the names")

        def kept(item: Figure | Curve | Tabled) -> bool:
            return item.name in only or item.experiment in only

        figures = tuple(f for f in self.figures if kept(f))
        curves = tuple(c for c in self.curves if kept(c))
        tables = tuple(t for t in self.tables if kept(t))
        read = {item.experiment for item in self.readings if kept(item)}.union(only)
        experiments = tuple(e for e in self.experiments if e.name in read)
        return Catalogue(experiments, figures, curves, tables)


@dataclass
class Session:
    """What a run has found so far."""

    catalogue: Catalogue
    rounds: dict[str, list[Round]] = field(default_factory=dict)
    trouble: dict[str, str] = field(default_factory=dict)
    dates: dict[str, str] = field(default_factory=dict)
    stopped: bool = False

    def measure(self, run: Run, watcher: Watcher, save: Callable[[Session], None]) -> None:
        """Run every experiment; Ctrl-C ends the run and keeps what was measured.

        Args:
            run: Yields the rounds of an experiment.
            watcher: Hears how far the run is.
            save: Called after every experiment.
        """
        for experiment in self.catalogue.experiments:
            watcher.start(experiment)
            found = self.rounds[experiment.name] = []
            try:
                with closing(run(experiment)) as rounds:  # type: ignore[type-var]
                    for taken in rounds:
                        found.append(taken)
                        watcher.advance(len(found))
            except MeasurementFailed as failure:
                self.trouble[experiment.name] = str(failure)
            except KeyboardInterrupt:
                self.stopped = True
            self.dates[experiment.name] = date.today().isoformat()
            watcher.end(self.results_of(experiment))
            save(self)
            if self.stopped:
                return

    def joined(self, known: Catalogue, kept: Mapping[str, Mapping[str, Any]]) -> Session:
        """Return what this run and an earlier one measured of everything `known`.

        Args:
            known: All experiments and what is read from them.
            kept: The earlier run's "experiments", as `report.tree` writes them.
        """
        whole = Session(
            known, dict(self.rounds), dict(self.trouble), dict(self.dates), self.stopped
        )
        for experiment in known.experiments:
            name = experiment.name
            # Rounds that came before a failure would take the place of a measurement.
            if name in kept and (name not in self.rounds or name in self.trouble):
                whole.rounds[name] = list(kept[name]["rounds"])
                whole.dates[name] = str(kept[name]["date"])
                whole.trouble.pop(name, None)
                if kept[name]["trouble"]:
                    whole.trouble[name] = str(kept[name]["trouble"])
        return whole

    def results(self) -> list[Result]:
        """Return every figure as it stands."""
        return [r for e in self.catalogue.experiments for r in self.results_of(e)]

    def results_of(self, experiment: Experiment) -> list[Result]:
        """Return the figures that are read from one experiment.

        Rounds that came before a failure are no measurement: which ones are missing is no accident.
        """
        found = self.rounds.get(experiment.name, [])
        trouble = self.trouble.get(experiment.name, "" if found else "not measured yet")
        return [
            Result(
                figure,
                None if trouble else figure.reduce(found),
                len(found),
                experiment.threads,
                trouble,
            )
            for figure in self.catalogue.figures
            if figure.experiment == experiment.name
        ]
