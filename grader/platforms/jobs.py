"""What the bundles of PrairieLearn and Autolab call, as `autograder` is for Gradescope.

    python -m grader.platforms.jobs prairielearn /grade
    python -m grader.platforms.jobs autolab HANDIN

PrairieLearn's result is written last, into a folder that is closed to the submission; Autolab's is
the last line of standard output, which no process of a submission holds.
"""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from pathlib import Path

from grader import settings
from grader.files import replace_file
from grader.platforms import autolab, prairielearn
from grader.platforms.autograder import Wording, answer
from grader.platforms.fit import to_json
from grader.result import number
from grader.settings import Settings
from grader.text import plain


def problems(lab: Settings) -> dict[str, int | float]:
    """Return how Autolab's problems must be called, the parts and the gates, and their points."""
    worth: dict[str, Fraction] = {}
    for stub in lab.points.stubs:
        name = stub.file.removesuffix(".py")
        worth[name] = worth.get(name, Fraction(0)) + Fraction(stub.points)
    worth |= dict.fromkeys(lab.points.gates, Fraction(lab.points.gate))
    return {name: number(points) for name, points in worth.items()}


def not_gradable(words: str) -> str:
    """Return PrairieLearn's result where there is none: no attempt is used up."""
    return to_json({"gradable": False, "message": plain(words), "format_errors": [plain(words)]})


def zero(words: str) -> str:
    """Return Autolab's output for files that cannot be graded."""
    scores = dict.fromkeys(problems(settings.load()), 0)
    return f"{' '.join(plain(words).split())}\n{json.dumps({'scores': scores})}\n"


def no_scores(words: str) -> str:
    """Return Autolab's output after a failure of the grader, which leaves it ungraded."""
    return f"{' '.join(plain(words).split())}\n{json.dumps({'scores': {}})}\n"


PRAIRIELEARN = Wording(prairielearn.write, not_gradable, not_gradable)
AUTOLAB = Wording(autolab.write, zero, no_scores)


def main(platform: str, path: Path) -> int:
    """Grade for a platform and return the exit code.

    Args:
        platform: "prairielearn" or "autolab".
        path: PrairieLearn's folder /grade, or Autolab's hand-in.
    """
    if platform == "prairielearn":
        text, code = answer(path / "student", PRAIRIELEARN)
        replace_file(path / "results" / "results.json", text.encode())
    else:
        text, code = answer(path, AUTOLAB)
        print(text, end="")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
