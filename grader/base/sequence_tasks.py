"""What the lab's model can be taught: from a row of ids to its answer.

To add a task, add its function to `TASKS` and name it in lab.toml, `[data] task`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Row = Sequence[int]


def copy(row: Row) -> list[int]:
    """Return the row."""
    return list(row)


def reverse(row: Row) -> list[int]:
    """Return the row from its end to its start."""
    return list(row[::-1])


TASKS: dict[str, Callable[[Row], list[int]]] = {task.__name__: task for task in (copy, reverse)}
