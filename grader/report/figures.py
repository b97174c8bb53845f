"""Pictures of a check's evidence as SVG, each with what a correct one looks like.

Colours come from the page's style sheet; whatever a submission can influence is escaped and cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from markupsafe import Markup

from grader.report.witness import Around, Grid, cut, number, pictured, same, told

MOST_SIDE = 16
MOST_ROWS = 80
USUAL_TOLERANCE = 1e-6
FAINTEST = 0.08
DECADES = 8
CELL = Markup("<td>{}</td>")
WRONG_CELL = Markup('<td class="wrong">{}<span class="mark"> wrong</span></td>')
OTHER_CELL = Markup('<td class="other">\u2260 {}</td>')
PAIR = Markup('<div class="scroll pair" tabindex="0">{}</div>')
TOKEN_ROW = Markup('<tr><th scope="row">{}</th>{}</tr>')
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
    drawers = (_around, _influence, _differences, _norms, _curve, _lengths, _decoded, _attention)
    return [made for draw in drawers if (made := draw(evidence)) is not None]


def _around(evidence: Mapping[str, Any]) -> Figure | None:
    """Draw expected and got side by side about the first place that differs."""
    found = pictured(evidence)
    if found is None:
        return None
    pair = [_grid("expected", found.wanted, found), _grid("got", found.got, found)]
    dots = "A dot is False. " if isinstance(found.wanted[0][0], bool) else ""
    at = f"The axes before them are at {', '.join(map(str, found.at))}. " if found.at else ""
    return Figure("Expected and got, side by side", "Rows and columns are the last two axes. "
                  f"{at}{dots}What differs has a frame and a \u2260 before it.",
                  PAIR.format(joined(pair)))  # fmt: skip


def _grid(title: str, values: Grid, found: Around) -> Markup:
    columns = joined(
        Markup('<th scope="col">{}</th>').format(found.first[1] + i) for i in range(len(values[0]))
    )
    rows = []
    for place, (row, right) in enumerate(zip(values, found.wanted, strict=True)):
        cells = (
            (CELL if title == "expected" or same(is_, should) else OTHER_CELL).format(told(is_))
            for is_, should in zip(row, right, strict=True)
        )
        rows.append(TOKEN_ROW.format(found.first[0] + place, joined(cells)))
    return Markup(
        '<table class="tokens grid"><caption>{}</caption><thead><tr><th></th>{}</tr></thead>'
        "<tbody>{}</tbody></table>"
    ).format(title, columns, joined(rows))


def svg(width: float, height: float, description: str, body: Markup, kind: str = "") -> Markup:
    """Return a picture with its alternative text; it shrinks with the page, never grows."""
    return Markup(
        '<svg class="picture {}" role="img" aria-label="{}" viewBox="0 0 {:.0f} {:.0f}" '
        'style="max-width:{:.0f}px" xmlns="http://www.w3.org/2000/svg">{}</svg>'
    ).format(kind, description, width, height, width, body)


def text(x: float, y: float, words: object, kind: str = "", anchor: str = "middle") -> Markup:
    """Return one line of text."""
    return Markup('<text x="{:.1f}" y="{:.1f}" class="{}" text-anchor="{}">{}</text>').format(
        x, y, kind, anchor, cut(str(words), 60)
    )


def rect(x: float, y: float, width: float, height: float, kind: str, opacity: float = 1) -> Markup:
    """Return a rectangle."""
    return Markup(
        '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" class="{}" '
        'fill-opacity="{:.2f}"/>'
    ).format(x, y, width, height, kind, opacity)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """Return a line."""
    return Markup(
        '<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" class="{}"/>'
    ).format(x1, y1, x2, y2, kind)  # fmt: skip


def joined(pieces: Iterable[Markup]) -> Markup:
    """Return the pieces one after another."""
    return Markup("").join(pieces)


class Cell(NamedTuple):
    """One cell of a grid: how dark it is, what stands in it, and whether it must be empty."""

    kind: str
    shade: float
    words: str = ""
    struck: bool = False


def grid(
    rows: Sequence[tuple[object, Sequence[Cell]]], columns: Sequence[object], heading: str,
    about: str, *,
    cell: tuple[float, float], left: float, kind: str = "", labels: str = "",
) -> Markup:  # fmt: skip
    """Draw named rows of cells.

    Args:
        rows: Label and cells of each.
        columns: Their labels.
        heading: What stands above the columns.
        about: The alternative text.
        cell: Width and height of a cell.
        left: Room for the labels of the rows.
        kind: Style of the picture.
        labels: Style of the labels.
    """
    (width, height), top = cell, 40
    right = left + len(columns) * width
    pieces = [text((left + right) / 2, 14, heading, "small" if labels else "")]
    pieces += [text(left + (i + 0.5) * width, top - 8, c, labels) for i, c in enumerate(columns)]
    for t, (label, cells) in enumerate(rows):
        y = top + t * height
        middle = y + height / 2 + 4
        pieces.append(text(left - 8, middle, label, labels, "end"))
        for s, one in enumerate(cells):
            x = left + s * width
            pieces.append(rect(x, y, width - 2, height - 2, one.kind, one.shade))
            if one.struck:
                pieces.append(line(x + 6, y + height - 8, x + width - 8, y + 6, "forbidden"))
            if one.words:
                pieces.append(text(x + width / 2 - 1, middle, one.words, "in"))
    return svg(right + 8, top + len(rows) * height + 8, about, joined(pieces), kind)


class Bar(NamedTuple):
    """One bar: its share of the room, what stands behind it, and whether it is as it should be."""

    share: float
    words: str
    good: bool


def bars(rows: Mapping[str, Bar], marks: Mapping[str, float], about: str) -> Markup:
    """Draw a bar for each label, and lines at the shares that `marks` names."""
    left, room, step = 24 + 6.6 * max(len(cut(label, 60)) for label in rows), 270, 17
    bottom = 26 + step * len(rows)
    pieces = []
    for words, share in marks.items():
        x = left + room * share
        kind = "wanted" if words == "wanted" else "grid"
        pieces += [line(x, 20, x, bottom, kind), text(x, 14, words, "small")]
    for index, (label, bar) in enumerate(rows.items()):
        y, kind = 24 + index * step, "small" if bar.good else "small bad"
        long = room * bar.share
        pieces.append(text(left - 8, y + 11, label, kind, "end"))
        pieces.append(rect(left, y, long, step - 4, "bar" if bar.good else "bar low"))
        pieces.append(text(left + long + 4, y + 11, bar.words, kind, "start"))
    return svg(left + room + 60, bottom + 6, about, joined(pieces))


def _table(value: Any) -> list[list[Any]] | None:
    """Return a rectangular list of lists of drawable size, or None."""
    if not isinstance(value, list) or not 0 < len(value) <= MOST_SIDE:
        return None
    if not all(isinstance(row, list) and len(row) == len(value[0]) for row in value):
        return None
    return value if 0 < len(value[0]) <= MOST_SIDE else None


def _share(value: float) -> float:
    """Return a number as a share between 0 and 1, 0 for what is none."""
    return min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0


def _tolerance(evidence: Mapping[str, Any]) -> float:
    bound = number(evidence.get("tolerance"))
    return bound if math.isfinite(bound) else USUAL_TOLERANCE


def _influence(evidence: Mapping[str, Any]) -> Figure | None:
    matrix = _table(evidence.get("influence"))
    if matrix is None or len(matrix) != len(matrix[0]):
        return None
    values = [[number(v) for v in row] for row in matrix]
    largest = max((v for row in values for v in row if math.isfinite(v)), default=1.0) or 1.0
    bound = _tolerance(evidence)
    rows: list[tuple[str, list[Cell]]] = []
    leaks = 0
    for t, row in enumerate(values):
        cells: list[Cell] = []
        rows.append((f"t = {t}", cells))
        for s, value in enumerate(row):
            leak = s > t and not value <= bound
            leaks += leak
            share = min(value / largest, 1.0) if math.isfinite(value) else 1.0
            shade = FAINTEST + (1 - FAINTEST) * 0.75 * math.sqrt(share) if value else 0.0
            words = f"{value:.2g}" if math.isfinite(value) else "NaN"
            if leak:
                cells.append(Cell("leak", max(shade, 0.25), words))
            else:
                cells.append(Cell("cell", shade, words if s <= t else "", s > t))
    size = len(values)
    said = f"{leaks} forbidden cells moved" if leaks else "no forbidden cell moved"
    about = f"Influence matrix, {size} by {size}: {said}."
    body = grid(rows, range(size), "token s that was changed", about, cell=(46, 46), left=64)
    return Figure("Influence of each token on each position", "Row t, column s: how far logits[t] "
                  "move when target token s changes. A correct model leaves the struck-out "
                  "triangle above the diagonal at 0 and fills the rest.", body)  # fmt: skip


def _differences(evidence: Mapping[str, Any]) -> Figure | None:
    sublayers, last = (evidence.get(f"difference_{k}") for k in ("by_sublayer", "per_position"))
    found = list(sublayers.items())[:MOST_ROWS] if isinstance(sublayers, Mapping) else []
    if last:
        found.append(("logits", last))
    bound = _tolerance(evidence)
    rows = []
    for name, values in found:
        if isinstance(values, list) and len(values) <= MOST_SIDE:
            rows.append((name, [Cell("cell", FAINTEST, "0") if v <= bound else
                                Cell("leak", 0.45, f"{v:.1g}" if math.isfinite(v) else "NaN")
                                for v in map(number, values)]))  # fmt: skip
    if not rows:
        return None
    bad = [name for name, cells in rows if any(cell.kind == "leak" for cell in cells)]
    what = "Padded minus unpadded"
    about = f"{what}: " + (f"differences in {', '.join(bad[:4])}." if bad else "none.")
    columns = range(max(len(cells) for _, cells in rows))
    body = grid(rows, columns, "position in the row", cut(about), cell=(46, 28),
                left=24 + 7 * max(len(cut(name, 60)) for name, _ in rows))  # fmt: skip
    return Figure(what, "How far each real position moves, sub-layer by sub-layer in order of "
                  "execution. In a correct model every cell is 0: the first row that is not shows "
                  "where padding comes in.", body)  # fmt: skip


def _norms(evidence: Mapping[str, Any]) -> Figure | None:
    values = evidence.get("gradient_norms")
    if not isinstance(values, Mapping) or not 0 < len(values) <= MOST_ROWS:
        return None
    found = {name: number(v) for name, v in values.items()}
    logs = [math.log10(v) for v in found.values() if math.isfinite(v) and v > 0]
    high = math.ceil(max(logs, default=0))
    low = max(math.floor(min(logs, default=-3)) - 0.2, high - DECADES)
    rows = {}
    for name, value in found.items():
        if math.isfinite(value) and value > 0:
            share = (math.log10(value) - low) / (high - low)
            rows[name] = Bar(max(share, 0.004), f"{value:.1e}", good=True)
        else:
            words = "none" if values[name] is None else ("zero" if value == 0 else "not finite")
            rows[name] = Bar(0.0, words, good=False)
    marks = {f"1e{p}": (p - low) / (high - low) for p in range(math.ceil(low), high + 1)}
    missing = sum(not bar.good for bar in rows.values())
    said = f"{missing} of {len(found)} parameters have none" if missing else "all have one"
    return Figure("Gradient of each parameter", "Norm of the gradient of one ordinary batch, on a "
                  "logarithmic scale. In a correct model every parameter has a bar; the biases of "
                  "the keys may have next to none.",
                  bars(rows, marks, f"Gradient norm per parameter: {said}."))  # fmt: skip


def _curve(evidence: Mapping[str, Any]) -> Figure | None:
    values = evidence.get("loss_curve")
    if not isinstance(values, list) or not 1 < len(values) <= MOST_ROWS:
        return None
    taken = evidence.get("steps")
    steps = taken if isinstance(taken, int) else len(values)
    losses = [number(v) for v in values]
    finite = [v for v in losses if math.isfinite(v)]
    high = max([*finite, 1e-9]) * 1.05
    left, top, width, height = 56, 12, 480, 200
    points = [
        (left + width * (i + 0.5) / len(losses), top + height * (1 - v / high))
        for i, v in enumerate(losses) if math.isfinite(v)
    ]  # fmt: skip
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dot = Markup('<circle cx="{:.1f}" cy="{:.1f}" r="3" class="dot"/>')
    pieces = []
    for part in range(5):
        y = top + height * part / 4
        pieces.append(line(left, y, left + width, y, "grid"))
        pieces.append(text(left - 6, y + 4, f"{high * (4 - part) / 4:.2g}", "small", "end"))
    pieces += [
        Markup('<polyline points="{}" class="curve"/>').format(path),
        *(dot.format(x, y) for x, y in points),
        text(left, height + 30, "0", "small"),
        text(left + width, height + 30, steps, "small"),
        text(left + width / 2, height + 32, "training steps"),
    ]
    said = f"from {finite[0]:.3g} to {finite[-1]:.3g} nats per token" if finite else "not finite"
    return Figure("Loss while training", "Nats per token, averaged over stretches of steps. A "
                  "correct loop falls steeply in the first third and stays near 0.",
                  svg(left + width + 24, height + 42, f"Loss curve: {said}.",
                      joined(pieces)))  # fmt: skip


def _lengths(evidence: Mapping[str, Any]) -> Figure | None:
    values = evidence.get("accuracy_by_length")
    if not isinstance(values, Mapping) or not 0 < len(values) <= MOST_SIDE:
        return None
    wanted = number(evidence.get("exact_match_wanted"))
    shares = {f"length {name}": _share(number(value)) for name, value in values.items()}
    rows = {name: Bar(v, f"{v:.2f}", good=not v < wanted) for name, v in shares.items()}
    marks = {"0": 0.0, "0.5": 0.5} | ({"wanted": wanted} if math.isfinite(wanted) else {"1": 1.0})
    about = "; ".join(f"{name}: {share:.2f}" for name, share in shares.items())
    return Figure("Held-out rows answered, by length", "A row counts when every token and its end "
                  "are right. A correct model is near 1 at every length.",
                  bars(rows, marks, cut(f"Answered rows, {about}")))  # fmt: skip


def _decoded(evidence: Mapping[str, Any]) -> Figure | None:
    row = evidence if "source" in evidence else evidence.get("example")
    found = [row.get(k) for k in ("source", "expected", "got")] if isinstance(row, Mapping) else []
    columns = [v for v in found if isinstance(v, list) and 0 < len(v) <= 2 * MOST_SIDE]
    if len(columns) < 3:
        return None
    length = max(len(columns[0]), len(columns[1]))
    source, wanted, got = (
        [cut(str(token), 8) for token in tokens[:length]] + [""] * (length - len(tokens))
        for tokens in columns
    )
    judged = zip(got, wanted, strict=True)
    rows = {
        "source": map(CELL.format, source),
        "right answer": map(CELL.format, wanted),
        "the model wrote": ((CELL if is_ == should else WRONG_CELL).format(is_)
                            for is_, should in judged),
    }  # fmt: skip
    places = joined(Markup('<th scope="col">{}</th>').format(i) for i in range(length))
    body = joined(TOKEN_ROW.format(label, joined(cells)) for label, cells in rows.items())
    return Figure("One held-out row, token by token", "The right answer is the row in reverse, the "
                  "tokens renamed in the same way throughout this run. Token 2 ends a row. A "
                  "correct model writes the right answer up to and including its end; what follows "
                  "does not count.",
                  TOKEN_TABLE.format(places, body))  # fmt: skip


def _attention(evidence: Mapping[str, Any]) -> Figure | None:
    found = evidence.get("attention")
    drawn = []
    for name, one in list(found.items())[:6] if isinstance(found, Mapping) else ():
        heads = one.get("weights") if isinstance(one, Mapping) else None
        shown = [
            _head(weights, one, cut(name, 40), f"head {index}")
            for index, head in enumerate(heads[:8] if isinstance(heads, list) else (), 1)
            if (weights := _table(head)) is not None
        ]
        if shown:
            box = Markup('<p class="kind">{}</p><div class="heads">{}</div>')
            drawn.append(box.format(cut(name, 40), joined(shown)))
    if not drawn:
        return None
    return Figure("Attention weights of one row", "A row per query token, a column per key token; "
                  "stronger colour is more weight, every row adds up to 1. In a correct decoder "
                  "self-attention is empty above the diagonal, and some cross-attention head walks "
                  "through the source in the order of the answer.", joined(drawn))  # fmt: skip


def _head(weights: list[list[Any]], one: Mapping[str, Any], name: str, head: str) -> Markup:
    """Draw one head's weights: a row per query, a column per key, darker for more weight."""
    queries = [*one["queries"], *[""] * len(weights)]
    rows = [
        (query, [Cell("cell", FAINTEST / 2 + 0.9 * _share(number(v))) for v in row])
        for query, row in zip(queries, weights, strict=False)
    ]
    about = f"Attention weights, {name}, {head}."
    return grid(rows, one["keys"][: len(weights[0])], head, about, cell=(17, 17), left=28,
                kind="head", labels="tiny")  # fmt: skip
