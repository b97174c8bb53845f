"""What to say of slips that only the checks of blocks and stacks can tell (see causes.py)."""

from __future__ import annotations

from grader import causes
from grader.parts import Causes

_MEMORY = "Look at what each block is handed as its memory."

MEMORY: Causes = {
    "memory_is_target": ("every block reads the decoder's own input, the target, as the memory.",
                         _MEMORY),
    "memory_is_stream": ("every block reads its own input as the memory.", _MEMORY),
    **causes.MEMORY,
}  # fmt: skip


def in_branches(*branches: str) -> Causes:
    """Return the slips of these residual branches, those of a block's own wiring among them."""
    later = {
        f"reads_block_input:{branch}": (
            f"in {branch}, the sub-layer reads the block's input, not what the branch hands it.",
            "Look at the argument of the function that the branch is given.",
        )
        for branch in branches[1:]
    }
    return causes.in_branches(*branches) | later
