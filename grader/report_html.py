"""`report.html`: what a student reads of a `results.json` tree, in one file without scripts.

Whatever a submission can influence is escaped by the template, stripped of control characters and
cut. Seed and replay line stay in `results.json`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from grader import pictures, witness
from grader.checklist import speaker
from grader.files import write_text
from grader.witness import cut, number

TEMPLATES = Path(__file__).resolve().parent / "templates"
MOST_NOTES = 20
MOST_SIDE = 16
MOST_ROWS = 80
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
GATES = {
    "future_independence": "No logit depends on a later target token.",
    "padding_invariance": "Padding changes nothing that is real.",
    "finite_gradients": "Every parameter gets a finite and right gradient.",
    "greedy_accuracy": "The trained model answers rows it has never seen.",
    "scale_reverse": "The larger model reverses longer rows.",
    "scale_copy": "The larger model copies longer rows.",
}


@dataclass(frozen=True)
class Figure:
    """A picture, or a table that stands for one, and what a correct one looks like."""

    title: str
    caption: str
    body: Markup


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or one gate's figures."""

    label: str
    word: str
    cause: str
    advice: str
    rows: list[tuple[str, str]] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    also: int = 0


def write(tree: Mapping[str, Any], path: Path) -> None:
    """Write the report of a tree to `path`."""
    write_text(path, render(tree))


def render(tree: Mapping[str, Any]) -> str:
    """Return the report of a tree as HTML."""
    return template().render(
        name=cut(str(tree["submission"]["name"]), 80),
        tree=tree,
        sentence=sentence(tree),
        parts=[summary_row(e, f"{e['name']}.py") for e in tree["parts"]],
        gates=[summary_row(e, title(e["name"])) | {"asks": GATES.get(e["name"], "")}
               for e in tree["gates"]],
        extra=[summary_row(e, title(e["name"])) for e in (*tree["stretch"], *tree.get("scale", []))
               if e["status"] not in ("not_implemented", "blocked")],
        stopped=next((i for i, e in enumerate(tree["gates"]) if e["status"] != "passed"), None),
        findings=findings(tree),
        shown=[f for f in (passing(e) for e in tree["gates"]) if f.figures],
        notes=[cut(str(n), 400) for n in tree["submission"]["notes"][:MOST_NOTES]],
        environment={k: cut(str(v), 80) for k, v in tree["environment"].items()},
    )  # fmt: skip


@cache
def template() -> jinja2.Template:
    """Return the page's template; it escapes whatever is not markup of ours."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    return environment.get_template("report.html.j2")


def title(name: str) -> str:
    """Return "Future independence" for future_independence."""
    words = cut(name, 80).replace("_", " ")
    return words[:1].upper() + words[1:]


def sentence(tree: Mapping[str, Any]) -> str:
    """Say in one sentence how it stands."""
    if tree["grader_error"]:
        return "The grader failed, not the submission. There is no score; it has to be run again."
    if not tree["complete"]:
        return "The run did not finish."
    if tree["passed"]:
        return "Every part and all four gates are passed."
    todo = [p["task"] for p in tree["parts"] if p["status"] == "not_implemented"]
    if todo:
        return f"Still to write: task {', '.join(todo)}."
    if tree["gates_passed"]:
        return "All four gates are passed; a part is still wrong."
    first = next(e for e in tree["gates"] if e["status"] != "passed")
    number = tree["gates"].index(first) + 1
    return f"Gate {number}, {title(first['name']).lower()}, is where it stopped."


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


def findings(tree: Mapping[str, Any]) -> list[Finding]:
    """Return everything that is wrong, in order: one finding for each stub and gate."""
    found = []
    for entry in [*tree["parts"], *tree["gates"], *tree["stretch"], *tree.get("scale", [])]:
        stubs = dict.fromkeys(check["stub"] for check in entry["checks"])
        for stub in stubs:
            own = [c for c in entry["checks"] if c["stub"] == stub]
            check = speaker(own)
            if check["diagnosis"]:
                bad = sum(c["status"] not in ("passed", "blocked") for c in own)
                found.append(finding(entry, stub, check, bad - 1))
    return found


def finding(
    entry: Mapping[str, Any], stub: str | None, check: Mapping[str, Any], also: int
) -> Finding:
    """Return what a failed check says."""
    diagnosis, evidence = check["diagnosis"], check["evidence"]
    place = f"Task {stub}" if stub else f"Gate: {title(entry['name']).lower()}"
    rows = witness.rows(evidence)
    raised = witness.place_of_error(evidence)
    if raised:
        rows.append(("raised in", f"{raised[0]}, line {raised[1]}"))
    return Finding(
        f"{place}, look at {cut(diagnosis['part'], 40)}.py", WORDS[check["status"]],
        cut(diagnosis["cause"], 900), cut(diagnosis["advice"], 900),
        [(cut(label, 60), text) for label, text in rows[:16]], figures(evidence), max(also, 0),
    )  # fmt: skip


def passing(entry: Mapping[str, Any]) -> Finding:
    """Return the figures of a gate that passed."""
    shown = [f for c in entry["checks"] if c["status"] == "passed" for f in figures(c["evidence"])]
    return Finding(title(entry["name"]), "passed", "", "", [], shown)


def figures(evidence: Mapping[str, Any]) -> list[Figure]:
    """Return every picture that the evidence allows."""
    return [made for draw in DRAWERS if (made := draw(evidence)) is not None]


def _grid(value: Any) -> list[list[Any]] | None:
    """Return a rectangular list of lists of drawable size, or None."""
    if not isinstance(value, list) or not 0 < len(value) <= MOST_SIDE:
        return None
    if not all(isinstance(row, list) and len(row) == len(value[0]) for row in value):
        return None
    return value if 0 < len(value[0]) <= MOST_SIDE else None


def _influence(evidence: Mapping[str, Any]) -> Figure | None:
    matrix = _grid(evidence.get("influence"))
    if matrix is None or len(matrix) != len(matrix[0]):
        return None
    bound = number(evidence.get("tolerance"))
    body = pictures.influence(matrix, bound if math.isfinite(bound) else 1e-6)
    return Figure("Influence of each token on each position", "Row t, column s: how far logits[t] "
                  "move when target token s changes. A correct model leaves the struck-out "
                  "triangle above the diagonal at 0 and fills the rest.", body)  # fmt: skip


def _differences(evidence: Mapping[str, Any]) -> Figure | None:
    bound = number(evidence.get("tolerance"))
    bound = bound if math.isfinite(bound) else 1e-6
    rows = evidence.get("difference_by_sublayer")
    found: dict[str, list[Any]] = {}
    for name, values in rows.items() if isinstance(rows, Mapping) else ():
        if isinstance(values, list) and len(values) <= MOST_SIDE and len(found) < MOST_ROWS:
            found[name] = values
    last = evidence.get("difference_per_position")
    if isinstance(last, list) and 0 < len(last) <= MOST_SIDE:
        found["logits"] = last
    if not found:
        return None
    body = pictures.heat(found, bound, "position in the row", "Padded minus unpadded")
    return Figure("Padded minus unpadded", "How far each real position moves, sub-layer by "
                  "sub-layer in order of execution. In a correct model every cell is 0: the first "
                  "row that is not shows where padding comes in.", body)  # fmt: skip


def _norms(evidence: Mapping[str, Any]) -> Figure | None:
    values = evidence.get("gradient_norms")
    if not isinstance(values, Mapping) or not 0 < len(values) <= MOST_ROWS:
        return None
    return Figure("Gradient of each parameter", "Norm of the gradient of one ordinary batch, on a "
                  "logarithmic scale. In a correct model every parameter has a bar; the biases of "
                  "the keys may have next to none.", pictures.norms(values))  # fmt: skip


def _curve(evidence: Mapping[str, Any]) -> Figure | None:
    values = evidence.get("loss_curve")
    if not isinstance(values, list) or not 1 < len(values) <= MOST_ROWS:
        return None
    steps = int(number(evidence.get("batches"))) if evidence.get("batches") else len(values)
    return Figure("Loss while training", "Nats per token, averaged over stretches of steps. A "
                  "correct loop falls steeply in the first third and stays near 0.",
                  pictures.curve(values, steps))  # fmt: skip


def _lengths(evidence: Mapping[str, Any]) -> Figure | None:
    values = evidence.get("accuracy_by_length")
    if not isinstance(values, Mapping) or not 0 < len(values) <= MOST_SIDE:
        return None
    wanted = number(evidence.get("exact_match_wanted"))
    body = pictures.shares(values, wanted if math.isfinite(wanted) else None)
    return Figure("Held-out rows answered, by length", "A row counts when every token and its end "
                  "are right. A correct model is near 1 at every length.", body)  # fmt: skip


def _decoded(evidence: Mapping[str, Any]) -> Figure | None:
    row = evidence.get("example", evidence)
    if not isinstance(row, Mapping):
        return None
    source, wanted, got = (row.get(key) for key in ("source", "expected", "got"))
    if not all(isinstance(v, list) and 0 < len(v) <= 2 * MOST_SIDE for v in (source, wanted, got)):
        return None
    length = max(len(source), len(wanted))  # type: ignore[arg-type]
    body = Markup(decoded().render(  # the template escapes
        cells=[("source", _padded(source, length), False), ("right answer", _padded(wanted, length), False),
               ("the model wrote", _padded(got, length), True)],
        wrong=[a != b for a, b in zip(_padded(wanted, length), _padded(got, length), strict=True)],
        length=length,
    ))  # fmt: skip
    return Figure("One held-out row, token by token", "Token 2 ends a row. A correct model writes "
                  "the right answer up to and including its end; what follows does not count.",
                  body)  # fmt: skip


@cache
def decoded() -> jinja2.Template:
    """Return the template of the token table."""
    return template().environment.get_template("decoded.html.j2")


def _padded(tokens: Any, length: int) -> list[str]:
    words = [cut(str(token), 8) for token in tokens[:length]]
    return words + [""] * (length - len(words))


def _attention(evidence: Mapping[str, Any]) -> Figure | None:
    found = evidence.get("attention")
    if not isinstance(found, Mapping):
        return None
    drawn = []
    for name, one in list(found.items())[:6]:
        heads = one.get("weights") if isinstance(one, Mapping) else None
        for index, head in enumerate(heads[:8] if isinstance(heads, list) else ()):
            if (grid := _grid(head)) is not None:
                label = f"{name}, head {index + 1}"
                drawn.append(pictures.attention(grid, one["queries"], one["keys"], cut(label, 40)))
    if not drawn:
        return None
    return Figure("Attention weights of one row", "A row per query token, a column per key token; "
                  "darker is more weight, and every row adds up to 1. In a correct decoder "
                  "self-attention is empty above the diagonal, and some cross-attention head walks "
                  "through the source in the order of the answer.", Markup('<div class="heads">{}</div>')
                  .format(pictures.joined(drawn)))  # fmt: skip


DRAWERS: Sequence[Any] = (
    _influence, _differences, _norms, _curve, _lengths, _decoded, _attention,
)  # fmt: skip
