"""Confines a worker to the files of its submission; imports `base` only.

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
