"""Who is who: the same student in a gradebook, a roster and a download."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

# How one kind of key is read from a student and from a row.
Reader = Callable[[int], Iterable[str]]


@dataclass(frozen=True)
class Grade:
    """What one student gets.

    Attributes:
        platform_id: the id in the platform's own numbering, or "".
        ids: what else may identify the student: number, login, address.
        name: full name, or "".
        score: None when there is none (a grader error), which leaves the cell alone.
        max_score: of the lab.
    """

    platform_id: str
    ids: tuple[str, ...]
    name: str
    score: int | float | None
    max_score: int | float

    @property
    def who(self) -> str:
        """Return what a message calls the student."""
        return self.name or next(filter(None, (self.platform_id, *self.ids)), "a nameless student")


def name_key(name: str) -> str:
    """Return a name in the form in which names are compared: "Doe, Jane" is "doe jane"."""
    text = unicodedata.normalize("NFKC", name).casefold()
    text = "".join(c for c in text if c.isspace() or unicodedata.category(c) not in ("Cf", "Cc"))
    return " ".join(sorted(text.replace(",", " ").split()))


def match(
    count: int, rows: Sequence[int], steps: Sequence[tuple[Reader, Reader]]
) -> dict[int, int]:
    """Pair `count` students with rows; both sides must be alone with the key that pairs them.

    Args:
        count: the students are 0, 1, ..., count - 1.
        rows: the numbers of the rows.
        steps: for each kind of key, the surest first, what reads it from a student and a row.

    Returns:
        The row of each student that has one.
    """
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    for of_student, of_row in steps:
        ours = _by_key((i for i in range(count) if i not in pairs), of_student)
        theirs = _by_key((row for row in rows if row not in taken), of_row)
        for key in sorted(ours.keys() & theirs.keys()):
            if len(ours[key]) == len(theirs[key]) == 1:
                (student,), (row,) = ours[key], theirs[key]
                if student not in pairs and row not in taken:
                    pairs[student] = row
                    taken.add(row)
    return pairs


def _by_key(numbers: Iterable[int], keys_of: Reader) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for number in numbers:
        for key in filter(None, keys_of(number)):
            found.setdefault(key, set()).add(number)
    return found
