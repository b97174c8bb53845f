"""From what an optimiser holds to verdicts."""

from __future__ import annotations

import math
from typing import Any

from grader.loop import Seen, is_number, wrong
from grader.student_error import StudentError


def explain_error(error: StudentError) -> None:
    """Fail with a name for what no optimiser is, or no optimiser takes."""
    if error.kind == "no_optimizer":
        wrong("no_optimizer", f"{error.message}, which has no step().",
              "Return an optimiser.", {})  # fmt: skip
    if "more than one parameter group" in error.message:
        wrong("parameter_held_twice", f"the optimiser refuses it: {error.message}.",
              "Look at which groups share parameters.", {})  # fmt: skip


def judge_coverage(what: str, answer: dict[str, Any]) -> None:
    """Fail on a parameter that the optimiser lacks or holds twice."""
    times = {str(name): int(count) for name, count in answer["times"].items()}
    missing = [name for name, count in times.items() if not count]
    witness = {"model": what, "missing": missing, "parameters": len(times)}
    if missing:
        wrong(
            "parameters_missing",
            f"{what}: {len(missing)} of {len(times)} parameters are never updated: "
            f"{missing_words(missing, list(times))}.",
            "Look at which parameters are handed to the optimiser.", witness,
        )  # fmt: skip
    twice = [name for name, count in times.items() if count > 1]
    if twice:
        wrong("parameter_held_twice", f"{what}: {twice[0]} is held {times[twice[0]]} times, so it "
              "is updated as often per step.", "Look at which groups share parameters.",
              witness | {"twice": twice})  # fmt: skip
    if answer["others"]:
        wrong("strange_parameters", f"{what}: the optimiser holds {answer['others']} tensors that "
              "are no parameters of the model, such as copies.",
              "Hand over the parameters themselves.", witness)  # fmt: skip


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
        wrong("learning_rate_zero", f"the learning rates are {rates} and a step moves nothing: "
              "nothing would be learned.", "Look at the learning rate that the optimiser gets.",
              {"rates": rates})  # fmt: skip
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
        seen.wrong(
            "optimizer_rebuilt",
            "train: every step is taken by a new optimiser, which remembers nothing of the steps "
            "before.",
            "Look at what is built once, and what is done once per batch.",
            optimizers=len(makers),
        )


def judge_long_memory(answer: Any) -> None:
    """Fail when at some step of a longer run the optimiser has forgotten the steps before.

    It may be the same one emptied, or a new one made as the last one was, which never comes back.
    A loop that cannot run this long, or says nothing of its steps, is judged elsewhere.
    """
    steps = answer.get("steps") if isinstance(answer, dict) else None
    if not isinstance(steps, list) or not all(map(_is_step, steps)):
        return
    kept = {step["like"] for step in steps if step["remembers"]}
    for number, step in enumerate(steps):
        before = {s["by"] for s in steps[:number] if s["like"] == step["like"]}
        after = {s["by"] for s in steps[number + 1 :]}
        if step["remembers"] or step["like"] not in kept or not before:
            continue
        if step["by"] in before or not before & after:
            wrong("optimizer_rebuilt", f"train: from step {number} on the optimiser remembers "
                  "nothing of the steps before: it is built anew, or emptied.",
                  "Look at what is built once, and what is done at some batches only.",
                  {"step": number, "steps": len(steps)})  # fmt: skip


def judge_long_run(answer: Any, batches: int) -> None:
    """Fail when a longer run ends in eval mode, or its schedule ahead of the batches or behind.

    A schedule that takes no step is no schedule: the loop may set the rate itself. Whether one is
    taken before the first batch or after the last makes no difference.
    """
    schedules = answer.get("schedules") if isinstance(answer, dict) else None
    if isinstance(answer, dict) and answer.get("left_training") is False:
        wrong("left_in_eval_mode", f"train leaves the model in eval mode after {batches} batches.",
              "Look for what switches to eval mode at some batches only.", {})  # fmt: skip
    for taken in schedules if isinstance(schedules, list) else ():
        if type(taken) is int and taken and abs(taken - batches) > 1:
            wrong("schedule_out_of_step", f"train: {batches} batches made the schedule take "
                  f"{taken} steps, so that the learning rate is that of another time.",
                  "Let it take one step per batch, after the optimiser's.",
                  {"batches": batches, "schedule_steps": taken})  # fmt: skip


def _is_step(step: Any) -> bool:
    kinds = {"by": int, "like": str, "remembers": bool}
    return isinstance(step, dict) and all(type(step.get(k)) is kind for k, kind in kinds.items())


def judge_schedule(seen: Seen, peak: float) -> None:
    """Fail when the rate stays where a schedule has started it."""
    rates = [float(step["rate"]) for step in seen.steps if is_number(step.get("rate"))]
    stuck = len(rates) == len(seen.steps) and len(set(rates)) == 1 and rates[0] < 0.999 * peak
    if stuck:
        wrong("schedule_not_stepped", f"the learning rate stays at {rates[0]:.3g} for all steps, "
              f"where the schedule starts; its peak is {peak:g}.",
              "Look at when the schedule takes its steps.", {"rates": rates})  # fmt: skip


def explain_early_end(error: StudentError, supply: int, steps: int) -> None:
    """Fail when the loop cannot live with fewer batches than the recipe has steps."""
    if error.kind != "raised" or error.while_importing:
        return
    wrong(
        "early_end_raises",
        f"{supply} of {steps} batches came, and train raised "
        f"{error.type}: {error.message}".removesuffix(": "),
        "The batches decide how many steps there are.",
        {"type": error.type, "message": error.message},
    )  # fmt: skip
