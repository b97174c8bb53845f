"""A spy on the student's training loop, for task 6.4 (see toolkit.py).

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

from grader.probes.toolkit import Session, attribute, probe, to_array
from grader.probes.training import attribute_recipe

WIDTH = 5


def spied_model(kind: str, config: dict[str, Any]) -> nn.Module:
    """Return a small model that looks like the student's but needs none of tasks 1 to 5."""
    name = "Seq2SeqTransformer" if kind == "seq2seq" else "DecoderOnlyTransformer"
    base: Any = attribute(f"models.{name}")

    class Small(base):  # type: ignore[misc]
        """Reads the last token and, where there is a source, the mean of its tokens."""

        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.config = attribute("config.ModelConfig")(**config)
            size = self.config.vocab_size
            self.source = nn.Embedding(size, WIDTH) if kind == "seq2seq" else None
            self.target = nn.Embedding(size, WIDTH)
            self.output = nn.Linear(WIDTH, size)

        def encode(self, source: Tensor, *_: Any, **__: Any) -> Tensor:
            """Return the memory."""
            assert self.source is not None
            return self.source(source)  # type: ignore[no-any-return]

        def decode(self, target: Tensor, memory: Tensor | None, *_: Any, **__: Any) -> Tensor:
            """Return logits."""
            x = self.target(target)
            x = x if memory is None else x + memory.mean(dim=1, keepdim=True)
            return self.output(x)  # type: ignore[no-any-return]

        def forward(self, *ids: Tensor, **__: Any) -> Tensor:
            """Return logits of (source, target) or of tokens alone."""
            memory = self.encode(ids[0]) if self.source is not None else None
            return self.decode(ids[0] if memory is None else ids[1], memory)

    torch.default_generator.manual_seed(0)  # see modules.build
    return Small()


def tensors_in(value: Any, depth: int = 6) -> Iterator[Tensor]:
    """Yield the tensors in an optimiser, in the optimisers that it wraps, and in containers."""
    if isinstance(value, Tensor):
        yield value
    elif depth:
        if hasattr(value, "step"):
            value = getattr(value, "__dict__", {})
        inner = value.values() if isinstance(value, dict) else value
        if isinstance(value, (dict, list, tuple)):
            for item in inner:
                yield from tensors_in(item, depth - 1)


def remembers(optimizer: Any, model: nn.Module) -> bool:
    """Tell whether an optimiser holds numbers other than 0 besides the model's parameters."""
    own = {id(p) for p in model.parameters()}
    return any(id(v) not in own and bool(v.any()) for v in tensors_in(optimizer))


def norm_of(values: list[Tensor]) -> float:
    """Return the norm of all values together."""
    if not values:
        return 0.0
    return float(torch.cat([v.detach().reshape(-1).double() for v in values]).norm())


def is_cleared(parameter: Tensor) -> bool:
    """Tell whether a parameter holds no gradient."""
    return parameter.grad is None or not parameter.grad.any()


def scale_of(sent: list[tuple[Tensor, Tensor]], batch: Any) -> float:
    """Return the factor between the loss of a step's backward passes and the mean loss of `batch`.

    Each pass is given as its logits and their gradient. A loop may sum or scale the loss and divide
    the gradients later. Returns 1 for any other loss.
    """
    total, row = 0.0, 0
    try:
        targets = forced(batch)[1]
        for logits, came in sent:
            own = logits.clone().requires_grad_()
            with torch.enable_grad():
                rows = targets[row : row + len(own)]
                loss = attribute("training.masked_cross_entropy")(own, rows)
            (right,) = torch.autograd.grad(loss, own)
            ratio = float((came * right).sum() / (right * right).sum())
            if norm_of([came - ratio * right]) > 1e-3 * norm_of([came]):
                return 1.0
            total, row = total + ratio, row + len(own)
    except Exception:  # the student's own functions are judged elsewhere
        return 1.0
    return total if math.isfinite(total) else 1.0


def settings_of(optimizer: Any) -> str:
    """Return the class of an optimiser and its default options, as text."""
    made_with = getattr(optimizer, "defaults", None)
    return f"{type(optimizer).__name__} {made_with if isinstance(made_with, dict) else ''}"[:1000]


def kind_of(value: Any) -> str:
    """Return "number", "tensor", or "graph" for a tensor that keeps its history."""
    if isinstance(value, Tensor):
        return "graph" if value.requires_grad else "tensor"
    return "number" if isinstance(value, (int, float)) else type(value).__name__[:100]


def number_of(value: Any) -> float:
    """Return the value as a number, NaN when it is none."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return math.nan


def forced(batch: Any) -> Any:
    """Return the student's decoder inputs and targets of a batch."""
    return attribute("training.teacher_forcing")(batch.answers)


def own_losses(passes: list[Tensor], read: list[Tensor], batches: list[Any]) -> list[float]:
    """Return the student's loss of every batch, NaN where it has none.

    Which pass was which batch is known only where each was read once and at once; `read` are the
    decoder inputs of the passes, by which rows in another order are told.
    """
    found = [math.nan] * len(batches)
    if len(passes) != len(batches):
        return found
    for number, (logits, ids, batch) in enumerate(zip(passes, read, batches, strict=True)):
        with contextlib.suppress(Exception):  # the student's own functions are judged elsewhere
            inputs, targets = forced(batch)
            rows = inputs.tolist()
            if sorted(ids.tolist()) == sorted(rows):
                targets = targets[[rows.index(row) for row in ids.tolist()]]
            loss = attribute("training.masked_cross_entropy")(logits.float(), targets)
            found[number] = float(loss)
    return found


def own_inputs(batches: list[Any]) -> list[Any]:
    """Return the student's decoder inputs of every batch, None where there are none."""
    found: list[Any] = [None] * len(batches)
    for number, batch in enumerate(batches):
        with contextlib.suppress(Exception):  # judged elsewhere
            found[number] = to_array(forced(batch)[0])
    return found


class Spy:
    """Records what happens, in order, as plain events."""

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

    def note(self, what: str, **details: Any) -> None:
        """Record an event, with the norm of all gradients that are held at this moment."""
        held = [p.grad for p in self.model.parameters() if p.grad is not None]
        self.events.append({"what": what, "norm": norm_of(held)} | details)

    def read(self, _model: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """Record a pass of the output layer, which every use of the model needs."""
        self.logits.append(output.detach().clone())
        training = all(m.training for m in self.model.modules())
        recorded = bool(output.requires_grad)
        self.note("forward", training=training, with_gradients=recorded, read=len(self.inputs) - 1)
        if output.requires_grad:
            output.register_hook(partial(self.sent_back, len(self.logits) - 1))

    def sent_back(self, number: int, value: Tensor) -> None:
        """Record the gradient that reached the logits of a pass."""
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
        """Add up the gradients of one backward pass, which may come before any forward pass.

        If the gradients of a whole batch were cleared, another pass replaces them.
        """
        if not self.fresh:
            self.note("backward")
        whole = bool(self.logits) and len(self.logits[-1]) == len(self.batch.answers)
        again = whole and is_cleared(self.model.get_parameter(name))
        held = None if again else self.fresh.get(name)
        self.fresh[name] = value.detach().clone() if held is None else held + value.detach()

    def learned(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return logits and decoder inputs of the passes that had gradients."""
        read = [event["read"] for event in self.events if event["what"] == "forward"]
        passes = sorted(self.taught)
        return [self.logits[i] for i in passes], [self.inputs[read[i]] for i in passes]

    def step(self, optimizer: Any) -> None:
        """Record the gradients that the optimiser is about to use."""
        held = {n: p.grad for n, p in self.model.named_parameters() if p.grad is not None}
        fresh = norm_of([*self.fresh.values()])
        inner = sum(float((g * self.fresh[n]).sum()) for n, g in held.items() if n in self.fresh)
        factor = inner / fresh**2 if fresh else 0.0
        others = [g - factor * self.fresh.get(n, torch.zeros_like(g)) for n, g in held.items()]
        groups = getattr(optimizer, "param_groups", None) or []
        rates = [float(group.get("lr", math.nan)) for group in groups]
        self.note(
            "step",
            fresh=fresh,
            factor=factor,
            gap=norm_of(others),
            rate=max(rates, default=math.nan),
            scale=scale_of(self.sent, self.batch),
            by=self.number_of(optimizer),
            like=settings_of(optimizer),
            remembers=remembers(optimizer, self.model),
        )
        self.fresh, self.sent = {}, []

    def number_of(self, optimizer: Any) -> int:
        """Return the number of this optimiser; all are kept, so that no id is used twice."""
        if not any(known is optimizer for known in self.stepped):
            self.stepped.append(optimizer)
        return next(n for n, known in enumerate(self.stepped) if known is optimizer)


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
    """Record clipping, steps of an optimiser that is not torch's, and the schedule."""
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

    changes: list[tuple[Any, str, Any]] = [
        (loop, "make_optimizer", make),
        (nn.utils, "clip_grad_norm_", clipped),
        *((loop, name, clipped) for name, value in vars(loop).items() if value is clip),
    ]
    if given is not None:
        changes.append((loop, "make_scheduler", schedule))
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


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

    An iterator that can be used once gives out `supply` of the batches. Returns the events, the
    losses in order, what kind each of them is, the student's own loss of every
    forward pass, the student's own decoder inputs, the mode that the model was left in, and how
    many steps each given schedule has taken.
    """
    spy = Spy(spied_model(kind, config).eval(), batches[:supply])
    loop = attribute("training")

    def given() -> Iterator[Any]:
        for number, batch in enumerate(batches[:supply]):
            spy.note("draw", batch=number)
            yield batch

    with spying(spy), overheard(spy, loop):
        returned = loop.train(spy.model, given(), attribute_recipe(recipe))
    spy.note("end", remembers=any(remembers(optimizer, spy.model) for optimizer in spy.stepped))
    losses = returned if isinstance(returned, (list, tuple)) else None
    return {
        "events": spy.events,
        "losses": None if losses is None else [number_of(v) for v in losses],
        "kinds": [kind_of(v) for v in losses or []],
        "own_losses": own_losses(*spy.learned(), batches[:supply]),
        "inputs": [to_array(ids) for ids in spy.inputs],
        "own_inputs": own_inputs(batches[:supply]),
        "left_training": spy.model.training,
        "schedules": [getattr(made, "last_epoch", None) for made in spy.schedules],
    }
