"""What a platform takes as it is: Gradescope's autograder, and a workflow for GitHub Classroom.

In Gradescope's archive are the whole grader, its oracle and lab.toml with the instructor's salt, so
it is for the platform only, never for students. The same sources make the same bytes.
"""

from __future__ import annotations

import io
import tomllib
import zipfile
from pathlib import Path

from grader.files import replace_file
from grader.release import JUNK, ROOT, starter_files

NAME = "gradescope-autograder.zip"
WORKFLOW = "github-classroom.yml"
SCRIPTS = "grader/templates/gradescope"
# A platform grades one submission at a time.
WITHOUT = {"batch", "bench", "collect"}
_DATE = (1980, 1, 1, 0, 0, 0)


def gradescope_files(root: Path = ROOT) -> dict[str, bytes]:
    """Return the files of Gradescope's bundle by name, its two scripts at the top.

    Args:
        root: a whole repository.

    Raises:
        ReleaseError: the solution cannot be turned into a starter.
    """
    files = {name: (root / SCRIPTS / name).read_bytes() for name in ("setup.sh", "run_autograder")}
    files |= {name: (root / name).read_bytes() for name in ("lab.toml", "constraints.txt")}
    for path in sorted((root / "grader").rglob("*")):
        name = path.relative_to(root)
        if path.is_file() and not JUNK & set(name.parts) and name.parts[1] not in WITHOUT:
            files[name.as_posix()] = path.read_bytes()
    # The given files as they were handed out; the tasks' bodies stay at home.
    given = starter_files(root / "solution")
    files |= {f"grader/original/{name}": content for name, content in given.items()}
    files["requirements.txt"] = requirements(root)
    return files


def requirements(root: Path) -> bytes:
    """Return what the grader needs to run, one a line."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return "".join(f"{line}\n" for line in project["dependencies"]).encode()


def write(path: Path, files: dict[str, bytes]) -> None:
    """Write an archive, whole or not at all; scripts can be run."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            member = zipfile.ZipInfo(name, _DATE)
            member.create_system = 3
            member.external_attr = (0o100755 if content.startswith(b"#!") else 0o100644) << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, content)
    replace_file(path, out.getvalue())


def build(folder: Path, root: Path = ROOT) -> list[Path]:
    """Build every bundle in a folder and return their paths."""
    autograder, workflow = folder / NAME, folder / WORKFLOW
    write(autograder, gradescope_files(root))
    replace_file(workflow, (root / "grader/templates/github/grade.yml").read_bytes())
    return [autograder, workflow]
