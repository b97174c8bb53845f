"""Tables that are computed rather than learned (given)."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn


class ComputedTables(nn.Module):
    """A module with tables that follow it to other devices and types but are never saved.

    They hold the right numbers wherever the module comes from: built on the meta device, which
    holds no numbers, or moved by to_empty, which leaves unfilled whatever it moves.
    """

    def compute_tables(self) -> dict[str, Tensor]:
        """Compute every table, by name."""
        raise NotImplementedError

    def register_tables(self) -> None:
        """Make a buffer of every table; the last line of a constructor."""
        tables = self.compute_tables()
        if any(table.is_meta for table in tables.values()):
            with torch.device("cpu"):
                tables = self.compute_tables()
        for name, table in tables.items():
            self.register_buffer(name, table, persistent=False)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        for name, table in self.compute_tables().items():
            moved = getattr(self, name)
            setattr(self, name, table.to(moved.device, moved.dtype))
        return self
