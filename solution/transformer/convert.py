"""Task S4: from multi-head to grouped-query attention."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from .checkpoint import check_names
from .config import ModelConfig
from .models import DecoderOnlyTransformer

METHODS = ("mean", "first", "random")

# Ours -> theirs, inside a block.
OLD_NAMES = {
    "self_attention.q_proj": "self_attn.q_proj",
    "self_attention.k_proj": "self_attn.k_proj",
    "self_attention.v_proj": "self_attn.v_proj",
    "self_attention.out_proj": "self_attn.o_proj",
    "feed_forward.input_projection": "ffn.up",
    "feed_forward.gate_projection": "ffn.gate",
    "feed_forward.output_projection": "ffn.down",
    "attention_branch.norm": "n1",
    "feed_forward_branch.norm": "n3",
}


def old_name(name: str) -> str:
    """Translate the name of one of our decoder-only weights into the older checkpoint's.

    Args:
        name: A name in the state_dict of DecoderOnlyTransformer.
    """
    whole = {"token_embedding.weight": "emb.weight", "positions.weight": "pos_emb.weight"}
    if name in whole:
        return whole[name]
    name = name.removeprefix("stack.").replace("final_norm", "norm_f")
    for ours, theirs in OLD_NAMES.items():
        name = name.replace(ours, theirs)
    return name


def convert(
    old: Mapping[str, Tensor], config: ModelConfig, how: str = "mean"
) -> DecoderOnlyTransformer:
    """Load an older multi-head checkpoint into a model with fewer key and value heads.

    Args:
        old: The checkpoint, with num_heads key and value heads: emb.weight; in block i
            blocks.i.self_attn.{q,k,v,o}_proj, blocks.i.ffn.{up,down} (and .gate where the
            feed-forward layer is gated), blocks.i.n1 and blocks.i.n3; norm_f where it is pre-norm;
            each of these with .weight and, where the configuration has biases, .bias. Besides,
            pos_emb.weight where positions have a table, and output_projection.weight with
            tied=False.
        config: The model to build; its number of key/value heads may be smaller.
        how: What becomes of the key and value heads that share one now: "mean" averages them,
            "first" keeps the first of them, "random" keeps the fresh weights of the new model.

    Returns:
        The new model. With equal head counts its answers are those of the old one.

    Raises:
        ValueError: An unknown method, or missing, unknown or unfit weights, each named.

    Source: Ainslie et al. 2023, section 2.1, arxiv.org/abs/2305.13245. Task S4. Hints:
        1. old_weights (given) checks the checkpoint and returns it under our names.
        2. Only k_proj and v_proj change shape, weight and bias alike. Which rows of a weight
           make up one head?
        3. Heads that share one are neighbours, as in repeat_kv_heads (task S2).
        4. With equal head counts nothing is left to merge, whatever the method.
    """
    # BEGIN SOLUTION S4
    if how not in METHODS:
        raise ValueError(f"how must be one of {', '.join(METHODS)}, got {how!r}")
    weights = old_weights(old, config)
    model = DecoderOnlyTransformer(config)
    fresh = model.state_dict()
    for name, weight in weights.items():
        if weight.shape == fresh[name].shape:
            continue
        # (H_kv, heads that share one, K, ...)
        groups = weight.unflatten(0, (config.kv_heads, -1, config.d_head))
        if how == "random":
            weights[name] = fresh[name]
        else:
            kept = groups.mean(dim=1) if how == "mean" else groups[:, 0]
            weights[name] = kept.flatten(0, 1)
    model.load_state_dict(weights)
    return model
    # END SOLUTION


def old_weights(old: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Check an older checkpoint against a configuration and return it under our names.

    Args:
        old: The checkpoint.
        config: The model it is meant for; the checkpoint has num_heads key and value heads.

    Raises:
        ValueError: Missing, unknown or wrongly shaped weights, each named.
    """
    # Built for its names and shapes alone; the first use of the meta device takes seconds.
    multi_head = DecoderOnlyTransformer(replace(config, num_kv_heads=config.num_heads))
    expected = multi_head.state_dict()
    check_names(dict(old), {old_name(n): t for n, t in expected.items()}, "the older checkpoint")
    return {name: old[old_name(name)] for name in expected}
