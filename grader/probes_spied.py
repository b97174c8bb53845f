"""What the spies on the training loop share: a small model, and plain words for what is seen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from grader.probes import attribute, to_array

WIDTH = 5


def spied_model(kind: str, config: dict[str, Any]) -> nn.Module:
    """Return a small model that passes for the student's but needs none of tasks 1 to 5."""
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

    torch.default_generator.manual_seed(0)  # see probes_modules.build
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
    """Return how many times the mean loss of `batch` the passes of its step went back from.

    Each pass is given as its logits and their gradient. A loss may be summed or scaled, and the
    gradients divided again later. 1 is returned where the loss is another one.
    """
    total, row = 0.0, 0
    try:
        targets = attribute("training.teacher_forcing")(batch.answers)[1]
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
    """Return the class of an optimiser and what it was made with, as text."""
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


def own_losses(passes: list[Tensor], read: list[Tensor], batches: list[Any]) -> list[float]:
    """Return the student's loss of every batch, NaN where it has none.

    Which pass was which batch is known only where each was read once and at once; `read` are the
    decoder inputs of the passes, by which rows in another order are told.
    """
    found = []
    if len(passes) != len(batches):
        return [math.nan] * len(batches)
    for logits, ids, batch in zip(passes, read, batches, strict=False):
        try:
            inputs, targets = attribute("training.teacher_forcing")(batch.answers)
            rows = inputs.tolist()
            if sorted(ids.tolist()) == sorted(rows):
                targets = targets[[rows.index(row) for row in ids.tolist()]]
            loss = attribute("training.masked_cross_entropy")(logits.float(), targets)
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
