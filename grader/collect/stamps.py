"""Stamps of submissions, by which a later run knows that one lies there as it lay, without reading.

As in git's index: a file whose times, size and number are the same holds what it held.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence

# No file system counts in longer ticks; two changes within one tick leave the same times.
_SETTLED_NS = 3_000_000_000

Lying = Sequence[tuple[str, tuple[int, ...]]]


def stamp(parts: Sequence[tuple[str, Lying]], began_ns: int) -> str:
    """Return the stamp of a submission, or "" where none can be trusted.

    Args:
        parts: for each file or folder of it what it is to become, and all that lies there.
        began_ns: a time before it was looked at.
    """
    changes = [time for _, lying in parts for _, times in lying for time in times[:2]]
    # Windows keeps the time of birth where others keep that of the last change.
    if os.name == "nt" or not changes or max(changes) > began_ns - _SETTLED_NS:
        return ""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
