"""The bench's own logic, with made-up measurements; no speed is ever tested."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from bench.__main__ import DONE, MISSED, STOPPED, main
from bench.figures import FIGURES, Figure
from bench.grading import ENDLESS, SOLUTION
from bench.package import Peer
from bench.timing import MeasurementFailed, interleave, process
from transformer.config import LAB
from transformer.models import Seq2SeqTransformer

Rounds = Iterator[dict[str, float]]


def measured() -> Rounds:
    yield from [{"ratio": 2.0, "rate": 7.0}, {"ratio": 1.0, "rate": 5.0}, {"ratio": 3.0, "rate": 3}]


def failed() -> Rounds:
    yield {"lone": 1.0}
    raise MeasurementFailed("no such thing here")


def stopped() -> Rounds:
    yield {"lone": 1.0}
    raise KeyboardInterrupt


RATIO = Figure("ratio", "a / b", "x", measured, 2.5, 1.5)
RATE = Figure("rate", "c a minute", "a minute", measured, 5, at_least=True)
LONE = Figure("lone", "d", "s", failed, 9)


def bench(tmp_path: Path, *words: str, known: Sequence[Figure] = (RATIO, RATE)) -> int:
    return main(list(words), known, tmp_path / "bench.md")


@pytest.mark.parametrize(
    ("figure", "value", "word"),
    [
        (RATIO, 2.6, "missed"),
        (RATIO, 2.5, "met"),
        (RATIO, 1.5, "goal met"),
        (RATE, 4.9, "missed"),
        (RATE, 5.0, "met"),
    ],
)
def test_figure_knows_when_it_is_met(figure: Figure, value: float, word: str) -> None:
    assert figure.verdict(value) == word


def test_page_has_median_spread_and_verdict_of_every_figure(tmp_path: Path) -> None:
    assert bench(tmp_path) == DONE
    text = (tmp_path / "bench.md").read_text(encoding="utf-8")
    assert "| `ratio` | a / b | <= 2.5 x | <= 1.5 x | 2 x | 1 x to 3 x | 3 | met |\n" in text
    assert "| `rate` | c a minute | >= 5 a minute |  | 5 a minute |" in text
    assert f"torch {torch.__version__}" in text


def test_only_prints_what_it_names_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(tmp_path, "--only", "rate") == DONE
    assert "rate: 5 a minute (3 a minute to 7 a minute), required >= 5" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SystemExit, match="2"):
        bench(tmp_path, "--only", "speed")


def test_check_fails_on_a_missed_figure_alone(tmp_path: Path) -> None:
    missed = Figure("ratio", "a / b", "x", measured, 1.5)
    assert bench(tmp_path, "--check") == DONE
    assert bench(tmp_path, "--check", known=[missed]) == MISSED
    assert bench(tmp_path, known=[missed]) == DONE


def test_failed_measurement_leaves_the_others_and_fails_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(tmp_path, "--check", known=[LONE, RATIO]) == MISSED
    said = capsys.readouterr().out
    assert "lone:  (), required <= 9 s: not measured: no such thing here" in said
    assert "ratio: 2 x" in said


def test_interrupt_ends_with_its_code_and_writes_nothing(tmp_path: Path) -> None:
    assert bench(tmp_path, known=[Figure("lone", "d", "s", stopped, 9)]) == STOPPED
    assert list(tmp_path.iterdir()) == []


def test_interleave_calls_the_subjects_in_turn() -> None:
    called: list[str] = []
    subjects = {name: lambda name=name: called.append(name) for name in "ab"}
    taken = list(interleave(subjects, 3, warm_up=2))
    assert called == ["a", "b"] * 5
    assert [set(one) for one in taken] == [{"a", "b"}] * 3


def test_process_that_fails_is_no_measurement() -> None:
    process("sh", "-c", "exit 3", expected=3)()
    with pytest.raises(MeasurementFailed, match="exit code 3: not here"):
        process("sh", "-c", "echo why >&2; echo not here >&2; exit 3")()


def test_names_are_unique_and_figures_of_one_program_stand_together() -> None:
    names = [figure.name for figure in FIGURES]
    assert len(set(names)) == len(names)
    programs = [figure.program for figure in FIGURES]
    changes = sum(one is not other for one, other in pairwise(programs))
    assert changes + 1 == len(set(programs))


def test_endless_loops_find_their_place_in_the_solution() -> None:
    for file, before, _ in ENDLESS:
        assert (SOLUTION / "transformer" / file).read_text(encoding="utf-8").count(before) == 1


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_peer_has_the_shape_of_the_lab_model() -> None:
    ours = Seq2SeqTransformer(LAB)
    source, target = torch.randint(3, 16, (2, 5)), torch.randint(3, 16, (2, 7))
    peer = Peer(ours)
    assert peer(source, target).shape == ours(source, target).shape
    trained = [p.numel() for p in peer.parameters()]
    assert sum(trained) == sum(p.numel() for p in ours.parameters())
