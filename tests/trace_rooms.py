"""Follow one submission through the rooms of the grader: who calls whom, first and how often.

`python tests/trace_rooms.py solution` grades a tree while the interpreter reports every call, and
prints what docs/architecture.md says of the way of a submission. What happens while modules are
imported is left out, and so is `base`, which every room uses. The worker is a process of its own,
so that `worker` and `probes` are not seen.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
GRADER = f"{ROOT / 'grader'}/"


def room_of(frame: FrameType) -> str:
    """Return the room whose code runs in a frame, nothing where it is not the grader's."""
    name = frame.f_code.co_filename
    return name[len(GRADER) :].split("/")[0].removesuffix(".py") if name.startswith(GRADER) else ""


class Walk:
    """What was called: rooms in the order of their first call, and calls from room to room."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.calls: Counter[tuple[str, str]] = Counter()
        self.rooms: dict[str, str] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        room = self._room(frame) if event == "call" else ""
        if room in ("", "base") or frame.f_code.co_name == "<module>":
            return
        outer = frame.f_back
        while outer is not None and not self._room(outer):
            outer = outer.f_back
        if outer is not None and outer.f_code.co_name == "<module>":
            return
        if room not in self.order:
            self.order.append(room)
        caller = self._room(outer) if outer is not None else ""
        if caller not in ("", "base", room):
            self.calls[caller, room] += 1

    def _room(self, frame: FrameType) -> str:
        name = frame.f_code.co_filename
        if name not in self.rooms:
            self.rooms[name] = room_of(frame)
        return self.rooms[name]


def follow(tree: str) -> Walk:
    """Grade `tree` and return the walk."""
    sys.path.insert(0, str(ROOT))
    from grader.__main__ import main

    walk = Walk()
    threading.setprofile(walk)
    with tempfile.TemporaryDirectory() as out:
        sys.setprofile(walk)
        try:
            main(["grade", tree, "--seed", "1", "--quiet", "--format", "json", "--out", out])
        finally:
            sys.setprofile(None)
    return walk


if __name__ == "__main__":
    found = follow(sys.argv[1])
    calls = [[*pair, count] for pair, count in found.calls.most_common()]
    print(json.dumps({"order": found.order, "calls": calls}), file=sys.stderr)
