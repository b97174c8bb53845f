"""The place of a computation in the model: its weights, and the trace of the pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from grader.model.parameters import ProbeConfig

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Ids = NDArray[np.int64]


@dataclass
class Trace:
    """What happened in a forward pass, by module name and in order of execution.

    Attributes:
        activations: Output of every module that was run.
        scores: For each attention the scaled dot products, (B, H, T, S), before bias and mask.
        peak: Wanted largest |score| of every attention; None = leave the scores as they are.
        factors: For each attention what its scores were multiplied by to reach `peak`.
    """

    peak: float | None = None
    activations: dict[str, Array] = field(default_factory=dict)
    scores: dict[str, Array] = field(default_factory=dict)
    factors: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Scope:
    """One module of the model: the configuration, its weights, its name and the shared trace.

    `scope["q_proj.weight"]` is a weight of this module, `scope.child("self_attention")` a module
    inside it. Names are those of the model's state_dict.
    """

    config: ProbeConfig
    weights: Mapping[str, Array]
    name: str = ""
    trace: Trace = field(default_factory=Trace)

    def path(self, name: str) -> str:
        """Full name of a weight or module inside this one."""
        return f"{self.name}.{name}" if self.name else name

    def child(self, name: str) -> Scope:
        """Scope of the module `name` inside this one."""
        return Scope(self.config, self.weights, self.path(name), self.trace)

    def __getitem__(self, name: str) -> Array:
        """Weight `name` of this module in float64."""
        return np.asarray(self.weights[self.path(name)], dtype=np.float64)

    def __contains__(self, name: str) -> bool:
        """Whether this module has a weight `name`."""
        return self.path(name) in self.weights

    def record(self, output: Array) -> Array:
        """Record this module's output in the trace and return it."""
        self.trace.activations[self.name] = output
        return output
