"""The oracle's answers by name, for `grader.expectations`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from grader.oracle import attention, layers, models, slips, slips_stacks, stacks, training
from grader.oracle.scope import Array, Scope, Trace
from grader.parameters import ProbeConfig

Answer = Callable[..., Any]


def _of_module(function: Answer) -> Answer:
    """Take `config` and `weights` in place of a scope."""

    def answer(*, config: ProbeConfig, weights: Mapping[str, Array], **inputs: Any) -> Any:
        return function(Scope(config, weights), **inputs)

    return answer


def _activations(function: Answer) -> Answer:
    """Hand out the output of every module on the way, by name."""

    def answer(
        *, config: ProbeConfig, weights: Mapping[str, Array], **inputs: Any
    ) -> dict[str, Array]:
        scope = Scope(config, weights)
        function(scope, **inputs)
        return scope.trace.activations

    return answer


def _sharpening(function: Answer) -> Answer:
    """Find what each attention's scores must be multiplied by to have `peak` as largest |score|.

    The scores are multiplied as they arise, so that each factor holds for the sharpened input of
    its layer.
    """

    def answer(
        *, config: ProbeConfig, weights: Mapping[str, Array], peak: float, **inputs: Any
    ) -> dict[str, float]:
        scope = Scope(config, weights, trace=Trace(peak=peak))
        function(scope, **inputs)
        return scope.trace.factors

    return answer


def _residual_branch(scope: Scope, x: Array, matrix: Array) -> Array:
    """Residual branch around the sub-layer y -> y @ matrix."""
    return stacks.residual_branch(scope, x, lambda y: y @ matrix)


def _wrong_residual_branch(scope: Scope, x: Array, matrix: Array, slip: str) -> Array:
    """Residual branch around the sub-layer y -> y @ matrix, with a slip in it."""
    return slips_stacks.wrong_residual_branch(scope, x, lambda y: y @ matrix, slip=slip)


_FUNCTIONS: dict[str, Answer] = {
    "padding_mask": attention.padding_mask,
    "causal_mask": attention.causal_mask,
    "combine_masks": attention.combine_masks,
    "scaled_dot_product_attention": attention.scaled_dot_product_attention,
    "split_heads": attention.split_heads,
    "merge_heads": attention.merge_heads,
    "repeat_kv_heads": attention.repeat_kv_heads,
    "rotate_pairs": attention.rotate_pairs,
    "apply_rope": attention.apply_rope,
    "teacher_forcing": training.teacher_forcing,
    "masked_cross_entropy": training.masked_cross_entropy,
}

_MODULES: dict[str, Answer] = {
    "multi_head_attention": attention.multi_head_attention,
    "norm": layers.norm,
    "feed_forward": layers.feed_forward,
    "residual_branch": _residual_branch,
    "encoder_block": stacks.encoder_block,
    "encoder": stacks.encoder,
    "decoder_block": stacks.decoder_block,
    "decoder": stacks.decoder,
    "causal_block": stacks.causal_block,
    "causal_stack": stacks.causal_stack,
    "encode": models.encode,
    "decode": models.decode,
    "seq2seq": models.seq2seq,
    "decoder_only": models.decoder_only,
}

# Answers with one slip in them, named by the argument `slip`.
_WRONG: dict[str, Answer] = {
    "wrong_multi_head_attention": slips.wrong_multi_head_attention,
    "wrong_residual_branch": _wrong_residual_branch,
    "wrong_encoder_block": slips_stacks.wrong_encoder_block,
    "wrong_encoder": slips_stacks.wrong_encoder,
    "wrong_decoder_block": slips_stacks.wrong_decoder_block,
    "wrong_decoder": slips_stacks.wrong_decoder,
    "wrong_causal_block": slips_stacks.wrong_causal_block,
}

ANSWERS: dict[str, Answer] = {
    **_FUNCTIONS,
    "wrong_scaled_dot_product_attention": slips.wrong_attention,
    **{name: _of_module(run) for name, run in _WRONG.items()},
    **{name: _of_module(run) for name, run in _MODULES.items()},
    **{f"{name}_activations": _activations(run) for name, run in _MODULES.items()},
    **{f"{name}_sharpening": _sharpening(run) for name, run in _MODULES.items()},
}
