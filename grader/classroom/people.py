"""Who is who: the same student in a gradebook, a roster and a download."""

from __future__ import annotations

import unicodedata
from collections.abc import Container, Iterable, Sequence


def name_key(name: str) -> str:
    """Return a name in the form in which names are compared: "Doe, Jane" is "doe jane"."""
    text = unicodedata.normalize("NFKC", name).casefold()
    text = "".join(c for c in text if c.isspace() or unicodedata.category(c) not in ("Cf", "Cc"))
    return " ".join(sorted(text.replace(",", " ").split()))


def id_key(text: str) -> str:
    """Return an id, login or address in the form in which they are compared."""
    return unicodedata.normalize("NFC", text.strip()).casefold()


Keys = Sequence[Iterable[str]]


def match(ours: Sequence[Keys], theirs: Sequence[Keys]) -> dict[int, int]:
    """Pair two lists of people; both must be alone with the key that pairs them.

    Args:
        ours: for each person what keys there are of each kind, the surest kind first.
        theirs: likewise; a key pairs with one of the same kind.

    Returns:
        The number in `theirs` of each of `ours` that has one.
    """
    pairs: dict[int, int] = {}
    for kind in range(len(ours[0]) if ours else 0):
        left = _by_key(ours, kind, pairs.keys())
        right = _by_key(theirs, kind, set(pairs.values()))
        taken: set[int] = set()
        for key in sorted(left.keys() & right.keys()):
            if len(left[key]) == len(right[key]) == 1:
                (one,), (other,) = left[key], right[key]
                if one not in pairs and other not in taken:
                    pairs[one] = other
                    taken.add(other)
    return pairs


def _by_key(people: Sequence[Keys], kind: int, without: Container[int]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for number, keys in enumerate(people):
        for key in filter(None, keys[kind] if number not in without else ()):
            found.setdefault(key, set()).add(number)
    return found
