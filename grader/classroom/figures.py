"""What the class as a whole shows: the share that passed each task and gate, and why the rest fail.

`tasks.csv` holds it for each task and gate; `monday` picks what the class should hear.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grader.base.csvtext import cell, csv_text
from grader.base.settings import Settings

MOST_CAUSES = 3
MOST_TO_SAY = 5
COLUMNS = (
    "task", "name", "points", "passed", "of", "share", "commonest", "submissions", "example",
    "example_of",
)  # fmt: skip
# Where the course explains what a part does.
NOTEBOOKS = {
    "masks": "01_masks", "attention": "02_attention", "residual": "03_residual",
    "encoder": "04_encoder_decoder", "decoder": "04_encoder_decoder", "training": "05_training",
}  # fmt: skip


@dataclass(frozen=True)
class Cause:
    """A diagnosis that several share: its code, how many, and the sentence of the first."""

    code: str
    count: int
    example: str
    example_of: str
    notebook: str


@dataclass(frozen=True)
class Item:
    """A task or a gate, how many of those graded passed it, and the commonest causes."""

    label: str
    name: str
    points: float
    passed: int
    of: int
    causes: tuple[Cause, ...]

    @property
    def share(self) -> float:
        """Return the share that passed, 0 where nobody was graded."""
        return self.passed / self.of if self.of else 0.0


def items_of(tree: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return of each task and gate of a result its status and, if it did not pass, the diagnosis.

    Returns:
        By "2.1" or "gate 1": status, code, cause and part. A task passed if all its checks did.
    """
    found: dict[str, dict[str, str]] = {}
    for part in tree["parts"]:
        for check in part["checks"]:
            if check.get("stub"):
                _worst(found, check["stub"], check)
    for i, gate in enumerate(tree["gates"], 1):
        for owner in (gate, *gate["checks"]):
            _worst(found, f"gate {i}", owner)
    return found


def _worst(found: dict[str, dict[str, str]], label: str, check: Mapping[str, Any]) -> None:
    """Keep of the checks of one task the first that did not pass, one with a diagnosis if any."""
    said = check["diagnosis"] or {}
    new = {"status": str(check["status"])}
    if new["status"] != "passed":
        new |= {key: str(said.get(key, "")) for key in ("code", "cause", "part")}
    old = found.setdefault(label, new)
    if new["status"] != "passed" and (old["status"] == "passed" or (said and not old["code"])):
        found[label] = new


def items(rows: Sequence[Mapping[str, Any]], lab: Settings) -> list[Item]:
    """Return every task and gate, in the order of the lab, with the figures of the class."""
    graded = [row for row in rows if row["score"] is not None]
    points = lab.points
    known = [(s.id, ", ".join(s.functions), float(s.points)) for s in points.stubs]
    known += [
        (f"gate {i}", name.replace("_", " "), float(points.gate))
        for i, name in enumerate(points.gates, 1)
    ]
    found = []
    for label, name, worth in known:
        came = [(row, row["items"][label]) for row in graded if label in row["items"]]
        passed = sum(item["status"] == "passed" for _, item in came)
        found.append(Item(label, name, worth, passed, len(came), _causes(came)[:MOST_CAUSES]))
    return found


def _causes(came: Iterable[tuple[Mapping[str, Any], Mapping[str, str]]]) -> tuple[Cause, ...]:
    """Return the diagnoses, the commonest first; each counts once a submission."""
    counts: Counter[str] = Counter()
    first: dict[str, tuple[Mapping[str, Any], Mapping[str, str]]] = {}
    seen: set[tuple[str, str]] = set()
    for row, item in came:
        code = item.get("code", "")
        if code and (row["name"], code) not in seen:
            seen.add((row["name"], code))
            counts[code] += 1
            first.setdefault(code, (row, item))
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return tuple(
        Cause(
            code, number, first[code][1]["cause"], first[code][0]["name"],
            NOTEBOOKS.get(first[code][1]["part"], ""),
        )
        for code, number in ranked
    )  # fmt: skip


def monday(rows: Sequence[Mapping[str, Any]]) -> list[Cause]:
    """Return the misconceptions that most share: what the class should hear next."""
    came = [
        (row, item) for row in rows if row["score"] is not None for item in row["items"].values()
    ]
    return [cause for cause in _causes(came) if cause.count > 1][:MOST_TO_SAY]


def table(found: Iterable[Item]) -> str:
    """Return `tasks.csv`: a line for each task or gate and cause, at least one for each."""
    lines: list[tuple[Any, ...]] = [COLUMNS]
    for item in found:
        head = (
            item.label, cell(item.name), f"{item.points:g}", item.passed, item.of,
            f"{item.share:.3f}",
        )  # fmt: skip
        for cause in item.causes or (Cause("", 0, "", "", ""),):
            why = (cause.code, cause.count or "", cause.example, cause.example_of)
            lines.append((*head, *map(cell, map(str, why))))
    return csv_text(lines)
