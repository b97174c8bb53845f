"""Keeps a submission away from everything but its own files.

The referee chooses (`choose`) and writes a `Plan`; the forked worker enters it (`enter`).
"""

from grader.sandbox.confine import LayerFailed, Plan, close_other_fds, enter
from grader.sandbox.isolation import LAYERS, Isolation, IsolationUnavailable, choose
from grader.sandbox.processes import become_subreaper, children_of, kill_tree, protect_memory

__all__ = [
    "LAYERS",
    "Isolation",
    "IsolationUnavailable",
    "LayerFailed",
    "Plan",
    "become_subreaper",
    "children_of",
    "choose",
    "close_other_fds",
    "enter",
    "kill_tree",
    "protect_memory",
]
