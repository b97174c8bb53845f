"""`lint`: what the parts of the lab say of its tasks and gates, and where they disagree.

lab.toml says which tasks and gates there are. The checks, the solution's markers, the starter, the
tables of the pages and the corpus must say the same; each place where one does not is a line.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from grader.base import settings
from grader.base.files import replace_file
from grader.base.places import LAB_FILE, ROOT
from grader.base.settings import Settings, SettingsError, StretchStub, Stub
from grader.run import marks
from grader.upkeep import facts, release
from grader.upkeep.release import Region, ReleaseError

AGREED, DISAGREED = 0, 2
PAGES = ("README.md", "handout/README.md")
# The keys of a case that name stubs, tasks and gates.
NAMING = ("caught_by", "loses", "statuses")


def disagreements(lab: Settings, root: Path = ROOT) -> list[str]:
    """Return a line for every place in the repository `root` that disagrees with lab.toml."""
    checks = marks.marked(root / "grader" / "checks")
    try:
        regions = solution_regions(root / "solution")
    except ReleaseError as error:
        return [f"solution: {error}"]
    return [
        *of_checks(lab, checks, {region.task for _, region in regions}),
        *of_solution(lab, regions),
        *of_starter(lab, root),
        *of_pages(lab, root),
        *of_corpus(lab, root / "tests" / "corpus"),
    ]


def solution_regions(solution: Path) -> list[tuple[str, Region]]:
    """Return every task body of the solution with the name of its file."""
    return [
        (path.name, region)
        for path in sorted(solution.rglob("*.py"))
        for region in release.find_regions(path.read_text(encoding="utf-8"), path.name)
    ]


def of_checks(lab: Settings, checks: tuple[marks.Marked, ...], written: set[str]) -> Iterator[str]:
    """Compare the markers of the checks with lab.toml; `written` tasks stand in the solution."""
    gates = (*lab.points.gates, *lab.scale.gates)
    marked = {kind: {one.name for one in checks if one.kind == kind} for kind in marks.KINDS}
    for stub in lab.points.ids:
        if stub not in marked["part"]:
            yield f"checks: no check is marked part({stub!r}), which lab.toml asks for"
    for gate in gates:
        if gate not in marked["gate"]:
            yield f"checks: no check is marked gate({gate!r}), which lab.toml names"
    for one in checks:
        place = f"checks: {one.file.name}: {one.check}"
        if one.kind == "part" and one.name not in {*lab.points.ids, *written}:
            yield f"{place}: neither lab.toml nor the solution has a task {one.name!r}"
        if one.kind == "gate" and one.name not in gates:
            yield f"{place}: lab.toml has no gate {one.name!r}"
        if not one.kind:
            yield f"{place}: it has no marker part(...) or gate(...)"
    for name, count in Counter(one.check for one in checks).items():
        if count > 1:
            yield f"checks: {name} is the name of {count} checks, which would share their draws"


def of_solution(lab: Settings, regions: list[tuple[str, Region]]) -> Iterator[str]:
    """Compare the markers in the solution with lab.toml."""
    stubs: list[Stub | StretchStub] = [*lab.points.stubs, *lab.points.stretch]
    asked = {stub.id: stub for stub in stubs}
    there = {(region.task, file, region.function) for file, region in regions}
    for stub in stubs:
        for function in stub.functions:
            if (stub.id, stub.file, function) not in there:
                yield f"solution: {stub.file}: {function} has no markers of task {stub.id}"
    for task, file, function in sorted(there):
        own = asked.get(task)
        if own and (file != own.file or function not in own.functions):
            yield f"solution: {file}: lab.toml has no {function} in task {task}"


def of_starter(lab: Settings, root: Path) -> Iterator[str]:
    """Compare the starter with what would be made of the solution."""
    try:
        found = release.drift(root / "solution", root / "starter", lab.points.ids)
    except ReleaseError as error:
        found = [str(error)]
    yield from (f"starter: {line}; `make starter` makes it anew" for line in found)


def of_pages(lab: Settings, root: Path) -> Iterator[str]:
    """Compare tables and figures of the pages with lab.toml."""
    for name in PAGES:
        text = (root / name).read_text(encoding="utf-8")
        for was, now in facts.changes(text, lab):
            yield f"{name}: expected {now!r}, got {was!r}; `lint --fix` rewrites it"


def of_corpus(lab: Settings, corpus: Path) -> Iterator[str]:
    """Name the cases that speak of a task or gate which is not there."""
    points = lab.points
    known = {*points.ids, *points.gates, *points.files}
    for path in sorted(corpus.rglob("*.toml")):
        name = path.relative_to(corpus).as_posix()
        try:
            case = tomllib.loads(path.read_text(encoding="utf-8"))
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            yield f"corpus: {name}: {error}"
            continue
        for key in NAMING:
            for place in case.get(key, ()):
                if place not in known:
                    yield f"corpus: {name}: {key} names {place!r}, which lab.toml does not"


def dropped(lab: Settings, root: Path = ROOT) -> list[str]:
    """Return the tasks of the solution that lab.toml does not ask for: their code is given."""
    tasks = {region.task for _, region in solution_regions(root / "solution")}
    return sorted(tasks - set(lab.points.ids))


def main(options: argparse.Namespace) -> int:
    """Print every disagreement; return 0 where there is none, 2 otherwise."""
    try:
        lab = settings.load(LAB_FILE, {})
        if options.fix:
            for name in PAGES:
                path = ROOT / name
                text = path.read_text(encoding="utf-8")
                replace_file(path, facts.corrected(text, lab).encode())
        found = disagreements(lab)
        given = [] if found else dropped(lab)
    except (SettingsError, OSError) as error:
        print(error, file=sys.stderr)
        return DISAGREED
    for line in found:
        print(line)
    if found:
        print(f"{len(found)} disagree with lab.toml")
        return DISAGREED
    for task in given:
        print(f"note: task {task} is not in lab.toml: its code is given, and its checks do not run")
    print("lab.toml, checks, solution, starter, pages and corpus agree")
    return AGREED
