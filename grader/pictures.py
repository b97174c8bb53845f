"""Small pictures as SVG: colours come from the page's style sheet, labels are escaped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from grader.witness import cut, number

CELL = 46
LEFT = 64
TOP = 40
LABEL = 28
FAINTEST = 0.08
DECADES = 8


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


def joined(pieces: Sequence[Markup]) -> Markup:
    """Return the pieces one after another."""
    return Markup("").join(pieces)


def influence(matrix: Sequence[Sequence[object]], tolerance: float) -> Markup:
    """Draw |change of logits[t]| for a change of token s; s > t is forbidden.

    Args:
        matrix: (T, s) numbers.
        tolerance: What a forbidden cell may hold.
    """
    values = [[number(v) for v in row] for row in matrix]
    size = len(values)
    largest = max((v for row in values for v in row if math.isfinite(v)), default=1.0) or 1.0
    leaks = 0
    pieces = [text(LEFT + CELL * size / 2, 14, "token s that was changed")]
    for t, row in enumerate(values):
        y = TOP + t * CELL
        pieces.append(text(LEFT - 8, y + CELL / 2 + 4, f"t = {t}", anchor="end"))
        pieces.append(text(LEFT + (t + 0.5) * CELL, TOP - 8, t))
        for s, value in enumerate(row[:size]):
            x = LEFT + s * CELL
            leak = s > t and not value <= tolerance
            leaks += leak
            kind = "leak" if leak else "cell"
            share = min(value / largest, 1.0) if math.isfinite(value) else 1.0
            shade = FAINTEST + (1 - FAINTEST) * 0.75 * math.sqrt(share) if value else 0.0
            pieces.append(rect(x, y, CELL - 2, CELL - 2, kind, max(shade, 0.25 if leak else 0.0)))
            if s > t and not leak:
                pieces.append(line(x + 6, y + CELL - 8, x + CELL - 8, y + 6, "forbidden"))
            if leak or s <= t:
                words = f"{value:.2g}" if math.isfinite(value) else "NaN"
                pieces.append(text(x + CELL / 2 - 1, y + CELL / 2 + 4, words, "in"))
    said = f"{leaks} forbidden cells moved" if leaks else "no forbidden cell moved"
    description = f"Influence matrix, {size} by {size}: {said}."
    side = size * CELL
    return svg(LEFT + side + 8, TOP + side + 8, description, joined(pieces))


def heat(
    rows: Mapping[str, Sequence[object]], bound: float, column: str, what: str
) -> Markup:  # fmt: skip
    """Draw one row of cells per name; a value above `bound` is marked as wrong."""
    left = 24 + 7 * max((len(cut(name, 60)) for name in rows), default=0)
    width = max((len(values) for values in rows.values()), default=0)
    bad = []
    pieces = [text(left + CELL * width / 2, 14, column)]
    pieces += [text(left + (i + 0.5) * CELL, TOP - 8, i) for i in range(width)]
    for index, (name, values) in enumerate(rows.items()):
        y = TOP + index * LABEL
        pieces.append(text(left - 8, y + 18, name, anchor="end"))
        for place, value in enumerate(map(number, values)):
            wrong = not value <= bound
            kind = "leak" if wrong else "cell"
            x = left + place * CELL
            pieces.append(rect(x, y, CELL - 2, LABEL - 2, kind, 0.45 if wrong else FAINTEST))
            words = f"{value:.1g}" if math.isfinite(value) else "NaN"
            pieces.append(text(x + CELL / 2 - 1, y + 18, words if wrong else "0", "in"))
        if any(not number(v) <= bound for v in values):
            bad.append(name)
    description = f"{what}: " + (f"differences in {', '.join(bad[:4])}." if bad else "none.")
    return svg(
        left + width * CELL + 8, TOP + len(rows) * LABEL + 8, cut(description), joined(pieces)
    )


def norms(values: Mapping[str, object]) -> Markup:
    """Draw gradient norms as bars on a logarithmic scale, missing ones marked."""
    found = {name: number(v) for name, v in values.items()}
    logs = [math.log10(v) for v in found.values() if math.isfinite(v) and v > 0]
    high = math.ceil(max(logs, default=0))
    low = max(math.floor(min(logs, default=-3)) - 0.2, high - DECADES)
    left, room, step = 24 + 6.6 * max((len(cut(name, 60)) for name in found), default=0), 270, 17
    bottom = 26 + step * len(found)
    pieces = []
    for power in range(math.ceil(low), high + 1):
        x = left + room * (power - low) / (high - low)
        pieces += [line(x, 20, x, bottom, "grid"), text(x, 14, f"1e{power}", "small")]
    missing = 0
    for index, (name, value) in enumerate(found.items()):
        y = 24 + index * step
        good = math.isfinite(value) and value > 0
        missing += not good
        pieces.append(text(left - 8, y + 11, name, "small" if good else "small bad", "end"))
        if good:
            long = max(room * (math.log10(value) - low) / (high - low), 1.0)
            pieces.append(rect(left, y, long, step - 4, "bar"))
        else:
            words = "none" if values[name] is None else ("zero" if value == 0 else "not finite")
            pieces.append(text(left + 4, y + 11, words, "small bad", "start"))
    said = f"{missing} of {len(found)} parameters have none" if missing else "all have one"
    return svg(left + room + 30, bottom + 6, f"Gradient norm per parameter: {said}.",
               joined(pieces))  # fmt: skip


def curve(values: Sequence[object], steps: int) -> Markup:
    """Draw the loss over training, one point per stretch of steps."""
    losses = [number(v) for v in values]
    finite = [v for v in losses if math.isfinite(v)]
    top = max([*finite, 1e-9]) * 1.05
    left, width, height = 56, 480, 200
    pieces = []
    for part in range(5):
        y = 12 + height * part / 4
        label = f"{top * (4 - part) / 4:.2g}"
        pieces.append(line(left, y, left + width, y, "grid"))
        pieces.append(text(left - 6, y + 4, label, "small", "end"))
    points = [
        (left + width * (i + 0.5) / max(len(losses), 1), 12 + height * (1 - v / top))
        for i, v in enumerate(losses) if math.isfinite(v)
    ]  # fmt: skip
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    pieces.append(Markup('<polyline points="{}" class="curve"/>').format(path))
    pieces += [Markup('<circle cx="{:.1f}" cy="{:.1f}" r="3" class="dot"/>').format(x, y)
               for x, y in points]  # fmt: skip
    pieces.append(text(left, height + 30, "0", "small"))
    pieces.append(text(left + width, height + 30, steps, "small"))
    pieces.append(text(left + width / 2, height + 32, "training steps"))
    said = f"from {finite[0]:.3g} to {finite[-1]:.3g} nats per token" if finite else "not finite"
    return svg(left + width + 24, height + 42, f"Loss curve: {said}.", joined(pieces))


def shares(values: Mapping[str, object], wanted: float | None) -> Markup:
    """Draw shares between 0 and 1 as columns, with a line where they must be."""
    left, height, wide = 56, 150, 64
    width = wide * len(values)
    pieces = []
    for part in range(5):
        y = 22 + height * part / 4
        pieces += [line(left, y, left + width, y, "grid"),
                   text(left - 6, y + 4, f"{(4 - part) / 4:.2f}", "small", "end")]  # fmt: skip
    said = []
    for index, (name, value) in enumerate(values.items()):
        share = number(value)
        share = min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0
        x, y = left + index * wide + 10, 22 + height * (1 - share)
        kind = "bar" if wanted is None or share >= wanted else "bar low"
        pieces += [rect(x, y, wide - 20, height * share, kind),
                   text(x + wide / 2 - 10, y - 5, f"{share:.2f}", "small"),
                   text(x + wide / 2 - 10, height + 40, name)]  # fmt: skip
        said.append(f"length {name}: {share:.2f}")
    if wanted is not None:
        y = 22 + height * (1 - wanted)
        pieces.append(line(left, y, left + width, y, "wanted"))
    pieces.append(text(left + width / 2, height + 58, "tokens in the row"))
    return svg(left + width + 16, height + 68, cut("Answered rows, " + "; ".join(said)),
               joined(pieces))  # fmt: skip


def attention(weights: Sequence[Sequence[object]], queries: Sequence[object],
              keys: Sequence[object], title: str, about: str) -> Markup:  # fmt: skip
    """Draw one head's weights: a row per query, a column per key, darker for more weight."""
    side, left, top = 17, 26, 32
    pieces = [text(left, 11, title, "small", "start")]
    pieces += [text(left + (i + 0.5) * side, top - 5, k, "tiny") for i, k in enumerate(keys)]
    for t, row in enumerate(weights):
        y = top + t * side
        label = queries[t] if t < len(queries) else ""
        pieces.append(text(left - 5, y + 12, label, "tiny", "end"))
        for s, value in enumerate(map(number, row)):
            share = min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0
            pieces.append(rect(left + s * side, y, side - 1, side - 1, "cell",
                               FAINTEST / 2 + 0.9 * share))  # fmt: skip
    width = max((len(row) for row in weights), default=1)
    return svg(left + width * side + 4, top + len(weights) * side + 4,
               about, joined(pieces), "head")  # fmt: skip
