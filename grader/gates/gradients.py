"""From gradients to verdicts: what is finite, what is silent, what is wrong, and why."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from grader.asking.compare import fail
from grader.asking.submission import Question, Submission
from grader.base.settings import Settings
from grader.base.student_error import StudentError
from grader.gates import invariance
from grader.gates.influence import Findings, explained
from grader.gates.invariance import Bench, Model
from grader.model.draws import PAD

CALLS = (
    "an unpadded batch", "a padded batch", "rows of length 1", "mostly padded rows",
    "logits in the thousands",
)  # fmt: skip
ORDINARY = (0, 1)
# Parts whose failed checks explain a gradient, the likeliest first.
BLAMED = ("attention", "residual", "encoder", "decoder", "training")


@dataclass(frozen=True)
class Share:
    """What one model is asked in one mode: which of the lessons, by their places in `CALLS`."""

    model: Model
    mode: str
    calls: tuple[int, ...]

    def question(self, bench: Bench, every: list[dict[str, Any]]) -> Question:
        """Return the question that asks for it, out of all lessons."""
        return Question(
            "gradients",
            {
                "model": self.model.handle,
                "calls": [every[i] for i in self.calls],
                "mode": self.mode,
                "dtype": bench.dtype,
            },
        )


@dataclass
class Learning:
    """What every judgement of this gate needs."""

    submission: Submission
    lab: Settings
    findings: Findings
    seen: dict[str, Any]
    stacks: dict[str, dict[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """One model's answer: losses (C,) and gradient norms (C, P), -1 for none, NaN not finite.

    `calls` (C,) are places in `CALLS`.
    """

    calls: tuple[int, ...]
    names: tuple[str, ...]
    sizes: np.ndarray
    frozen: tuple[str, ...]
    losses: np.ndarray
    norms: np.ndarray
    circumstances: dict[str, Any]

    def size_of(self, stack: str) -> int:
        """Return how many numbers a stack learns."""
        inside = [name.startswith(f"{stack}.") for name in self.names]
        return int(self.sizes[inside].sum())

    def table(self, call: int) -> dict[str, Any]:
        """Return the norm of every gradient of one answer by name, None where there is none."""
        norms = self.norms[call]
        return {
            name: None if norm < 0 else float(norm)
            for name, norm in zip(self.names, norms, strict=True)
        }

    def smallest(self) -> float:
        """Return the smallest norm of an ordinary call, biases aside."""
        kept = [i for i, name in enumerate(self.names) if not name.endswith("bias")]
        return float(self.ordinary()[:, kept].min(initial=np.inf))

    def ordinary(self) -> np.ndarray:
        """Return the norms of the ordinary calls."""
        return self.norms[[i for i, call in enumerate(self.calls) if call in ORDINARY]]


def schedule(bench: Bench) -> list[Share]:
    """Ask the first draw for both ordinary lessons, every other for one, as in gates 1 and 2.

    The extreme ones go to the first sharpened weights and to the second ordinary ones.
    """
    first, *others = bench.models
    extreme = tuple(i for i in range(len(CALLS)) if i not in ORDINARY)
    shares = [Share(first, mode, ORDINARY) for mode in invariance.MODES]
    for model in others:
        calls = tuple(ORDINARY[padded] for padded in invariance.batches_of(bench, model))
        if (model.draw, model.sharpened) in ((0, True), (1, False)):
            calls += extreme
        mode = invariance.modes_of(model)[0] if model.draw else invariance.MODES[bench.turn]
        shares.append(Share(model, mode, calls))
    return shares


def read(
    bench: Bench, model: Model, mode: str, answer: dict[str, Any], calls: tuple[int, ...]
) -> Found:
    """Return the answer of the probe `gradients`, whose forms are checked here."""
    names = tuple(str(name) for name in answer["names"])
    losses, norms, sizes = (np.asarray(answer[k]) for k in ("losses", "norms", "sizes"))
    wanted = ((len(calls),), (len(calls), len(names)), (len(names),))
    if (losses.shape, norms.shape, sizes.shape) != wanted:
        fail("no_tensor", "training", "the gradients did not come as numbers.",
             "Return a scalar tensor from masked_cross_entropy.")  # fmt: skip
    circumstances = bench.describe(model, mode, padded=False)
    del circumstances["batch"]
    frozen = tuple(map(str, answer["frozen"]))
    return Found(calls, names, sizes, frozen, losses, norms, circumstances)


def judge_finite(found: Found) -> None:
    """Fail on the first loss or gradient that is not finite."""
    for index, (loss, norms) in enumerate(zip(found.losses, found.norms, strict=True)):
        call = found.calls[index]
        witness = found.circumstances | {"batch": CALLS[call], "loss": float(loss)}
        if not np.isfinite(loss):
            part, advice = "training", (
                "Look at how masked_cross_entropy turns logits into a loss: a logarithm of a "
                "softmax loses what the logits still hold.")  # fmt: skip
            if CALLS[call] != CALLS[-1]:
                part, advice = "attention", (
                    "Find the first operation that makes it: often a softmax over a row with no "
                    "allowed key, or a division by zero.")  # fmt: skip
            fail("loss_not_finite", part, f"{CALLS[call]}: the loss is {loss}.", advice, witness)
        bad = [name for name, norm in zip(found.names, norms, strict=True) if np.isnan(norm)]
        if bad:
            fail(
                "gradient_not_finite", "attention",
                f"{CALLS[call]}: the loss is finite, but the gradient of {bad[0]} is not "
                f"({len(bad)} of {len(found.names)} parameters).",
                "Look for an operation whose value is fine and whose slope is not: a softmax over "
                "a row of -inf, a root or logarithm of 0, NaN that is masked away afterwards.",
                witness | {"not_finite": bad, "gradient_norms": found.table(index)},
            )  # fmt: skip


def judge_growth(bench: Bench, found: Found, learning: Learning) -> None:
    """Fail when a deeper stack has no more to learn: its blocks are shared, or unknown to it."""
    for stack, part in STACKS.items():
        depth, size = bench.config.num_layers, found.size_of(stack)
        known = learning.stacks.setdefault(f"{bench.kind} {stack}", {})
        less = [d for d, s in known.items() if d < depth and size and s >= size]
        known[depth] = size
        if less:
            fail(
                "layers_missing", part,
                f"the {stack} of {depth} layers has {size} trainable numbers, no more than with "
                f"{less[0]}: its blocks share their weights, or the model does not know of them.",
                "Look at what holds the blocks in the constructor: a plain list hides its "
                "modules, and one module put in twice is one module.",
                {"model": bench.kind, "sizes": dict(known)},
            )  # fmt: skip


def silent(found: Found, bench: Bench) -> list[str]:
    """Name the parameters that some ordinary call does not teach.

    A bias whose weight learns is excused from an all-zero gradient, though not from a missing
    one: softmax ignores what a key's bias adds to all scores of a row.
    """
    dead, ordinary = [], found.ordinary()
    for name, norms in zip(found.names, ordinary.T, strict=True):
        weight = f"{name.removesuffix('bias')}weight"
        if name.endswith("bias") and weight in found.names and (norms >= 0).all():
            continue
        if (norms <= 0).any():
            dead.append(name)
    # A tree with its own constructors may hold tables that nobody is meant to train.
    return dead if bench.own_weights else dead + list(found.frozen)


def judge_silent(found: Found, bench: Bench, names: list[str], learning: Learning) -> None:
    """Fail when parameters stay without a gradient, and say what their names have in common."""
    if not names:
        return
    every = [*found.names, *found.frozen]
    part, cause, advice = of_missing(names, every)
    elsewhere, known = explained(learning.findings, BLAMED, part, advice)
    advice = known if elsewhere == part else advice
    fail(
        "gradient_missing", part,
        f"{len(names)} of {len(every)} parameters of the {bench.kind} model get no gradient, "
        f"{names[0]} among them: {cause}.", advice,
        found.circumstances | {
            "parameters": names, "frozen": list(found.frozen),
            "gradient_norms": found.table(0),
        },
    )  # fmt: skip


def explain_error(error: StudentError) -> None:
    """Fail with a name for what autograd refuses; return for any other error."""
    if "inplace operation" in error.message:
        explain_in_place(error)


def explain_in_place(error: StudentError) -> NoReturn:
    """Fail because a tensor was changed that the backward pass still needs."""
    fail(
        "in_place_breaks_gradient", error.part or "attention",
        "the backward pass needs a tensor that was changed in place after it had been used.",
        "Look for methods whose name ends in _ and for +=, *= on tensors.",
        {"type": error.type, "message": error.message},
    )  # fmt: skip


# A loss in float32 is known to about 1e-7 of itself, the difference to that over the step.
FLOAT32_ALLOWANCE = 10.0


@dataclass(frozen=True)
class Moves:
    """A loss, and how the parameters it depends on are moved.

    Attributes:
        model: Whose parameters.
        call: What the loss is taken of.
        mode: "eval" or "train".
        step: Length of a move.
        signs: (R, N) of 1 and -1: R moves of all parameters together, each along its own gradient
            or against it. They see a gradient that is too long or too short.
        drawn: (R, K) numbers: R moves of all parameters together, each in a direction made of
            these. They see a gradient that points elsewhere.
    """

    model: Model
    call: dict[str, Any]
    mode: str
    step: float
    signs: np.ndarray
    drawn: np.ndarray

    def question(self, bench: Bench) -> Question:
        """Ask for all moves, every parameter taking part in each."""
        together = np.ones((1, self.signs.shape[1]))
        moves = [{"along": None, "signs": self.signs}]
        moves += [{"along": direction, "signs": together} for direction in self.drawn]
        return self._ask(bench, moves)

    def alone(self, bench: Bench, move: int) -> Question:
        """Ask for moves of one parameter each, in the directions of one of all moves."""
        along = None if move == 0 else self.drawn[move - 1]
        return self._ask(bench, [{"along": along, "signs": None}])

    def _ask(self, bench: Bench, moves: list[dict[str, Any]]) -> Question:
        return Question(
            "losses_along",
            {
                "model": self.model.handle,
                "call": self.call,
                "step": self.step,
                "moves": moves,
                "mode": self.mode,
                "dtype": bench.dtype,
            },
        )


def judge_moves(
    bench: Bench, moves: Moves, names: Sequence[str], answer: dict[str, Any], learning: Learning
) -> None:
    """Fail when a gradient disagrees with what moving its parameter does to the loss.

    A few moves of all parameters together show that something is wrong; only then is each asked
    alone.
    """
    settings = learning.lab.gradients
    allowance = FLOAT32_ALLOWANCE if bench.dtype == "float32" else 1.0
    absolute = settings.absolute_tolerance * allowance
    for move in range(1 + len(moves.drawn)):
        signs = moves.signs if move == 0 else np.ones((1, len(names)))
        moved, products, slopes = read_moves(
            answer, move, move > 0, len(names), len(signs), moves.step
        )
        signs = np.resize(signs, (len(signs), len(names)))[:, moved]
        share = np.sqrt(max(1, int(moved.sum())))
        gap = np.abs(slopes - signs @ products[moved] / share) * share
        learning.seen["largest_error"] = max(learning.seen["largest_error"], float(gap.max()))
        if (gap <= absolute).all():
            continue
        (alone,) = learning.submission.ask(moves.alone(bench, move))
        _, products, slopes = read_moves(alone, 0, move > 0, len(names), len(names), moves.step)
        bound = settings.relative_tolerance * np.abs(products) + absolute
        ratio = np.nan_to_num(np.abs(slopes - products) / bound, nan=np.inf)
        if (ratio > 1.0).any():
            explain_wrong(bench, moves, list(names), products, slopes, ratio, learning)


def read_moves(
    answer: dict[str, Any], move: int, drawn: bool, num_parameters: int, num_moves: int, step: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return who was moved (P,) bool, the slopes (P,) by the gradient, and those seen (R,).

    Along their own gradient go those that have one, in a drawn direction those of gradient 0 too.
    """
    products, ahead, behind = (answer[k] for k in ("products", "ahead", "behind"))
    norms = np.asarray(answer["norms"])
    whole = norms.shape == (num_parameters,) and move < min(map(len, (products, ahead, behind)))
    if not whole or not (
        products[move].shape == norms.shape
        and ahead[move].shape == behind[move].shape == (num_moves,)
    ):
        fail("no_tensor", "training", "the losses did not come as numbers.",
             "Return a scalar tensor from masked_cross_entropy.")  # fmt: skip
    moved = norms >= 0 if drawn else norms > 0
    return moved, products[move], (ahead[move] - behind[move]) / (2 * step)


def explain_wrong(
    bench: Bench, moves: Moves, names: list[str], products: np.ndarray, slopes: np.ndarray,
    ratio: np.ndarray, learning: Learning,
) -> NoReturn:  # fmt: skip
    """Fail with the parameter whose gradient is furthest from the finite difference."""
    worst, wrong = int(ratio.argmax()), [names[i] for i in np.flatnonzero(ratio > 1.0)]
    padded = bool((moves.call["args"][-1] == PAD).any())
    part, place = of_wrong(wrong, names)
    advice = f"Look at {place}, for a tensor that goes on without part of its history."
    part, advice = explained(learning.findings, BLAMED, part, advice)
    fail(
        "gradient_wrong", part,
        f"the gradient of {names[worst]} says the loss changes by {products[worst]:.4g} per unit "
        f"step in some direction, but it changes by {slopes[worst]:.4g}: part of the way to the "
        "loss has no history.", advice,
        bench.describe(moves.model, moves.mode, padded=padded) | {
            "parameter": names[worst], "gradient": float(products[worst]),
            "finite_difference": float(slopes[worst]), "ratio": float(ratio[worst]),
            "wrong": wrong, "right": len(names) - len(wrong),
        },
    )  # fmt: skip


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
