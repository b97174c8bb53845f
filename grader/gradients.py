"""From gradients to verdicts: what is finite, what is silent and why, what is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from grader import gradient_causes, invariance
from grader.compare import fail
from grader.influence import Findings, blamed
from grader.invariance import Bench, Model
from grader.settings import Settings
from grader.student_error import StudentError
from grader.submission import Question, Submission

CALLS = (
    "an unpadded batch", "a padded batch", "rows of length 1", "mostly padded rows",
    "logits in the thousands",
)  # fmt: skip
ORDINARY = (0, 1)


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
    for stack, part in gradient_causes.STACKS.items():
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
    part, cause, advice = gradient_causes.of_missing(names, every)
    known = blamed(learning.findings, ("attention", "residual", "encoder", "decoder", "training"))
    if known and known.diagnosis and known.diagnosis.part == part:
        advice = f"Task {known.stub} already shows it: {known.diagnosis.cause}"
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
