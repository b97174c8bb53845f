"""Questions that only the checks of parts ask (see probes.py)."""

from __future__ import annotations

from typing import Any

from torch import nn

from grader.probes import Session, probe


@probe
def dropout(session: Session, save: str, rate: float) -> None:
    """Save an active dropout layer; with a rate of 1 it answers 0 and nothing is random."""
    session.handles[save] = nn.Dropout(rate).train()


@probe
def fields(session: Session, handle: str, names: list[str]) -> dict[str, Any]:
    """Return the named attributes of a saved object, None for one that it has not."""
    value = session.get(handle)
    return {"values": [getattr(value, name, None) for name in names]}


@probe
def parameters(session: Session, handle: str) -> dict[str, Any]:
    """Return the parameters of a saved module by name."""
    return {"parameters": dict(session.get(handle).named_parameters())}
