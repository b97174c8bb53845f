"""A spy on the student's training loop, for task 6.4 (see probes.py).

It watches what the loop does to a small model: which batch it reads and in which mode, when the
gradients come, and what they are when the optimiser steps. It requires no particular call.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import optimizer as torch_optimizer

from grader.probes import Session, attribute, probe, to_array
from grader.probes_spied import kind_of, norm_of, number_of, settings_of, spied_model, tensors_in
from grader.probes_training import attribute_recipe


class Spy:
    """Writes down what happens, in order, as plain events."""

    def __init__(self, model: nn.Module) -> None:
        """Watch `model`."""
        self.model = model
        self.events: list[dict[str, Any]] = []
        self.fresh: dict[str, Tensor] = {}
        self.logits: list[Tensor] = []
        self.inputs: list[Tensor] = []
        self.stepped: list[Any] = []
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
        self.note(
            "forward",
            training=all(m.training for m in self.model.modules()),
            with_gradients=bool(output.requires_grad),
            read=len(self.inputs) - 1,
        )

    def tokens(self, _model: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Keep the decoder inputs that the model is given."""
        self.inputs.append(inputs[0].detach().clone())

    def gradient(self, name: str, value: Tensor) -> None:
        """Add up what one backward pass sends, before it meets what is held already."""
        if not self.fresh:
            self.note("backward")
        held = self.fresh.get(name)
        self.fresh[name] = value.detach().clone() if held is None else held + value.detach()

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
                  by=self.number_of(optimizer), remembers=self.remembers(optimizer))  # fmt: skip
        self.fresh = {}

    def number_of(self, optimizer: Any) -> int:
        """Return which of the optimisers seen so far this is; all are kept, so none is mistaken."""
        for number, known in enumerate(self.stepped):
            if known is optimizer:
                return number
        self.stepped.append(optimizer)
        return len(self.stepped) - 1

    def remembers(self, optimizer: Any) -> bool:
        """Tell whether an optimiser holds numbers other than 0 besides the parameters."""
        own = {id(p) for p in self.model.parameters()}
        return any(id(v) not in own and bool(v.any()) for v in tensors_in(optimizer))


@contextlib.contextmanager
def spying(spy: Spy) -> Iterator[None]:
    """Attach the spy to its model and to every optimiser of torch."""
    model: Any = spy.model

    def stepped(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if spy.inside is None:  # else it is the inner part of a step that was noted
            spy.step(optimizer)

    removable = [
        model.output.register_forward_hook(spy.read),
        model.target.register_forward_pre_hook(spy.tokens),
        torch_optimizer.register_optimizer_step_pre_hook(stepped),
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
    """Hear of clipping, and of the steps of an optimiser that is not torch's."""
    made_by, clip = loop.make_optimizer, nn.utils.clip_grad_norm_

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

    def clipped(*args: Any, **kwargs: Any) -> Any:
        spy.note("clip")
        return clip(*args, **kwargs)

    names = [name for name, value in vars(loop).items() if value is clip]
    loop.make_optimizer = make
    nn.utils.clip_grad_norm_ = clipped
    for name in names:
        setattr(loop, name, clipped)
    try:
        yield
    finally:
        loop.make_optimizer = made_by
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
    spy = Spy(spied_model(kind, config).eval())
    loop = attribute("training")

    def given() -> Iterator[Any]:
        for number, batch in enumerate(batches[:supply]):
            spy.draw(number)
            yield batch

    with spying(spy), overheard(spy, loop):
        losses = loop.train(spy.model, given(), attribute_recipe(recipe))
    spy.note("end", remembers=any(spy.remembers(optimizer) for optimizer in spy.stepped))
    return {
        "events": spy.events,
        "losses": [number_of(v) for v in losses] if isinstance(losses, (list, tuple)) else None,
        "kinds": [kind_of(v) for v in losses] if isinstance(losses, (list, tuple)) else [],
        "own_losses": own_losses(spy, batches[:supply]),
        "inputs": [to_array(ids) for ids in spy.inputs],
        "own_inputs": own_inputs(batches[:supply]),
        "left_training": spy.model.training,
    }


def own_losses(spy: Spy, batches: list[Any]) -> list[float]:
    """Return the student's loss of every batch, NaN where it has none.

    Which pass was which batch is known only where each was read once and at once.
    """
    found = []
    if len(spy.logits) != len(batches):
        return [math.nan] * len(batches)
    for logits, batch in zip(spy.logits, batches, strict=False):
        try:
            targets = attribute("training.teacher_forcing")(batch.answers)[1]
            loss = attribute("training.masked_cross_entropy")(logits, targets)
            found.append(float(loss))
        except Exception:  # the student's own functions are judged elsewhere
            found.append(math.nan)
    return found


def own_inputs(batches: list[Any]) -> list[Any]:
    """Return the student's decoder inputs of every batch, None where there are none."""
    found: list[Any] = []
    for batch in batches:
        try:
            found.append(to_array(attribute("training.teacher_forcing")(batch.answers)[0]))
        except Exception:  # judged elsewhere
            found.append(None)
    return found


class MemorySpy(Spy):
    """Writes down of each step only which optimiser takes it and whether it remembers any."""

    def note(self, what: str, **details: Any) -> None:
        """Write nothing down: there are many steps."""

    def step(self, optimizer: Any) -> None:
        """Note what takes a step."""
        self.events.append({
            "by": self.number_of(optimizer),
            "like": settings_of(optimizer),
            "remembers": self.remembers(optimizer),
        })  # fmt: skip


@probe
def watch_memory(
    session: Session, config: dict[str, Any], recipe: dict[str, Any], batches: list[Any]
) -> dict[str, Any]:
    """Run the student's `train` over many small batches, and tell what each step remembers."""
    spy = MemorySpy(spied_model("decoder_only", config))
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
    return {"steps": spy.events}
