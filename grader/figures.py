"""Which pictures a check's evidence allows, each with what a correct one looks like."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from grader import pictures
from grader.witness import cut, number

MOST_SIDE = 16
MOST_ROWS = 80
CELL = Markup("<td>{}</td>")
WRONG_CELL = Markup('<td class="wrong">{}<span class="mark"> wrong</span></td>')
HEADS = Markup('<p class="kind">{}</p><div class="heads">{}</div>')
TOKEN_TABLE = Markup(
    '<div class="scroll" tabindex="0"><table class="tokens">'
    '<thead><tr><th scope="col">place</th>{}</tr></thead><tbody>{}</tbody></table></div>'
)


@dataclass(frozen=True)
class Figure:
    """A picture, or a table that stands for one, and what a correct one looks like."""

    title: str
    caption: str
    body: Markup


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
    taken = evidence.get("steps")
    steps = taken if isinstance(taken, int) else len(values)
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
    row = evidence if "source" in evidence else evidence.get("example")
    if not isinstance(row, Mapping):
        return None
    columns = []
    for key in ("source", "expected", "got"):
        value = row.get(key)
        if not isinstance(value, list) or not 0 < len(value) <= 2 * MOST_SIDE:
            return None
        columns.append(value)
    length = max(len(columns[0]), len(columns[1]))
    lines = {
        label: [cut(str(token), 8) for token in tokens[:length]] + [""] * (length - len(tokens))
        for label, tokens in zip(
            ("source", "right answer", "the model wrote"), columns, strict=True
        )
    }
    return Figure(
        "One held-out row, token by token",
        "Token 2 ends a row. A correct model writes the right answer up to and including its end; "
        "what follows does not count.",
        _token_table(lines, length),
    )


def _token_table(lines: Mapping[str, list[str]], length: int) -> Markup:
    """Return a table of tokens whose last line is compared with the one before."""
    *_, wanted, got = lines.values()
    places = pictures.joined([Markup('<th scope="col">{}</th>').format(i) for i in range(length)])
    rows = []
    for label, tokens in lines.items():
        cells = [
            CELL.format(token) if tokens is not got or token == right else WRONG_CELL.format(token)
            for token, right in zip(tokens, wanted, strict=True)
        ]
        head = Markup('<tr><th scope="row">{}</th>').format(label)
        rows.append(head + pictures.joined(cells) + Markup("</tr>"))
    return TOKEN_TABLE.format(places, pictures.joined(rows))


def _attention(evidence: Mapping[str, Any]) -> Figure | None:
    found = evidence.get("attention")
    if not isinstance(found, Mapping):
        return None
    drawn = []
    for name, one in list(found.items())[:6]:
        heads = one.get("weights") if isinstance(one, Mapping) else None
        shown = []
        for index, head in enumerate(heads[:8] if isinstance(heads, list) else ()):
            if (grid := _grid(head)) is not None:
                title = f"head {index + 1}"
                about = f"Attention weights, {cut(name, 40)}, {title}."
                shown.append(pictures.attention(grid, one["queries"], one["keys"], title, about))
        if shown:
            drawn.append(HEADS.format(cut(name, 40), pictures.joined(shown)))
    if not drawn:
        return None
    return Figure(
        "Attention weights of one row",
        "A row per query token, a column per key token; stronger colour is more weight, every "
        "row adds up to 1. In a correct decoder self-attention is empty above the diagonal, and "
        "some cross-attention head walks through the source in the order of the answer.",
        pictures.joined(drawn),
    )


DRAWERS: Sequence[Any] = (
    _influence, _differences, _norms, _curve, _lengths, _decoded, _attention,
)  # fmt: skip
