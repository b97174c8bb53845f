"""What a report shows of a trained model besides its verdict; nothing here decides anything."""

from __future__ import annotations

from typing import Any

import numpy as np

from grader.decoding import exact
from grader.draws import BOS, EOS
from grader.sequences import Sequences, padded
from grader.student_error import StudentError
from grader.submission import Question, Submission
from grader.training import TRAINED, Attempt

KINDS = ("encoder self-attention", "decoder self-attention", "cross-attention")


def decoding(made: Attempt, data: Sequences) -> dict[str, Any]:
    """Return the share of right rows by length and one decoded row."""
    answers, tokens = data.answers(data.held_out), made.decoded[TRAINED].tokens
    right = exact(tokens, answers)
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


def attention(submission: Submission, made: Attempt, data: Sequences) -> dict[str, Any]:
    """Return the attention weights of the row in `decoding`, or nothing where they are not seen.

    They are seen where scaled_dot_product_attention is called by its name and returns them.
    """
    lengths = [len(row) for row in data.held_out]
    index = int(np.argmax(lengths))
    source = data.held_out[index]
    target = [BOS, *made.decoded[TRAINED].tokens[index].tolist()[: len(source)]]
    args = [data.disguise[padded([source])], data.disguise[padded([target])]]
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
