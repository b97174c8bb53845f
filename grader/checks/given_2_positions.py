"""Given code, where it is graded as submitted: where a token stands."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from grader.compare import Suspect, agrees, judge
from grader.draws import Array, Draws, Ids
from grader.parts import ask, must_raise, returned, sure
from grader.submission import Submission, build, call, config, forward, tensor

LENGTH, WIDTH = 7, 10
WAVES = "Look at the angle: position times a frequency that falls with the column."
ROWS = "Look at which rows are added: one for each position, the same for every row of the batch."
BUCKETS = "Look at how a distance becomes a bucket, and which way it is counted."


@pytest.mark.part("G4")
def test_sinusoids_have_falling_frequencies(submission: Submission) -> dict[str, Any]:
    """The table holds sines and cosines of position, wavelengths growing with the column."""
    what = f"sinusoids({LENGTH}, {WIDTH})"
    (answer,) = submission.ask(call("positions.sinusoids", LENGTH, WIDTH))
    shape = (LENGTH, WIDTH)
    got = tensor(returned(answer, what, "positions"), shape, what, "positions")
    want = waves(lambda pair: 2 * pair / WIDTH)
    if agrees(got, halved(want), 1e-4):
        return {"layout": "sines in the first half of the columns, cosines in the second"}
    suspects = [
        Suspect("frequency_falls_too_fast", waves(lambda pair: 4 * pair / WIDTH),
                "the exponent is doubled twice: it uses the column where the pair is meant.",
                WAVES),
        Suspect("frequency_falls_too_slowly", waves(lambda pair: pair / WIDTH),
                "the exponent is not doubled.", WAVES),
        Suspect("one_frequency", waves(lambda pair: 0.0), "every column has the same frequency.",
                WAVES),
        Suspect("one_frequency", waves(lambda pair: -1.0), "every column has the same frequency.",
                WAVES),
        Suspect("frequency_grows", waves(lambda pair: -2 * pair / WIDTH),
                "the frequencies grow with the column.", WAVES),
        Suspect("cosine_of_next_frequency", slipped_cosines(), "a cosine has another frequency "
                "than the sine beside it.", WAVES),
        Suspect("sines_and_cosines_exchanged", want.reshape(LENGTH, -1, 2)[:, :, ::-1].reshape(
                shape), "sine and cosine are exchanged.", WAVES),
    ]  # fmt: skip
    return judge(got, want, what=what, part="positions", advice=WAVES, suspects=suspects,
                 tolerance=1e-4)  # fmt: skip


def halved(table: Array) -> Array:
    """Return the other usual layout: sines in the first half of the columns."""
    return np.concatenate([table[:, 0::2], table[:, 1::2]], axis=1)


def waves(exponent: Any, length: int = LENGTH) -> Array:
    """Return (length, WIDTH): sine and cosine of position / 10000^exponent(pair)."""
    table = np.zeros((length, WIDTH))
    for pair in range(WIDTH // 2):
        angle = np.arange(length) / 10000.0 ** exponent(pair)
        table[:, 2 * pair], table[:, 2 * pair + 1] = np.sin(angle), np.cos(angle)
    return table


def slipped_cosines() -> Array:
    """Return the table in which column c has the exponent c / WIDTH, sine and cosine alike."""
    column = np.arange(WIDTH)
    angle = np.arange(LENGTH)[:, None] / 10000.0 ** (column / WIDTH)
    return np.where(column % 2 == 0, np.sin(angle), np.cos(angle))


@pytest.mark.part("G4")
@pytest.mark.parametrize("scheme", ["sinusoidal", "learned"])
def test_positions_are_added_row_by_row(
    submission: Submission, rng: Draws, scheme: str
) -> dict[str, Any]:
    """A scheme adds to every token the row of its own position, the same in every batch row."""
    x = rng.uniform((3, 5, WIDTH), -1.7, 1.7)
    table = waves(lambda pair: 2 * pair / WIDTH, 9)
    weights = {}
    if scheme == "learned":
        table = rng.child("table").uniform((9, WIDTH), -1.7, 1.7)
        weights = {"weight": table}
    fields = {"d_model": WIDTH, "num_heads": 2, "positions": scheme, "max_len": 9}
    questions = [
        build("module", "positions.make_positions", config(**fields), 1.0, False, weights=weights),
        *(forward("module", {"args": [x, offset]}) for offset in (0, 3)),
        forward("module", {"args": [x, 5]}),
    ]
    (built, *answers, beyond), _ = ask(submission, *questions)
    sure(built)
    for offset, answer in zip((0, 3), answers, strict=True):
        what = f"{scheme} positions from {offset} on"
        got = tensor(returned(answer, what, "positions"), x.shape, what, "positions")
        if scheme == "sinusoidal" and agrees(got, x + halved(table)[offset : offset + 5], 1e-4):
            continue
        suspects = [
            Suspect("positions_missing", x, "nothing is added.", ROWS),
            Suspect("position_of_batch_row", x + table[offset : offset + 3][:, None], "every token "
                    "gets the position of its row in the batch.", ROWS),
            *(Suspect("one_position_for_all", x + table[offset + place], "every token gets the "
                      "same position.", ROWS) for place in (0, 4, 5)),
            Suspect("position_offset_ignored", x + table[:5], "it counts from 0, whatever the "
                    "offset.", ROWS),
            Suspect("positions_reversed", x + table[offset : offset + 5][::-1], "it counts from "
                    "the end.", ROWS),
            Suspect("positions_from_one", x + table[offset + 1 : offset + 6], "it counts one too "
                    "far.", ROWS),
        ]  # fmt: skip
        judge(got, x + table[offset : offset + 5], what=what, part="positions", advice=ROWS,
              suspects=suspects, tolerance=1e-4)  # fmt: skip
    if scheme == "learned":
        must_raise(beyond, "ValueError", "learned positions beyond the table", "positions")
    return {"offsets": 2}


@pytest.mark.part("G4")
@pytest.mark.parametrize("bidirectional", [False, True])
def test_distances_fall_into_buckets(submission: Submission, bidirectional: bool) -> dict[str, Any]:
    """relative_buckets gives small distances buckets of their own, and groups the large ones."""
    distance = np.arange(-300, 301)[None]
    what = f"relative_buckets, {'both directions' if bidirectional else 'backwards only'}"
    question = call("positions.relative_buckets", distance, num_buckets=32, max_distance=128,
                    bidirectional=bidirectional)  # fmt: skip
    (answer,) = submission.ask(question)
    got = tensor(returned(answer, what, "positions"), distance.shape, what, "positions", "i")
    want = buckets(distance, bidirectional)
    # A rounding more or less at the edge of a bucket is no mistake.
    near = np.minimum(buckets(distance + 1, bidirectional), buckets(distance - 1, bidirectional))
    far = np.maximum(buckets(distance + 1, bidirectional), buckets(distance - 1, bidirectional))
    edge = (np.abs(distance) > 8) & (got >= np.minimum(near, want)) & (got <= np.maximum(far, want))
    if np.array_equal(np.where(edge, want, got), want):
        return {"distances": distance.size}
    exact = np.clip(np.abs(distance) if bidirectional else distance, 0, None)
    one_way = buckets(distance, False)
    suspects = [
        Suspect("distance_reversed", buckets(-distance, bidirectional), "earlier and later keys "
                "are exchanged.", BUCKETS),
        Suspect("buckets_of_both_sides", buckets(np.abs(distance), bidirectional), "both "
                "directions share their buckets.", BUCKETS),
        Suspect("buckets_one_way", one_way, "later keys have no buckets.", BUCKETS),
        Suspect("buckets_not_logarithmic", np.minimum(exact, 15) + 16 * (distance < 0)
                if bidirectional else np.minimum(exact, 31), "large distances are cut off, not "
                "grouped.", BUCKETS),
    ]  # fmt: skip
    return judge(got, want, what=what, part="positions", advice=BUCKETS, suspects=suspects)


@pytest.mark.part("G4")
@pytest.mark.parametrize("bidirectional", [False, True])
def test_bias_is_looked_up_by_distance(
    submission: Submission, rng: Draws, bidirectional: bool
) -> dict[str, Any]:
    """The relative bias of a score is the row of its distance, for each head a number."""
    table = rng.uniform((8, 2), -1.7, 1.7)
    fields = {"d_model": WIDTH, "num_heads": 2, "t5_buckets": 8, "t5_max_distance": 16}
    module = build("bias", "positions.RelativeBias", config(**fields), bidirectional,
                   weights={"weight": table})  # fmt: skip
    what = f"the relative bias, {'both directions' if bidirectional else 'backwards only'}"
    num_queries, offset = 5, 3
    num_keys = num_queries + offset
    (built, answer), tolerance = ask(
        submission, module, call("@bias.score_bias", num_queries, num_keys, offset)
    )
    sure(built)
    shape = (1, 2, num_queries, num_keys)
    got = tensor(returned(answer, what, "positions"), shape, what, "positions")
    distance = np.arange(num_queries)[:, None] + offset - np.arange(num_keys)

    def bias(distance: Ids) -> Array:
        rows = table[buckets(distance, bidirectional, 8, 16)]  # (T, S, H)
        return np.asarray(rows.transpose(2, 0, 1)[None])

    suspects = [
        Suspect("distance_reversed", bias(-distance), "earlier and later keys are exchanged.",
                BUCKETS),
        Suspect("position_offset_ignored", bias(distance - offset), "it counts from 0, whatever "
                "the offset.", BUCKETS),
        Suspect("bias_missing", np.zeros(shape), "it is 0 everywhere.", BUCKETS),
        Suspect("bias_of_other_head", bias(distance)[:, ::-1], "the heads are exchanged.", BUCKETS),
    ]  # fmt: skip
    return judge(got, bias(distance), what=what, part="positions", advice=BUCKETS,
                 suspects=suspects, tolerance=tolerance)  # fmt: skip


def buckets(distance: Ids, bidirectional: bool, count: int = 32, longest: int = 128) -> Ids:
    """Return the bucket of each distance, position of the query minus position of the key.

    Source: Raffel et al. 2020, section 2.1, arxiv.org/abs/1910.10683.
    """
    first = np.zeros_like(distance)
    if bidirectional:
        count //= 2
        first = np.where(distance < 0, count, 0)
        distance = np.abs(distance)
    distance = np.maximum(distance, 0)
    exact = count // 2
    growth = np.log(np.maximum(distance, exact) / exact) / math.log(longest / exact)
    grouped = np.minimum(exact + (growth * (count - exact)).astype(int), count - 1)
    return np.asarray(first + np.where(distance < exact, distance, grouped))
