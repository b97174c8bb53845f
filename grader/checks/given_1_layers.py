"""Given code, where it is graded as submitted: norms, feed-forward, token embedding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from grader.compare import Suspect, agrees, judge
from grader.draws import Array, Draws
from grader.expectations import Ask
from grader.parameters import ProbeConfig, parameter_shapes
from grader.parts import Case, Trial, ask, returned, sure
from grader.submission import Submission, build, forward, tensor

NORM = "Look at which numbers its mean and variance are taken over: those of one token."
INSIDE = "Look at what happens between its projections."
TABLE = "Look at what is done with the row that an id names."


@pytest.mark.part("G1")
@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_norm_treats_each_token_alone(
    submission: Submission, rng: Draws, expected: Ask, kind: str
) -> dict[str, Any]:
    """A norm gives each token mean 0 and variance 1, or root mean square 1, whatever is near it."""
    config = ProbeConfig(d_model=12, norm=kind)
    weights = rng.weights(parameter_shapes(config, "norm"))
    x = rng.child("x").uniform((3, 5, 12), -1.7, 4.3)
    trial = Trial("norm", "norms.make_norm", config, weights, ())
    what = f"the {kind} of a batch"
    (built, answer), tolerance = ask(submission, trial.build(), trial.call(Case(what, {"x": x})))
    sure(built)
    got = tensor(returned(answer, what, "norms"), x.shape, what, "norms")
    want = expected("norm", config=config, weights=weights, x=x)["value"]
    if any(agrees(got, scaled(other, weights), tolerance) for other in fellows(x, kind)):
        return {"variant": "its variance is estimated, or its epsilon placed, another way"}
    suspects = [
        Suspect(code, scaled(value, weights), cause, NORM) for code, value, cause in slips(x, kind)
    ]
    return judge(got, want, what=what, part="norms", advice=NORM, suspects=suspects,
                 tolerance=tolerance)  # fmt: skip


def scaled(x: Array, weights: dict[str, Array]) -> Array:
    """Scale and shift the features as a norm does."""
    bias = weights.get("bias", 0.0)
    return np.asarray(x * weights["weight"] + bias)


def fellows(x: Array, kind: str) -> list[Array]:
    """Return what textbooks define a little otherwise: no mistakes."""
    if kind == "rmsnorm":
        return [x / (np.sqrt((x**2).mean(-1, keepdims=True)) + 1e-6)]
    centred = x - x.mean(-1, keepdims=True)
    deviations = [np.std(x, axis=-1, ddof=ddof, keepdims=True) for ddof in (0, 1)]
    return [centred / (d + e) for d in deviations for e in (0.0, 1e-6, 1e-5)]


def slips(x: Array, kind: str) -> list[tuple[str, Array, str]]:
    """Return what usual mistakes make of x, before scale and shift."""
    square = np.sqrt((x**2).mean(-1, keepdims=True))
    centred = x - x.mean(-1, keepdims=True)
    found = [("norm_missing", x, "it normalises nothing.")]
    for axes, where in (((1,), "time"), ((1, 2), "time and features"), ((0,), "batch"),
                        ((0, 1), "batch and time")):  # fmt: skip
        middle = x.mean(axes, keepdims=True) if kind == "layernorm" else 0.0
        spread = np.sqrt(((x - middle) ** 2).mean(axes, keepdims=True) + 1e-5)
        code = f"norm_over_{where.replace(' ', '_')}"
        found.append((code, (x - middle) / spread, f"its statistics are taken over {where}."))
    if kind == "rmsnorm":
        found += [
            ("norm_inverted", x * square, "it multiplies by the root mean square."),
            ("norm_of_sum", x / (square * math.sqrt(x.shape[-1])), "it divides by the root of "
             "the sum, not of the mean."),
            ("norm_centred", centred / x.std(-1, keepdims=True), "it subtracts the mean too."),
        ]  # fmt: skip
    else:
        found += [
            ("norm_not_centred", x / square, "it does not subtract the mean."),
            ("norm_not_scaled", centred, "it does not divide by the deviation."),
            ("norm_of_variance", centred / x.var(-1, keepdims=True), "it divides by the variance, "
             "not by its root."),
        ]  # fmt: skip
    return found


@pytest.mark.part("G2")
@pytest.mark.parametrize("kind", ["relu", "gelu", "swiglu", "geglu"])
def test_feed_forward_bends_between_its_projections(
    submission: Submission, rng: Draws, expected: Ask, kind: str
) -> dict[str, Any]:
    """FeedForward widens each token, bends it and comes back; a gate multiplies the widened one."""
    config = ProbeConfig(d_model=6, num_heads=2, d_ff=10, ffn=kind)
    weights = rng.weights(parameter_shapes(config, "feed_forward"))
    x = rng.child("x").uniform((2, 5, 6), -1.7, 1.7)
    trial = Trial("feed_forward", "feedforward.FeedForward", config, weights, ())
    what = f"the {kind} feed-forward of a batch"
    (built, answer), tolerance = ask(submission, trial.build(), trial.call(Case(what, {"x": x})))
    sure(built)
    got = tensor(returned(answer, what, "feedforward"), x.shape, what, "feedforward")
    want = expected("feed_forward", config=config, weights=weights, x=x)["value"]
    wide, gate, back = (
        projection(weights, name) for name in ("input_projection", "gate_projection",
                                               "output_projection"))  # fmt: skip
    if kind in ("gelu", "geglu") and agrees(
        got, back(tanh_gelu(gate(x)) * wide(x) if "glu" in kind else tanh_gelu(wide(x))), tolerance
    ):
        return {"variant": "GELU is approximated by a hyperbolic tangent"}
    flat = back(wide(x))
    suspects = [
        Suspect("activation_missing", flat, "nothing is bent: two projections in a row are one.",
                INSIDE),
        Suspect("activation_after_both", np.maximum(flat, 0.0) if kind == "relu" else
                gelu(flat), "it bends after the second projection.", INSIDE),
        Suspect("gate_not_bent", back(gate(x) * wide(x)), "the gate is not bent.", INSIDE),
        Suspect("gate_exchanged", back(silu(wide(x)) * gate(x) if kind == "swiglu" else
                gelu(wide(x)) * gate(x)), "the widened token is bent, not its gate.", INSIDE),
        Suspect("residual_inside", want + x, "it adds its input, which the branch does already.",
                INSIDE),
    ] + [
        Suspect("other_activation", back(bend(wide(x))), f"it bends by {name}.", INSIDE)
        for name, bend in (("ReLU", lambda y: np.maximum(y, 0.0)), ("GELU", gelu), ("SiLU", silu),
                           ("a hyperbolic tangent", np.tanh))
    ]  # fmt: skip
    return judge(got, want, what=what, part="feedforward", advice=INSIDE, suspects=suspects,
                 tolerance=tolerance)  # fmt: skip


def projection(weights: dict[str, Array], name: str) -> Any:
    """Return the Linear of this name as a function; without one, a function that answers 1."""
    if f"{name}.weight" not in weights:
        return lambda x: np.ones(1)
    return lambda x: x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def gelu(x: Array) -> Array:
    """Multiply x by the probability that a standard normal variable is below it."""
    return np.asarray(x * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0))) / 2.0)


def tanh_gelu(x: Array) -> Array:
    """Approximate GELU. Source: Hendrycks and Gimpel 2016, section 2, arxiv.org/abs/1606.08415."""
    return np.asarray(
        0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    )  # fmt: skip


def silu(x: Array) -> Array:
    """Multiply x by its logistic sigmoid."""
    return np.asarray(x / (1.0 + np.exp(-x)))


@pytest.mark.part("G3")
def test_embedding_looks_up_and_scales(submission: Submission, rng: Draws) -> dict[str, Any]:
    """TokenEmbedding returns the row of each id, multiplied by the root of the width."""
    table = rng.uniform((11, 6), -1.7, 1.7)
    ids = rng.child("ids").integers((3, 5), 0, 11)
    what = "TokenEmbedding of a batch"
    module = build("module", "embeddings.TokenEmbedding", 11, 6, weights={"weight": table})
    (built, answer), tolerance = ask(submission, module, forward("module", {"args": [ids]}))
    sure(built)
    rows = table[ids]  # (B, T, D)
    got = tensor(returned(answer, what, "embeddings"), rows.shape, what, "embeddings")
    suspects = [
        Suspect(f"embedding_{code}", rows * factor, cause, TABLE)
        for code, factor, cause in (
            ("not_scaled", 1.0, "the rows are not multiplied by the root of the width."),
            ("divided", 1 / math.sqrt(6), "the rows are divided by the root of the width."),
            ("scaled_by_width", 6.0, "the rows are multiplied by the width, not by its root."),
        )
    ]
    return judge(got, rows * math.sqrt(6), what=what, part="embeddings", advice=TABLE,
                 suspects=suspects, tolerance=tolerance)  # fmt: skip
