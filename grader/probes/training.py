"""Questions about training, for gate 4 and task 6 (see toolkit.py)."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from grader.link import frames
from grader.probes.toolkit import Refused, Session, attribute, default_dtype, encode, probe

MODEL = "models.Seq2SeqTransformer"
WARM_UP_STEPS = 3


class Batches(Iterator[Any]):
    """The iterator for `train`: each draw asks the referee, which counts and ends the supply."""

    def __init__(self, channel: frames.Channel, model: nn.Module, looks: Collection[int]) -> None:
        """Draw through `channel`; send the values of `model` at the steps in `looks`."""
        self.channel = channel
        self.model = model
        self.looks = looks
        self.drawn = 0
        self.exhausted = False

    def __next__(self) -> Any:
        """Return the next batch, until the referee gives no more."""
        if self.exhausted:
            raise StopIteration
        message: dict[str, Any] = {"draw": self.drawn}
        if self.drawn in self.looks:
            with contextlib.suppress(Exception):  # a model without readable values is skipped
                message |= encode(values_of(self.model))
        self.channel.send(message)
        reply = self.channel.receive(max_payload=1 << 24)
        self.exhausted = "source" not in reply
        if self.exhausted:
            raise StopIteration
        self.drawn += 1
        source = torch.from_numpy(reply["source"].copy())
        return attribute("data.SequenceBatch")(source=source, answers=reply["answers"])


@probe
def train(
    session: Session, config: dict[str, Any], recipe: dict[str, Any], seed: int, looks: list[int]
) -> dict[str, Any]:
    """Build the student's model from its own seeded start and train it with the student's loop.

    Returns what the loop returned, and the trained values by name.
    """
    model = make(config, seed, "float32")
    batches = Batches(session.channel, model, looks)
    losses = attribute("training.train")(model, batches, attribute_recipe(recipe))
    return {"losses": plain_numbers(losses)} | values_of(model)


def values_of(model: nn.Module) -> dict[str, dict[str, Tensor]]:
    """Return a model's parameters and buffers by name."""
    parameters = dict(model.named_parameters())
    buffers = {n: b for n, b in model.state_dict().items() if n not in parameters}
    return {"parameters": parameters, "buffers": buffers}


@probe
def restore(
    session: Session,
    save: str,
    config: dict[str, Any],
    seed: int,
    values: dict[str, Tensor],
    dtype: str = "float32",
) -> dict[str, Any]:
    """Build the model as `train` did, then write all `values` into it by name.

    Returns the parameters as they were before that.
    """
    model = make(config, seed, dtype)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    with torch.no_grad():
        for name, value in values.items():
            if name not in own or own[name].shape != value.shape:
                raise Refused("names_changed", f"a new model has no {name} of this shape")
            own[name].copy_(value)
    session.handles[save] = model
    return {"parameters": before}


def make(config: dict[str, Any], seed: int, dtype: str) -> nn.Module:
    """Return the student's model as its constructor makes it after this seed."""
    torch.manual_seed(seed)
    with default_dtype(dtype):
        model: nn.Module = attribute(MODEL)(attribute("config.ModelConfig")(**config))
    return model


def attribute_recipe(recipe: dict[str, Any]) -> Any:
    """Return the recipe; lists, which frames make of tuples, become tuples again."""
    fixed = {k: tuple(v) if isinstance(v, list) else v for k, v in recipe.items()}
    return attribute("config.TrainingRecipe")(**fixed)


def plain_numbers(losses: Any) -> Any:
    """Return a list of losses as plain numbers, whatever kind of numbers they are."""
    if isinstance(losses, (list, tuple)):
        return [float(v) if isinstance(v, Tensor) and v.numel() == 1 else v for v in losses]
    return encode(losses)


@probe
def yardstick(session: Session, sizes: dict[str, int], batch_size: int, steps: int) -> None:
    """Take training steps with torch's own transformer, before any of the tree is imported.

    Their time measures the speed of this machine at this moment.
    """
    model = nn.Transformer(
        sizes["d_model"], sizes["num_heads"], 1, 1, sizes["d_ff"], dropout=0.0,
        batch_first=True, norm_first=True,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    source = torch.randn(batch_size, sizes["length"], sizes["d_model"])
    for _ in range(steps):
        loss = model(source, source).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@probe
def teacher_forcing(
    session: Session, answers: list[list[int]], ids: dict[str, int]
) -> dict[str, Any]:
    """Call the student's `teacher_forcing`; say whether the caller's lists were changed."""
    given = copy.deepcopy(answers)
    value = attribute("training.teacher_forcing")(given, **ids)
    return {"value": value, "answers_changed": given != answers}


@probe
def optimizer(
    session: Session, config: dict[str, Any], target: str, recipe: dict[str, Any], save: str
) -> dict[str, Any]:
    """Make the student's optimiser for a model, and let it take a step along gradients of 1.

    The model is kept as `save`, as it was before the step, for the next optimiser.

    Returns how often it holds each of the model's trainable parameters by name, how many tensors
    it holds besides, the learning rates that it names, and the largest move of each parameter:
    an optimiser of one's own need not keep its parameters and rates where torch's do.
    """
    if save not in session.handles:
        torch.default_generator.manual_seed(0)  # see modules.build
        session.handles[save] = attribute(target)(attribute("config.ModelConfig")(**config))
    model = session.get(save)
    own = {name: p for name, p in model.named_parameters() if p.requires_grad}
    made = attribute("training.make_optimizer")(model, attribute_recipe(recipe))
    if not callable(getattr(made, "step", None)):
        raise Refused("no_optimizer", f"make_optimizer returned {type(made).__name__}")
    groups = getattr(made, "param_groups", None)
    groups = groups if isinstance(groups, list) else []
    rates = [group.get("initial_lr", group.get("lr", math.nan)) for group in groups]
    held = [id(p) for group in groups for p in group["params"]]
    moved = moves(made, own)
    if not groups:
        held = [id(p) for name, p in own.items() if moved.get(name)]
    return {
        # A parameter that make_optimizer has frozen gets no gradient, whichever group holds it.
        "times": {name: held.count(id(p)) * p.requires_grad for name, p in own.items()},
        "others": len(set(held) - {id(p) for p in model.parameters()}),
        "rates": [float(rate) for rate in rates],
        "moved": moved,
    }


def moves(optimizer: Any, parameters: dict[str, Any]) -> dict[str, float]:
    """Return how far one step moves each parameter, and undo it.

    Nothing is returned where a step needs more than gradients.
    """
    own = [p.detach() for p in parameters.values()]
    before = [p.clone() for p in own]
    for p in parameters.values():
        p.grad = torch.ones_like(p)
    try:
        optimizer.step()
    except TypeError:  # it wants a closure
        return {}
    far = torch._foreach_norm(torch._foreach_sub(own, before), torch.inf)
    torch._foreach_copy_(own, before)
    for p in parameters.values():
        p.grad = None
    return dict(zip(parameters, torch.stack(far).tolist(), strict=True))


@probe
def attention_weights(session: Session, model: str, args: list[Any]) -> dict[str, Any]:
    """Run the model and return the weights of every attention in the order of their calls."""
    module = attribute("attention")
    original = module.scaled_dot_product_attention
    weights: list[Any] = []

    def keep(*given: Any, **named: Any) -> Any:
        attended = original(*given, **named)
        weights.append(attended[1])
        return attended

    module.scaled_dot_product_attention = keep
    try:
        with torch.no_grad(), default_dtype("float32"):
            session.get(model).eval()(*args)
    finally:
        module.scaled_dot_product_attention = original
    return {"weights": weights}
