"""Given code, where it is graded as submitted: greedy decoding.

What a model writes freely is compared with the logits that the same model gives the whole answer
at once: at every position the most likely token must be the next one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import pytest

from grader.checks.given_3_models import BUILT_ON, CLASSES, SIZES, model
from grader.compare import fail
from grader.draws import BOS, Draws, Ids
from grader.parts import Findings, built_on, returned, sure
from grader.student_error import StudentError
from grader.submission import Question, Submission, call, forward, handle, tensor

LENGTHS = (5, 3, 4, 1)
STEPS = 9  # more than any source or prompt has
DRAWS = 12
WHERE = "Look at what is fed back, which position is read, and when a row counts as ended."
MODES = "Look at who switches the model to eval() and back."


def generate(kind: str, source: Ids, **options: Any) -> Question:
    """Ask the model that was built last to decode."""
    name = f"generation.generate_{kind}"
    return call(name, handle("model"), source, **{"max_new_tokens": STEPS} | options)


def ids_of(answer: Any, rows: int, what: str) -> Ids:
    """Return the ids (B, T) that were generated, of whatever length."""
    value = returned(answer, what, "generation")
    width = value.shape[1] if isinstance(value, np.ndarray) and value.ndim == 2 else 0
    return tensor(value, (rows, width), what, "generation", "i")


def complain(code: str, cause: str, **evidence: Any) -> NoReturn:
    """Fail with what was seen of decoding."""
    fail(code, "generation", cause, WHERE, evidence)


@pytest.mark.part("G6")
@pytest.mark.parametrize("kind", list(CLASSES))
def test_decoding_follows_the_models_own_logits(
    submission: Submission, rng: Draws, findings: Findings, kind: str
) -> dict[str, Any]:
    """Greedy decoding writes the most likely token, reads all it wrote, and stops row by row."""
    with built_on("generation", findings, *BUILT_ON):
        written, source = free_run(submission, rng, kind)
        eos = ending(written)
        ended = [
            generate(kind, source, eos_id=eos, use_cache=False),
            generate(kind, source, eos_id=eos, use_cache=True),
            generate(kind, source, eos_id=eos, max_new_tokens=0, use_cache=False),
        ]
        plain, cached, nothing = submission.attempt(*ended)
        what = f"generate_{kind} with an end"
        judge_end(ids_of(plain, len(source), what), written, eos, source, kind)
        if not (isinstance(cached, StudentError) and cached.task == "S1"):
            got = ids_of(cached, len(source), f"{what} and a cache")
            if not np.array_equal(got, ids_of(plain, len(source), what)):
                complain("cache_changes_answer", f"{what}: with a cache it writes something else.",
                         with_cache=got, without=ids_of(plain, len(source), what))  # fmt: skip
        none = ids_of(nothing, len(source), f"{what} and no new tokens")
        if not np.array_equal(none, start_of(source, kind)):
            complain("writes_without_budget", f"{what}: for 0 new tokens it returns other ids than "
                     "what it starts from.", got=none)  # fmt: skip
    return {"rows": len(source), "steps": STEPS}


def start_of(source: Ids, kind: str) -> Ids:
    """Return the ids that decoding starts from, (B, 1) or the prompt."""
    return np.full((len(source), 1), BOS) if kind == "seq2seq" else source


def restless(rng: Draws, kind: str) -> Question:
    """Ask for a model whose answers depend so much on position that they vary."""
    shape = replace(SIZES, tied=False)
    weights, question = model(rng, kind, shape)
    varied = {k: v * 3.0 if "positions" in k else v for k, v in weights.items()}
    return Question(question.probe, question.arguments | {"weights": varied})


def free_run(submission: Submission, rng: Draws, kind: str) -> tuple[Ids, Ids]:
    """Decode without an end, and hold every token against the logits of the whole answer.

    Other weights are drawn until rows would end at different steps, and write on after that.

    Returns:
        The new tokens (B, N), and the source or prompt (B, S).
    """
    source = rng.child("source").ids(LENGTHS, SIZES.vocab_size)
    start = start_of(source, kind)
    what = f"generate_{kind} without an end"
    for draw in range(DRAWS):
        build = restless(rng.child(str(draw)), kind)
        built, answer = submission.attempt(
            build, generate(kind, source, eos_id=None, use_cache=False)
        )
        sure(built)
        whole = ids_of(answer, len(source), what)
        if whole.shape[1] != start.shape[1] + STEPS:
            complain("wrong_length", f"{what}: {STEPS} new tokens were asked for, and it returns "
                     f"{whole.shape[1] - start.shape[1]}.", got=whole)  # fmt: skip
        if not np.array_equal(whole[:, : start.shape[1]], start):
            complain("wrong_start", f"{what}: it starts from other ids than it should.", got=whole)
        written = whole[:, start.shape[1] :]
        follow(submission, kind, source, written, what)
        if min(telling(written, ending(written))) >= 2:
            break
    return written, source


def follow(submission: Submission, kind: str, source: Ids, written: Ids, what: str) -> None:
    """Fail unless every token is the most likely one after those before it."""
    calls, starts = [], []
    for row, length in enumerate(LENGTHS):
        own = source[row : row + 1, :length]
        before = np.full((1, 1), BOS) if kind == "seq2seq" else own
        read = np.concatenate([before, written[row : row + 1, :-1]], axis=1)
        calls.append({"args": [own, read] if kind == "seq2seq" else [read]})
        starts.append(before.shape[1] - 1)
    (answer,) = submission.ask(forward("model", *calls))
    for row, (output, start) in enumerate(zip(answer["outputs"], starts, strict=True)):
        shape = (1, start + STEPS, SIZES.vocab_size)
        logits = tensor(output, shape, "the model's logits", "models")[0, start:]
        chosen = logits[np.arange(STEPS), written[row]]
        behind = logits.max(axis=1) - chosen
        if behind.max() > 1e-6:
            step = int((behind > 1e-6).argmax())
            complain(
                "not_greedy",
                f"{what}: row {row} writes {written[row, step]} at step {step}, where the model, "
                f"reading all that was written before, prefers {logits[step].argmax()}.",
                written=written[row], preferred=logits.argmax(axis=1), step=step,
            )  # fmt: skip


def first_places(written: Ids, eos: int) -> list[int]:
    """Return for each row the step at which it first writes `eos`, STEPS where it never does."""
    return [int((row == eos).argmax()) if (row == eos).any() else STEPS for row in written]


def telling(written: Ids, eos: int) -> tuple[int, int]:
    """Count the different steps at which rows would end, and the rows that then write other ids."""
    places = first_places(written, eos)
    going_on = [(row[place:] != eos).any() for row, place in zip(written, places, strict=True)]
    return len(set(places)), sum(map(int, going_on))


def ending(written: Ids) -> int:
    """Return the id that tells most when it ends the rows."""
    return max(range(SIZES.vocab_size), key=lambda id_: min(telling(written, id_)))


def judge_end(got: Ids, written: Ids, eos: int, source: Ids, kind: str) -> None:
    """Fail unless every row ends at its own first `eos` and is filled with it."""
    places = first_places(written, eos)
    new = got[:, start_of(source, kind).shape[1] :]
    want = np.array(
        [
            np.where(np.arange(STEPS) > place, eos, row)
            for row, place in zip(written, places, strict=True)
        ]
    )
    width = new.shape[1]
    longest = min(STEPS, max(places) + 1)
    # More columns of the end token than any row needs are no mistake.
    if longest <= width <= STEPS and np.array_equal(new, want[:, :width]):
        return
    evidence = {"got": new, "expected": want[:, :longest], "eos_id": eos}
    if width < longest and np.array_equal(new, want[:, :width]):
        complain("stops_too_early", "decoding stops before every row has ended.", **evidence)
    if width <= STEPS and np.array_equal(new, written[:, :width]):
        complain("end_ignored", "rows go on after their end.", **evidence)
    complain("wrong_end", "a row does not end at its first end token, filled with it.", **evidence)


@pytest.mark.part("G6")
@pytest.mark.parametrize("kind", list(CLASSES))
def test_decoding_leaves_the_mode_as_it_was(
    submission: Submission, rng: Draws, findings: Findings, kind: str
) -> dict[str, Any]:
    """Decoding runs in eval mode, whatever the model is in, and leaves the mode as it found it."""
    source = rng.child("source").ids(LENGTHS, SIZES.vocab_size)
    _, build = model(rng, kind, replace(SIZES, dropout=0.5))
    decode = generate(kind, source, eos_id=None, use_cache=False)
    inputs = [source, np.full((len(source), 3), BOS)] if kind == "seq2seq" else [source]
    look = call("@model", *inputs)
    with built_on("generation", findings, *BUILT_ON):
        answers = submission.ask(
            build, call("@model.train", save="mode"), decode, decode, look, look,
            call("@model.eval", save="mode"), decode, look, look,
        )  # fmt: skip
    runs = [ids_of(answers[i], len(source), f"generate_{kind}") for i in (2, 3, 7)]
    if not all(np.array_equal(run, runs[-1]) for run in runs):
        fail("dropout_while_decoding", "generation", f"generate_{kind}: a model in train() writes "
             "something else each time: dropout is active.", MODES, {"runs": runs})  # fmt: skip
    for mode, first in (("train", 4), ("eval", 8)):
        a, b = (np.asarray(answers[i]["value"]) for i in (first, first + 1))
        if np.array_equal(a, b) != (mode == "eval"):
            fail("mode_not_restored", "generation", f"generate_{kind}: a model that came in "
                 f"{mode}() is in the other mode afterwards.", MODES)  # fmt: skip
    return {"modes": 2}
