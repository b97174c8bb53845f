"""Find submissions of a class that share unusual code: something to look at, never a verdict.

Every function that a student wrote or changed becomes a sequence of syntax elements, blind to
names of variables, comments and layout. Its fingerprints are chosen by winnowing, and an index
from fingerprint to submission finds the pairs that share many rare ones. What the handout gives is
left out, and what many of the class wrote counts little: some tasks have few right forms.

Source: Schleimer, Wilkerson and Aiken 2003, "Winnowing: local algorithms for document
fingerprinting", section 4.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import csv
import hashlib
import io
import json
import math
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import track

from grader.base import settings
from grader.base.csvtext import cell
from grader.base.files import replace_file
from grader.base.places import ROOT
from grader.base.settings import Settings
from grader.base.text import plain
from grader.classroom.collect import Collected, CollectError, collect
from grader.classroom.command import CANNOT_RUN
from grader.classroom.loop import read
from grader.intake.locate import PACKAGE
from grader.report.html_report import template

STARTER = ROOT / "starter" / PACKAGE

# Fingerprints are hashes of so many elements in a row; of so many neighbours one is kept. A shared
# run of GRAM + WINDOW - 1 elements, two or three lines, is never missed.
GRAM = 15
WINDOW = 10
# Code that this share of the class wrote is no trace of anything; at least FEW may share it.
COMMON_SHARE = 0.05
FEW = 8
Files = Mapping[str, str]


class Element(NamedTuple):
    """One element of a function's syntax, and the line it stands on."""

    text: str
    line: int


class Print(NamedTuple):
    """One fingerprint, and the lines it covers."""

    digest: int
    file: str
    first: int
    last: int


@dataclass(frozen=True)
class Submitted:
    """A submission as it is compared.

    Attributes:
        key: what the class calls it.
        files: source text by path.
        prints: fingerprints of what the student wrote.
        whole: a digest of all that the student wrote, "" where nothing was written.
    """

    key: str
    files: Files
    prints: tuple[Print, ...]
    whole: str

    @property
    def digests(self) -> frozenset[int]:
        """The fingerprints without their places."""
        return frozenset(each.digest for each in self.prints)


@dataclass(frozen=True)
class Pair:
    """Two submissions that share code.

    Attributes:
        first: key of one.
        second: key of the other.
        identical: both wrote the same throughout, names of variables aside.
        share: weight of what is shared, of the smaller one's whole weight; 0 to 1.
        rare: how many shared fingerprints nobody else has.
        weight: the sum of what each shared fingerprint weighs.
        shared: the fingerprints.
    """

    first: str
    second: str
    identical: bool
    share: float
    rare: int
    weight: float
    shared: frozenset[int] = field(repr=False)


def submitted(key: str, files: Files, handout: frozenset[str]) -> Submitted:
    """Take the fingerprints of a submission.

    Args:
        key: what the class calls it.
        files: its task files, source text by path.
        handout: what `functions_of` says of the handout; none of it counts.
    """
    prints: list[Print] = []
    written: list[str] = []
    for path in sorted(files):
        for elements in written_in(files[path], handout):
            prints += fingerprints(path, elements)
            written.append(digest_of(elements))
    whole = hashlib.sha256("".join(sorted(written)).encode()).hexdigest() if written else ""
    return Submitted(key, files, tuple(prints), whole)


def functions_of(files: Iterable[str]) -> frozenset[str]:
    """Return a digest of every function and statement of these files."""
    return frozenset(
        digest_of(elements) for text in files for elements in written_in(text, frozenset())
    )


def written_in(text: str, handout: frozenset[str]) -> Iterator[list[Element]]:
    """Yield the elements of each function, and of each other statement, that is not the handout's.

    A file that does not parse is taken as one run of words.
    """
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        yield list(words_of(text))
        return
    for piece in pieces_of(body):
        elements = list(elements_of(piece))
        if elements and digest_of(elements) not in handout:
            yield elements


def pieces_of(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield functions, methods and other statements one by one; imports say nothing."""
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from pieces_of(statement.body)
        elif not isinstance(statement, (ast.Import, ast.ImportFrom)) and not is_text(statement):
            yield statement


def is_text(statement: ast.stmt) -> bool:
    """Tell whether a statement is a docstring or another lone constant."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def elements_of(piece: ast.stmt) -> Iterator[Element]:
    """Yield the elements of a statement in the order of its tree.

    Attributes, called names, keywords and numbers are kept; variables are all alike. A function's
    signature is the handout's and an error's text is prose, so neither counts.
    """
    # A list in place of recursion: nothing that was handed in may be too deep.
    line = piece.lineno
    waiting: list[ast.AST | str] = [piece]
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            yield Element(node, line)
            continue
        line = getattr(node, "lineno", line)
        below: list[ast.AST | str] = []
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            below = [statement for statement in node.body if not is_text(statement)]
        elif isinstance(node, ast.Call):
            called = node.func.id if isinstance(node.func, ast.Name) else "call"
            yield Element(called, line)
            below = [
                *([] if isinstance(node.func, ast.Name) else [node.func]),
                *node.args, *node.keywords,
            ]  # fmt: skip
        elif isinstance(node, ast.Attribute):
            yield Element(f".{node.attr}", line)
            below = [node.value]
        elif isinstance(node, ast.Constant):
            yield Element("text" if isinstance(node.value, str) else repr(node.value)[:40], line)
        elif isinstance(node, ast.JoinedStr):
            yield Element("text", line)
        elif isinstance(node, ast.Name):
            yield Element("name", line)
        elif isinstance(node, ast.keyword):
            yield Element(f"{node.arg}=", line)
            below = [node.value]
        elif not isinstance(node, (ast.expr_context, ast.arguments)):
            yield Element(type(node).__name__, line)
            below = list(ast.iter_child_nodes(node))
        waiting += reversed(below)


def words_of(text: str) -> Iterator[Element]:
    """Yield the words of a file that does not parse, as far as they can be told apart."""
    kept = (tokenize.NAME, tokenize.OP, tokenize.NUMBER)
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in kept:
                yield Element(token.string, token.start[0])
    except (tokenize.TokenError, SyntaxError):
        return


def digest_of(elements: list[Element]) -> str:
    """Return a digest of a run of elements, wherever it stands."""
    return hashlib.sha256("\0".join(each.text for each in elements).encode()).hexdigest()[:24]


def fingerprints(file: str, elements: list[Element]) -> Iterator[Print]:
    """Yield the winnowed fingerprints of one function: the least hash of every window.

    A function shorter than GRAM elements is one fingerprint of its own if it is half as long.
    """
    texts = [each.text for each in elements]
    if len(texts) < GRAM // 2:
        return
    grams = [tuple(texts[at : at + GRAM]) for at in range(max(1, len(texts) - GRAM + 1))]
    hashes = [
        int.from_bytes(hashlib.blake2b("\0".join(gram).encode(), digest_size=8).digest(), "big")
        for gram in grams
    ]
    last = -1
    for start in range(max(1, len(hashes) - WINDOW + 1)):
        window = range(start, min(start + WINDOW, len(hashes)))
        # Of equal ones the rightmost, so that it is chosen in as many windows as possible.
        at = min(reversed(window), key=hashes.__getitem__)
        if at != last:
            last = at
            covered = elements[at : at + GRAM]
            lines = [each.line for each in covered]
            yield Print(hashes[at], file, min(lines), max(lines))


def pairs(class_of: list[Submitted]) -> list[Pair]:
    """Return the pairs that share code which few others have, the most telling first."""
    holders: dict[int, list[int]] = defaultdict(list)
    for at, one in enumerate(class_of):
        for digest in one.digests:
            holders[digest].append(at)
    weights = {digest: weight(len(who), len(class_of)) for digest, who in holders.items()}
    most = max(FEW, int(COMMON_SHARE * len(class_of)))
    shared: dict[tuple[int, int], set[int]] = defaultdict(set)
    for digest, who in holders.items():
        if 1 < len(who) <= most:
            for two in combinations(who, 2):
                shared[two].add(digest)
    for same in identical(class_of):
        for two in combinations(same, 2):
            shared[two] |= class_of[two[0]].digests & class_of[two[1]].digests
    found = []
    for (a, b), digests in shared.items():
        one, other = class_of[a], class_of[b]
        # What both share and many have counts too, as little as it weighs.
        both = one.digests & other.digests
        whole = min(total(one.digests, weights), total(other.digests, weights))
        found.append(
            Pair(
                one.key,
                other.key,
                identical=bool(one.whole) and one.whole == other.whole,
                share=total(both, weights) / whole if whole else 1.0,
                rare=sum(len(holders[digest]) == 2 for digest in digests),
                weight=total(digests, weights),
                shared=frozenset(both),
            )
        )
    return sorted(found, key=lambda p: (-p.weight, -p.share, p.first, p.second))


def identical(class_of: list[Submitted]) -> Iterator[list[int]]:
    """Yield the groups that wrote the same throughout, as places in the class."""
    groups: dict[str, list[int]] = defaultdict(list)
    for at, one in enumerate(class_of):
        if one.whole:
            groups[one.whole].append(at)
    return (group for group in groups.values() if len(group) > 1)


def weight(holders: int, size: int) -> float:
    """Return what a fingerprint tells that so many of a class have, 1 if two and 0 if all do."""
    if size <= 2:
        return 1.0
    return max(0.0, math.log(size / holders) / math.log(size / 2)) if holders > 1 else 1.0


def total(digests: Iterable[int], weights: Mapping[int, float]) -> float:
    """Return the weight of all of these together."""
    return sum(weights[digest] for digest in digests)


def shared_lines(one: Submitted, shared: frozenset[int]) -> dict[str, Counter[int]]:
    """Return for every file how many shared fingerprints cover each line."""
    found: dict[str, Counter[int]] = defaultdict(Counter)
    for each in one.prints:
        if each.digest in shared:
            found[each.file].update(range(each.first, each.last + 1))
    return found


# The command -----------------------------------------------------------------------------------

CACHE = "fingerprints.json"
COLUMNS = ("first", "second", "identical", "share", "rare", "weight")
CONTEXT = 2  # lines shown before and after what is shared
WIDTH = 160


def main(options: argparse.Namespace) -> int:
    """Compare a class and return the exit code: 0, or 2 where nothing can be compared."""
    lab = settings.load()
    try:
        collection = collect(options.source, lab, pattern=options.pattern)
    except CollectError as error:
        print(f"cannot compare the class: {error}", file=sys.stderr)
        return CANNOT_RUN
    out: Path = options.out
    class_of, who = read_class(collection.submissions, lab, out, quiet=options.quiet)
    found = pairs(class_of)
    telling = [pair for pair in found if pair.identical or pair.share >= options.least][
        : options.show
    ]
    by_key = {one.key: one for one in class_of}
    write_table(found, who, out / "similar.csv")
    page = template("similar.html.j2").render(
        name=lab.name,
        total=len(class_of),
        pairs=[shown(pair, by_key, who) for pair in telling],
        most=max(FEW, int(COMMON_SHARE * len(class_of))),
    )
    replace_file(out / "similar.html", page.encode())
    same = sum(pair.identical for pair in telling)
    print(
        f"{len(class_of)} submissions; pairs to look at: {len(telling)}, "
        f"of them identical: {same}; no score changes\n"
        f"page: {out / 'similar.html'}   table: {out / 'similar.csv'}"
    )
    return 0


def read_class(
    submissions: list[Collected], lab: Settings, out: Path, *, quiet: bool
) -> tuple[list[Submitted], dict[str, str]]:
    """Read the task files of a class and take their fingerprints; what is known is not made again.

    Returns:
        The submissions that can be read, and what each key's student is called.
    """
    points = lab.points
    names = sorted({s.file for s in points.stubs} | {s.file for s in points.stretch})
    handout = functions_of(
        (STARTER / name).read_text(encoding="utf-8") for name in names if (STARTER / name).is_file()
    )
    known = Cache(out / CACHE, handout)
    found, who = [], {}
    console = Console(stderr=True, quiet=quiet)
    for one in track(submissions, "reading", console=console, transient=True):
        staged, _, _ = read(one, lab)
        if staged is None:
            continue
        files = {
            name: staged.files[path].decode("utf-8", "replace")
            for name in names
            if (path := f"{PACKAGE}/{name}") in staged.files
        }
        found.append(known.submitted(one.key, files))
        who[one.key] = one.who
    known.write()
    return found, who


class Cache:
    """Fingerprints by what they were taken of, kept in a file beside the page."""

    def __init__(self, path: Path, handout: frozenset[str]) -> None:
        """Read what is kept; a file that cannot be read counts as empty."""
        self.path, self.handout = path, handout
        version = [GRAM, WINDOW, *sorted(handout)]
        self.version = hashlib.sha256(json.dumps(version).encode()).hexdigest()
        self.kept: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            held = json.loads(path.read_bytes())
            if held["version"] == self.version:
                self.kept = held["kept"]

    def submitted(self, key: str, files: Files) -> Submitted:
        """Return a submission with its fingerprints, taken now or kept."""
        content = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
        if content not in self.kept:
            made = submitted(key, files, self.handout)
            self.kept[content] = [made.whole, made.prints]
        whole, prints = self.kept[content]
        return Submitted(key, files, tuple(Print(*each) for each in prints), whole)

    def write(self) -> None:
        """Keep what is known now."""
        text = json.dumps({"version": self.version, "kept": self.kept})
        replace_file(self.path, text.encode())


def write_table(found: list[Pair], who: Mapping[str, str], path: Path) -> None:
    """Write every pair as a line of a CSV file."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for pair in found:
        table.writerow([
            cell(who[pair.first]), cell(who[pair.second]), pair.identical,
            f"{pair.share:.3f}", pair.rare, f"{pair.weight:.1f}",
        ])  # fmt: skip
    replace_file(path, text.getvalue().encode())


def shown(pair: Pair, by_key: Mapping[str, Submitted], who: Mapping[str, str]) -> dict[str, Any]:
    """Return what the page shows of a pair."""
    one, other = by_key[pair.first], by_key[pair.second]
    left, right = shared_lines(one, pair.shared), shared_lines(other, pair.shared)
    return {
        "first": who[pair.first],
        "second": who[pair.second],
        "identical": pair.identical,
        "percent": round(100 * pair.share),
        "rare": pair.rare,
        "files": [
            (name, excerpt(one, name, left), excerpt(other, name, right))
            for name in sorted(left.keys() | right.keys())
        ],
    }


def excerpt(one: Submitted, name: str, marked: Mapping[str, Counter[int]]) -> list[Line]:
    """Return the lines of a file that are shared, with some around them."""
    covered = marked.get(name, Counter())
    lines = one.files.get(name, "").splitlines()
    near = {at + step for at in covered for step in range(-CONTEXT, CONTEXT + 1)}
    found: list[Line] = []
    last = 0
    for number in sorted(near & set(range(1, len(lines) + 1))):
        if number > last + 1:
            found.append(Line(0, "...", False))
        found.append(Line(number, plain(lines[number - 1])[:WIDTH], number in covered))
        last = number
    return found


class Line(NamedTuple):
    """One line of an excerpt: its number, 0 for a gap, its text, and whether it is shared."""

    number: int
    text: str
    shared: bool
