"""What to say of each slip: its cause in the field's words, and where to look.

The names are those of `grader.oracle.slips`. Where two slips answer alike, the first one is named.
"""

from __future__ import annotations

# Cause and advice by the name of the slip.
Causes = dict[str, tuple[str, str]]


def advise(advice: str, **causes: str) -> Causes:
    """Give slips that show in the same place the same advice."""
    return {slip: (cause, advice) for slip, cause in causes.items()}


def chosen(causes: Causes, *names: str) -> Causes:
    """Return some of the causes, in the order of `names`."""
    return {name: causes[name] for name in names}


SCORES = advise(
    "Look at what the dot products are divided by, and at where that happens.",
    no_scale="the dot products are not scaled.",
    scaled_by_width="the dot products are divided by the width of a head, or scaled twice.",
    scale_inverted="the dot products are multiplied by what should divide them.",
    scaled_by_model_width="the dot products are scaled by the width of all heads together.",
) | advise(
    "Scores are (B, H, T, S): look at which axis must sum to 1.",
    softmax_over_queries="the weights sum to 1 over the queries, not over the keys.",
    softmax_over_heads="the weights sum to 1 over the heads, not over the keys.",
    softmax_over_rows="the weights sum to 1 over the batch, not over the keys.",
    no_softmax="the weights are the scores themselves.",
)
OTHER_ROWS = advise(
    "Look at how the mask is repeated or reshaped for the heads.",
    mask_of_other_rows="heads are masked with another row's mask: batch and heads are laid out in "
    "different orders.",
)
MASKED = (
    advise(
        "True means may attend, as the top of masks.py says.",
        mask_flipped="only the hidden keys get weight: the mask is read the other way round.",
    )
    | advise(
        "Look at what the mask does to the scores, and when.",
        mask_ignored="hidden keys get weight as if there were no mask.",
        mask_fill_zero="hidden keys have the score 0, and a score of 0 still gets weight.",
        mask_after_softmax="hidden keys are dropped after the softmax, so that the rows no longer "
        "sum to 1.",
    )
    | OTHER_ROWS
)
BIASED = advise(
    "Look at where score_bias joins the scores.",
    bias_ignored="score_bias changes nothing.",
    bias_scaled="score_bias is scaled together with the dot products.",
)
ATTENTION = SCORES | MASKED | BIASED

PROJECTIONS = (
    advise(
        "Look at which projection makes the queries, which the keys, which the values.",
        keys_from_query_projection="the keys come out of q_proj.",
        keys_from_value_projection="the keys come out of v_proj.",
        values_from_key_projection="the values come out of k_proj.",
        values_from_query_projection="the values come out of q_proj.",
        queries_from_key_projection="the queries come out of k_proj.",
        queries_from_value_projection="the queries come out of v_proj.",
        keys_and_values_exchanged="k_proj and v_proj are exchanged.",
    )
    | advise(
        "Look at what follows the merged heads.",
        no_output_projection="out_proj is not applied.",
    )
    | advise(
        "Look at how the heads are split off and put together again (task 2.2).",
        heads_merged_without_transpose="the heads are merged in the wrong order: numbers of "
        "different tokens are mixed.",
        heads_split_without_transpose="the heads are split off in the wrong order: a head gets "
        "pieces of different tokens.",
        heads_chunked="split and merge undo one another, but a head sees a stretch of the sequence "
        "in place of its share of every token.",
        one_head="it attends with one head as wide as the model.",
    )
)

SOURCES = advise(
    "Look at which input the queries, the keys and the values are made of.",
    key_value_ignored="keys and values come from the query's own sequence: key_value is not used.",
    keys_from_queries="the keys come from the query's sequence.",
    values_from_queries="the values come from the query's sequence.",
    queries_from_source="the queries come from key_value.",
) | advise(
    "Look at which axes the dot products run over.",
    attends_between_heads="each token attends over its own heads, never over other tokens.",
)

MASKS = (
    advise(
        "Keys are the last axis of a mask, queries the one before it.",
        # Where real queries alone are judged, both look the same.
        key_valid_on_queries="padded keys are attended to: key_valid or query_valid lies along the "
        "wrong axis.",
    )
    | advise(
        "Look at which masks are combined, and with what they were given.",
        causal_ignored="with causal=True the future stays visible.",
        key_valid_ignored="padded keys are attended to.",
        attention_mask_ignored="attention_mask changes nothing.",
        causal_lost_with_padding="the causal mask is lost when a padding mask comes along.",
        key_valid_lost_with_causal="the padding mask is lost when the causal mask comes along.",
        masks_or="it allows what any of the masks allows.",
    )
    | OTHER_ROWS
    | chosen(BIASED, "bias_ignored")
)

OFFSETS = advise(
    "Ask where query 0 stands, as seen from key 0.",
    offset_ignored="the causal mask ignores the offsets.",
    key_offset_ignored="the causal mask ignores key_offset.",
    offsets_added="the causal mask adds the offsets.",
)

_PATH = "Follow x from the start to the sum: what is added to what, and what is normalised?"

BRANCH = advise(
    _PATH,
    residual_omitted="the input is not added: there is no residual path.",
    residual_doubled="the input is added twice.",
    residual_multiplied="the input is multiplied with the branch, not added to it.",
    residual_subtracted="the branch is subtracted.",
    branch_added_to_itself="the branch is added to itself in place of the input.",
    residual_after_norm="the normalised input is added, not the input itself.",
    norm_skipped="nothing is normalised.",
    norm_on_branch="the branch is normalised, not its input or the sum.",
    norm_on_residual="the input is normalised on the residual path only.",
    normed_twice="it normalises before the sub-layer and after the sum.",
    branch_skipped="the sub-layer is not used.",
    branch_twice="the sub-layer is applied twice.",
) | advise(
    "Look at which of the two orders self.placement names.",
    other_placement="the norm stands where the other placement has it.",
)

# What only a branch that follows another one can do.
LATER_BRANCH = advise(
    _PATH,
    wrong_residual="the block's input is added, not what the branch before it returned.",
    starts_again="it starts again from the block's input: what came before is lost.",
) | advise(
    "Look at the argument of the function that the branch is given.",
    reads_block_input="the sub-layer reads the block's input, not what the branch hands it.",
)


def in_branches(*branches: str) -> Causes:
    """Return the slips of these residual branches of a block, as `<slip>:<branch>`."""
    return {
        f"{slip}:{branch}": (f"in {branch}, {cause}", advice)
        for branch in branches
        for slip, (cause, advice) in (BRANCH | LATER_BRANCH).items()
        if slip in BRANCH or branch != branches[0]
    }


_ORDER = "Compare the order of the branches with the docstring."
_SELF = "Look at which masks self-attention gets."

BLOCK = (
    advise(_SELF, valid_ignored="padded tokens are attended to.")
    | advise(
        "Look at what self-attention is handed.",
        score_bias_ignored="score_bias does not reach self-attention.",
    )
    | advise(
        "Look at which branch each sub-layer runs in.",
        norms_exchanged="the branches' norms are exchanged.",
    )
    | advise(_ORDER, order_exchanged="feed-forward runs before attention.")
)
ENCODER_BLOCK = BLOCK | advise(
    _SELF, future_hidden="positions do not see later ones: an encoder looks both ways."
)
CAUSAL_BLOCK = BLOCK | advise(_SELF, future_visible="positions see later ones.")
DECODER_BLOCK = (
    advise(
        _SELF,
        future_visible="target positions see later ones.",
        target_valid_ignored="padded target tokens are attended to.",
    )
    | advise(
        "Look at what cross-attention is given: queries, keys and values, and the masks.",
        memory_valid_ignored="padded positions of the memory are attended to.",
        memory_hidden="target position t sees the memory up to t only: the causal mask has reached "
        "cross-attention.",
        cross_query_bypass="cross-attention asks with what self-attention returned, past its "
        "branch.",
        attentions_exchanged="self_attention and cross_attention are exchanged.",
        self_attention_used_twice="self_attention also stands in for cross_attention.",
    )
    | advise(
        _ORDER,
        cross_before_self="cross-attention runs before self-attention.",
        order_exchanged="the branches run in the opposite order.",
    )
    | chosen(BLOCK, "norms_exchanged", "score_bias_ignored")
)

# What only a memory as long as the target can hide.
SAME_LENGTH = advise(
    "Look at what cross-attention is given: queries, keys and values, and the masks.",
    cross_reads_target="cross-attention looks at the target, not at the memory.",
    cross_reads_block_input="cross-attention looks at the block's input, not at the memory.",
    score_bias_on_cross="score_bias reaches cross-attention too.",
) | advise(
    _PATH,
    residual_from_memory="the memory is added in the cross-attention branch, not the target's own "
    "stream.",
)

LOOP = advise(
    "Look at what each block of the loop reads, and at what is returned when.",
    input_to_every_block="every block reads the stack's input, so that only the last one counts.",
    first_block_only="only the first block counts.",
    last_block_missing="the last block does not run.",
    first_block_missing="the first block does not run.",
    reversed_blocks="the blocks run in the opposite order.",
    first_block_shared="the first block runs in place of every other.",
    last_block_shared="the last block runs in place of every other.",
) | advise(
    "Look at what follows the loop.",
    final_norm_missing="the final norm is not applied.",
    final_norm_in_every_block="the final norm runs after every block.",
)
STACK = LOOP | advise(
    "Look at what each block is handed.",
    score_bias_not_handed_on="score_bias does not reach the blocks.",
    score_bias_first_block_only="score_bias reaches the first block only.",
)
ENCODER = STACK | advise(
    "Look at what each block is handed.",
    valid_not_handed_on="padded tokens are attended to.",
)
DECODER = STACK | advise(
    "Look at what each block is handed.",
    target_valid_not_handed_on="padded target tokens are attended to.",
    memory_valid_not_handed_on="padded positions of the memory are attended to.",
)
MEMORY = advise(
    "Look at what each block is handed as its memory.",
    memory_is_target="every block reads the decoder's own input, the target, as the memory.",
    memory_is_stream="every block reads its own input as the memory.",
    memory_replaced="blocks after the first read another block's output as the memory.",
)
