"""What to say of each slip: its cause in the field's words, and where to look.

The keys are the slips of `grader.oracle.slips` and `slips_stacks`, the likeliest first.
"""

from __future__ import annotations

from grader.parts import Causes

_SCALE = "Look at what the dot products are divided by, and at where that happens."
_AXIS = "Scores are (B, H, T, S): look at which axis must sum to 1."
_MASK = "Look at what the mask does to the scores, and when."
_BIAS = "Look at where score_bias joins the scores."

ATTENTION: Causes = {
    "no_scale": ("the dot products are not scaled.", _SCALE),
    "scaled_by_width": ("the dot products are divided by the width of a head, or scaled twice.",
                        _SCALE),
    "scale_inverted": ("the dot products are multiplied by what should divide them.", _SCALE),
    "scaled_by_model_width": ("the dot products are scaled by the width of all heads together.",
                              _SCALE),
    "softmax_over_queries": ("the weights sum to 1 over the queries, not over the keys.", _AXIS),
    "softmax_over_heads": ("the weights sum to 1 over the heads, not over the keys.", _AXIS),
    "softmax_over_rows": ("the weights sum to 1 over the batch, not over the keys.", _AXIS),
    "no_softmax": ("the weights are the scores themselves.", _AXIS),
    "mask_ignored": ("hidden keys get weight as if there were no mask.", _MASK),
    "mask_flipped": ("only the hidden keys get weight: the mask is read the other way round.",
                     "True means may attend, as the top of masks.py says."),
    "mask_fill_zero": ("hidden keys have the score 0, and a score of 0 still gets weight.", _MASK),
    "mask_after_softmax": ("hidden keys are dropped after the softmax, so that the rows no longer "
                           "sum to 1.", _MASK),
    "mask_of_other_rows": ("heads are masked with another row's mask: batch and heads are laid "
                           "out in different orders.", "Look at how the mask is repeated or "
                           "reshaped for the heads."),
    "bias_ignored": ("score_bias changes nothing.", _BIAS),
    "bias_scaled": ("score_bias is scaled together with the dot products.", _BIAS),
}  # fmt: skip

_PROJECTIONS = "Look at which projection makes the queries, which the keys, which the values."
_SOURCES = "Look at which input the queries, the keys and the values are made of."
_HEADS = "Look at how the heads are split off and put together again (task 2.2)."
_MASKS = "Look at which masks are combined, and with what they were given."
_OFFSETS = "Ask where query 0 stands, as seen from key 0."

PROJECTIONS: Causes = {
    "keys_from_query_projection": ("the keys come out of q_proj.", _PROJECTIONS),
    "keys_from_value_projection": ("the keys come out of v_proj.", _PROJECTIONS),
    "values_from_key_projection": ("the values come out of k_proj.", _PROJECTIONS),
    "values_from_query_projection": ("the values come out of q_proj.", _PROJECTIONS),
    "queries_from_key_projection": ("the queries come out of k_proj.", _PROJECTIONS),
    "queries_from_value_projection": ("the queries come out of v_proj.", _PROJECTIONS),
    "keys_and_values_exchanged": ("k_proj and v_proj are exchanged.", _PROJECTIONS),
    "no_output_projection": ("out_proj is not applied.", "Look at what follows the merged heads."),
    "heads_merged_without_transpose": ("the heads are merged in the wrong order: numbers of "
                                       "different tokens are mixed.", _HEADS),
    "heads_split_without_transpose": ("the heads are split off in the wrong order: a head gets "
                                      "pieces of different tokens.", _HEADS),
    "heads_chunked": ("split and merge undo one another, but a head sees a stretch of the "
                      "sequence in place of its share of every token.", _HEADS),
    "one_head": ("it attends with one head as wide as the model.", _HEADS),
}  # fmt: skip

SOURCES: Causes = {
    "key_value_ignored": ("keys and values come from the query's own sequence: key_value is not "
                          "used.", _SOURCES),
    "keys_from_queries": ("the keys come from the query's sequence.", _SOURCES),
    "values_from_queries": ("the values come from the query's sequence.", _SOURCES),
    "queries_from_source": ("the queries come from key_value.", _SOURCES),
    "attends_between_heads": ("each token attends over its own heads, never over other tokens.",
                              "Look at which axes the dot products run over."),
}  # fmt: skip

MASKS: Causes = {
    # Where real queries alone are judged, both look the same.
    "key_valid_on_queries": ("padded keys are attended to: key_valid or query_valid lies along "
                             "the wrong axis.", "Keys are the last axis of a mask, queries the one "
                             "before it."),
    "causal_ignored": ("with causal=True the future stays visible.", _MASKS),
    "key_valid_ignored": ("padded keys are attended to.", _MASKS),
    "attention_mask_ignored": ("attention_mask changes nothing.", _MASKS),
    "causal_lost_with_padding": ("the causal mask is lost when a padding mask comes along.",
                                 _MASKS),
    "key_valid_lost_with_causal": ("the padding mask is lost when the causal mask comes along.",
                                   _MASKS),
    "masks_or": ("it allows what any of the masks allows.", _MASKS),
    "mask_of_other_rows": ATTENTION["mask_of_other_rows"],
    "bias_ignored": ("score_bias changes nothing.", _BIAS),
}  # fmt: skip

OFFSETS: Causes = {
    "offset_ignored": ("the causal mask ignores the offsets.", _OFFSETS),
    "key_offset_ignored": ("the causal mask ignores key_offset.", _OFFSETS),
    "offsets_added": ("the causal mask adds the offsets.", _OFFSETS),
}  # fmt: skip

_PATH = "Follow x from the start to the sum: what is added to what, and what is normalised?"

BRANCH: Causes = {
    "residual_omitted": ("the input is not added: there is no residual path.", _PATH),
    "residual_doubled": ("the input is added twice.", _PATH),
    "residual_multiplied": ("the input is multiplied with the branch, not added to it.", _PATH),
    "residual_subtracted": ("the branch is subtracted.", _PATH),
    "branch_added_to_itself": ("the branch is added to itself in place of the input.", _PATH),
    "residual_after_norm": ("the normalised input is added, not the input itself.", _PATH),
    "norm_skipped": ("nothing is normalised.", _PATH),
    "other_placement": ("the norm stands where the other placement has it.",
                        "Look at which of the two orders self.placement names."),
    "norm_on_branch": ("the branch is normalised, not its input or the sum.", _PATH),
    "norm_on_residual": ("the input is normalised on the residual path only.", _PATH),
    "normed_twice": ("it normalises before the sub-layer and after the sum.", _PATH),
    "branch_skipped": ("the sub-layer is not used.", _PATH),
    "branch_twice": ("the sub-layer is applied twice.", _PATH),
}  # fmt: skip

_ORDER = "Compare the order of the branches with the docstring."

BLOCK: Causes = {
    "valid_ignored": ("padded tokens are attended to.", "Look at which masks self-attention gets."),
    "score_bias_ignored": ("score_bias does not reach self-attention.",
                           "Look at what self-attention is handed."),
    "norms_exchanged": ("the branches' norms are exchanged.", "Look at which branch each "
                        "sub-layer runs in."),
    "order_exchanged": ("feed-forward runs before attention.", _ORDER),
}  # fmt: skip

ENCODER_BLOCK: Causes = BLOCK | {
    "future_hidden": ("positions do not see later ones: an encoder looks both ways.",
                      "Look at which masks self-attention gets."),
}  # fmt: skip

CAUSAL_BLOCK: Causes = BLOCK | {
    "future_visible": ("positions see later ones.", "Look at which masks self-attention gets."),
}  # fmt: skip

_CROSS = "Look at what cross-attention is given: queries, keys and values, and the masks."

DECODER_BLOCK: Causes = {
    "future_visible": ("target positions see later ones.",
                       "Look at which masks self-attention gets."),
    "target_valid_ignored": ("padded target tokens are attended to.",
                             "Look at which masks self-attention gets."),
    "memory_valid_ignored": ("padded positions of the memory are attended to.", _CROSS),
    "memory_hidden": ("target position t sees the memory up to t only: the causal mask has reached "
                      "cross-attention.", _CROSS),
    "cross_query_bypass": ("cross-attention asks with what self-attention returned, past its "
                           "branch.", _CROSS),
    "attentions_exchanged": ("self_attention and cross_attention are exchanged.", _CROSS),
    "self_attention_used_twice": ("self_attention also stands in for cross_attention.", _CROSS),
    "cross_before_self": ("cross-attention runs before self-attention.", _ORDER),
    "order_exchanged": ("the branches run in the opposite order.", _ORDER),
    "norms_exchanged": ("the branches' norms are exchanged.", "Look at which branch each "
                        "sub-layer runs in."),
    "score_bias_ignored": ("score_bias does not reach self-attention.",
                           "Look at what self-attention is handed."),
}  # fmt: skip

# What only a memory as long as the target can hide.
SAME_LENGTH: Causes = {
    "cross_reads_target": ("cross-attention looks at the target, not at the memory.", _CROSS),
    "cross_reads_block_input": ("cross-attention looks at the block's input, not at the memory.",
                                _CROSS),
    "score_bias_on_cross": ("score_bias reaches cross-attention too.", _CROSS),
    "residual_from_memory": ("the memory is added in the cross-attention branch, not the target's "
                             "own stream.", _PATH),
}  # fmt: skip

_LOOP = "Look at what each block of the loop reads, and at what is returned when."
_LAST = "Look at what follows the loop."
_HANDED = "Look at what each block is handed."

STACK: Causes = {
    "input_to_every_block": ("every block reads the stack's input, so that only the last one "
                             "counts.", _LOOP),
    "first_block_only": ("only the first block counts.", _LOOP),
    "last_block_missing": ("the last block does not run.", _LOOP),
    "first_block_missing": ("the first block does not run.", _LOOP),
    "reversed_blocks": ("the blocks run in the opposite order.", _LOOP),
    "first_block_shared": ("the first block runs in place of every other.", _LOOP),
    "last_block_shared": ("the last block runs in place of every other.", _LOOP),
    "final_norm_missing": ("the final norm is not applied.", _LAST),
    "final_norm_in_every_block": ("the final norm runs after every block.", _LAST),
    "score_bias_not_handed_on": ("score_bias does not reach the blocks.", _HANDED),
    "score_bias_first_block_only": ("score_bias reaches the first block only.", _HANDED),
}  # fmt: skip

ENCODER: Causes = STACK | {
    "valid_not_handed_on": ("padded tokens are attended to.", _HANDED),
}  # fmt: skip

DECODER: Causes = STACK | {
    "target_valid_not_handed_on": ("padded target tokens are attended to.", _HANDED),
    "memory_valid_not_handed_on": ("padded positions of the memory are attended to.", _HANDED),
}  # fmt: skip

MEMORY: Causes = {
    "memory_replaced": ("blocks after the first read another block's output as the memory.",
                        _HANDED),
}  # fmt: skip


def in_branches(*branches: str) -> Causes:
    """Return the slips of every one of these residual branches."""
    own = BRANCH | {
        "wrong_residual": ("the block's input is added, not what the branch before it returned.",
                           _PATH),
        "starts_again": ("it starts again from the block's input: what came before is lost.",
                         _PATH),
    }  # fmt: skip
    return {
        f"{slip}:{branch}": (f"in {branch}, {cause}", advice)
        for branch in branches
        for slip, (cause, advice) in own.items()
        if branch != branches[0] or slip not in ("wrong_residual", "starts_again")
    }
