"""Gate 4: the trained model answers rows it has never seen, one token at a time."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from grader.asking.compare import DTYPE_WORDS, fail
from grader.asking.submission import Question, Submission
from grader.base.settings import Settings
from grader.base.student_error import StudentError
from grader.gates import decoding, independence, invariance, learned, sequences, training
from grader.gates.independence import Trial
from grader.gates.influence import Findings
from grader.gates.invariance import Bench, Model
from grader.gates.sequences import Sequences
from grader.gates.training import SCRAMBLED, TRAINED, UNTRAINED, Attempt
from grader.model.draws import BOS, EOS, Draws
from grader.model.parameters import ProbeConfig

KINDS = ("encoder self-attention", "decoder self-attention", "cross-attention")


@pytest.mark.gate("greedy_accuracy")
@pytest.mark.slow
def test_greedy_decoding_answers_held_out_rows(
    submission: Submission, rng: Draws, lab: Settings, findings: Findings
) -> dict[str, Any]:
    """The student's loop trains a model that answers held-out rows by free-running decoding."""
    data = sequences.draw(rng, lab)
    attempts = train(submission, data)
    best = max(attempts, key=lambda made: made.exact_match)
    if best is not attempts[-1]:
        training.restore(submission, data, best)
    evidence = describe(best, attempts) | show_decoding(best, data)
    evidence |= show_attention(submission, best, data)
    if best.exact_match < lab.accuracy.exact_match:
        seen = learned.read(submission, best, data)
        if seen.forced > min(seen.exact_match + 0.3, 0.99):  # it may have learned to look ahead
            judge_trained(submission, best, data, findings, evidence)
        learned.explain(best, data, seen, findings, evidence)
    judge_controls(best, lab, evidence)
    judge_generation(submission, best, data, evidence)
    judge_trained(submission, best, data, findings, evidence)
    return evidence


def train(submission: Submission, data: Sequences) -> list[Attempt]:
    """Train once; a near miss is trained again from another seed, and the best attempt counts.

    A training that ended because the model had learned, and then falls short, is repeated in full.
    """
    accuracy = data.lab.accuracy
    step_seconds = training.measure_machine(submission, data.lab)
    attempts: list[Attempt] = []
    for number in range(accuracy.attempts):
        made = training.attempt(submission, data, number, looks=True)
        if made.learned and made.exact_match < accuracy.exact_match:
            made = training.attempt(submission, data, number, looks=False)
        attempts.append(made)
        if made.step_seconds > accuracy.time_factor_flag * step_seconds > 0.0:
            submission.flag(
                "training_time",
                f"The training loop used more than {accuracy.time_factor_flag:g} times the "
                "processor time per step of the lab's own loop.",
            )
        if not accuracy.near_miss <= made.exact_match < accuracy.exact_match:
            break
    return attempts


def describe(best: Attempt, attempts: list[Attempt]) -> dict[str, Any]:
    """Return what every verdict of this gate shows."""
    return {
        "exact_match": best.exact_match,
        "attempts": [made.exact_match for made in attempts],
        "untrained_exact_match": best.matches[UNTRAINED],
        "scrambled_exact_match": best.matches[SCRAMBLED],
        "steps": best.drawn,
        "in_short": training.in_short(best),
        "loss_curve": learned.smoothed(best.losses),
    }


def show_decoding(made: Attempt, data: Sequences) -> dict[str, Any]:
    """Return the share of right rows by length and one decoded row."""
    answers, tokens = data.answers(data.held_out), made.decoded[TRAINED].tokens
    right = decoding.exact(tokens, answers)
    lengths = np.array([len(answer) for answer in answers])
    longest = int(lengths.argmax())
    by_length = {str(n): float(right[lengths == n].mean()) for n in np.unique(lengths)}
    return {
        "exact_match_wanted": data.lab.accuracy.exact_match,
        "accuracy_by_length": by_length,
        "example": {
            "source": data.held_out[longest], "expected": [*answers[longest], EOS],
            "got": tokens[longest],
        },
    }  # fmt: skip


def show_attention(submission: Submission, made: Attempt, data: Sequences) -> dict[str, Any]:
    """Return the attention weights of the decoded row, or nothing where they are not seen.

    They are seen where scaled_dot_product_attention is called by its name and returns them.
    """
    lengths = [len(row) for row in data.held_out]
    index = int(np.argmax(lengths))
    source = data.held_out[index]
    target = [BOS, *made.decoded[TRAINED].tokens[index].tolist()[: len(source)]]
    args = [data.disguise[sequences.padded([source])], data.disguise[sequences.padded([target])]]
    question = Question("attention_weights", {"model": TRAINED, "args": args})
    (answer,) = submission.attempt(question)
    if isinstance(answer, StudentError) or len(answer["weights"]) != len(KINDS):
        return {}
    found: dict[str, Any] = {}
    sides = ((source, source), (target, target), (target, source))
    for kind, (queries, keys), weights in zip(KINDS, sides, answer["weights"], strict=True):
        if not isinstance(weights, np.ndarray) or weights.ndim != 4 or len(weights) != 1:
            return {}
        if weights.shape[2:] != (len(queries), len(keys)):
            return {}
        found[kind] = {"queries": queries, "keys": keys, "weights": weights[0]}
    return {"attention": found}


def judge_controls(best: Attempt, lab: Settings, evidence: dict[str, Any]) -> None:
    """Fail when the answers do not come from what was learned."""
    most = lab.accuracy.control_exact_match
    if best.matches[UNTRAINED] > most:
        fail(
            "untrained_model_answers", "decoder",
            f"the model answers {best.matches[UNTRAINED]:.3f} of the rows before any training.",
            "Let the answers come from the trained weights.", evidence,
        )  # fmt: skip
    if best.matches[SCRAMBLED] > most:
        fail(
            "answers_survive_scrambling", "decoder",
            f"with the entries of every trained weight in random order the model still answers "
            f"{best.matches[SCRAMBLED]:.3f} of the rows.",
            "Let the answers come from the trained weights.", evidence,
        )  # fmt: skip


def judge_generation(
    submission: Submission, best: Attempt, data: Sequences, evidence: dict[str, Any]
) -> None:
    """Fail when the package's own greedy decoding writes something else than the referee's."""
    tokens = decoding.generated(submission, TRAINED, data.held_out, data)
    apart = decoding.disagreements(best.decoded[TRAINED], tokens)
    evidence["generate_disagrees"] = len(apart)
    if apart:
        row = apart[0]
        fail(
            "generate_disagrees", "decoder",
            f"generate_seq2seq writes something else than feeding back the likeliest token does, "
            f"in {len(apart)} of {len(data.held_out)} rows.",
            "Look at what differs between a call of the whole model and encode, then decode.",
            evidence | {
                "source": data.held_out[row], "generated": tokens[row],
                "expected": best.decoded[TRAINED].tokens[row],
            },
        )  # fmt: skip


def judge_trained(
    submission: Submission, best: Attempt, data: Sequences, findings: Findings,
    evidence: dict[str, Any],
) -> None:  # fmt: skip
    """Ask gate 1's question again, of the trained weights, and fail with its diagnosis."""
    largest = []
    for bench in trained_benches(submission, best, data):
        trial = Trial(submission, findings, {"largest_forbidden": 0.0, "calls": 0}, control=False)
        (model,) = bench.models
        for padded in (False, True):
            batch = invariance.draw_batch(data.rng.child("trained"), bench, padded=padded)
            changed = independence.changes(data.rng, batch, bench.config.vocab_size)
            for mode in invariance.MODES:
                answer, alone = submission.ask(
                    independence.question(bench, model, mode, batch, changed),
                    independence.prefix_question(bench, model, mode, batch),
                )
                independence.judge(trial, bench, model, mode, batch, changed, answer["outputs"],
                                   alone["outputs"])  # fmt: skip
        largest.append(trial.seen["largest_forbidden"])
    # In the better precision: the other one's rounding says nothing of a mask.
    evidence["trained_largest_forbidden"] = largest[0]


def trained_benches(submission: Submission, best: Attempt, data: Sequences) -> list[Bench]:
    """Return the trained model in float64, where the tree can, and as it was trained.

    One may do what the other does not.
    """
    lab = data.lab.invariance
    shape = ProbeConfig.from_dict(asdict(data.lab.model))

    def bench(handle: str, dtype: str, tolerance: float) -> Bench:
        model = Model(handle, 0, sharpened=False)
        return Bench("seq2seq", shape, (model,), dtype, True, tolerance, trained=True)

    precise = bench("trained-again", "float64", lab.tolerance)
    as_trained = bench(TRAINED, "float32", lab.tolerance_float32)
    values = best.parameters | best.buffers
    question = {"save": "trained-again", "seed": best.seed, "values": values, "dtype": "float64"}
    batch = invariance.draw_batch(data.rng, precise, padded=True)
    questions = [
        Question("restore", training.setting(data.lab) | question),
        *invariance.trying(precise, batch),
        *invariance.determinism(precise, batch),
    ]
    for answer in submission.attempt(*questions):
        if isinstance(answer, StudentError):
            if not any(word in answer.message for word in DTYPE_WORDS):
                raise answer
            return [as_trained]
    return [precise, as_trained]
