"""Grading the solution with warm workers: where the time goes, and what it takes in memory."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from bench.options import parse
from grader import engine, sandbox, settings
from grader.bench.rounds import ROOT, tell
from grader.launchers import Launcher, Started
from grader.submission import call

SOLUTION = ROOT / "solution"
SAMPLE_S = 0.05
FORKS = 20


class Metered:
    """A launcher that knows its living workers and what the ended ones have computed."""

    def __init__(self, launcher: Launcher) -> None:
        """Pass everything on to `launcher`."""
        self.launcher = launcher
        self.living: set[int] = set()
        self.computed = 0.0

    def launch(self, plan: sandbox.Plan, tree: Path) -> Started:
        """Start a worker."""
        started = self.launcher.launch(plan, tree)
        self.living.add(started.pid)
        return started

    def end(self, pid: int) -> None:
        """Note the worker's processor time, then end it."""
        try:
            used = psutil.Process(pid).cpu_times()
            self.computed += used.user + used.system
        except psutil.Error:
            pass
        self.living.discard(pid)
        self.launcher.end(pid)

    def __getattr__(self, name: str) -> Any:
        """Pass the rest on."""
        return getattr(self.launcher, name)


class Watch:
    """Listens to one grading and times its training, from the first draw to the last."""

    def __init__(self) -> None:
        """Have heard nothing."""
        self.draws: list[float] = []

    def __call__(self, event: dict[str, Any]) -> None:
        """Take one event."""
        if event["kind"] == "progress" and event.get("what") == "training steps":
            self.draws.append(time.perf_counter())

    @property
    def training(self) -> float:
        """Return the seconds of the training; the last step, seen by nobody, counts as a mean."""
        count = len(self.draws) - 1
        return (self.draws[-1] - self.draws[0]) * (count + 1) / count


class Grader:
    """A referee with warm workers and a folder for its results."""

    def __init__(self, referee: engine.Referee, out: Path) -> None:
        """Use `referee`; write below `out`."""
        self.referee = referee
        self.out = out
        self.meter = Metered(referee.workshop.launcher)
        referee.workshop.launcher = self.meter
        self.watch = Watch()

    def grade(self, tasks: frozenset[str] | None = None, ahead: bool = False) -> dict[str, Any]:
        """Grade the solution, or its parts alone, and return the result.

        `ahead`: let gate 4 train while the other checks run, as `python -m grader grade` does.

        Raises:
            SystemExit: it did not pass; what fails early is no measurement.
        """
        self.watch = Watch()
        gates = 4 if tasks is None else 0
        request = engine.Request(path=SOLUTION, out=self.out, tasks=tasks, gates=gates, ahead=ahead)
        tree = self.referee.grade(request, self.watch)
        entries = tree["parts"] + tree["gates"]
        wanted = [e for e in entries if tasks is None or e.get("task") in tasks]
        bad = [f"{e['name']}: {e['summary']}" for e in wanted if e["status"] != "passed"]
        if bad or tree["grader_error"]:
            raise SystemExit(f"the solution does not pass: {(bad or [tree['grader_error']])[0]}")
        return tree

    def whole(self, rounds: int) -> Iterator[dict[str, float]]:
        """Yield the seconds of complete gradings, and of what they are made of.

        Each round grades twice: one thing after the other, which tells how long each takes, and as
        the command does, from which the training is taken off that had a core to itself.
        """
        self.grade()
        for _ in range(rounds):
            computed, began = self.meter.computed, time.perf_counter()
            tree = self.grade()
            wall, training = time.perf_counter() - began, self.watch.training
            computed_alone = self.meter.computed - computed
            began = time.perf_counter()
            self.grade(ahead=True)
            side_by_side = time.perf_counter() - began
            found = {
                "wall": wall,
                "side_by_side": side_by_side,
                "training": training,
                "in_turn": wall - training,
                "without_training": side_by_side - training,
                "overhead": wall - computed_alone,
                "gates": sum(gate["seconds"] for gate in tree["gates"][:3]),
            }
            found |= {f"part_{p['task']}": p["seconds"] for p in tree["parts"]}
            yield found | {f"gate_{i}": g["seconds"] for i, g in enumerate(tree["gates"], 1)}

    def parts(self, rounds: int) -> Iterator[dict[str, float]]:
        """Yield the seconds of looking at each part alone, report and all, and of the slowest."""
        self.grade(frozenset({"1"}))
        for _ in range(rounds):
            found = {}
            for task in sorted({stub.task for stub in self.referee.settings.points.stubs}):
                began = time.perf_counter()
                self.grade(frozenset({task}))
                found[f"part_{task}"] = time.perf_counter() - began
            yield found | {"slowest": max(found.values())}

    def forks(self, rounds: int) -> Iterator[dict[str, float]]:
        """Yield the median seconds from asking for a worker to its first answer."""
        workshop = self.referee.workshop
        question = call("masks.padding_mask", [[1]], 0).to_json()
        workshop.worker(SOLUTION).close()
        for _ in range(rounds):
            taken = []
            for _ in range(FORKS):
                began = time.perf_counter()
                worker = workshop.worker(SOLUTION)
                worker.ask([question])
                taken.append(time.perf_counter() - began)
                worker.close()
            yield {"first_answer": statistics.median(taken)}

    def many(self, rounds: int) -> Iterator[dict[str, float]]:
        """Yield the seconds that 1, 2, 3, ... gradings in a row have taken together."""
        self.grade()
        total = 0.0
        first = 0.0
        for number in range(1, rounds + 1):
            began = time.perf_counter()
            self.grade()
            total += time.perf_counter() - began
            first = first or total
            yield {"submissions": number, "taken": total, "ideal": number * first}

    def memory(self, rounds: int) -> Iterator[dict[str, float]]:
        """Yield the largest memory seen while grading, of all processes and of one worker."""
        self.grade()
        for _ in range(rounds):
            with Sampler(self.meter) as sampler:
                self.grade()
            yield {"together": sampler.together, "private": sampler.private}


class Sampler:
    """Reads the memory of this process and all below it, over and over.

    `together` adds up proportional sizes, so that a page that several share counts once;
    `private` is what a worker has for itself alone, beyond the zygote it was forked from.
    """

    def __init__(self, meter: Metered) -> None:
        """Read the workers that `meter` knows."""
        self.meter = meter
        self.together = 0.0
        self.private = 0.0
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._sample)

    def __enter__(self) -> Sampler:
        """Start reading."""
        if not Path("/proc/self/smaps_rollup").exists():
            raise SystemExit("this system does not tell which pages processes share")
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop reading."""
        self.done.set()
        self.thread.join()

    def _sample(self) -> None:
        me = psutil.Process()
        while not self.done.wait(SAMPLE_S):
            members = [me, *me.children(recursive=True)]
            self.together = max(self.together, sum(sizes(p.pid)["Pss"] for p in members))
            for pid in list(self.meter.living):
                found = sizes(pid)
                own = found["Private_Clean"] + found["Private_Dirty"]
                self.private = max(self.private, own)


def sizes(pid: int) -> dict[str, float]:
    """Return the memory of one process in MB by kind; nothing for one that is gone."""
    found = {"Pss": 0.0, "Private_Clean": 0.0, "Private_Dirty": 0.0}
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return found
    for line in text.splitlines()[1:]:
        kind, size = line.split(":")
        if kind in found:
            found[kind] = int(size.split()[0]) * 1024 / 1e6
    return found


def main() -> None:
    """Measure what the command line names."""
    options = parse(__doc__ or "", "whole", "parts", "forks", "memory", "many")
    with tempfile.TemporaryDirectory() as folder, engine.Referee(settings.load()) as referee:
        measure = getattr(Grader(referee, Path(folder)), options.what)
        for taken in measure(options.rounds):
            tell(taken)


if __name__ == "__main__":
    main()
