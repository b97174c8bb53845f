"""`python -m grader batch SOURCE --out DIR`: a class, from what came to what goes back."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from rich.console import Console

from grader import sandbox
from grader.base import settings
from grader.base.csvtext import CsvError, csv_text
from grader.base.files import replacing
from grader.base.progress import Shown
from grader.base.result import number
from grader.base.settings import Settings
from grader.base.text import one_line
from grader.classroom import compare, figures, keys, marks, merge, page, uploads
from grader.classroom.cluster import Cluster
from grader.classroom.collect import (
    Collected,
    CollectError,
    Collection,
    RosterError,
    collect,
    read_roster,
)
from grader.classroom.gradebooks import Grade, GradebookError, fill
from grader.classroom.loop import Engine, Loop
from grader.classroom.people import id_key
from grader.classroom.rows import Row, count, gradebook, missing_row
from grader.classroom.store import STATE, BatchError, Output, compact
from grader.run.pool import ONE_THREAD, Pool, cores

GRADED, NEEDS_A_PERSON, CANNOT_RUN, GRADER_FAILED, STOPPED = 0, 1, 2, 3, 130

EngineOf = Callable[[argparse.Namespace, Settings, Output], Engine]


def main(options: argparse.Namespace, engine_of: EngineOf | None = None) -> int:
    """Grade a class and return the exit code.

    Args:
        options: of the command line.
        engine_of: makes what grades; None = processes here, or the cluster that was named.
    """
    try:
        refuse_at_odds(options)
        lab = settings.load()
        roster = read_roster(_bytes(options.roster, "roster")) if options.roster else None
        old = compare.load(options.compare) if options.compare else None
        if options.fill:
            # Whatever is wrong with it is better said before a class is graded.
            nobody = Grade("", (), "", None, number(Fraction(lab.points.maximum)))
            fill(_bytes(options.fill, "gradebook"), [nobody], options.column)
        own = options.adjustments or options.out / marks.NAME
        adjusted = []
        if options.adjustments or own.exists():
            adjusted = marks.read(_bytes(own, "file of adjustments"), lab)
        collection = collect(options.source, lab, roster, options.pattern)
        shared = keys.inputs(lab, chosen_isolation(options.isolation).contained)
        with Output(options.out, merge.name_of(options.shard) if options.shard else "") as output:
            batch = Batch(
                options, engine_of or usual_engine, lab, shared, output, collection, adjusted
            )
            try:
                return batch.shard() if options.shard else batch.whole(old)
            except OSError as error:
                raise output.unwritable(error) from None
    except KeyboardInterrupt:
        print(stopped(options), file=sys.stderr)
        return STOPPED
    except (BatchError, CollectError, RosterError, CsvError, GradebookError) as error:
        print(f"cannot grade the class: {error}", file=sys.stderr)
        return CANNOT_RUN


@dataclass
class Batch:
    """One run of the command."""

    options: argparse.Namespace
    engine_of: EngineOf
    lab: Settings
    shared: keys.Inputs
    output: Output
    collection: Collection
    adjustments: list[marks.Adjustment] = field(default_factory=list)

    def whole(self, old: tuple[Row, list[Row]] | None) -> int:
        """Grade or merge the whole class, write all that is made of it, and compare with `old`."""
        options, output = self.options, self.output
        if options.merge is not None:
            self.shared = merge.recorded(output, options.merge, self.shared)
        rows = self._run(self.collection.submissions, views=True)
        most = number(Fraction(self.lab.points.maximum))
        rows += [missing_row(student, most) for student in self.collection.missing]
        shown = marks.final(rows, self.adjustments, self.lab.late)
        marks.tell(output, shown)
        self._write(rows, shown)
        for line in uploads.write(output, shown, options.fill, options.column):
            print(line)
        if old is not None:
            report_changes(output, compare.changes(old, self.shared, rows))
        counts = count(rows)
        self._tell(f"{len(rows)} in the class: {_counted(counts) or 'none'}")
        self._tell(
            f"gradebook: {output.folder / 'gradebook.csv'}   page: {output.folder / 'index.html'}"
        )
        return exit_code(counts)

    def _tell(self, line: str) -> None:
        """Print a line, unless the batch is to be quiet."""
        if not self.options.quiet:
            print(line)

    def shard(self) -> int:
        """Grade one share of the class into the store."""
        shard = self.options.shard
        merge.record(self.output, shard, self.shared)
        # Every nth, so that shards take about as long.
        share = self.collection.submissions[shard[0] - 1 :: shard[1]]
        counts = count(self._run(share, views=False))
        text = _counted(counts) or "nothing to do"
        print(f"shard {merge.name_of(shard)}: {text}; join the shards with --merge")
        return exit_code(counts)

    def _run(self, submissions: list[Collected], *, views: bool) -> list[Row]:
        """Grade, or only look up where shards are merged, and return the rows."""
        options, output = self.options, self.output
        console = Console(stderr=True, highlight=False)
        progress = Shown("grading", len(submissions), console, quiet=options.quiet)
        merging = options.merge is not None
        using = nullcontext() if merging else closing(self.engine_of(options, self.lab, output))
        with using as engine, progress:
            loop = Loop(
                self.lab, self.shared, output, engine, options.isolation, told(progress), views,
                picked(options.only),
            )  # fmt: skip
            try:
                return loop.run(submissions)
            finally:
                if loop.seconds:
                    names = [one.key for one in submissions if one.key in loop.seconds]
                    lines = [(name, f"{loop.seconds[name]:.1f}") for name in names]
                    text = csv_text([("submission", "seconds"), *lines])
                    write_text(output.folder / "timings.csv", [text])

    def _write(self, rows: list[Row], shown: list[Row]) -> None:
        """Write what is made of all rows, and of their scores as they count."""
        submissions, report = self.collection.submissions, self.collection.report
        report.ungradable = [
            f"{one.who}: {row['cause']}"
            for one, row in zip(submissions, rows, strict=False)  # then those of whom nothing came
            if row["status"] == "ungradable"
        ]
        lines = report.lines()
        self.output.forget_others({one.key for one in submissions})
        folder = self.output.folder
        with replacing(folder / STATE) as file:
            file.writelines(map(compact, [{"inputs": vars(self.shared)}, *rows]))
        write_text(folder / "gradebook.csv", [gradebook(shown)])
        write_text(folder / "tasks.csv", [figures.table(figures.items(rows, self.lab))])
        write_text(folder / "collection.txt", (f"{line}\n" for line in lines))
        write_text(folder / "index.html", page.render(shown, lines, self.lab))


def picked(wanted: Sequence[str]) -> Callable[[Row], bool] | None:
    """Return what tells whether a row is to be graded again; None = all as usual.

    Raises:
        BatchError: a wish has another form than KIND=VALUE, or an unknown kind.
    """
    pairs = [tuple(text.split("=", 1)) for text in wanted]
    for pair in pairs:
        if len(pair) != 2 or pair[0] not in ("student", "status", "task", "flag"):
            raise BatchError(
                "--only expects student=, status=, task= or flag= and a value: got "
                + "=".join(pair)
            )

    def is_picked(row: Row) -> bool:
        undone = [name for name, item in row["items"].items() if item["status"] != "passed"]
        of = {
            "student": list(map(id_key, marks.names(row))),
            "status": [row["status"]],
            "task": undone,
            "flag": row["flags"],
        }
        return any((id_key(v) if k == "student" else v) in of[k] for k, v in pairs)

    return is_picked if pairs else None


def told(progress: Shown) -> Callable[[Row, bool], None]:
    """Return what the loop tells of every submission: a terminal hears of trouble only."""

    def hear(row: Row, graded: bool) -> None:
        progress.step(worked=graded)
        status, score = row["status"], row["score"]
        if progress.console.is_terminal and status != "grader_error":
            return
        if graded or score is None:
            why = f": {one_line(row['cause'])[:160]}"
            text = why if score is None else f", {score} of {row['max_score']}"
            place = f"{progress.done}/{progress.total}"
            progress.say(f"{place} {row['name']}: {status}{text}; {progress.pace()}")

    return hear


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {status}" for status, number in counts.items())


def stopped(options: argparse.Namespace) -> str:
    """Return what is said when a person has ended the batch."""
    kept = options.out / "store"
    if not kept.is_dir():
        return "stopped before anything was graded: give the same command again"
    later = "" if options.shard else ", and writes gradebook and page at its end"
    return f"stopped; what was graded is kept in {kept}: the same command goes on{later}"


def refuse_at_odds(options: argparse.Namespace) -> None:
    """Refuse options of which one would be passed over in silence.

    Raises:
        BatchError: there are such.
    """
    later = [name for name in ("merge", "compare", "fill") if getattr(options, name) is not None]
    if options.shard and later:
        names = " and ".join(f"--{name}" for name in later)
        raise BatchError(f"--shard grades its share only: give {names} when all shards have ended")
    picked(options.only)
    if options.only and (options.shard or options.merge is not None):
        raise BatchError("--only regrades in one run: leave --shard and --merge out")
    if options.column and not options.fill:
        raise BatchError(
            "--column names a column of the gradebook that --fill names: got no --fill"
        )
    if options.out.resolve().is_relative_to(options.source.resolve()):
        raise BatchError(
            f"{options.out} lies in {options.source}, where it would be taken for a submission: "
            "choose another --out"
        )


def write_text(path: Path, pieces: Iterable[str]) -> None:
    """Write a file of what may hold characters that nobody can encode."""
    with replacing(path) as file:
        file.writelines(piece.encode("utf-8", "replace") for piece in pieces)


def usual_engine(options: argparse.Namespace, lab: Settings, output: Output) -> Engine:
    """Return what grades: processes here, or a cluster."""
    # The salt is in this process: nobody of the same user may look into it.
    sandbox.protect_memory()
    # A second line behind the limits of each check, for a referee that hangs.
    budget = 2 * (lab.limits.training_s + lab.limits.check_s)
    jobs = options.jobs or cores()
    if options.cluster:
        return Cluster(options.cluster, jobs, budget)
    environment = ONE_THREAD | {"TMPDIR": str(output.temporary)}
    return Pool(jobs, "grader.classroom.worker", budget_s=budget, environment=environment)


def report_changes(output: Output, changes: list[compare.Change]) -> None:
    """Write `changes.csv` and print each change."""
    write_text(output.folder / "changes.csv", [compare.table(changes)])
    print(f"{len(changes)} scores changed: {output.folder / 'changes.csv'}")
    for change in changes:
        print(f"  {compare.said(change)}")


def exit_code(counts: Mapping[str, int]) -> int:
    """Return the exit code that belongs to so many of each status."""
    if counts.get("grader_error"):
        return GRADER_FAILED
    return NEEDS_A_PERSON if counts.keys() - {"passed", "not_passed"} else GRADED


def chosen_isolation(requested: str) -> sandbox.Isolation:
    """Return the isolation; refuse one that does not hide the grader, unless it was named.

    Raises:
        BatchError: no layer that works here hides the grader's files.
        IsolationUnavailable: a layer that was named does not work here.
    """
    found = sandbox.choose(requested)
    if not found.contained and requested != "portable":
        raise BatchError(
            f"nothing here hides the grader's files from a submission (isolation {found.level}); "
            "see python -m grader doctor, or ask for --isolation portable by name"
        )
    return found


def _bytes(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BatchError(f"the {what} {path} cannot be read: {error.strerror or error}") from None
