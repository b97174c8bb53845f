"""What the names of parameters have in common whose gradients are missing or wrong."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

STACKS = {"encoder": "encoder", "decoder": "decoder", "stack": "decoder"}
PROJECTIONS = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}
SOURCE = ("source_embedding.", "source_positions.")
TARGET = ("target_embedding.", "target_positions.", "token_embedding.", "positions.")
SUBLAYERS = ("self_attention.", "cross_attention.", "feed_forward.")

Reading = tuple[str, str, str]  # part, cause, advice
Gone = Callable[[str], bool]


def of_missing(names: list[str], every: list[str]) -> Reading:
    """Return part, cause and advice for the parameters that get no gradient.

    Args:
        names: Parameters without a gradient, at least one, in the order of `every`.
        every: All parameters.
    """
    dead = set(names)

    def gone(prefix: str) -> bool:
        below = [name for name in every if name.startswith(prefix)]
        return bool(below) and dead.issuperset(below)

    if dead.issuperset(every):
        return ("training", "the loss is not connected to the model at all",
                "Look at what masked_cross_entropy does with its logits: no step may leave "
                "tensors, or run without gradients.")  # fmt: skip
    inside = [name for name in every if any(f".{s}" in name for s in SUBLAYERS)]
    if dead.issuperset(inside):
        return (
            "residual",
            "every sub-layer of every block: what they return does not reach the loss",
            "Look at what the residual branch does with what its sub-layer returns.",
        )
    return _of_sides(gone) or _of_blocks(every, gone) or _of_module(names, gone)


def _of_sides(gone: Gone) -> Reading | None:
    """Read which end of the model was cut off."""
    if gone("encoder.") and any(map(gone, SOURCE)):
        if gone("decoder.blocks.0.cross_attention.k_proj."):
            return (
                "decoder",
                "the source side and the keys of the cross-attention: the memory is not read",
                "Look at where the cross-attention's keys and values come from.",
            )
        return (
            "decoder",
            "the whole source side: the memory is read, but what reaches the "
            "decoder has lost its history",
            "Look at how the memory comes from the encoder "
            "into the cross-attention: a tensor that was detached has no history.",
        )
    for tables, file in ((SOURCE, "encoder"), (TARGET, "decoder")):
        if any(map(gone, tables)):
            return (
                file,
                f"what comes before the {file}'s output is reached, but without its history",
                f"Look at what {file}.py hands on from block to block: a tensor "
                "that was detached, or made without gradients, has no history.",
            )
    return None


def _of_blocks(every: list[str], gone: Gone) -> Reading | None:
    """Read whether whole blocks are without a gradient."""
    for stack, part in STACKS.items():
        layers = [name.split(".")[2] for name in every if name.startswith(f"{stack}.blocks.")]
        last = max(map(int, layers), default=0)
        empty = [i for i in range(last + 1) if gone(f"{stack}.blocks.{i}.")]
        if empty and len(empty) <= last:
            which = "later" if last in empty else "earlier"
            why = ("the loop leaves after the first" if which == "later" else
                   "the last one does not read what they return")  # fmt: skip
            return (
                part,
                f"the {which} blocks of {stack}.blocks: {why}",
                f"Look at the loop over the blocks in {part}.py.",
            )
    return None


def _of_module(names: list[str], gone: Gone) -> Reading:
    """Read a piece inside a block."""
    first = names[0]
    owner = first.rsplit(".", 2)[0]
    file = STACKS.get(first.split(".")[0], "models")
    if any(f".{projection}." in f".{first}" for projection in PROJECTIONS):
        lost = [word for key, word in PROJECTIONS.items() if gone(f"{owner}.{key}.")]
        if len(lost) == len(PROJECTIONS):
            return (
                file,
                f"all of {owner}: the sub-layer does not reach the logits",
                f"Look at what {file}.py does with the output of this attention.",
            )
        if set(lost) == {"query", "key"}:
            return (
                "attention",
                f"the queries and keys of {owner}: the attention weights have no history",
                "Look at every step from the scores to the weighted average.",
            )
        what = " and ".join(lost) or "part of the"
        return (
            "attention",
            f"the {what} projection of {owner}: it is never used, or its result is replaced",
            "Look at which projection makes queries, keys and values.",
        )
    if ".cross_branch.norm." in first and not gone(f"{owner.rsplit('.', 1)[0]}.cross_attention."):
        return (
            "attention",
            "what that norm gives reaches the queries of the cross-attention alone, and those "
            "have lost their history",
            "Look at what happens to query before it is projected.",
        )
    if first.endswith(("norm.weight", "norm.bias")):
        return ("residual" if "_branch" in first else file, "a norm that is not used",
                "Look at where this norm is called.")  # fmt: skip
    if "feed_forward" in first:
        return (
            file,
            f"the feed-forward layer {owner}: it does not reach the logits",
            f"Look at what {file}.py does with its output.",
        )
    return (file, "they do not take part in the loss",
            "Follow these parameters from the input to the logits.")  # fmt: skip


def of_wrong(names: list[str], every: list[str]) -> tuple[str, str]:
    """Return the part and the place to look at for parameters whose gradient is wrong.

    What lies before a break is wrong, what lies behind it is right.

    Args:
        names: Parameters with a wrong gradient, at least one.
        every: All parameters.
    """
    wrong = set(names)
    if wrong.issuperset(name for name in every if not name.endswith("k_proj.bias")):
        return "training", "masked_cross_entropy"
    endings = {name.split(".")[-2] for name in names if name.count(".") > 1}
    if len(endings) == 1 and endings <= set(PROJECTIONS) and wrong.isdisjoint(_tables(every)):
        # Whatever lies before it is right: only the weight itself is held back.
        (kind,) = endings
        return "attention", f"the {PROJECTIONS[kind]} projection's weight, part of which is frozen"
    for owner in _owners(every, ".q_proj.weight"):
        scores = {f"{owner}.q_proj.weight", f"{owner}.k_proj.weight"}
        values = {f"{owner}.v_proj.weight", f"{owner}.out_proj.weight"}
        if scores <= wrong and not values & wrong:
            return "attention", f"what {owner} does between its scores and its weights"
    for owner in _owners(every, ".feed_forward.input_projection.weight"):
        before = [n for n in every if n.startswith(f"{owner}.") and "feed_forward." not in n]
        inside = [n for n in every if n.startswith(f"{owner}.feed_forward.")]
        if wrong.intersection(before) and not wrong.intersection(inside):
            return "residual", "the residual branch"
    if not any(name.startswith(("decoder.", "target_")) for name in wrong) and not any(
        name.startswith("stack.") for name in every
    ):
        return "decoder", "how the memory reaches the cross-attention"
    part = STACKS.get(names[-1].split(".")[0], "models")
    return part, f"the way from {names[-1]} to the logits"


def _tables(every: Collection[str]) -> list[str]:
    """Return the embeddings' parameters, which lie before everything."""
    return [name for name in every if "embedding" in name]


def _owners(every: Collection[str], ending: str) -> Iterator[str]:
    """Yield the modules that hold a parameter of this ending, the last to run first."""
    for name in reversed(list(every)):
        if name.endswith(ending):
            yield name.removesuffix(ending)
