"""What `calibrate` keeps of earlier runs, and the rates it states."""

import json
from pathlib import Path

import pytest

from grader.base.settings import load
from grader.upkeep import calibrate, corpus

NAMES = load().points.gates
GATES = {gate: ["passed", {}] for gate in NAMES}


def gates(training: str) -> dict[str, list]:
    return GATES | {calibrate.TRAINED: [training, {"attempts": [0.99]}]}


def written(path: Path, results: list[dict]) -> Path:
    path.write_text(json.dumps({"results": results}), encoding="utf-8")
    return path


def result(name: str, training: str) -> dict:
    blocked = {name: ["blocked", {}] for name in NAMES}
    found = gates(training) if training != "blocked" else blocked
    return {"kind": "right", "name": name, "problems": [], "gates": found}


def test_cases_whose_gates_verify_has_run_are_not_graded_again(tmp_path):
    path = written(tmp_path / "verify.json", [result("one", "passed"), result("two", "blocked")])
    assert set(calibrate.verified(path)) == {("right", "one")}
    assert calibrate.verified(None) == {}


@pytest.mark.parametrize("text", ["", "{}", '{"results": [1]}', '{"results": [{"kind": "right"}]}'])
def test_other_files_than_those_of_verify_are_refused(tmp_path, text):
    path = tmp_path / "verify.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(corpus.CorpusError, match="expected the verify.json"):
        calibrate.verified(path)
    with pytest.raises(corpus.CorpusError, match="expected the verify.json"):
        calibrate.verified(tmp_path / "none.json")


def test_results_of_the_same_code_are_kept_and_a_torn_line_is_not(tmp_path):
    task = next(calibrate.tasks(load(), 50, 1))
    found = task | {"score": 100, "passed": True, "gates": gates("passed")}
    path = tmp_path / "results.jsonl"
    rows = [found | {"source": "now"}, found | {"seed": 1, "source": "old"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"kind": "ri', "utf-8")
    assert list(calibrate.kept(path, "now")) == [calibrate.task_key(task)]


def test_every_configuration_has_its_seeds_and_the_larger_a_tenth():
    found = [t for t in calibrate.tasks(load(), 50, 1) if t["configuration"]]
    counts = {}
    for name, made in calibrate.CONFIGURATIONS.items():
        seeds = [t["seed"] for t in found if t["configuration"] == name]
        assert seeds == list(range(len(seeds)))
        counts.setdefault("large" if made.large else name, len(seeds))
    assert counts.pop("large") == 5 and set(counts.values()) == {50}


def test_upper_bound_of_a_rate_is_the_known_one():
    assert calibrate.upper_rate(0, 50) == pytest.approx(1 - 0.05 ** (1 / 50))
    assert calibrate.upper_rate(1, 1) == 1.0


LAB = load()
WITNESSES = {
    "gate 1: forbidden influence": ({"ratio": 3.0}, 3e-6),
    "gate 1: allowed influence (control)": ({"moved": 2.0, "expected_at_least": 8.0}, 2.5e-5),
    "gate 2: influence of padding": ({"loss": [1.0, 2.0], "ratio": 5.0}, 5e-6),
    "gate 2: response to a mask (control)": ({"moved": 0.0, "expected_at_least": 1.0}, 0.0),
    "gate 3: error of a gradient": ({"gradient": 0.0, "ratio": 189.0}, 1.89),
    "gate 4: exact match": ({"exact_match": 0.5}, 0.5),
}


@pytest.mark.parametrize("name", WITNESSES)
def test_failed_gate_tells_how_far_it_was_from_the_threshold(name):
    (threshold,) = (t for t in calibrate.THRESHOLDS if t.name == name)
    evidence, far = WITNESSES[name]
    assert calibrate.witnessed(evidence, threshold, LAB) == [pytest.approx(far)]
    others = [t for t in calibrate.THRESHOLDS if t.gate == threshold.gate and t is not threshold]
    assert all(calibrate.witnessed(evidence, other, LAB) == [] for other in others)


def test_every_wrong_case_is_shown_to_gates_1_to_3():
    found = list(calibrate.tasks(LAB, 0, 0))
    assert {t["kind"] for t in found} == {"wrong"} and {t["last_gate"] for t in found} == {3, 4}
