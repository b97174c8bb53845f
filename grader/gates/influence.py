"""From a leak or a silence to its cause: influence matrices and the sub-layer that moves first."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from grader.asking.compare import fail
from grader.asking.submission import Submission, forward
from grader.base.result import Outcome
from grader.base.settings import task_files
from grader.base.student_error import StudentError
from grader.gates.invariance import Batch, Bench, Model, logits_of, repeated
from grader.link.workers import WorkerLost
from grader.model.draws import Ids

Findings = list[Outcome]
GIVEN = ("positions", "norms", "feedforward", "embeddings", "models")
# Parts whose failed checks explain a leak, the likeliest first.
BLAMED = ("masks", "attention", "residual", "decoder")
NOTICEABLE = 1e-9
FAINT = 1e-2
REPEATS = 12
SUBLAYERS = {
    "decoder": (
        "self_attention", "self_branch", "cross_attention", "cross_branch", "feed_forward",
        "feed_forward_branch",
    ),
    "stack": ("self_attention", "attention_branch", "feed_forward", "feed_forward_branch"),
}  # fmt: skip
PART_OF = {
    "self_attention": "attention",
    "cross_attention": "attention",
    "self_branch": "residual",
    "cross_branch": "residual",
    "attention_branch": "residual",
    "feed_forward": "feedforward",
    "feed_forward_branch": "residual",
}


def blamed(findings: Findings, candidates: tuple[str, ...]) -> Outcome | None:
    """Return the first failed part check whose part is among `candidates`, in that order.

    Given code that fails its own check comes last: where it does, it is the student's. Optional
    tasks explain nothing, for they fail with what they are built on.
    """
    known = [o for o in findings if o.stub and not o.stub.startswith("S") and o.diagnosis]
    for part in (*candidates, *GIVEN):
        for outcome in known:
            if outcome.diagnosis and outcome.diagnosis.part == part:
                return outcome
    return None


def explained(
    findings: Findings, candidates: tuple[str, ...], part: str, advice: str
) -> tuple[str, str]:
    """Return part and advice, or those of a failed part check that shows the cause already."""
    known = blamed(findings, candidates)
    if known is None or known.diagnosis is None:
        return part, advice
    return known.diagnosis.part, f"Task {known.stub} already shows it: {known.diagnosis.cause}"


def influence(
    submission: Submission,
    bench: Bench,
    model: Model,
    mode: str,
    batch: Batch,
    row: int,
    other: Ids,
) -> tuple[np.ndarray, list[str]]:
    """Change one token at a time in one row alone, with a batch of one.

    Returns:
        (T, T) influence of token s on logits[t] and, per change, the first sub-layer whose
        output moves before the changed token ("" for none).
    """  # fmt: skip
    length = batch.target_lengths[row]
    target = batch.target[row : row + 1]
    source = None if batch.source is None else batch.source[row : row + 1]
    one = Batch(source, batch.source_lengths, target, (length,), batch.padded)
    rows = [target]
    for s in range(length):
        rows.append(np.where(np.arange(target.shape[1]) == s, other[row : row + 1], target))
    names = sublayers(bench)
    calls = [one.arguments(ids) for ids in rows]
    (answer,) = submission.ask(
        forward(model.handle, *calls, mode=mode, record=names, dtype=bench.dtype)
    )
    real = one.real()
    logits = [logits_of(v, 1, target.shape[1], bench, real) for v in answer["outputs"]]
    matrix = np.stack(
        [np.abs(changed - logits[0]).max(axis=-1)[0] for changed in logits[1:]], axis=1
    )  # (T, s)
    first = [first_mover(answer["records"], s, names) for s in range(length)]
    return matrix[:length], first


def sublayers(bench: Bench) -> list[str]:
    """Name the sub-layers of the target side in order of execution."""
    stack = "decoder" if bench.kind == "seq2seq" else "stack"
    return [
        f"{stack}.blocks.{layer}.{name}"
        for layer in range(bench.config.num_layers)
        for name in SUBLAYERS[stack]
    ]


def first_mover(records: list[dict[str, Any]], changed: int, names: list[str]) -> str:
    """Return the first sub-layer whose output before position `changed` moved."""
    before, after = records[0], records[changed + 1]
    for name in names:
        a, b = before.get(name), after.get(name)
        if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray) or a.shape != b.shape:
            continue
        gap = np.abs(a - b)[:, :changed]
        if gap.size and not gap.max() <= NOTICEABLE * max(1.0, float(np.abs(a).max())):
            return name
    return ""


def pattern(matrix: np.ndarray, bound: float) -> str:
    """Name the shape of the forbidden part of an influence matrix (T, T)."""
    length = len(matrix)
    moved = matrix > bound
    above = np.triu(np.ones((length, length), bool), 1)
    if not (moved & above).any():
        return "clean"
    next_only = np.eye(length, k=1, dtype=bool)
    if (moved & above & ~next_only).any() is np.False_:
        return "next"
    below = np.tril(np.ones((length, length), bool), -1)
    if not (moved & below).any():
        return "transposed"
    if not (moved & above)[:, :-1].any():
        return "last"
    allowed = matrix[below | np.eye(length, dtype=bool)]
    if matrix[above].max() < FAINT * np.median(allowed):
        return "faint"
    return "full" if moved[above].all() else "some"


CAUSES = {
    "full": ("future_visible", "every position sees every later token: in this pass nothing "
             "hides the future", "Look at how the decoder's self-attention gets its causal mask, "
             "and at what is done with it."),
    "some": ("future_visible", "some positions see later tokens",
             "Look at which queries and keys the causal mask pairs."),
    "next": ("causal_too_wide", "each position sees exactly one token too many, the one it has "
             "to predict", "Look at the diagonal of the causal mask."),
    "transposed": ("causal_transposed", "positions see later tokens and not earlier ones: "
                   "queries and keys are exchanged", "Look at which axis of the causal mask is the "
                   "query's."),
    "last": ("last_token_visible", "only the last token is seen too early",
             "Look at how the ends of rows are handled: padding, offsets, slices."),
    "faint": ("mask_leaks", "later tokens get little weight, but not none: the masked scores are "
              "not low enough, or the mask is applied in the wrong place",
              "Look at the value that masked scores get before the softmax."),
    "clean": ("rows_mix", "the row is clean alone and leaks in a batch: rows of a batch mix",
              "Look for an operation over the batch axis, or a mask that is laid out by batch "
              "and head in the wrong order."),
}  # fmt: skip


def require_repeatable(
    submission: Submission, bench: Bench, model: Model, mode: str, batch: Batch
) -> None:
    """Fail when one call, made again and again, gives different logits: then nothing has leaked.

    `determinism` asks once, and what happens now and then may not happen just then.
    """
    call = forward(model.handle, *[batch.arguments()] * REPEATS, mode=mode, dtype=bench.dtype)
    try:
        (answer,) = submission.ask(call)
    except (StudentError, WorkerLost):  # a verdict is not lost with its explanation
        return
    rows, length = batch.target.shape
    first, *others = (
        logits_of(value, rows, length, bench, batch.real()) for value in answer["outputs"]
    )
    for other in others:
        repeated(bench, model, mode, batch, first, other)


def explain_leak(
    submission: Submission, bench: Bench, model: Model, mode: str, batch: Batch, row: int,
    other: Ids, witness: dict[str, Any], findings: Findings,
) -> NoReturn:  # fmt: skip
    """Fail gate 1 with the cause that the influence matrix shows."""
    bound = float(witness["tolerance"])
    try:
        matrix, first = influence(submission, bench, model, mode, batch, row, other)
    except (StudentError, WorkerLost):  # a verdict is not lost with its explanation
        matrix, first = np.zeros((0, 0)), []
    shape = pattern(matrix, bound) if matrix.size else "some"
    movers = [name for name in first if name]
    mover = movers[0] if movers else ""
    code, cause, advice = CAUSES[shape]
    if batch.padded and shape in ("full", "some", "next"):
        # The unpadded batch was asked first and was clean.
        code, cause = "causal_lost_with_padding", f"with padding in the batch, {cause}"
    sublayer = mover.rsplit(".", 1)[-1]
    part = "decoder" if sublayer in ("self_attention", "") else PART_OF[sublayer]
    if shape in ("next", "transposed"):
        part = "masks"
    if shape == "faint":
        part = "attention"
    part, advice = explained(findings, BLAMED, part, advice)
    where = f"; it shows first in {mover}" if mover else ""
    changed = witness["changed"]
    tokens = f"token {changed}" if isinstance(changed, int) else changed
    text = (
        f"logits at position {witness['position']} moved by {witness['largest_difference']:.3g} "
        f"(at most {bound:.1g} allowed) when {tokens} changed: {cause}{where}."
    )
    evidence = witness | {"influence": matrix, "pattern": shape, "first_sublayer": mover}
    fail(code, part, text, advice, evidence)


def explain_prefix(whole: bool, witness: dict[str, Any], findings: Findings) -> NoReturn:
    """Fail gate 1 because a prefix alone gives other logits than inside its row.

    Where even `whole` rows do, what differs is the company of other rows.
    """
    part, _ = explained(findings, BLAMED, "decoder", "")
    if whole:
        fail(
            "rows_mix", part,
            f"a row gives other logits among more rows than among fewer: they differ by "
            f"{witness['largest_difference']:.3g}. Rows of a batch mix.",
            CAUSES["clean"][2], witness,
        )  # fmt: skip
    fail(
        "prefix_differs", part,
        f"the first {witness['prefix_length']} tokens alone give other logits than inside the "
        f"longer row: they differ by {witness['largest_difference']:.3g}, though no single token "
        "leaks. Something depends on the length of the row.",
        "Look for statistics, positions or masks that use the number of columns.", witness,
    )  # fmt: skip


def explain_silence(
    what: str, witness: dict[str, Any], findings: Findings, matrix: np.ndarray | None
) -> NoReturn:
    """Fail a control: the model does not respond to what it must respond to."""
    part, _ = explained(findings, tuple(task_files()), "decoder", "")
    evidence = witness | ({} if matrix is None else {"influence": matrix})
    if what == "source":
        fail(
            "source_ignored", part,
            f"the model does not respond to its source: changing source token "
            f"{witness['changed']} moved no logit by more than {witness['moved']:.3g}.",
            "Look at the cross-attention: where its keys and values come from, and whether its "
            "output reaches the logits.", evidence,
        )  # fmt: skip
    fail(
        "target_ignored", part,
        f"the model does not respond: changing target token {witness['changed']} moved "
        f"logits[{witness['position']}] by {witness['moved']:.3g} only. An output that ignores its "
        "input is independent of the future for the wrong reason.",
        "Look at whether the self-attention and the residual path reach the output.", evidence,
    )  # fmt: skip
