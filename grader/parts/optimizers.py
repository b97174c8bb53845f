"""From what an optimiser holds to verdicts."""

from __future__ import annotations

import math
from typing import Any, NoReturn

from grader.base.student_error import StudentError
from grader.parts.causes import fail
from grader.parts.training_loop import Seen, is_number


def wrong(code: str, *, subject: str = "optimizer", entry: str = "", **seen: Any) -> NoReturn:
    """Fail with a fault of training.py, and show what was seen."""
    fail("training", subject, code, seen, entry=entry, **seen)


def explain_error(error: StudentError) -> None:
    """Fail with a name for what no optimiser is, or no optimiser takes."""
    if error.kind == "no_optimizer":
        wrong("no_optimizer", message=error.message)
    if "more than one parameter group" in error.message:
        wrong("parameter_held_twice", entry="refused", message=error.message)


def judge_coverage(what: str, answer: dict[str, Any]) -> None:
    """Fail on a parameter that the optimiser lacks or holds twice."""
    times = {str(name): int(count) for name, count in answer["times"].items()}
    missing = [name for name, count in times.items() if not count]
    twice = [name for name, count in times.items() if count > 1]
    witness: dict[str, Any] = {"model": what, "missing": missing, "parameters": len(times)}
    if missing:
        which = missing_words(missing, list(times))
        wrong("parameters_missing", count=len(missing), which=which, **witness)
    if twice:
        first = twice[0]
        wrong("parameter_held_twice", twice=twice, first=first, times=times[first], **witness)
    if answer["others"]:
        wrong("strange_parameters", others=answer["others"], **witness)


def missing_words(missing: list[str], every: list[str]) -> str:
    """Say what the missing parameters have in common."""
    dead = set(missing)
    if dead.issuperset(every):
        return "all of them"
    whole = [
        top for top in dict.fromkeys(name.split(".")[0] for name in every)
        if dead.issuperset(name for name in every if name.split(".")[0] == top)
    ]  # fmt: skip
    inside = [name for name in missing if name.split(".")[0] in whole]
    if whole and len(inside) == len(missing):
        return "all of " + ", ".join(whole)
    for ending, word in (("bias", "all biases"), ("norm.weight", "the norms")):
        if all(name.endswith(ending) for name in missing):
            return word
    if all(name.endswith("bias") or "norm" in name for name in missing):
        return "biases and norms"
    return f"{missing[0]} and others" if len(missing) > 1 else missing[0]


def judge_rates(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Fail when nothing would be learned; tell whether the recipe's learning rate has an effect.

    An optimiser may scale the rate, hide it, name one that it does not use, or have its own: how
    far it moves the parameters decides where what it names does not.
    """
    rates, others = first["rates"], second["rates"]
    named = bool(rates) and all(math.isfinite(rate) for rate in rates)
    moved = max(first["moved"].values(), default=0.0)
    if not moved and not (named and max(rates) > 0.0):
        wrong("learning_rate_zero", rates=rates)
    return first["moved"] != second["moved"] or (named and rates != others)


def judge_memory(seen: Seen) -> None:
    """Fail when every step is taken by a new optimiser that knows nothing of those before.

    Several optimisers in turn come back; and one that keeps nothing, or is handed what the last
    one kept, loses nothing by being new.
    """
    makers = {step.get("by") for step in seen.steps}
    began_with = any(step.get("remembers") for step in seen.steps)
    ended_with = any(e.get("remembers") for e in seen.events if e["what"] == "end")
    if 1 < len(seen.steps) == len(makers) and ended_with and not began_with:
        seen.wrong("optimizer_rebuilt", optimizers=len(makers))


def judge_long_memory(steps: list[dict[str, Any]]) -> None:
    """Fail when at some step of a longer run the optimiser has forgotten the steps before.

    It may be the same one emptied, or a new one made as the last one was, which never comes back.
    A loop that says nothing of its steps is judged elsewhere.
    """
    if not all(map(_says_who, steps)):
        return
    kept = {step["like"] for step in steps if step["remembers"]}
    for number, step in enumerate(steps):
        before = {s["by"] for s in steps[:number] if s["like"] == step["like"]}
        after = {s["by"] for s in steps[number + 1 :]}
        if step["remembers"] or step["like"] not in kept or not before:
            continue
        if step["by"] in before or not before & after:
            wrong("optimizer_rebuilt", subject="train", entry="optimizer_emptied", step=number)


def _says_who(step: dict[str, Any]) -> bool:
    kinds = {"by": int, "like": str, "remembers": bool}
    return all(type(step.get(name)) is kind for name, kind in kinds.items())


def judge_long_run(batches: int, schedules: list[Any], left_training: bool) -> None:
    """Fail when a longer run ends in eval mode, or its schedule ahead of the batches or behind.

    A schedule that takes no step is no schedule: the loop may set the rate itself. Whether one is
    taken before the first batch or after the last makes no difference.
    """
    if not left_training:
        entry = "left_in_eval_mode_later"
        wrong("left_in_eval_mode", subject="train", entry=entry, batches=batches)
    for taken in schedules:
        if type(taken) is int and taken and abs(taken - batches) > 1:
            own: dict[str, Any] = {"batches": batches, "schedule_steps": taken}
            wrong("schedule_out_of_step", subject="train", **own)


def judge_schedule(seen: Seen, peak: float) -> None:
    """Fail when the rate stays where a schedule has started it."""
    rates = [float(step["rate"]) for step in seen.steps if is_number(step.get("rate"))]
    stuck = len(rates) == len(seen.steps) and len(set(rates)) == 1 and rates[0] < 0.999 * peak
    if stuck:
        seen.wrong("schedule_not_stepped", rate=rates[0], peak=peak)


def explain_early_end(error: StudentError, supply: int, steps: int) -> None:
    """Fail when the loop cannot live with fewer batches than the recipe has steps."""
    if error.kind != "raised" or error.while_importing:
        return
    raised = f"{error.type}: {error.message}".removesuffix(": ")
    wrong("early_end_raises", subject="train", supply=supply, steps=steps, raised=raised)
