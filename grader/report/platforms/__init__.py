"""A result in the formats of other platforms: a pure function of what students may see of it.

To add a platform: write such a function and name it in `EXPORTERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.base.files import replace_file
from grader.report.platforms import formats, junit, markdown
from grader.report.platforms.common import ExportError, Result, fitting, read

__all__ = ["EXPORTERS", "ExportError", "Exporter", "export"]


@dataclass(frozen=True)
class Exporter:
    """A format.

    Attributes:
        filename: of the file beside `results.json`.
        text: returns the file's text.
        most_bytes: what the platform takes; longer texts of a result are cut.
    """

    filename: str
    text: Callable[[Result], str]
    most_bytes: int = 1_000_000

    def write(self, tree: Mapping[str, Any]) -> str:
        """Return the file's text for a `results.json` tree.

        Raises:
            ExportError: the tree is no result that can be exported.
        """
        return fitting(read(tree), self.text, self.most_bytes)


# Linux hands a process no variable of more than 128 KiB.
_VARIABLE = 120_000
EXPORTERS = {
    "gradescope": Exporter("gradescope.json", formats.gradescope),
    "github": Exporter("github-annotations.txt", formats.github, _VARIABLE),
    "classroom": Exporter("github-classroom.txt", formats.classroom, _VARIABLE),
    "classroom50": Exporter("result.json", formats.classroom50),
    # GitHub refuses a job summary of more than 1 MiB.
    "markdown": Exporter("report.md", markdown.report),
    "junit": Exporter("junit.xml", junit.report, 5_000_000),
    "nbgrader": Exporter("nbgrader.csv", formats.nbgrader),
    "prairielearn": Exporter("prairielearn.json", formats.prairielearn),
    "autolab": Exporter("autolab.txt", formats.autolab),
}


def export(tree: Mapping[str, Any], names: Iterable[str], folder: Path) -> list[Path]:
    """Write `tree` in each of the named formats into `folder`; "text" and "json" are not files.

    Returns:
        The paths that were written.

    Raises:
        ExportError: the tree is no result that can be exported; nothing was written.
    """
    chosen = [EXPORTERS[name] for name in dict.fromkeys(names) if name not in ("text", "json")]
    texts = {folder / one.filename: one.write(tree) for one in chosen}
    for path, text in texts.items():
        replace_file(path, text.encode())
    return list(texts)
