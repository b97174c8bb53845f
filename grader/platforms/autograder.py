"""What Gradescope's run_autograder calls: `python -m grader.platforms.autograder /autograder`.

The result is written once, last, when every process of the submission has been ended. If it never
is, Gradescope says that the autograder failed, which is then the truth.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from grader import sandbox, settings
from grader.engine import Referee, Request
from grader.files import replace_file
from grader.intake import IntakeError
from grader.platforms import gradescope
from grader.platforms.common import OUR_FAULT
from grader.platforms.fit import to_json
from grader.text import plain

GRADED, GRADER_FAILED = 0, 3
UNSAFE = (
    "Nothing in this image hides the grader from a submission, so nothing was graded. Build the "
    "image again as the bundle says, and let its script start as root."
)


class Wording(NamedTuple):
    """How a platform is told of a result, of files that cannot be graded, of our own failure."""

    write: Callable[[Mapping[str, Any]], str]
    refused: Callable[[str], str]
    failed: Callable[[str], str]


def main(root: Path) -> int:
    """Grade `root`/submission, write `root`/results/results.json, and return the exit code."""
    text, code = answer(root / "submission", Wording(gradescope.write, refused, failed))
    replace_file(root / "results" / "results.json", text.encode())
    return code


def answer(submission: Path, wording: Wording) -> tuple[str, int]:
    """Return what a platform is told of a submission, and the exit code."""
    try:
        return graded(submission, wording), GRADED
    except IntakeError as error:
        words = str(error).replace(str(submission), "the submission")
        return wording.refused(words), GRADED
    except Exception as error:  # whatever it was, staff and student are told the truth
        traceback.print_exc(file=sys.stderr)
        return wording.failed(f"{OUR_FAULT} ({type(error).__name__})"), GRADER_FAILED


def graded(submission: Path, wording: Wording) -> str:
    """Return what a platform is told of a submission that can be read.

    Raises:
        IntakeError: there is nothing to grade.
    """
    lab = settings.load()
    isolation = sandbox.choose("auto")
    if not isolation.contained:
        print(UNSAFE, file=sys.stderr)
        return wording.failed(UNSAFE)
    sandbox.protect_memory()
    with Referee(lab) as referee:
        return wording.write(referee.grade(Request(path=submission)))


def refused(words: str) -> str:
    """Return a result for files that cannot be graded: no points, and what was expected."""
    test = {"name": "The files can be read", "status": "failed", "output": plain(words)}
    return to_json({"score": 0, "output": plain(words), "output_format": "text", "tests": [test]})


def failed(words: str) -> str:
    """Return a result without a score, which Gradescope shows to the staff as a failure."""
    return to_json({"output": words, "output_format": "text", "tests": []})


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
