"""The facts of lab.toml that pages repeat: the table of tasks, the list of gates, a few figures."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import SequenceMatcher

from grader.base.result import number
from grader.base.settings import Settings
from grader.base.text import counted
from grader.run import marks

ROWS = re.compile(r"(?m)(?:^\| \d+\.\d+ \|.*\n)+")
GATES = re.compile(r"(?m)(?:^\d+\. \*\*[a-z_]+\*\*:.*\n(?: {3}.*\n)*)+")
GATE = re.compile(r"(?m)^\d+\. \*\*([a-z_]+)\*\*:(.*\n(?: {3}.*\n)*)")


def corrected(text: str, lab: Settings) -> str:
    """Return a page with the facts of these settings."""
    points, gates = lab.points, len(lab.points.gates)
    figures: tuple[tuple[str, str], ...] = (
        (r"(?<=, in )\w+ tasks(?=, and)", counted(len(points.files), "task")),
        (r"(?<=each of the )\w+ gates?", counted(gates, "gate")),
        (r"(?<=the )(one|two|three|four|five|six|seven|eight|nine|ten) gates? (?=open)",
         counted(gates, "gate") + " "),
        (r"(?<=and all )\w+ gates?(?= \|)", counted(gates, "gate")),
        (r"(?<=gives )[\d.]+(?= points more)", str(number(points.gate))),
        (r"(?<=at least )[\d.]+%(?= of new sequences)", f"{100 * lab.accuracy.exact_match:g}%"),
        (r"(?<=in at most )\d+(?= steps)|(?<=your model in )\d+(?= steps)", str(lab.recipe.steps)),
    )  # fmt: skip
    for pattern, words in figures:
        text = re.sub(pattern, words, text)
    text = ROWS.sub(_literal(table(lab)), text)
    return GATES.sub(lambda found: gate_list(found[0], lab), text)


def changes(text: str, lab: Settings) -> list[tuple[str, str]]:
    """Return each passage of a page that disagrees, and what it must be."""
    old, new = text.splitlines(), corrected(text, lab).splitlines()
    blocks = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [
        ("\n".join(old[a:b]), "\n".join(new[c:d])) for kind, a, b, c, d in blocks if kind != "equal"
    ]


def table(lab: Settings) -> str:
    """Return the rows of the table of required tasks."""
    rows = []
    for stub in lab.points.stubs:
        functions = ", ".join(f"`{name}`" for name in stub.functions)
        gate = f"{stub.gate} {lab.points.gates[stub.gate - 1]}"
        cells = (stub.id, stub.file, functions, gate, str(number(stub.points)))
        rows.append(f"| {' | '.join(cells)} |\n")
    return "".join(rows)


def gate_list(text: str, lab: Settings) -> str:
    """Return the list of gates: in words of the page or, of a new gate, of its check."""
    said = dict(GATE.findall(text))
    asked = marks.sentences()
    lines = []
    for place, gate in enumerate(lab.points.gates, 1):
        words = asked.get(gate, "")
        lines.append(f"{place}. **{gate}**:" + said.get(gate, f" {words[:1].lower()}{words[1:]}\n"))
    return "".join(lines)


def _literal(text: str) -> Callable[[re.Match[str]], str]:
    return lambda _: text
