"""`python -m grader batch SOURCE --out DIR`: a class, from what came to what goes back."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path

from grader import sandbox, settings
from grader.batch import book, compare, keys, merge, page, uploads
from grader.batch.cluster import Cluster
from grader.batch.fleet import Engine, Fleet
from grader.batch.loop import Loop
from grader.batch.progress import Shown
from grader.batch.rows import Row, count, missing_row
from grader.batch.store import STATE, BatchError, Output, compact
from grader.collect import (
    CollectError,
    Collection,
    Roster,
    RosterError,
    Student,
    collect,
    read_roster,
)
from grader.csvtext import CsvError
from grader.files import replace_file
from grader.gradebooks import GradebookError
from grader.result import number
from grader.settings import Settings

GRADED, NEEDS_A_PERSON, CANNOT_RUN, GRADER_FAILED, STOPPED = 0, 1, 2, 3, 130


EngineOf = Callable[[argparse.Namespace, Settings, Output], Engine]


def main(options: argparse.Namespace, engine_of: EngineOf | None = None) -> int:
    """Grade a class and return the exit code.

    Args:
        options: of the command line.
        engine_of: makes what grades; None = processes here, or the cluster that was named.
    """
    make = engine_of or usual_engine
    try:
        lab = settings.load()
        roster = read_roster(_bytes(options.roster, "roster")) if options.roster else None
        old = compare.load(options.compare) if options.compare else None
        if options.fill:
            _bytes(options.fill, "gradebook")
        collection = collect(options.source, lab, roster, options.pattern)
        isolation = chosen_isolation(options.isolation)
        shared = keys.inputs(lab, isolation.contained)
        name = merge.name_of(options.shard) if options.shard else ""
        with Output(options.out, name) as output:
            try:
                if options.shard:
                    return shard(options, make, lab, shared, output, collection)
                return whole(options, make, lab, shared, output, collection, roster, old)
            except OSError as error:
                raise output.unwritable(error) from None
    except (BatchError, CollectError, RosterError, CsvError, GradebookError) as error:
        print(f"cannot grade the class: {error}", file=sys.stderr)
        return CANNOT_RUN


def whole(
    options: argparse.Namespace,
    engine_of: EngineOf,
    lab: Settings,
    shared: keys.Inputs,
    output: Output,
    collection: Collection,
    roster: Roster | None,
    old: tuple[Row, list[Row]] | None,
) -> int:
    """Grade or merge the whole class, and write everything that is made of it."""
    engine = None
    if options.merge is not None:
        shared = merge.recorded(output, options.merge, shared)
    else:
        engine = engine_of(options, lab, output)
    rows = run(options, lab, shared, output, collection, engine)
    stopped = rows is None
    rows = [*(rows or []), *missing_rows(collection, roster, lab)]
    if stopped:
        print("stopped; what was graded is kept: the same command goes on", file=sys.stderr)
        return STOPPED
    write_class(output, rows, collection, shared, lab)
    for line in uploads.write(output, rows, options.fill, options.column):
        print(line)
    if old is not None:
        report_changes(output, compare.changes(old, shared, rows))
    summarise(output, rows)
    return exit_code(rows)


def shard(
    options: argparse.Namespace,
    engine_of: EngineOf,
    lab: Settings,
    shared: keys.Inputs,
    output: Output,
    collection: Collection,
) -> int:
    """Grade one share of the class into the store."""
    share = merge.share(collection.submissions, options.shard)
    merge.record(output, options.shard, shared)
    engine = engine_of(options, lab, output)
    part = Collection(share, collection.report)
    rows = run(options, lab, shared, output, part, engine, views=False)
    if rows is None:
        return STOPPED
    text = ", ".join(f"{n} {status}" for status, n in count(rows).items()) or "nothing to do"
    print(f"shard {merge.name_of(options.shard)}: {text}; join the shards with --merge")
    return exit_code(rows)


def run(
    options: argparse.Namespace,
    lab: Settings,
    shared: keys.Inputs,
    output: Output,
    collection: Collection,
    engine: Engine | None,
    *,
    views: bool = True,
) -> list[Row] | None:
    """Grade and return the rows, or None when Ctrl-C stopped it."""
    shown = Shown(len(collection.submissions), quiet=options.quiet)
    loop = Loop(lab, shared, output, engine, options.isolation, shown, views)
    try:
        if engine is None:
            return list(loop.run(collection.submissions))
        with closing(engine), shown:
            return list(loop.run(collection.submissions))
    except KeyboardInterrupt:
        return None
    finally:
        if shown.seconds:
            replace_file(output.folder / "timings.csv", shown.timings().encode())


def usual_engine(options: argparse.Namespace, lab: Settings, output: Output) -> Engine:
    """Return what grades: processes here, or a cluster."""
    # A second line behind the limits of each check, for a referee that hangs.
    budget = 2 * (lab.limits.training_s + lab.limits.check_s)
    jobs = options.jobs or cores()
    if options.cluster:
        return Cluster(options.cluster, jobs, budget)
    return Fleet(jobs, budget, output.temporary)


def write_class(
    output: Output, rows: list[Row], collection: Collection, shared: keys.Inputs, lab: Settings
) -> None:
    """Write what is made of all rows."""
    lines = collection.report.lines()
    output.forget_others({one.key for one in collection.submissions})
    files = {
        STATE: b"".join(map(compact, [{"inputs": asdict(shared)}, *rows])),
        "gradebook.csv": book.write(rows).encode("utf-8", "replace"),
        "collection.txt": "\n".join([*lines, ""]).encode("utf-8", "replace"),
        "index.html": page.render(rows, lines, lab).encode("utf-8", "replace"),
    }
    for name, data in files.items():
        replace_file(output.folder / name, data)


def report_changes(output: Output, changes: list[compare.Change]) -> None:
    """Write `changes.csv` and print each change."""
    replace_file(output.folder / "changes.csv", compare.table(changes).encode("utf-8", "replace"))
    print(f"{len(changes)} scores changed: {output.folder / 'changes.csv'}")
    for change in changes:
        name, _, *_, cause, where = map(str, change.line())
        old, new = ((row or {}).get("score") for row in (change.old, change.new))
        print(f"  {name}: {old} to {new}, because of {cause}" + (f" ({where})" if where else ""))


def summarise(output: Output, rows: list[Row]) -> None:
    """Print how the class stands."""
    text = ", ".join(f"{number} {status}" for status, number in count(rows).items())
    print(f"{len(rows)} in the class: {text or 'none'}")
    print(f"gradebook: {output.folder / 'gradebook.csv'}   page: {output.folder / 'index.html'}")


def exit_code(rows: list[Row]) -> int:
    """Return the exit code that belongs to the rows."""
    counts = count(rows)
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


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def missing_rows(collection: Collection, roster: Roster | None, lab: Settings) -> list[Row]:
    """Return the rows of those on the roster of whom nothing came."""
    if roster is None:
        return []
    most = number(Fraction(lab.points.maximum))
    here = {key for one in collection.submissions for s in one.students for key in _keys(s)}
    absent = Counter(collection.report.missing)
    found = [s for s in roster.students if absent[s.who] and not here & _keys(s)]
    return [missing_row(student, most) for student in found]


def _keys(student: Student) -> set[str]:
    return {text.casefold() for text in (*student.ids, student.email) if text}


def _bytes(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BatchError(f"the {what} {path} cannot be read: {error.strerror or error}") from None
