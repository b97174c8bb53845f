"""The oracle's answers by name, for `grader.asking.expectations`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from grader.model.parameters import ProbeConfig
from grader.oracle import attention, layers, models, slips, training
from grader.oracle.scope import Array, Scope, Trace

Answer = Callable[..., Any]


def _of_module(function: Answer, seen: str = "") -> Answer:
    """Take `config` and `weights` in place of a scope; return the output or what the trace saw.

    With a `peak` the scores of every attention are multiplied, as they arise, until their largest
    |score| is that: each factor holds for the sharpened input of its layer.
    """

    def answer(
        *,
        config: ProbeConfig,
        weights: Mapping[str, Array],
        peak: float | None = None,
        **inputs: Any,
    ) -> Any:
        scope = Scope(config, weights, trace=Trace(peak=peak))
        output = function(scope, **inputs)
        return getattr(scope.trace, seen) if seen else output

    return answer


def residual_branch(scope: Scope, x: Array, matrix: Array) -> Array:
    """Run a residual branch around the sub-layer y -> y @ matrix."""
    return models.residual_branch(scope, x, lambda y: y @ matrix)


def wrong_residual_branch(scope: Scope, x: Array, matrix: Array, slip: str) -> Array:
    """Run a residual branch around the sub-layer y -> y @ matrix, with a slip in it."""
    return slips.wrong_residual_branch(scope, x, lambda y: y @ matrix, slip=slip)


_FUNCTIONS: tuple[Answer, ...] = (
    attention.padding_mask,
    attention.causal_mask,
    attention.combine_masks,
    attention.scaled_dot_product_attention,
    attention.split_heads,
    attention.merge_heads,
    attention.repeat_kv_heads,
    attention.rotate_pairs,
    attention.apply_rope,
    training.masked_cross_entropy,
    slips.wrong_scaled_dot_product_attention,
)

_MODULES: tuple[Answer, ...] = (
    attention.multi_head_attention,
    layers.norm,
    layers.feed_forward,
    residual_branch,
    models.encoder_block,
    models.encoder,
    models.decoder_block,
    models.decoder,
    models.causal_block,
    models.encode,
    models.decode,
    models.seq2seq,
    models.decoder_only,
)

# Answers with one slip in them, named by the argument `slip`.
_WRONG: dict[str, Answer] = {
    "wrong_multi_head_attention": slips.wrong_multi_head_attention,
    "wrong_residual_branch": wrong_residual_branch,
    "wrong_encoder_block": partial(slips.wrong_block, causal=False),
    "wrong_causal_block": partial(slips.wrong_block, causal=True),
    "wrong_decoder_block": partial(slips.wrong_block, causal=True),
    "wrong_encoder": slips.wrong_stack,
    "wrong_decoder": slips.wrong_stack,
}

ANSWERS: dict[str, Answer] = {
    **{run.__name__: run for run in _FUNCTIONS},
    **{name: _of_module(run) for name, run in _WRONG.items()},
    **{run.__name__: _of_module(run) for run in _MODULES},
    **{f"{run.__name__}_activations": _of_module(run, "activations") for run in _MODULES},
    **{f"{run.__name__}_sharpening": _of_module(run, "factors") for run in _MODULES},
}
