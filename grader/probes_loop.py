"""A spy on the student's training loop, for task 6.4 (see probes.py).

It watches what the loop does to a small model: which batch it reads and in which mode, when the
gradients come, and what they are when the optimiser steps. It requires no particular call.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import optimizer as torch_optimizer

from grader.probes import Session, attribute, probe, to_array
from grader.probes_spied import (
    is_cleared,
    kind_of,
    norm_of,
    number_of,
    own_inputs,
    own_losses,
    remembers,
    scale_of,
    settings_of,
    spied_model,
)
from grader.probes_training import attribute_recipe


class Spy:
    """Writes down what happens, in order, as plain events."""

    def __init__(self, model: nn.Module, batches: Sequence[Any] = ()) -> None:
        """Watch `model` on its way through `batches`."""
        self.model = model
        self.batches = batches
        self.events: list[dict[str, Any]] = []
        self.fresh: dict[str, Tensor] = {}
        self.sent: list[tuple[Tensor, Tensor]] = []
        self.logits: list[Tensor] = []
        self.taught: set[int] = set()
        self.inputs: list[Tensor] = []
        self.stepped: list[Any] = []
        self.schedules: list[Any] = []
        self.inside: Any = None

    def draw(self, number: int) -> None:
        """Note that a batch was drawn; gradients changed after the last step are seen here."""
        self.note("draw", batch=number)

    def note(self, what: str, **details: Any) -> None:
        """Write down an event, with the size of the gradients at this moment."""
        self.events.append({"what": what, "norm": self.norm()} | details)

    def norm(self) -> float:
        """Return the norm of all gradients that are held now."""
        return norm_of([p.grad for p in self.model.parameters() if p.grad is not None])

    def read(self, _model: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """Note a pass of the output layer, which every way through the model takes."""
        self.logits.append(output.detach().clone())
        training = all(m.training for m in self.model.modules())
        recorded = bool(output.requires_grad)
        self.note("forward", training=training, with_gradients=recorded, read=len(self.inputs) - 1)
        if output.requires_grad:
            output.register_hook(partial(self.sent_back, len(self.logits) - 1))

    def sent_back(self, number: int, value: Tensor) -> None:
        """Note the gradient that reached the logits of a pass."""
        self.sent.append((self.logits[number], value.detach()))
        self.taught.add(number)

    @property
    def batch(self) -> Any:
        """The batch whose step is still to come."""
        number = sum(event["what"] == "step" for event in self.events)
        return self.batches[min(number, len(self.batches) - 1)] if self.batches else None

    def tokens(self, _model: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Keep the decoder inputs that the model is given."""
        self.inputs.append(inputs[0].detach().clone())

    def gradient(self, name: str, value: Tensor) -> None:
        """Add up what one backward pass sends, maybe before anything was read.

        Where the gradients of a whole batch were cleared again, another pass takes their place.
        """
        if not self.fresh:
            self.note("backward")
        whole = bool(self.logits) and len(self.logits[-1]) == len(self.batch.answers)
        again = whole and is_cleared(self.model.get_parameter(name))
        held = None if again else self.fresh.get(name)
        self.fresh[name] = value.detach().clone() if held is None else held + value.detach()

    def learned(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return logits and decoder inputs of the passes that gradients came from."""
        read = [event["read"] for event in self.events if event["what"] == "forward"]
        passes = sorted(self.taught)
        return [self.logits[i] for i in passes], [self.inputs[read[i]] for i in passes]

    def step(self, optimizer: Any) -> None:
        """Note what the optimiser is about to use."""
        own = {name: p for name, p in self.model.named_parameters() if p.grad is not None}
        fresh = norm_of(list(self.fresh.values()))
        inner = sum(
            float((p.grad * self.fresh[name]).sum())
            for name, p in own.items()
            if p.grad is not None and name in self.fresh
        )
        factor = inner / fresh**2 if fresh else 0.0
        gap = norm_of([
            p.grad - factor * self.fresh.get(name, torch.zeros_like(p))
            for name, p in own.items() if p.grad is not None
        ])  # fmt: skip
        groups = getattr(optimizer, "param_groups", None) or []
        rates = [float(group.get("lr", math.nan)) for group in groups]
        self.note("step", fresh=fresh, factor=factor, gap=gap, rate=max(rates, default=math.nan),
                  scale=scale_of(self.sent, self.batch), by=self.number_of(optimizer),
                  remembers=remembers(optimizer, self.model))  # fmt: skip
        self.fresh, self.sent = {}, []

    def number_of(self, optimizer: Any) -> int:
        """Return which of the optimisers seen so far this is; all are kept, so none is mistaken."""
        for number, known in enumerate(self.stepped):
            if known is optimizer:
                return number
        self.stepped.append(optimizer)
        return len(self.stepped) - 1


@contextlib.contextmanager
def spying(spy: Spy) -> Iterator[None]:
    """Attach the spy to its model and to every optimiser of torch."""
    model: Any = spy.model

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> Any:
        if spy.inside is not None:  # it is the inner part of a step that was noted
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            spy.step(optimizer)
            return None

        def told() -> Any:  # the gradients are there once the closure has run
            loss = closure()
            spy.step(optimizer)
            return loss

        return (args[0], told), {}

    def came(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if "_told" not in vars(optimizer):  # the last hook to run sees what the others did
            optimizer._told = optimizer.register_step_pre_hook(stepped)

    removable = [
        model.output.register_forward_hook(spy.read),
        model.target.register_forward_pre_hook(spy.tokens),
        torch_optimizer.register_optimizer_step_pre_hook(came),
    ]
    for name, parameter in model.named_parameters():
        removable.append(
            parameter.register_hook(lambda value, name=name: spy.gradient(name, value))
        )
    try:
        yield
    finally:
        for hook in removable:
            hook.remove()


@contextlib.contextmanager
def overheard(spy: Spy, loop: Any) -> Iterator[None]:
    """Hear of clipping, of the steps of an optimiser that is not torch's, and of the schedule."""
    made_by, clip = loop.make_optimizer, nn.utils.clip_grad_norm_
    given: Any = getattr(loop, "make_scheduler", None)

    def make(*args: Any, **kwargs: Any) -> Any:
        made = made_by(*args, **kwargs)
        if not isinstance(made, torch.optim.Optimizer):
            step = made.step

            def told(*inner: Any, **options: Any) -> Any:
                spy.step(made)
                spy.inside = made
                try:
                    return step(*inner, **options)
                finally:
                    spy.inside = None

            made.step = told
        return made

    def schedule(*args: Any, **kwargs: Any) -> Any:
        spy.schedules.append(given(*args, **kwargs))
        return spy.schedules[-1]

    def clipped(*args: Any, **kwargs: Any) -> Any:
        spy.note("clip")
        return clip(*args, **kwargs)

    names = [name for name, value in vars(loop).items() if value is clip]
    loop.make_optimizer = make
    if given is not None:
        loop.make_scheduler = schedule
    nn.utils.clip_grad_norm_ = clipped
    for name in names:
        setattr(loop, name, clipped)
    try:
        yield
    finally:
        loop.make_optimizer = made_by
        if given is not None:
            loop.make_scheduler = given
        nn.utils.clip_grad_norm_ = clip
        for name in names:
            setattr(loop, name, clip)


@probe
def spy_on_training(
    session: Session,
    kind: str,
    config: dict[str, Any],
    recipe: dict[str, Any],
    batches: list[Any],
    supply: int,
) -> dict[str, Any]:
    """Run the student's `train` on a small model that starts in eval mode, and watch.

    `supply` of the batches are given out, by an iterator that can be walked once. Returns the
    events, the losses as they came, what kind each of them is, the student's own loss of every
    forward pass, the student's own decoder inputs, and the mode that the model was left in.
    """
    spy = Spy(spied_model(kind, config).eval(), batches[:supply])
    loop = attribute("training")

    def given() -> Iterator[Any]:
        for number, batch in enumerate(batches[:supply]):
            spy.draw(number)
            yield batch

    with spying(spy), overheard(spy, loop):
        losses = loop.train(spy.model, given(), attribute_recipe(recipe))
    spy.note("end", remembers=any(remembers(optimizer, spy.model) for optimizer in spy.stepped))
    return {
        "events": spy.events,
        "losses": [number_of(v) for v in losses] if isinstance(losses, (list, tuple)) else None,
        "kinds": [kind_of(v) for v in losses] if isinstance(losses, (list, tuple)) else [],
        "own_losses": own_losses(*spy.learned(), batches[:supply]),
        "inputs": [to_array(ids) for ids in spy.inputs],
        "own_inputs": own_inputs(batches[:supply]),
        "left_training": spy.model.training,
    }


class MemorySpy(Spy):
    """Writes down of each step only which optimiser takes it and whether it remembers any."""

    def note(self, what: str, **details: Any) -> None:
        """Write nothing down: there are many steps."""

    def step(self, optimizer: Any) -> None:
        """Note what takes a step."""
        self.events.append({
            "by": self.number_of(optimizer),
            "like": settings_of(optimizer),
            "remembers": remembers(optimizer, self.model),
        })  # fmt: skip


@probe
def watch_memory(
    session: Session, config: dict[str, Any], recipe: dict[str, Any], batches: list[Any]
) -> dict[str, Any]:
    """Run the student's `train` over many small batches, and tell what each step remembers.

    Of each given schedule that it made, it tells how many steps that has taken.
    """
    spy = MemorySpy(spied_model("decoder_only", config), batches)
    loop = attribute("training")

    def stepped(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if spy.inside is None:
            spy.step(optimizer)

    hook = torch_optimizer.register_optimizer_step_pre_hook(stepped)
    try:
        with overheard(spy, loop):
            loop.train(spy.model, iter(batches), attribute_recipe(recipe))
    finally:
        hook.remove()
    taken = [getattr(made, "last_epoch", None) for made in spy.schedules]
    return {"steps": spy.events, "schedules": taken, "left_training": spy.model.training}
