"""Questions about gradients, for gate 3 (see probes.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from grader.probes import Session, attribute, default_dtype, logits_in, probe, to_array

MISSING = -1.0


@probe
def gradients(
    session: Session,
    model: str,
    calls: list[dict[str, Any]],
    mode: str = "eval",
    dtype: str = "float64",
) -> dict[str, Any]:
    """Run the student's loss backward on each of `calls`.

    Returns the names of the P trainable parameters and of the frozen ones, the C losses, and the
    norm of every gradient (C, P): -1 for no gradient, NaN for one that is not finite.
    """
    module = session.get(model)
    module.train(mode == "train")
    trainable = {n: p for n, p in module.named_parameters() if p.requires_grad}
    frozen = [n for n, _ in module.named_parameters() if n not in trainable]
    losses, norms = [], []
    with default_dtype(dtype):
        for one in calls:
            losses.append(backward(module, one))
            norms.append([norm_of(p.grad) for p in trainable.values()])
    return {
        "names": list(trainable),
        "frozen": frozen,
        "losses": np.array(losses),
        "norms": np.array(norms).reshape(len(calls), len(trainable)),
    }


@probe
def directional_losses(
    session: Session, model: str, call: dict[str, Any], step: float, mode: str, dtype: str
) -> dict[str, Any]:
    """Move every parameter by `step` along its own gradient and back beyond, one at a time.

    Returns the gradients' norms and the losses after both moves, (P,) each; parameters whose
    gradient has no direction stay where they are.
    """
    module = session.get(model)
    module.train(mode == "train")
    with default_dtype(dtype):
        backward(module, call)
        grads = [p.grad for p in module.parameters() if p.requires_grad]
        norms = np.array([norm_of(grad) for grad in grads])
        ahead, behind = np.zeros(len(norms)), np.zeros(len(norms))
        with torch.no_grad():
            for i, parameter in enumerate(p for p in module.parameters() if p.requires_grad):
                kept, grad = parameter.clone(), grads[i]
                for losses, way in ((ahead, step), (behind, -step)):
                    if grad is not None and norms[i] > 0:
                        parameter.copy_(kept + grad * (way / norms[i]))
                    losses[i] = float(loss_of(module, call))
                parameter.copy_(kept)
    return {"norms": norms, "ahead": ahead, "behind": behind}


def loss_of(module: nn.Module, call: dict[str, Any]) -> Tensor:
    """Return the student's loss of one call; `logit_factor` makes its logits large."""
    logits = logits_in(module(*call["args"])) * call.get("logit_factor", 1.0)
    loss: Tensor = attribute("training.masked_cross_entropy")(logits, call["targets"], pad_id=0)
    return loss


def backward(module: nn.Module, call: dict[str, Any]) -> float:
    """Leave the gradients of one call in the parameters and return its loss."""
    for parameter in module.parameters():
        parameter.grad = None
    loss = loss_of(module, call)
    if loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())


def norm_of(gradient: Tensor | None) -> float:
    """Return the norm, 0 only for a gradient that is 0 everywhere."""
    if gradient is None:
        return MISSING
    values = np.abs(to_array(gradient).astype(np.float64))
    largest = float(values.max(initial=0.0))
    if largest == 0.0:
        return 0.0
    return largest * float(np.sqrt(np.square(values / largest).sum()))  # NaN stays NaN
