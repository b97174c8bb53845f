"""A result in the formats of other platforms: one pure function from `results.json` for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from grader.files import replace_file
from grader.platforms import (
    autolab,
    github,
    gradescope,
    junit,
    markdown,
    nbgrader_csv,
    prairielearn,
)
from grader.platforms.common import ExportError

__all__ = ["EXPORTERS", "ExportError", "Exporter", "export"]


class Exporter(NamedTuple):
    """The file's name beside `results.json`, and what writes its text from the tree."""

    filename: str
    write: Callable[[Mapping[str, Any]], str]


EXPORTERS = {
    "gradescope": Exporter("gradescope.json", gradescope.write),
    "github": Exporter("github-annotations.txt", github.write_annotations),
    "classroom": Exporter("github-classroom.txt", github.write_classroom),
    "markdown": Exporter("report.md", markdown.write),
    "junit": Exporter("junit.xml", junit.write),
    "nbgrader": Exporter("nbgrader.csv", nbgrader_csv.write),
    "prairielearn": Exporter("prairielearn.json", prairielearn.write),
    "autolab": Exporter("autolab.txt", autolab.write),
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
