"""Layers that treat each token by itself, and the position schemes."""

from __future__ import annotations

import math

import numpy as np

from grader.oracle.scope import Array, Ids, Scope

LAYER_NORM_EPS = 1e-5
RMS_NORM_EPS = 1e-6


def linear(scope: Scope, x: Array) -> Array:
    """Map the features of x (..., I) by weight (O, I) and, where the layer has one, bias (O)."""
    y: Array = x @ scope["weight"].T
    return y + scope["bias"] if "bias" in scope else y


def layer_norm(scope: Scope, x: Array) -> Array:
    """Give each token of x (..., D) mean 0 and variance 1, then scale and shift its features.

    Source: Ba et al. 2016, arxiv.org/abs/1607.06450.
    """
    width = x.shape[-1]
    centred = x - x.sum(axis=-1, keepdims=True) / width
    variance = np.einsum("...d,...d->...", centred, centred)[..., None] / width
    y: Array = centred / np.sqrt(variance + LAYER_NORM_EPS) * scope["weight"] + scope["bias"]
    return y


def rms_norm(scope: Scope, x: Array) -> Array:
    """Give each token of x (..., D) a root mean square of 1, then scale its features.

    Source: Zhang and Sennrich 2019, arxiv.org/abs/1910.07467.
    """
    mean_square = np.einsum("...d,...d->...", x, x)[..., None] / x.shape[-1]
    y: Array = x / np.sqrt(mean_square + RMS_NORM_EPS) * scope["weight"]
    return y


def norm(scope: Scope, x: Array) -> Array:
    """Normalise by the configured kind."""
    return {"layernorm": layer_norm, "rmsnorm": rms_norm}[scope.config.norm](scope, x)


def relu(x: Array) -> Array:
    """Keep what is positive."""
    return np.maximum(x, 0.0)


def gelu(x: Array) -> Array:
    """Multiply x by the probability that a standard normal variable is below it."""
    erf = np.vectorize(math.erf, otypes=[float])
    return np.asarray(x * (1.0 + erf(x / math.sqrt(2.0))) / 2.0)


def silu(x: Array) -> Array:
    """Multiply x by its logistic sigmoid."""
    sigmoid = (1.0 + np.tanh(x / 2.0)) / 2.0  # 1 / (1 + exp(-x)) without its overflow
    return np.asarray(x * sigmoid)


def feed_forward(scope: Scope, x: Array) -> Array:
    """Map each token of x (B, T, D) to F features, apply the activation, and map it back to D.

    The gated kinds multiply the F features by an activated gate of the same width.

    Source: Vaswani et al. 2017, eq. 2; Shazeer 2020, arxiv.org/abs/2002.05202.
    """
    hidden = linear(scope.child("input_projection"), x)  # (B, T, F)
    if scope.config.ffn in ("relu", "gelu"):
        hidden = {"relu": relu, "gelu": gelu}[scope.config.ffn](hidden)
    else:
        activation = {"swiglu": silu, "geglu": gelu}[scope.config.ffn]
        hidden = activation(linear(scope.child("gate_projection"), x)) * hidden
    return scope.record(linear(scope.child("output_projection"), hidden))


def token_embedding(scope: Scope, ids: Ids) -> Array:
    """Look up the vector of each id (B, T) and multiply it by sqrt(D): (B, T, D)."""
    return scope.record(scope["weight"][ids] * math.sqrt(scope.config.d_model))


def sinusoidal_positions(length: int, width: int, offset: int = 0) -> Array:
    """Position p as sin(p / 10000^(2i / D)) at feature 2i and the cosine at 2i + 1: (T, D).

    Source: Vaswani et al. 2017, section 3.5.
    """
    features = np.arange(width)
    angles = (np.arange(length)[:, None] + offset) / 10000.0 ** (2 * (features // 2) / width)
    return np.where(features % 2 == 0, np.sin(angles), np.cos(angles))


def t5_bucket(distance: int, num_buckets: int, max_distance: int, *, bidirectional: bool) -> int:
    """Bucket of a key that stands `distance` = s - t after its query.

    Half of the buckets hold one distance each; the others grow logarithmically up to max_distance.
    An encoder reserves half of all buckets for later keys, which a decoder does not have.

    Source: Raffel et al. 2020, section 2.1, arxiv.org/abs/1910.10683.
    """
    first = 0
    if bidirectional:
        num_buckets //= 2
        if distance > 0:
            first = num_buckets
        steps = abs(distance)
    else:
        steps = max(-distance, 0)
    exact = num_buckets // 2
    if steps < exact:
        return first + steps
    growth = math.log(steps / exact) / math.log(max_distance / exact)
    return first + min(exact + int(growth * (num_buckets - exact)), num_buckets - 1)


def t5_bias(scope: Scope, num_queries: int, num_keys: int, *, bidirectional: bool) -> Array:
    """What each head adds to a score for the distance between query and key: (1, H, T, S)."""
    config = scope.config
    bias = np.zeros((1, config.num_heads, num_queries, num_keys))
    for t in range(num_queries):
        for s in range(num_keys):
            bucket = t5_bucket(
                s - t, config.t5_buckets, config.t5_max_distance, bidirectional=bidirectional
            )
            bias[0, :, t, s] = scope["weight"][bucket]
    return bias
