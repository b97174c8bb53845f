"""What a platform takes as it is: autograders, and a workflow for GitHub Classroom.

In an autograder are the whole grader, its oracle and lab.toml with the instructor's salt,
be it from that file or from GRADER_SALT; so it is for the platform only, never for students. The
same sources make the same bytes.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
import tomllib
import zipfile
from pathlib import Path

from grader import settings
from grader.files import replace_file
from grader.platforms.jobs import problems
from grader.release import JUNK, ROOT, ReleaseError, starter_files

NAME = "gradescope-autograder.zip"
WORKFLOW = "github-classroom.yml"
PRAIRIELEARN = "prairielearn.zip"
AUTOLAB = "autolab.zip"
TEMPLATES = "grader/templates"
# A platform grades one submission at a time.
WITHOUT = {"batch", "collect"}
_DATE = (1980, 1, 1, 0, 0, 0)


def gradescope_files(root: Path = ROOT) -> dict[str, bytes]:
    """Return the files of Gradescope's bundle by name, its two scripts at the top."""
    return grader_files(root) | scripts(root, "gradescope")


def prairielearn_files(root: Path = ROOT) -> dict[str, bytes]:
    """Return the files of a course of PrairieLearn: the grader, its image, and info.json."""
    files = scripts(root, "prairielearn")
    home = "serverFilesCourse/transformer-lab"
    inside = grader_files(root) | {"run.sh": files.pop("run.sh")}
    return files | {f"{home}/{name}": content for name, content in inside.items()}


def autolab_files(root: Path = ROOT) -> dict[str, bytes]:
    """Return the two files of an autograder of Autolab."""
    lab = settings.load(root / "lab.toml")
    names = "".join(f"{name} {worth}\n" for name, worth in problems(lab).items())
    inside = grader_files(root) | {"problems.txt": names.encode()}
    return scripts(root, "autolab") | {"autograde.tar": tar(inside)}


def scripts(root: Path, platform: str) -> dict[str, bytes]:
    """Return the files that are a platform's own, by name."""
    folder = root / TEMPLATES / platform
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def grader_files(root: Path) -> dict[str, bytes]:
    """Return what every autograder holds, by name.

    Args:
        root: a whole repository.

    Raises:
        ReleaseError: the solution cannot be turned into a starter.
    """
    files = {"constraints.txt": (root / "constraints.txt").read_bytes()}
    lab = root / "lab.toml"
    text = salted(lab.read_text(encoding="utf-8"), settings.load(lab).salt)
    files["lab.toml"] = text.encode()
    for path in sorted((root / "grader").rglob("*")):
        name = path.relative_to(root)
        if path.is_file() and not JUNK & set(name.parts) and name.parts[1] not in WITHOUT:
            files[name.as_posix()] = path.read_bytes()
    # The given files as they were handed out; the tasks' bodies stay at home.
    given = starter_files(root / "solution")
    files |= {f"grader/original/{name}": content for name, content in given.items()}
    files["requirements.txt"] = requirements(root)
    return files


def salted(text: str, salt: str, remark: str = "of every default seed") -> str:
    """Return lab.toml with another salt.

    Raises:
        ReleaseError: The file does not look as expected.
    """
    line = f"salt = {json.dumps(salt)}  # {remark}"
    changed, count = re.subn(r'(?m)^salt = ".*?".*$', lambda _: line, text)
    if count != 1:
        raise ReleaseError(f'lab.toml: expected one line salt = "...", found {count}')
    return changed


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


def tar(files: dict[str, bytes]) -> bytes:
    """Return an archive whose members have neither owner nor date; scripts can be run."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mode = 0o755 if content.startswith(b"#!") else 0o644
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def build(folder: Path, root: Path = ROOT) -> dict[Path, str]:
    """Build every bundle in a folder and return their paths, each with what it is for."""
    made = {
        NAME: (gradescope_files, "for Gradescope, never for students"),
        PRAIRIELEARN: (prairielearn_files, "for a course of PrairieLearn, never for students"),
        AUTOLAB: (autolab_files, "for Autolab, never for students"),
    }
    for name, (files, _) in made.items():
        write(folder / name, files(root))
    workflow = folder / WORKFLOW
    replace_file(workflow, (root / TEMPLATES / "github/grade.yml").read_bytes())
    said = {folder / name: words for name, (_, words) in made.items()}
    return said | {workflow: "for the repository that students of GitHub Classroom start from"}
