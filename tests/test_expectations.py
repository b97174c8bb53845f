"""Expected values: the oracle's in the repository, the recorded ones elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from grader.asking.expectations import ExpectationMissing, Expectations, sharpen
from grader.model.draws import Draws
from grader.model.parameters import ProbeConfig, parameter_shapes
from grader.oracle.models import seq2seq
from grader.oracle.scope import Scope

CONFIG = ProbeConfig(d_model=6, num_heads=3, d_ff=5, vocab_size=7, max_len=5)
WEIGHTS = Draws(0, "expectations").weights(parameter_shapes(CONFIG, "seq2seq"))
IDS = {"source": np.array([[3, 4, 0]]), "target": np.array([[1, 5]])}
INPUTS = {"config": CONFIG, "weights": WEIGHTS, **IDS}
PAIR = {name: np.ones((1, 1, 2, 3)) for name in ("query", "key", "value")}


def test_expected_is_the_oracle_by_name():
    expected = Expectations().for_check("2.1")
    logits = seq2seq(Scope(CONFIG, WEIGHTS), IDS["source"], IDS["target"])
    np.testing.assert_array_equal(expected("seq2seq", **INPUTS)["value"], logits)
    assert list(expected("scaled_dot_product_attention", **PAIR)) == ["context", "weights"]
    assert "encoder.blocks.0.feed_forward" in expected("seq2seq_activations", **INPUTS)


def test_recorded_answers_equal_the_computed_ones(tmp_path):
    computed = Expectations()
    calls = [
        ("seq2seq", INPUTS),
        ("seq2seq_activations", INPUTS),
        ("seq2seq_sharpening", {**INPUTS, "peak": 80.0}),
        ("scaled_dot_product_attention", PAIR),
        ("causal_mask", {"num_queries": 2, "num_keys": 3}),
    ]
    before = [computed.expected("1.1", name, **inputs) for name, inputs in calls]
    computed.save(tmp_path / "expected.safetensors")
    replayed = Expectations.load(tmp_path / "expected.safetensors")
    for (name, inputs), answer in zip(calls, before, strict=True):
        again = replayed.expected("1.1", name, **inputs)
        assert set(again) == set(answer)
        for field, array in answer.items():
            np.testing.assert_array_equal(again[field], array, strict=True)


def test_recording_has_the_same_bytes_whatever_the_order(tmp_path):
    calls = [
        ("padding_mask", {"ids": IDS["source"], "pad_id": 0}),
        ("scaled_dot_product_attention", PAIR),
    ]
    for name, order in (("a", calls), ("b", calls[::-1])):
        expectations = Expectations()
        for function, inputs in order:
            expectations.expected("1.1", function, **inputs)
        expectations.save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    ("check", "name", "inputs"),
    [
        ("1.2", "causal_mask", {"num_queries": 2, "num_keys": 3}),
        ("1.1", "causal_mask", {"num_queries": 2, "num_keys": 5}),
        ("1.1", "padding_mask", {"num_queries": 2, "num_keys": 3}),
    ],
)
def test_unknown_check_or_input_is_missing(tmp_path, check, name, inputs):
    recorded = Expectations()
    recorded.expected("1.1", "causal_mask", num_queries=2, num_keys=3)
    recorded.save(tmp_path / "expected.safetensors")
    replayed = Expectations.load(tmp_path / "expected.safetensors")
    with pytest.raises(ExpectationMissing, match=f"recorded for {check}.{name}"):
        replayed.expected(check, name, **inputs)


@pytest.mark.parametrize(
    "changed",
    [
        {"config": ProbeConfig(d_model=6, num_heads=2)},
        {"weights": {**WEIGHTS, "output_projection.weight": np.ones((7, 6))}},
        {"source": IDS["source"].astype(np.int32)},
        {"source": IDS["source"][0]},
        {"target_valid": np.ones((1, 2), dtype=bool)},
        {"peak": 80.0},
    ],
)
def test_any_change_of_the_inputs_is_another_question(changed):
    replayed = Expectations({})
    messages = set()
    for inputs in (INPUTS, {**INPUTS, **changed}):
        with pytest.raises(ExpectationMissing) as missing:
            replayed.expected("1.1", "seq2seq", **inputs)
        messages.add(str(missing.value))
    assert len(messages) == 2


def test_inputs_of_another_kind_are_refused():
    with pytest.raises(TypeError, match="plain data or an array"):
        Expectations().expected("1.1", "padding_mask", ids=object(), pad_id=0)


def test_sharpen_brings_the_largest_score_to_the_peak():
    expected = Expectations().for_check("gate_1")
    sharp = Scope(CONFIG, sharpen(expected, "seq2seq", CONFIG, WEIGHTS, 80.0, **IDS))
    seq2seq(sharp, **IDS)
    peaks = [np.abs(scores).max() for scores in sharp.trace.scores.values()]
    assert peaks == pytest.approx([80.0] * 3, rel=0.01)


def test_replaying_never_imports_the_oracle(tmp_path):
    recorded = Expectations()
    recorded.expected("1.1", "causal_mask", num_queries=2, num_keys=3)
    recorded.save(tmp_path / "expected.safetensors")
    program = (
        "import sys; from pathlib import Path; from grader.asking.expectations import Expectations;"
        "known = Expectations.load(Path(sys.argv[1]));"
        "print(known.expected('1.1', 'causal_mask', num_queries=2, num_keys=3)['value'].sum());"
        "print([name for name in sys.modules if name.startswith('grader.oracle')])"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "expected.safetensors")]
    root = Path(__file__).parents[1]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert run.stdout == "3\n[]\n"
