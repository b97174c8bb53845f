"""The bench's programs measure what they say: equal models, every kernel, an honest clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from bench import combinations, training
from bench.floor import kernels
from bench.peer import Peer
from bench.step import Subjects
from grader.bench import catalogue, rounds
from grader.bench.figure import Experiment
from transformer.config import LAB, ModelConfig
from transformer.data import EOS, PAD, SequenceBatch
from transformer.models import Seq2SeqTransformer, count_params
from transformer.training import teacher_forcing


@pytest.mark.parametrize("experiment", catalogue.ALL.experiments, ids=lambda e: e.name)
def test_experiment_has_a_program(experiment: Experiment) -> None:
    assert (rounds.ROOT / f"{experiment.module.replace('.', '/')}.py").is_file()


@pytest.mark.filterwarnings("error")
def test_peer_computes_what_the_lab_model_computes() -> None:
    torch.manual_seed(0)
    ours = Seq2SeqTransformer(ModelConfig(vocab_size=17, d_model=28, num_heads=7, num_layers=2))
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    source = torch.randint(3, 17, (2, 5)).index_fill(1, torch.tensor([4]), PAD)
    decoder_inputs, targets = teacher_forcing([[3, 5, 7], [11, 13]])
    wanted = ours(source, decoder_inputs)
    found = Peer(ours)(source, decoder_inputs)
    real = targets != PAD
    torch.testing.assert_close(found[real], wanted[real], rtol=1e-4, atol=1e-4)


def test_every_combination_is_tried_and_each_can_be_built() -> None:
    (experiment,) = (e for e in catalogue.ALL.experiments if e.name == "combinations")
    trials = combinations.trials()
    assert experiment.rounds == len(trials)
    assert len({(t.name, t.num_layers, t.task) for t in trials}) == len(trials)
    for trial in trials:
        Seq2SeqTransformer(replace(LAB, num_layers=trial.num_layers, **trial.fields))
    (experiment,) = (e for e in catalogue.ALL.experiments if e.name == "parts")
    mixtures = combinations.mixtures()
    assert experiment.rounds == len(mixtures)
    for fields in mixtures.values():
        Seq2SeqTransformer(replace(LAB, **fields))


def test_a_part_is_tried_with_both_positions_depths_and_tasks(monkeypatch) -> None:
    tried = []
    monkeypatch.setattr(
        combinations.Trial, "train", lambda trial, *_: tried.append(trial) or (7, 1 - len(tried))
    )
    found = combinations.everywhere("ReLU", {"ffn": "relu"}, 0)
    assert found["sinusoidal 2 copy"] == 7 and found["least"] == -7
    assert len({(t.fields["positions"], t.num_layers, t.task) for t in tried}) == 8
    (table,) = (t for t in catalogue.ALL.tables if t.name == "steps_by_part")
    assert set(found) == set(table.columns)


def test_a_trial_says_at_which_look_its_target_was_reached(monkeypatch) -> None:
    monkeypatch.setattr(combinations, "BUDGETS", (24, 48))
    monkeypatch.setattr(combinations, "TARGET", 0.0)
    trial = combinations.Trial("learned", {}, 1, "copy")
    found = trial.run(0)
    assert found["steps"] == 1 and "at_48" not in found
    monkeypatch.setattr(combinations, "TARGET", 0.99)
    found = combinations.Trial("none", {"positions": "none"}, 1, "reverse").run(0)
    assert "steps" not in found and found["at_48"] < 0.99


def test_subjects_start_from_one_set_of_weights() -> None:
    subjects = Subjects(32, 8, 3)
    losses = [subjects.loss(name).item() for name in subjects.models]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert subjects.forced.decoder_inputs.shape == (3, 8)


def test_floor_runs_every_kernel_of_every_layer() -> None:
    def count(layers: int) -> int:
        config = ModelConfig(num_layers=layers)
        return len(kernels(config, 2, 3, 5, count_params(Seq2SeqTransformer(config))))

    assert count(3) - count(2) == count(2) - count(1) > 0
    for kernel in kernels(LAB, 2, 3, 5, 7):
        kernel()


class Answering(torch.nn.Module):
    """A model that answers every source with its reversal once it has taken enough steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        answers = [[i for i in row if i != PAD][::-1] + [EOS] for row in source.tolist()]
        logits = torch.zeros(*target.shape, 16)
        for row, answer in enumerate(answers if self.steps <= 0 else []):
            for column, token in enumerate(answer[: target.shape[1]]):
                logits[row, column, token] = 1.0
        return logits


@pytest.mark.parametrize(("needed", "steps", "reached"), [(7, 10, True), (31, 20, False)])
def test_race_ends_at_the_first_look_that_finds_the_target(
    needed: int, steps: int, reached: bool
) -> None:
    batches = training.drawn(20, 2, seed=0)
    (held_out,) = training.drawn(1, 23, seed=0, held_out=True)

    def loop(model: torch.nn.Module, given: Iterator[SequenceBatch]) -> None:
        for _ in given:
            model.steps -= 1

    ended = training.Race(Answering(needed), batches, held_out)
    ended.run(loop, lambda: None)
    assert (ended.steps, ended.reached) == (steps, reached)


def test_race_clock_stands_still_while_it_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(training.time, "perf_counter", lambda: now[0])

    def look(model: torch.nn.Module, held_out: SequenceBatch) -> bool:
        now[0] += 1000.0
        return False

    def loop(model: torch.nn.Module, given: Iterator[SequenceBatch]) -> None:
        for _ in given:
            now[0] += 3.0

    monkeypatch.setattr(training, "answered", look)
    batches = training.drawn(13, 2, seed=0)
    ended = training.Race(Answering(0), batches, batches[0])
    ended.run(loop, lambda: None)
    assert ended.seconds == 13 * 3.0


def test_races_take_turns_until_each_has_ended() -> None:
    seen: list[str] = []

    def race(name: str, length: int) -> Callable[[training.Rest], None]:
        def run(rest: training.Rest) -> None:
            for _ in range(length):
                seen.append(name)
                rest()

        return run

    training.in_turn([race("a", 3), race("b", 1), race("c", 2)])
    assert seen == ["a", "b", "c", "a", "c", "a"]


def test_race_that_fails_is_not_passed_over() -> None:
    def fails(rest: training.Rest) -> None:
        raise ValueError("no such thing here")

    with pytest.raises(ValueError, match="no such thing here"):
        training.in_turn([lambda rest: rest(), fails, lambda rest: rest()])
