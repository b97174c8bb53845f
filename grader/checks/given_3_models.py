"""Given code, where it is graded as submitted: the two models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from grader.compare import Suspect, judge
from grader.draws import BOS, EOS, PAD, Draws, Ids, Weights
from grader.expectations import Ask
from grader.parameters import ProbeConfig, parameter_shapes
from grader.parts import Findings, ask, built_on, returned, sure
from grader.submission import Question, Submission, build, config, forward, tensor

CLASSES = {
    "seq2seq": "models.Seq2SeqTransformer",
    "decoder_only": "models.DecoderOnlyTransformer",
}
BUILT_ON = ("1.1", "1.2", "1.3", "2.1", "2.2", "2.3", "3.1", "4.1", "4.2", "5.1", "5.2", "5.3")
WIRES = "Look at how ids, positions, masks and stacks are joined."
SIZES = ProbeConfig(vocab_size=11, d_model=12, num_heads=2, num_layers=2, d_ff=14, max_len=20,
                    ffn="relu", t5_buckets=8, t5_max_distance=16)  # fmt: skip
SOURCE_LENGTHS, TARGET_LENGTHS = (5, 3, 4), (4, 6, 2)


def model(rng: Draws, kind: str, shape: ProbeConfig) -> tuple[Weights, Question]:
    """Draw weights and ask for the model that holds them."""
    weights = rng.child("weights").weights(parameter_shapes(shape, kind))
    fields = {k: v for k, v in asdict(shape).items() if v is not None}
    return weights, build("model", CLASSES[kind], config(**fields), weights=weights)


@pytest.mark.part("G5")
@pytest.mark.parametrize("kind", list(CLASSES))
@pytest.mark.parametrize("scheme", ["learned", "none", "t5bias"])
def test_model_joins_its_parts(
    submission: Submission, rng: Draws, expected: Ask, findings: Findings, kind: str, scheme: str
) -> dict[str, Any]:
    """A model embeds ids, adds positions, hides padding, runs its stacks and scores every id."""
    tied = True if scheme == "none" else None
    shape = replace(SIZES, positions=scheme, tied=tied)
    weights, question = model(rng, kind, shape)
    target = rng.child("target").ids(TARGET_LENGTHS, 11)
    inputs = {"tokens": target}
    if kind == "seq2seq":
        # With BOS and EOS among the real tokens, to tell padding masks of other ids apart.
        source = rng.child("source").ids(SOURCE_LENGTHS, 11, BOS)
        source[0, :2], source[1, :2] = (BOS, EOS), (EOS, 3)
        inputs = {"source": source, "target": target}
    what = f"the {kind} model with {scheme} positions"
    with built_on("models", findings, *BUILT_ON):
        call_ = forward("model", {"args": list(inputs.values())})
        (built, answer), tolerance = ask(submission, question, call_)
        sure(built)
        want = expected(kind, config=shape, weights=weights, **inputs)["value"]
        real = (target != PAD)[:, :, None]
        got = tensor(returned(answer, what, "models"), want.shape, what, "models")
        return judge(
            np.where(real, got, 0.0), np.where(real, want, 0.0), what=what, part="models",
            advice=WIRES, tolerance=tolerance,
            suspects=slips(expected, kind, shape, weights, inputs, real),
        )  # fmt: skip


def slips(
    expected: Ask, kind: str, shape: ProbeConfig, weights: Weights, inputs: dict[str, Ids],
    real: np.ndarray,
) -> Iterator[Suspect]:  # fmt: skip
    """Yield what usual mistakes in a model would answer."""

    def other(changed: Weights = weights, **more: Any) -> np.ndarray:
        answer = expected(kind, config=shape, weights=changed, **{**inputs, **more})["value"]
        return np.where(real, answer, 0.0)

    def changed(factor: float, word: str) -> Weights:
        return {k: v * factor if word in k and "output" not in k else v for k, v in weights.items()}

    root = float(np.sqrt(shape.d_model))
    if kind == "seq2seq":
        everything = np.ones(inputs["source"].shape, bool)
        yield Suspect("source_padding_visible", other(source_valid=everything),
                      "the source's padding is read as if it were real.", WIRES)  # fmt: skip
        for name, id_ in (("EOS", EOS), ("BOS", BOS), ("the first data token", 3)):
            valid = inputs["source"] != id_
            yield Suspect("padding_of_other_id", other(source_valid=valid),
                          f"the source's padding mask is made from {name}.", WIRES)  # fmt: skip
        memory = expected("encode", config=shape, weights=weights, source=inputs["source"])
        blind = expected("decode", config=shape, weights=weights, target=inputs["target"],
                         memory=memory["value"])["value"]  # fmt: skip
        open_memory = expected("encode", config=shape, weights=weights, source=inputs["source"],
                               source_valid=everything)["value"]  # fmt: skip
        half = expected(
            "decode",
            config=shape,
            weights=weights,
            target=inputs["target"],
            memory=open_memory,
            memory_valid=inputs["source"] != PAD,
        )["value"]
        yield Suspect("encoder_padding_visible", np.where(real, half, 0.0), "the encoder reads "
                      "padding, and only the cross-attention hides it.", WIRES)  # fmt: skip
        yield Suspect("memory_padding_visible", np.where(real, blind, 0.0), "cross-attention "
                      "reads the memory at padded positions.", WIRES)  # fmt: skip
    yield Suspect("positions_missing", other(changed(0.0, "positions.")),
                  "positions make no difference.", WIRES)  # fmt: skip
    if shape.tied or kind == "decoder_only":
        answer = other()
        for factor, words in ((root, "multiplied"), (1 / root, "divided")):
            yield Suspect("tied_output_scaled", answer * factor, f"the logits are {words} by the "
                          "root of the width: the scale belongs to the input.", WIRES)  # fmt: skip
    yield Suspect("embedding_not_scaled", other(changed(1 / root, "embedding.")),
                  "the embeddings are not multiplied by the root of the width.", WIRES)  # fmt: skip
