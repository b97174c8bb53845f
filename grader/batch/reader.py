"""From a submission as it was handed in to what is graded of it, without writing where it lies."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from grader import intake
from grader.collect import Collected, place
from grader.collect.gather import NO_ROOM
from grader.collect.model import one_line
from grader.intake import IntakeError, Staged
from grader.settings import Settings


@dataclass(frozen=True)
class Read:
    """What came of reading one submission.

    Attributes:
        staged: what is graded, or None.
        trouble: why nothing can be graded, or "".
        notes: sentences on how it was collected and unpacked.
    """

    staged: Staged | None
    trouble: str
    notes: tuple[str, ...]


def read(one: Collected, lab: Settings, scratch: Path) -> Read:
    """Read a submission; `scratch` is used and emptied.

    Raises:
        OSError: the disk on which `scratch` lies is full.
    """
    notes = one.notes

    def said(error: Exception) -> str:
        # Where it lay or was unpacked is nobody's business, and differs from run to run.
        text = str(error)
        for folder in (scratch, one.path.parent if one.path else scratch):
            text = text.replace(f"{folder}/", "")
        return one_line(text)

    try:
        placed = place(one, scratch, lab)
        notes = (*notes, *placed.notes)
        staged = replace(intake.examine(placed.path, lab), name=one.key)
        return Read(staged, "", tuple(map(one_line, notes)))
    except IntakeError as error:
        return Read(None, said(error), tuple(map(one_line, notes)))
    except Exception as error:  # nothing that was handed in may end the class
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise OSError(error.errno, error.strerror, str(scratch.parent)) from None
        words = f"it cannot be read ({type(error).__name__}: {said(error)})"
        return Read(None, words, tuple(map(one_line, notes)))
    finally:
        if one.path is None:
            shutil.rmtree(scratch, ignore_errors=True)
