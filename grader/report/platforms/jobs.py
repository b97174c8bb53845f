"""What the bundles of the platforms call in their containers.

    python -m grader.report.platforms.jobs gradescope /autograder
    python -m grader.report.platforms.jobs prairielearn /grade
    python -m grader.report.platforms.jobs autolab HANDIN

The result is written once, last, when every process of the submission has been ended, into a folder
that is closed to the submission; Autolab's is the last line of standard output, which no process of
a submission holds. Where Gradescope gets none, it says that the autograder failed, which is the
truth.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from grader import sandbox
from grader.base import settings
from grader.base.files import replace_file
from grader.base.result import number
from grader.base.settings import Settings
from grader.base.text import plain
from grader.intake.staging import IntakeError
from grader.report.platforms import EXPORTERS
from grader.report.platforms.common import OUR_FAULT, to_json
from grader.run.engine import Referee, Request

GRADED, GRADER_FAILED = 0, 3
RESULT = "results/results.json"
UNSAFE = (
    "Nothing in this image hides the grader from a submission, so nothing was graded. Build the "
    "image again as the bundle says, and let its script start as root."
)


class Platform(NamedTuple):
    """Where a platform lays a submission, and how it is told what came of it.

    Attributes:
        submission: a folder of the root; "" = the root itself is the hand-in.
        result: a file of the root; "" = standard output.
        write: tells of a result.
        refused: tells of files that cannot be graded.
        failed: tells of a failure of our own.
    """

    submission: str
    result: str
    write: Callable[[Mapping[str, Any]], str]
    refused: Callable[[str], str]
    failed: Callable[[str], str]


def main(name: str, root: Path) -> int:
    """Grade for a platform, tell it, and return the exit code."""
    platform = PLATFORMS[name]
    text, code = answer(root / platform.submission, platform)
    if platform.result:
        replace_file(root / platform.result, text.encode())
    else:
        print(text, end="")
    return code


def answer(submission: Path, platform: Platform) -> tuple[str, int]:
    """Return what a platform is told of a submission, and the exit code."""
    try:
        return graded(submission, platform), GRADED
    except IntakeError as error:
        words = str(error).replace(str(submission), "the submission")
        return platform.refused(plain(words)), GRADED
    except Exception as error:  # whatever it was, staff and student are told the truth
        traceback.print_exc(file=sys.stderr)
        return platform.failed(f"{OUR_FAULT} ({type(error).__name__})"), GRADER_FAILED


def graded(submission: Path, platform: Platform) -> str:
    """Return what a platform is told of a submission that can be read.

    Raises:
        IntakeError: there is nothing to grade.
    """
    lab = settings.load()
    isolation = sandbox.choose("auto")
    if not isolation.contained:
        print(UNSAFE, file=sys.stderr)
        return platform.failed(UNSAFE)
    sandbox.protect_memory()
    with Referee(lab) as referee:
        return platform.write(referee.grade(Request(path=submission)))


def problems(lab: Settings) -> dict[str, int | float]:
    """Return how Autolab's problems must be called, the parts and the gates, and their points."""
    worth: dict[str, Fraction] = {}
    for stub in lab.points.stubs:
        name = stub.file.removesuffix(".py")
        worth[name] = worth.get(name, Fraction(0)) + Fraction(stub.points)
    worth |= dict.fromkeys(lab.points.gates, Fraction(lab.points.gate))
    return {name: number(points) for name, points in worth.items()}


def _gradescope_refused(words: str) -> str:
    test = {"name": "The files can be read", "status": "failed", "output": words}
    return to_json({"score": 0, "output": words, "output_format": "text", "tests": [test]})


def _not_gradable(words: str) -> str:
    return to_json({"gradable": False, "message": words, "format_errors": [words]})


def _autolab(words: str, scores: Mapping[str, int]) -> str:
    return f"{' '.join(words.split())}\n{json.dumps({'scores': scores})}\n"


PLATFORMS = {
    # A result without a score is shown to the staff as a failure.
    "gradescope": Platform(
        "submission", RESULT, EXPORTERS["gradescope"].write,
        refused=_gradescope_refused,
        failed=lambda words: to_json({"output": words, "output_format": "text", "tests": []}),
    ),
    # No attempt is used up.
    "prairielearn": Platform(
        "student", RESULT, EXPORTERS["prairielearn"].write, _not_gradable, _not_gradable
    ),
    # Without scores the hand-in stays ungraded.
    "autolab": Platform(
        "", "", EXPORTERS["autolab"].write,
        refused=lambda words: _autolab(words, dict.fromkeys(problems(settings.load()), 0)),
        failed=lambda words: _autolab(words, {}),
    ),
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
