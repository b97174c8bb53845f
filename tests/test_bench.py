"""The bench's own logic, with made-up measurements; no speed is ever tested."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from importlib import metadata
from pathlib import Path

import pytest

from grader.bench import catalogue, page, rounds
from grader.bench.__main__ import DONE, MISSED, STOPPED, USAGE, main
from grader.bench.figure import (
    Curve,
    Experiment,
    Figure,
    Round,
    Target,
    difference_ratio,
    of_medians,
    paired,
    spread,
    thousandfold,
    value,
    worst,
)
from grader.bench.rounds import MeasurementFailed, interleave
from grader.bench.session import Catalogue

ROUNDS: list[Round] = [{"a": 6.0, "b": 3.0}, {"a": 5.0, "b": 5.0}, {"a": 21.0, "b": 7.0}]
PAIR = Experiment("pair", "two things in turn", "none", rounds=3)
OTHER = Experiment("other", "one more thing", "none", rounds=2)
RATIO = Figure("ratio", "a / b", "pair", "x", Target(2.5, 1.5), paired("a", "b"))
FACTOR = Figure("factor", "b alone", "pair", "ms", Target(4.0, at_least=True), value("b"))
LONE = Figure("lone", "c", "other", "s", Target(None, 0.5), value("c"))
CURVE = Curve("growth", "How a grows.", "pair", "b", {"a": "ours"}, "s")
KNOWN = Catalogue((PAIR, OTHER), (RATIO, FACTOR, LONE), (CURVE,))
Run = Callable[[Experiment], Iterator[Round]]


def measured(experiment: Experiment) -> Iterator[Round]:
    yield from ROUNDS if experiment is PAIR else [{"c": 1.0}, {"c": 3.0}]


def stopped(experiment: Experiment) -> Iterator[Round]:
    yield ROUNDS[0]
    raise KeyboardInterrupt


def failed(experiment: Experiment) -> Iterator[Round]:
    if experiment is OTHER:
        yield {"c": 1.0}
        return
    yield ROUNDS[0]
    raise MeasurementFailed("1 of 3 rounds: no such thing here")


def bench(tmp_path: Path, *words: str, run: Run = measured, known: Catalogue = KNOWN) -> int:
    return main([*words, "--out", str(tmp_path)], known, run, tmp_path / "docs")


def saved(tmp_path: Path) -> dict[str, object]:
    tree: dict[str, object] = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    return tree


def test_interleave_calls_the_subjects_in_turn() -> None:
    called: list[str] = []
    ticks = iter(range(100))
    subjects = {name: lambda name=name: called.append(name) for name in "ab"}
    taken = list(interleave(subjects, 3, warm_up=2, clock=lambda: float(next(ticks))))
    assert called == ["a", "b"] * 5
    assert taken == [{"a": 1.0, "b": 1.0}] * 3


@pytest.mark.parametrize(
    ("reduce", "expected"),
    [
        (value("a"), (6.0, 5.0, 21.0)),
        (thousandfold("b"), (5000.0, 3000.0, 7000.0)),
        (paired("a", "b"), (2.0, 1.0, 3.0)),
        (of_medians("a", "b"), (1.2, 1.0, 3.0)),
        (worst("a"), (21.0, 5.0, 21.0)),
    ],
)
def test_reduction_gives_median_smallest_and_largest(
    reduce: Callable[[list[Round]], object], expected: tuple[float, float, float]
) -> None:
    assert reduce(ROUNDS) == expected


def test_difference_ratio_takes_off_within_a_round() -> None:
    found = [{"late": 7.0, "row": 1.0, "early": 5.0, "little": 2.0}]
    assert difference_ratio(("late", "row"), ("early", "little"))(found) == spread([2.0])


@pytest.mark.parametrize(
    ("target", "value", "word"),
    [
        (Target(2.0, 1.0), 2.5, "missed"),
        (Target(2.0, 1.0), 2.0, "met"),
        (Target(2.0, 1.0), 1.0, "goal met"),
        (Target(2.0), 1.0, "met"),
        (Target(5.0, at_least=True), 3.0, "missed"),
        (Target(5.0, 7.0, at_least=True), 11.0, "goal met"),
        (Target(None, 1.0), 2.0, "short of the goal"),
        (Target(), 2.0, "no target"),
    ],
)
def test_target_knows_when_it_is_met(target: Target, value: float, word: str) -> None:
    assert target.met(value) == word


def test_every_figure_is_printed_with_target_and_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(tmp_path) == DONE
    assert [line.strip() for line in capsys.readouterr().out.splitlines()[:3]] == [
        "met  ratio: <= 2.5 x; goal <= 1.5 x; measured 2 x (1 to 3 x, 3 rounds)",
        "met  factor: >= 4 ms; measured 5 ms (3 to 7 ms, 3 rounds)",
        "short of the goal  lone: goal <= 0.5 s; measured 2 s (1 to 3 s, 2 rounds)",
    ]


def test_json_holds_every_figure_and_every_round(tmp_path: Path) -> None:
    bench(tmp_path)
    tree = saved(tmp_path)
    assert tree["complete"] is True
    assert tree["experiments"]["pair"]["rounds"] == ROUNDS  # type: ignore[index]
    assert tree["figures"][0] == {  # type: ignore[index]
        "name": "ratio", "sentence": "a / b", "unit": "x", "bound": "at most", "required": 2.5,
        "goal": 1.5, "measured": 2.0, "low": 1.0, "high": 3.0, "rounds": 3, "threads": 1,
        "verdict": "met", "trouble": "", "date": str(date.today()),
    }  # fmt: skip
    machine = tree["machine"]
    assert isinstance(machine, dict)
    assert set(machine) == {"cores", "processor", "system", "python", "torch", "numpy"}


def test_check_fails_on_a_required_figure_alone(tmp_path: Path) -> None:
    missed = Figure("ratio", "a / b", "pair", "x", Target(1.5), paired("a", "b"))
    assert bench(tmp_path, "--check") == DONE
    assert bench(tmp_path, "--check", known=Catalogue((PAIR,), (missed,))) == MISSED
    assert bench(tmp_path, known=Catalogue((PAIR,), (missed,))) == DONE


def test_failed_experiment_leaves_the_others_and_fails_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(tmp_path, "--check", run=failed) == MISSED
    figures = {f["name"]: f for f in saved(tmp_path)["figures"]}  # type: ignore[attr-defined]
    assert figures["ratio"]["verdict"] == "not measured"
    assert figures["ratio"]["trouble"] == "1 of 3 rounds: no such thing here"
    assert figures["lone"]["measured"] == 1.0
    assert "not measured  ratio" in capsys.readouterr().out


def test_interrupt_keeps_what_was_measured(tmp_path: Path) -> None:
    assert bench(tmp_path, "--check", run=stopped) == STOPPED
    tree = saved(tmp_path)
    assert tree["complete"] is False
    assert tree["experiments"]["pair"]["rounds"] == ROUNDS[:1]  # type: ignore[index]
    found = {f["name"]: (f["verdict"], f["rounds"]) for f in tree["figures"]}  # type: ignore
    assert found == {"ratio": ("met", 1), "factor": ("missed", 1), "lone": ("not measured", 0)}


def test_only_measures_what_the_named_figure_needs(tmp_path: Path) -> None:
    assert bench(tmp_path, "--only", "factor") == DONE
    tree = saved(tmp_path)
    assert [f["name"] for f in tree["figures"]] == ["factor"]  # type: ignore[attr-defined]
    assert list(tree["experiments"]) == ["pair"]  # type: ignore[call-overload]
    assert bench(tmp_path, "--only", "pair") == DONE
    assert len(saved(tmp_path)["figures"]) == 2  # type: ignore[arg-type]


def test_unknown_name_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(tmp_path, "--only", "ratio", "speed") == USAGE
    assert capsys.readouterr().err == ("bench: nothing is called speed; --list lists the names\n")
    assert list(tmp_path.iterdir()) == []


def test_list_names_everything_without_measuring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(tmp_path, "--list", run=failed) == DONE
    assert capsys.readouterr().out == (
        "pair: two things in turn\n    ratio: a / b\n    factor: b alone\n"
        "    growth: How a grows.\nother: one more thing\n    lone: c\n"
    )


def test_docs_are_written_on_demand_and_keep_their_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "draw", lambda measured, folder: "no pictures in a test")
    bench(tmp_path)
    assert not (tmp_path / "docs").exists()
    bench(tmp_path, "--write-docs")
    target = tmp_path / "docs/bench.md"
    text = target.read_text(encoding="utf-8")
    assert (
        "| `ratio` | a / b | at most 2.5 x | at most 1.5 x | 2 x | 1 to 3 x | 3 | 1 "
        f"| {date.today()} | met |" in text
    )
    assert "| b | ours (s) |\n| --- | --- |\n| 3 | 6 |\n| 5 | 5 |\n| 7 | 21 |\n" in text
    assert f"torch {metadata.version('torch')}" in text
    noted = text.replace("\n## growth", f"\n{page.NOTES}\n\nThe kernels.\n\n## growth")
    target.write_text(noted, encoding="utf-8")
    bench(tmp_path, "--write-docs")
    assert target.read_text(encoding="utf-8") == noted


def test_docs_keep_what_was_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rounds, "draw", lambda measured, folder: "no pictures in a test")
    page_of = tmp_path / "docs/bench.md"
    data = tmp_path / "docs/bench.json"
    bench(tmp_path, "--write-docs", "--only", "pair")
    assert "| `lone` | c |  | at most 0.5 s |  | not measured yet | 0 |" in page_of.read_text()
    tree = json.loads(data.read_text())
    tree["experiments"]["pair"]["date"] = "2001-02-03"
    data.write_text(json.dumps(tree))
    bench(tmp_path, "--write-docs", "--only", "other")
    text = page_of.read_text()
    assert "| 2 x | 1 to 3 x | 3 | 1 | 2001-02-03 | met |" in text
    assert f"| `lone` | c |  | at most 0.5 s | 2 s | 1 to 3 s | 2 | 1 | {date.today()} |" in text
    bench(tmp_path, "--write-docs", "--only", "pair", run=failed)  # no measurement
    assert page_of.read_text() == text
    # Steps are the same on another machine, seconds are not; another torch may change both.
    pair = replace(PAIR, timed=False)
    counted = Catalogue((pair, OTHER), (RATIO, FACTOR, LONE), (CURVE,))
    tree["machine"]["processor"] = "another"
    data.write_text(json.dumps(tree))
    bench(tmp_path, "--write-docs", "--only", "other", known=counted)
    assert "2001-02-03" in page_of.read_text()
    data.write_text(json.dumps(tree))
    bench(tmp_path, "--write-docs", "--only", "other")
    assert "2001-02-03" not in page_of.read_text()
    tree["machine"]["torch"] = "1.0"
    data.write_text(json.dumps(tree))
    bench(tmp_path, "--write-docs", "--only", "other", known=counted)
    assert "2001-02-03" not in page_of.read_text()
    assert "of another machine or other versions" in capsys.readouterr().out


def test_page_shows_the_picture_of_a_curve(tmp_path: Path) -> None:
    bench(tmp_path)
    text = page.text(saved(tmp_path), "", ["bench_growth.svg", "bench_gone.svg"])
    assert "![How a grows.](bench_growth.svg)" in text
    assert "bench_gone" not in text


def program(tmp_path: Path, body: str) -> Experiment:
    (tmp_path / "made_up.py").write_text(body, encoding="utf-8")
    return Experiment("made_up", "a program", "made_up", rounds=2, threads=3)


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(rounds, "ROOT", tmp_path)
    return tmp_path


def test_program_tells_rounds_and_runs_with_so_many_threads(mounted: Path) -> None:
    body = """
import json, os, sys
for number in range(int(sys.argv[sys.argv.index("--rounds") + 1])):
    print(json.dumps({"number": number, "threads": int(os.environ["OMP_NUM_THREADS"])}))
"""
    found = list(rounds.run(program(mounted, body)))
    assert found == [{"number": 0, "threads": 3}, {"number": 1, "threads": 3}]


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("raise SystemExit('not here')", "1 of 2 rounds: not here"),
        ("sys.exit(5)", "1 of 2 rounds: exit code 5"),
        ("sys.exit(0)", "1 of 2 rounds: exit code 0"),
        ("sys.stderr.write('x' * 300_000 + '\\n'); sys.exit('flooded')", "1 of 2 rounds: flooded"),
    ],
)
def test_program_that_ends_early_is_no_measurement(mounted: Path, end: str, reason: str) -> None:
    experiment = program(mounted, f"import sys\nprint('{{}}', flush=True)\n{end}\n")
    with pytest.raises(MeasurementFailed) as caught:
        list(rounds.run(experiment))
    assert str(caught.value) == reason


def test_closing_the_rounds_ends_the_program(mounted: Path) -> None:
    body = """
import json, os, time
print(json.dumps({"pid": os.getpid()}), flush=True)
time.sleep(600)
"""
    taken = rounds.run(program(mounted, body))
    pid = int(next(taken)["pid"])
    taken.close()  # type: ignore[attr-defined]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_ctrl_c_ends_a_real_run_with_its_code(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "grader.bench", "--only", "check_cold", "--out", str(tmp_path)]
    process = subprocess.Popen(
        command, cwd=rounds.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    process.stderr.readline()  # the experiment has started
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == STOPPED
    assert said.strip().endswith("stopped; what was measured so far is kept")
    assert json.loads((tmp_path / "bench.json").read_text())["complete"] is False


def test_catalogue_names_are_unique_and_read_what_exists() -> None:
    known = catalogue.ALL
    names = [item.name for item in (*known.experiments, *known.figures)]
    assert len(set(names)) == len(names)
    assert len({c.name for c in known.curves}) == len(known.curves)
    experiments = {e.name for e in known.experiments}
    assert {item.experiment for item in known.readings} == experiments
    assert {e.threads for e in known.experiments} == {1}
