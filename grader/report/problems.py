"""What is wrong, each cause once: what shows it in several places is said of all of them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grader.base.result import clean_text
from grader.base.text import all_of

Place = tuple[str, str]  # "task" or "gate", and its name
Check = Mapping[str, Any]  # of results.json, with a diagnosis


@dataclass
class Problem:
    """One cause, the places that show it, and the first check that does."""

    places: list[Place]
    cause: str
    advice: str
    check: Check

    @property
    def where(self) -> str:
        """Return such as "tasks 4.1, 4.2, gate padding_invariance"."""
        words = []
        for kind, group in itertools.groupby(self.places, lambda place: place[0]):
            names = [name for _, name in group]
            plural = "s" if len(names) > 1 else ""
            words.append(f"{kind}{plural} {', '.join(names)}")
        return ", ".join(words)

    @property
    def file(self) -> str:
        """Return the file to look at."""
        return f"{clean_text(self.check['diagnosis']['part'])}.py"


def place_of(entry: Mapping[str, Any], check: Check) -> Place:
    """Return where a check of an entry of results.json stands."""
    stub = str(check["stub"] or "")
    return ("task", stub) if stub else ("gate", str(entry["name"]))


def problems(checks: Iterable[tuple[Place, Check]]) -> list[Problem]:
    """Gather the causes of checks, in their order.

    What only follows from one earlier task is one problem, whatever it looks like by itself.
    """
    found: dict[tuple[str, str], Problem] = {}
    for place, check in checks:
        cause, advice = (clean_text(check["diagnosis"][key]) for key in ("cause", "advice"))
        earlier = check["evidence"].get("built_on")
        if earlier:
            cause = f"this builds on task {earlier}, which does not pass by itself."
            advice = f"Mend task {earlier} first, then look again."
        problem = found.setdefault((cause, advice), Problem([], cause, advice, check))
        if place not in problem.places:
            problem.places.append(place)
    return list(found.values())


def flags(tree: Mapping[str, Any]) -> list[Mapping[str, str]]:
    """Return the integrity flags in the order in which a person reads: line 9 before line 10."""
    found: list[Mapping[str, str]] = tree["integrity"]["flags"]
    return sorted(found, key=lambda flag: _natural(f"{flag['code']} {flag['message']}"))


def _natural(text: str) -> list[tuple[str, int]]:
    pairs = re.findall(r"(\D*)([0-9]{0,18})", text)
    return [(words, int(digits or -1)) for words, digits in pairs]


def why_not_passed(tree: Mapping[str, Any]) -> str:
    """Return a sentence on what keeps a result without a grader error from being passed."""
    if not tree["complete"]:
        return "The run did not finish."
    todo = to_write(tree)
    if todo:
        return todo
    for number, gate in enumerate(tree["gates"], 1):
        if gate["status"] != "passed":
            name = clean_text(gate["name"]).replace("_", " ")
            return f"Gate {number}, {name}, is where it stopped."
    part = next(p for p in tree["parts"] if p["status"] != "passed")
    state = clean_text(part["summary"]) if part["status"] == "blocked" else "is still wrong"
    gates = all_of(len(tree["gates"]), "gate").capitalize()
    return f"{gates} are passed; task {part['task']} ({part['name']}.py) {state}."


def to_write(tree: Mapping[str, Any]) -> str:
    """Return a sentence on the tasks that are not begun and the files that are missing, or none."""
    undone = [p for p in tree["parts"] if p["status"] == "not_implemented"]
    missing = [p for p in undone if (p["diagnosis"] or {}).get("code") == "missing_file"]
    tasks = [p["task"] for p in undone if p not in missing]
    word = "task" if len(tasks) == 1 else "tasks"
    found = [f"Still to write: {word} {', '.join(tasks)}."] if tasks else []
    found += [f"Missing: {', '.join(p['name'] + '.py' for p in missing)}."] if missing else []
    return " ".join(found)
