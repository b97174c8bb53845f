"""`report.html`: what a student reads of a `results.json` tree, in one file without scripts.

Whatever a submission can influence is escaped by the template, stripped of control characters and
cut. Seed and replay line stay in `results.json`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import jinja2

from grader.base.files import replace_file
from grader.base.places import TEMPLATES
from grader.base.result import decisive
from grader.base.text import all_of, counted
from grader.report import witness
from grader.report.figures import Figure, figures
from grader.report.problems import Place, place_of, problems, why_not_passed
from grader.report.witness import cut
from grader.run import marks

MOST_NOTES = 20
MOST_PRINTED = 2100
WORDS = {
    "passed": "passed",
    "failed": "wrong",
    "not_implemented": "not started",
    "blocked": "waits",
    "error": "raised an error",
    "timeout": "too slow",
    "out_of_memory": "too much memory",
    "crashed": "crashed",
    "protocol": "broke the protocol",
    "grader_error": "the grader failed",
}


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or one gate's figures; `also` more checks say so."""

    label: str
    word: str
    cause: str = ""
    advice: str = ""
    rows: Sequence[tuple[str, str]] = ()
    figures: Sequence[Figure] = ()
    also: int = 0
    printed: str = ""


def write(tree: Mapping[str, Any], path: Path) -> None:
    """Write the report of a tree to `path`."""
    replace_file(path, render(tree).encode())


def render(tree: Mapping[str, Any]) -> str:
    """Return the report of a tree as HTML."""
    begun = [e for e in (*tree["stretch"], *tree.get("scale", []))
             if e["status"] not in ("not_implemented", "blocked")]  # fmt: skip
    asked = marks.sentences()
    return template("report.html.j2").render(
        name=cut(str(tree["submission"]["name"]), 80),
        tree=tree,
        sentence=sentence(tree),
        every_gate=all_of(len(tree["gates"]), "gate"),
        tasks=counted(len(tree["parts"]), "task"),
        parts=[summary_row(e, f"{e['name']}.py") for e in tree["parts"]],
        gates=[summary_row(e, title(e["name"])) | {"asks": asked.get(e["name"], "")}
               for e in tree["gates"]],
        extra=[summary_row(e, cut(e["name"], 80)) for e in begun],
        stopped=next((i for i, e in enumerate(tree["gates"]) if e["status"] != "passed"), None),
        findings=findings(tree),
        undone=[undone(e) for e in (*tree["parts"], *tree["gates"]) if e["status"] != "passed"],
        shown=[found for found in map(passing, tree["gates"]) if found.figures],
        notes=[cut(str(n), 400) for n in tree["submission"]["notes"][:MOST_NOTES]],
        environment={k: cut(str(v), 80) for k, v in tree["environment"].items()},
    )  # fmt: skip


@cache
def template(name: str) -> jinja2.Template:
    """Return a page's template; it escapes whatever is not markup of ours."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    return environment.get_template(name)


def title(name: str) -> str:
    """Return "Future independence" for future_independence."""
    words = cut(name, 80).replace("_", " ")
    return words[:1].upper() + words[1:]


def sentence(tree: Mapping[str, Any]) -> str:
    """Say in one sentence how it stands."""
    if tree["grader_error"]:
        return "The grader failed, not the submission. There is no score; it has to be run again."
    if not tree["passed"]:
        return why_not_passed(tree)
    return f"Every part and {all_of(len(tree['gates']), 'gate')} are passed."


def summary_row(entry: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return what the tables show of a part or gate."""
    return {
        "task": entry.get("task", ""),
        "name": name,
        "status": entry["status"],
        "word": WORDS[entry["status"]],
        "points": f"{entry['score']} of {entry['max_score']}",
        "summary": cut(str(entry["summary"]), 300),
    }


def undone(entry: Mapping[str, Any]) -> str:
    """Return why a part or gate is not passed, without the details of an error of ours."""
    ours = entry["status"] == "grader_error"
    return (
        f"{title(entry['name'])}: {WORDS['grader_error'] if ours else cut(entry['summary'], 300)}"
    )


def findings(tree: Mapping[str, Any]) -> list[Finding]:
    """Return everything that is wrong, in order: one finding for each cause."""
    speaking = []
    bad: Counter[Place] = Counter()
    for entry in [*tree["parts"], *tree["gates"], *tree["stretch"], *tree.get("scale", [])]:
        for stub in dict.fromkeys(check["stub"] for check in entry["checks"]):
            own = [check for check in entry["checks"] if check["stub"] == stub]
            check = decisive(own, itemgetter("status"))
            if check and check["diagnosis"]:
                place = place_of(entry, check)
                speaking.append((place, check))
                bad[place] = sum(c["status"] not in ("passed", "blocked") for c in own)
    found = []
    for one in problems(speaking):
        # Of what only follows from another task one sentence is enough.
        evidence = one.check["evidence"]
        evidence = {} if evidence.get("built_on") else evidence
        pictured = {"source", "expected", "got"} if "source" in evidence else set()
        rows = witness.rows({k: v for k, v in evidence.items() if k not in pictured})
        if frames := witness.frames(evidence):
            rows.append(("raised in", f"{frames[-1][0]}, line {frames[-1][1]}"))
        where = cut(one.where.replace("_", " "), 200)
        found.append(Finding(
            f"{where[:1].upper()}{where[1:]}: look at {cut(one.file, 40)}",
            WORDS[one.check["status"]], cut(one.cause, 900), cut(one.advice, 900),
            [(cut(label, 60), text) for label, text in rows[:16]], figures(evidence),
            max(bad[one.places[0]] - 1, 0) if len(one.places) == 1 else 0,
            str(one.check.get("printed", ""))[:MOST_PRINTED],
        ))  # fmt: skip
    return found


def passing(entry: Mapping[str, Any]) -> Finding:
    """Return the figures of a gate that passed."""
    shown = [f for c in entry["checks"] if c["status"] == "passed" for f in figures(c["evidence"])]
    return Finding(title(entry["name"]), "passed", figures=shown)
