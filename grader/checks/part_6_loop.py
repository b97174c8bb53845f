"""Tasks 6.3 and 6.4: the optimiser and the training loop."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from grader.asking.submission import Question, Submission
from grader.base.settings import Settings
from grader.base.student_error import StudentError
from grader.gates.invariance import CLASSES
from grader.model.draws import Draws
from grader.model.parameters import ProbeConfig
from grader.parts import optimizers, training_loop
from grader.parts.judging import sure

CONFIG = ProbeConfig(vocab_size=11, d_model=6, num_heads=2, d_ff=7, max_len=16)
RATES = (3e-3, 7e-4)
# Every batch has its own number of rows, by which the spy knows it again.
BATCH_SIZES = (2, 5, 3, 7, 4)
# Batches that are given out where they end before the recipe's steps do.
SUPPLIES = (1, 3)
TINY, HUGE = 1e-3, 1e6
# Long enough for what a loop does at every fiftieth batch.
LONG_RUN = 52


@pytest.mark.part("6.3", worker="training")
def test_make_optimizer_holds_every_parameter_once(
    submission: Submission, lab: Settings
) -> dict[str, Any]:
    """make_optimizer hands every trainable parameter to the optimiser, each exactly once."""
    models = {f"the {kind} model": (kind, replace(CONFIG, num_layers=2)) for kind in CLASSES}
    models["the seq2seq model with a tied output"] = ("seq2seq", replace(CONFIG, tied=True))
    recipes = [asdict(lab.recipe) | {"learning_rate": rate} for rate in RATES]
    follows, parameters = True, 0
    for what, (kind, config) in models.items():
        own = {"config": config.given(), "target": CLASSES[kind], "save": what}
        try:
            first, second = submission.ask(
                *[Question("optimizer", own | {"recipe": recipe}) for recipe in recipes]
            )
        except StudentError as error:
            optimizers.explain_error(error)
            raise
        optimizers.judge_coverage(what, first)
        follows = optimizers.judge_rates(first, second) and follows
        parameters = max(parameters, len(first["times"]))
    return {"models": len(models), "parameters": parameters, "recipe_rate_used": follows}


def three_runs(rng: Draws, lab: Settings) -> tuple[Question, ...]:
    """Ask for one run that clips nothing, one that clips everything, and a long one."""
    return (
        watch(lab, "seq2seq", draw_batches(rng, "seq2seq"), HUGE),
        watch(lab, "decoder_only", draw_batches(rng, "decoder_only"), TINY),
        watch(lab, "decoder_only", [{"$batch": {"source": None, "answers": [[4]]}}] * LONG_RUN),
    )


@pytest.mark.part("6.4", worker="training")
def test_train_takes_one_right_step_per_batch(
    submission: Submission, rng: Draws, lab: Settings
) -> dict[str, Any]:
    """Train clears, computes, clips and steps once per batch, in train mode, and returns losses."""
    huge_answer, tiny_answer, many = submission.attempt(*three_runs(rng, lab))
    answers = sure(huge_answer), sure(tiny_answer)
    free, clipped = (training_loop.read(answer, BATCH_SIZES) for answer in answers)
    for seen in (free, clipped):
        training_loop.judge_order(seen)
    for kind, seen, answer in zip(CLASSES, (free, clipped), answers, strict=True):
        rows = [batch["$batch"]["answers"] for batch in draw_batches(rng, kind)]
        training_loop.judge_reading(seen, answer["own_inputs"], rows)
        optimizers.judge_memory(seen)
    training_loop.judge_gradients(free)
    training_loop.judge_clipping(clipped, TINY)
    for seen in (free, clipped):
        training_loop.judge_losses(seen)
    optimizers.judge_schedule(free, lab.recipe.learning_rate)
    if not isinstance(many, StudentError):  # a loop that cannot run this long is judged elsewhere
        long = training_loop.read(many, [1] * LONG_RUN)
        optimizers.judge_long_memory(long.steps)
        optimizers.judge_long_run(LONG_RUN, many["schedules"], long.left_training)
    gap = max(step["gap"] for step in free.steps)
    return {"steps": len(free.steps), "largest_gap": gap, "losses_are": sorted(set(free.kinds))}


def short_runs(rng: Draws, lab: Settings) -> tuple[Question, ...]:
    """Ask for a run on each supply."""
    batches = draw_batches(rng, "seq2seq")
    return tuple(watch(lab, "seq2seq", batches, HUGE, supply) for supply in SUPPLIES)


@pytest.mark.part("6.4", worker="training")
def test_train_stops_when_the_batches_do(
    submission: Submission, rng: Draws, lab: Settings
) -> dict[str, Any]:
    """Train takes as many steps as there are batches, also when they end early."""
    answers = submission.attempt(*short_runs(rng, lab))
    for supply, answer in zip(SUPPLIES, answers, strict=True):
        if isinstance(answer, StudentError):
            # A loop that fails on all batches fails for another reason than their number.
            submission.ask(watch(lab, "seq2seq", draw_batches(rng, "seq2seq"), HUGE))
            optimizers.explain_early_end(answer, supply, len(BATCH_SIZES))
            raise answer
        seen = training_loop.read(answer, BATCH_SIZES[:supply])
        training_loop.judge_count(seen)
        training_loop.judge_losses(seen)
    return {"supplies": [*SUPPLIES]}


def draw_batches(rng: Draws, kind: str) -> list[dict[str, Any]]:
    """Draw one batch of every size."""
    batches = []
    for size in BATCH_SIZES:
        lengths = rng.child(f"lengths {size}").lengths(size, 2, 4)
        ids = rng.child(f"ids {size}").ids(lengths, CONFIG.vocab_size)
        answers = [row[:length].tolist() for row, length in zip(ids, lengths, strict=True)]
        source = ids if kind == "seq2seq" else None
        batches.append({"$batch": {"source": source, "answers": answers}})
    return batches


def watch(
    lab: Settings,
    kind: str,
    batches: list[dict[str, Any]],
    clip_norm: float | None = None,
    supply: int | None = None,
) -> Question:
    """Ask for the student's loop under the spy's eyes, where only some of the batches may come."""
    recipe = asdict(lab.recipe) | {"steps": len(batches)}
    return Question(
        "spy_on_training",
        {
            "kind": kind,
            "config": CONFIG.given(),
            "recipe": recipe if clip_norm is None else recipe | {"clip_norm": clip_norm},
            "batches": batches,
            "supply": len(batches) if supply is None else supply,
        },
    )
