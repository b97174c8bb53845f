"""Questions about gradients, for gate 3 (see toolkit.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from grader.probes.modules import logits_in
from grader.probes.toolkit import Session, attribute, default_dtype, probe, to_array

MISSING = -1.0
# Between these, the squares of a gradient can be added up in float32 as well.
SMALL, LARGE = 1e-15, 1e15


@probe
def gradients(
    session: Session,
    model: str,
    calls: list[dict[str, Any]],
    mode: str = "eval",
    dtype: str = "float64",
) -> dict[str, Any]:
    """Run the student's loss backward on each of `calls`.

    Returns the names and sizes of the P trainable parameters, the names of the frozen ones, the C
    losses, and the norm of every gradient (C, P): -1 for no gradient, NaN for one that is not
    finite.
    """
    module = session.get(model)
    module.train(mode == "train")
    trainable = {n: p for n, p in module.named_parameters() if p.requires_grad}
    frozen = [n for n, _ in module.named_parameters() if n not in trainable]
    losses, norms = [], []
    with default_dtype(dtype):
        for one in calls:
            losses.append(backward(module, one))
            norms.append(norms_of(list(trainable.values())))
    return {
        "names": list(trainable),
        "sizes": np.array([p.numel() for p in trainable.values()]),
        "frozen": frozen,
        "losses": np.array(losses),
        "norms": np.array(norms).reshape(len(calls), len(trainable)),
    }


@probe
def losses_along(
    session: Session,
    model: str,
    call: dict[str, Any],
    step: float,
    moves: list[dict[str, Any]],
    mode: str,
    dtype: str,
) -> dict[str, Any]:
    """Move the parameters by `step` in both directions, and return the losses there.

    Args:
        session: Holds the model.
        model: Its handle.
        call: Arguments and targets of the loss.
        step: Length of the whole move.
        moves: In each, `along` (K,) holds the numbers that directions are made of, or None for
            the own gradient of each of the P parameters; `signs` (R, N) of 1 and -1 holds the
            sign of each parameter in R moves of all together, or None for P moves of one
            parameter each.
        mode: "eval" or "train".
        dtype: The model's.

    Returns:
        The gradients' norms (P,), and for each of `moves` the gradients' products with the
        directions (P,) and the losses ahead and behind, (R,) or (P,).
    """
    module = session.get(model)
    module.train(mode == "train")
    parameters = [p for p in module.parameters() if p.requires_grad]
    with default_dtype(dtype):
        backward(module, call)
        norms = np.array(norms_of(parameters))
        kept = [p.detach().clone() for p in parameters]
        found: dict[str, list[np.ndarray]] = {"products": [], "ahead": [], "behind": []}
        for move in moves:
            units, products = directions(parameters, norms, move["along"])
            found["products"].append(products)
            # A gradient of 0 has no direction, but along a drawn one it can be wrong as well.
            moved = norms > 0 if move["along"] is None else norms >= 0
            ways = ways_of(move["signs"], moved)
            for name, side in (("ahead", step), ("behind", -step)):
                losses = [_loss_at(module, call, parameters, kept, units, way * side)
                          for way in ways]  # fmt: skip
                found[name].append(np.array(losses))
    return {"norms": norms} | found


def directions(
    parameters: list[nn.Parameter], norms: np.ndarray, along: Tensor | None
) -> tuple[list[Tensor], np.ndarray]:
    """Return a direction of length 1 for each parameter, and its gradient's product with it (P,).

    Each drawn direction continues in `along` where the last one ended.
    """
    if along is None:
        pairs = zip(parameters, norms, strict=True)
        return [p.grad / n if n > 0 else p for p, n in pairs], np.maximum(norms, 0.0)
    units, products, start = [], [], 0
    for parameter in parameters:
        place = torch.arange(start, start + parameter.numel()) % len(along)
        unit = along[place].reshape(parameter.shape).to(parameter.dtype)
        units.append(unit / unit.norm().clamp(min=SMALL))
        gradient = parameter.grad
        products.append(0.0 if gradient is None else float((gradient * units[-1]).sum()))
        start += parameter.numel()
    return units, np.array(products)


def ways_of(signs: Tensor | None, moved: np.ndarray) -> np.ndarray:
    """Return how far each parameter moves in each move, (R, P): every move has length 1."""
    ways = np.eye(len(moved)) if signs is None else to_array(signs)
    ways = np.resize(ways, (len(ways), len(moved))) * moved
    return np.asarray(ways / np.maximum(1.0, np.sqrt(np.square(ways).sum(axis=1, keepdims=True))))


def _loss_at(
    module: nn.Module,
    call: dict[str, Any],
    parameters: list[nn.Parameter],
    kept: list[Tensor],
    units: list[Tensor],
    way: np.ndarray,
) -> float:
    """Return the loss after a move, and move back."""
    moved = np.flatnonzero(way)
    with torch.no_grad():
        for i in moved:
            parameters[i].copy_(kept[i] + units[i] * way[i])
        loss = float(loss_of(module, call))
        for i in moved:
            parameters[i].copy_(kept[i])
    return loss


def loss_of(module: nn.Module, call: dict[str, Any]) -> Tensor:
    """Return the student's loss of one call; `logit_factor` multiplies its logits."""
    logits = logits_in(module(*call["args"])) * call.get("logit_factor", 1.0)
    loss: Tensor = attribute("training.masked_cross_entropy")(logits, call["targets"], pad_id=0)
    return loss


def backward(module: nn.Module, call: dict[str, Any]) -> float:
    """Compute the gradients of one call, keep them in the parameters, and return the loss."""
    for parameter in module.parameters():
        parameter.grad = None
    loss = loss_of(module, call)
    if loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())


def norms_of(parameters: list[nn.Parameter]) -> list[float]:
    """Return the norm of every gradient, 0 only for one that is 0 everywhere."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    quick = iter(torch.stack(torch._foreach_norm(gradients)).tolist() if gradients else [])
    norms = []
    for parameter in parameters:
        norm = MISSING if parameter.grad is None else float(next(quick))
        if parameter.grad is not None and not SMALL < norm < LARGE:
            norm = norm_of(parameter.grad)
        norms.append(norm)
    return norms


def norm_of(gradient: Tensor) -> float:
    """Return the norm of a gradient whose squares may be too small or too large to add up."""
    values = np.abs(to_array(gradient).astype(np.float64))
    largest = float(values.max(initial=0.0))
    if largest == 0.0:
        return 0.0
    return largest * float(np.sqrt(np.square(values / largest).sum()))  # NaN stays NaN
