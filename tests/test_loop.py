"""What the spy's events say about a training loop."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from grader.base.result import CheckFailed
from grader.parts import optimizers, training_loop
from grader.probes import loop, training

CLIP = 1e-3


def events(order: str, *, norm: float = 0.5, fresh: float = 0.5) -> list[dict[str, Any]]:
    """Write down steps: f forward, F in eval mode, b backward, c clip, s step, d draw."""
    step = {"fresh": fresh, "factor": norm / fresh if fresh else 0.0, "gap": 0.0, "rate": 0.1}
    details = {
        "f": {"what": "forward", "training": True, "with_gradients": True},
        "F": {"what": "forward", "training": False, "with_gradients": True},
        "b": {"what": "backward"},
        "c": {"what": "clip"},
        "s": {"what": "step"} | step,
        "d": {"what": "draw"},
    }
    return [{"norm": norm} | details[letter] for letter in order]


def seen(happened: list[dict[str, Any]], **changes: Any) -> training_loop.Seen:
    answer = {
        "events": happened,
        "inputs": [np.zeros((2, 3)), np.zeros((5, 3))],
        "losses": [2.0, 1.0],
        "kinds": ["number", "number"],
        "own_losses": [2.0, 1.0],
        "left_training": True,
    }
    return training_loop.read(answer | changes, (2, 5))


def code_of(judge: Any, *arguments: Any) -> str:
    with pytest.raises(CheckFailed) as failure:
        judge(*arguments)
    return failure.value.diagnosis.code


@pytest.mark.parametrize("order", ["dfbcsdfbcs", "ddfbsfbs"])
def test_right_orders_pass(order):
    training_loop.judge_order(seen(events(order)))


@pytest.mark.parametrize(
    ("order", "code"),
    [
        ("dd", "model_not_called"),
        ("dfdf", "no_backward"),
        ("dFbsdFbs", "not_in_train_mode"),
        ("dfbsdFbs", "not_in_train_mode"),
        ("dfbdfb", "no_step"),
        ("dfbsdfb", "fewer_steps_than_batches"),
        ("dfbssdfbs", "more_steps_than_batches"),
    ],
)
def test_wrong_orders_are_named(order, code):
    assert code_of(training_loop.judge_order, seen(events(order))) == code


def test_a_pass_for_looking_only_is_nobodys_business():
    happened = events("dfbsdfbs")
    happened.insert(4, {"what": "forward", "norm": 0.5, "training": False, "with_gradients": False})
    training_loop.judge_order(seen(happened))


def test_gradients_of_their_own_batch_pass():
    training_loop.judge_gradients(seen(events("dfbsdfbs")))


@pytest.mark.parametrize(("scale", "passes"), [(8.0, True), (1.0, False), (math.inf, False)])
def test_a_scaled_loss_may_be_undone_in_the_gradients(scale, passes):
    happened = [
        event | ({"factor": 0.125, "scale": scale} if event["what"] == "step" else {})
        for event in events("dfbsdfbs")
    ]
    if passes:
        training_loop.judge_gradients(seen(happened))
    else:
        assert code_of(training_loop.judge_gradients, seen(happened)) == "gradients_rescaled"


@pytest.mark.parametrize(
    ("taken", "passes"),
    [([52], True), ([51, 53], True), ([0], True), ([], True), ([104], False), ([26], False)],
)
def test_a_schedule_that_is_out_of_step_is_named(taken, passes):
    if passes:
        optimizers.judge_long_run(52, taken, True)
    else:
        assert code_of(optimizers.judge_long_run, 52, taken, True) == "schedule_out_of_step"


def test_a_longer_run_that_ends_in_eval_mode_is_named():
    assert code_of(optimizers.judge_long_run, 52, [], False) == "left_in_eval_mode"


def test_gradients_of_earlier_batches_are_named():
    happened = events("dfbsdfbs")
    happened[7]["gap"] = 0.2
    assert code_of(training_loop.judge_gradients, seen(happened)) == "gradients_accumulate"


def test_clipping_brings_the_norm_down():
    training_loop.judge_clipping(seen(events("dfbcsdfbcs", norm=CLIP)), CLIP)


@pytest.mark.parametrize(
    ("order", "later", "code"),
    [
        ("dfcbsdfcbs", 0.5, "clipped_before_backward"),
        ("dfbscdfbsc", CLIP, "clipped_after_step"),
        ("dfbsdfbs", 0.5, "not_clipped"),
    ],
)
def test_clipping_in_the_wrong_place_is_named(order, later, code):
    happened = events(order)
    happened[order.index("s") + 1]["norm"] = later
    assert code_of(training_loop.judge_clipping, seen(happened), CLIP) == code


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"losses": [2.0]}, "losses_incomplete"),
        ({"losses": None}, "losses_incomplete"),
        ({"kinds": ["graph", "number"]}, "losses_keep_history"),
        ({"kinds": ["str", "number"]}, "losses_not_numbers"),
        ({"losses": [2.0, 1.5]}, "losses_differ"),
        ({"left_training": False}, "left_in_eval_mode"),
    ],
)
def test_wrong_losses_are_named(changes, code):
    assert code_of(training_loop.judge_losses, seen(events("dfbsdfbs"), **changes)) == code


def test_batches_out_of_order_are_named():
    inputs = [np.zeros((5, 3)), np.zeros((2, 3))]
    assert code_of(training_loop.judge_count, seen(events("dfbsdfbs"), inputs=inputs)) == (
        "batches_not_in_order"
    )


@pytest.mark.parametrize(
    ("rows", "whole"),
    [
        ([2, 5, 3], True),
        ([2, 2, 5, 3, 3], True),
        ([1, 1, 2, 3, 2, 1], True),
        ([2, 2, 2, 1, 2, 1], True),
        ([2, 2, 2, 2, 1, 3, 3], True),
        ([2, 2, 2, 3], False),
        ([2, 5], False),
        ([2, 5, 3, 3, 5], False),
        ([5, 2, 3], False),
        ([2, 4, 3], False),
        ([2, 3, 3, 2], False),
        ([], False),
    ],
)
def test_batches_are_read_whole_and_in_order(rows, whole):
    assert training_loop.read_whole(rows, (2, 5, 3)) == whole


def test_a_rate_that_stays_at_its_start_is_named():
    assert (
        code_of(optimizers.judge_schedule, seen(events("dfbsdfbs")), 0.5) == "schedule_not_stepped"
    )
    optimizers.judge_schedule(seen(events("dfbsdfbs")), 0.1)


@pytest.mark.parametrize(
    ("times", "others", "code"),
    [
        ({"encoder.a": 0, "decoder.a": 1}, 0, "parameters_missing"),
        ({"encoder.a": 2, "decoder.a": 1}, 0, "parameter_held_twice"),
        ({"encoder.a": 1, "decoder.a": 1}, 3, "strange_parameters"),
    ],
)
def test_what_an_optimizer_holds_is_named(times, others, code):
    answer = {"times": times, "others": others}
    assert code_of(optimizers.judge_coverage, "a model", answer) == code


def test_missing_halves_are_called_by_their_name():
    every = ["encoder.a", "encoder.b", "decoder.a", "decoder.b.bias"]
    assert optimizers.missing_words(["encoder.a", "encoder.b"], every) == "all of encoder"
    assert optimizers.missing_words(["decoder.b.bias"], every) == "all biases"


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (([0.0], 0.0), ([0.0], 0.0), "learning_rate_zero"),
        (([math.nan], 0.0), ([math.nan], 0.0), "learning_rate_zero"),
        (([], 0.0), ([], 0.0), "learning_rate_zero"),
    ],
)
def test_a_rate_that_moves_nothing_is_named(first, second, code):
    assert code_of(optimizers.judge_rates, rates(*first), rates(*second)) == code


@pytest.mark.parametrize("named", [[0.1], []])
def test_a_rate_of_its_own_is_accepted_and_noted(named):
    assert optimizers.judge_rates(rates(named, 0.1), rates(named, 0.1)) is False


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (([0.2], 0.2), ([0.1], 0.1)),
        (([0.2], 0.0), ([0.1], 0.0)),  # a warm-up begins at 0
        (([], 0.2), ([], 0.1)),  # its rates are its own business
        (([1.0], 0.2), ([1.0], 0.1)),
    ],
)
def test_a_rate_may_be_kept_anywhere(first, second):
    assert optimizers.judge_rates(rates(*first), rates(*second)) is True


def rates(named: list[float], move: float) -> dict[str, Any]:
    return {"rates": named, "moved": {"a": 0.0, "b": move}}


RIGHT, TARGETS, SECOND = [[1, 5, 7], [1, 6, 0]], [[5, 7, 2], [6, 2, 0]], [[1, 8]] * 5


def judge_first_batch(read: list[list[int]], own: Any) -> None:
    """Judge two batches of which the first is read as `read`."""
    happened = events("dfbsdfbs")
    for number, event in enumerate(e for e in happened if e["what"] == "forward"):
        event["read"] = number
    watched = seen(happened, inputs=[np.array(read), np.array(SECOND)])
    answers = [[[5, 7], [6]], [[8]] * 5]
    training_loop.judge_reading(watched, [own, np.array(SECOND)], answers)


@pytest.mark.parametrize(
    ("read", "code"),
    [
        (TARGETS, "decoder_reads_targets"),
        ([[5, 7], [6, 0]], "decoder_reads_targets"),
        ([[6, 5, 7], [5, 6, 0]], None),  # most of it is right: noise
        ([[7, 7, 7], [7, 7, 0]], "decoder_reads_otherwise"),
        (RIGHT, None),
        ([[1, 5, 7, 0], [1, 6, 9, 0]], None),  # what stands on padding counts nowhere
        ([*RIGHT, [1, 1, 1]], None),  # in pieces
    ],
)
def test_what_the_decoder_reads_in_place_of_its_inputs_is_named(read, code):
    if code:
        assert code_of(judge_first_batch, read, np.array(RIGHT)) == code
    else:
        judge_first_batch(read, np.array(RIGHT))


def test_what_teacher_forcing_gives_is_judged_elsewhere():
    judge_first_batch(TARGETS, np.array(TARGETS))


@pytest.mark.parametrize(
    ("makers", "remember", "ended", "named"),
    [
        ((0, 1), (False, False), True, True),
        ((0, 0), (False, True), True, False),
        ((0, 1), (False, True), True, False),  # it is handed what the last one kept
        ((0, 1), (False, False), False, False),  # there is nothing to remember
    ],
)
def test_an_optimizer_that_is_new_at_every_step_is_named(makers, remember, ended, named):
    happened = [*events("dfbsdfbs"), {"what": "end", "norm": 0.0, "remembers": ended}]
    for step, by, known in zip(happened[3::4], makers, remember, strict=True):
        step |= {"by": by, "remembers": known}
    if named:
        assert code_of(optimizers.judge_memory, seen(happened)) == "optimizer_rebuilt"
    else:
        optimizers.judge_memory(seen(happened))


def spy_on_steps(*optimizers: Any) -> list[bool]:
    """Let each optimiser take one step under the spy; tell which remembered earlier ones."""
    spy = loop.Spy(model := optimizers[0][0])
    for _, optimizer in optimizers:
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        spy.step(optimizer)
        optimizer.step()
    return [step["remembers"] for step in spy.events]


def test_the_spy_sees_what_an_optimizer_remembers():
    model = torch.nn.Linear(2, 2)

    class Wrapped:
        """Holds an optimiser and, like one of one's own, has only a step."""

        def __init__(self) -> None:
            self.inner = torch.optim.AdamW(model.parameters())
            self.step = self.inner.step

    adam, plain, wrapped = (
        torch.optim.AdamW(model.parameters()),
        torch.optim.SGD(model.parameters(), lr=0.1),
        Wrapped(),
    )
    for optimizer, later in ((adam, True), (plain, False), (wrapped, True)):
        assert spy_on_steps((model, optimizer), (model, optimizer)) == [False, later]


def long_run(*steps: tuple[int, bool], like: str = "AdamW") -> list[dict[str, Any]]:
    return [{"by": by, "like": like, "remembers": known} for by, known in steps]


@pytest.mark.parametrize(
    ("steps", "named"),
    [
        ([(0, False), (0, True), (0, True)], False),
        ([(0, False), (0, True), (1, False), (1, True)], True),  # a new one
        ([(0, False), (0, True), (0, False), (0, True)], True),  # the same one, emptied
        ([(0, False), (1, False), (0, True), (1, True)], False),  # two in turn
        ([(0, False), (0, False), (1, False)], False),  # they remember nothing anyway
    ],
)
def test_an_optimizer_that_forgets_in_a_longer_run_is_named(steps, named):
    if named:
        assert code_of(optimizers.judge_long_memory, long_run(*steps)) == "optimizer_rebuilt"
    else:
        optimizers.judge_long_memory(long_run(*steps))


def test_a_second_optimizer_of_another_make_may_begin_anew():
    first, second = long_run((0, False), (0, True)), long_run((1, False), (1, True), like="SGD")
    optimizers.judge_long_memory(first + second)


@pytest.mark.parametrize("step", [{}, {"by": 0}, {"by": "0", "like": "AdamW", "remembers": True}])
def test_a_longer_run_that_says_nothing_is_judged_elsewhere(step):
    optimizers.judge_long_memory([step])


def test_handing_over_the_values_leaves_no_trace(monkeypatch):
    monkeypatch.setattr(training, "attribute", lambda name: SimpleNamespace)
    model = torch.nn.BatchNorm1d(2).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    wire = Wire(3)
    assert len(list(training.Batches(wire, model, [1, 3]))) == 3
    assert [set(message) - {"draw"} for message in wire.messages] == [
        set(), {"parameters", "buffers"}, set(), {"parameters", "buffers"},
    ]  # fmt: skip
    assert set(wire.messages[1]["parameters"]) == {"weight", "bias"}
    assert model.training and torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_model_that_cannot_tell_its_values_is_not_looked_at(monkeypatch):
    monkeypatch.setattr(training, "attribute", lambda name: SimpleNamespace)
    model = torch.nn.Identity()
    model.named_parameters = None
    wire = Wire(2)
    assert len(list(training.Batches(wire, model, [1]))) == 2
    assert wire.messages == [{"draw": 0}, {"draw": 1}, {"draw": 2}]


class Wire:
    """A channel on which the referee answers every draw."""

    def __init__(self, batches: int) -> None:
        self.messages: list[Any] = []
        self.taken = 0
        self.batches = batches

    def send(self, message):
        self.messages.append(message)

    def receive(self, max_payload):
        self.taken += 1
        assert self.taken == len(self.messages), "it would wait for ever"
        if self.taken > self.batches:
            return {"end": True}
        return {"source": np.ones((1, 2), dtype=np.int64), "answers": [[3]]}


@pytest.mark.parametrize("drawn", [0, 1, 3, 4])
def test_nothing_is_left_on_the_wire_however_many_batches_a_loop_draws(monkeypatch, drawn):
    monkeypatch.setattr(training, "attribute", lambda name: SimpleNamespace)
    wire = Wire(3)
    batches = training.Batches(wire, torch.nn.Identity(), [])
    assert len(list(itertools.islice(batches, drawn))) == min(drawn, 3)
    assert wire.taken == len(wire.messages)
    # After the end nothing is asked for any more.
    rest = list(batches)
    assert len(rest) == 3 - min(drawn, 3) and list(batches) == [] and wire.taken == 4
