"""What a platform takes as it is: autograders, and two workflows for GitHub.

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

from grader.base import settings
from grader.base.files import replace_file
from grader.base.places import ROOT
from grader.report.platforms.jobs import problems
from grader.upkeep.release import Files, ReleaseError, asked_tasks, starter_files, tree_files

NAME = "gradescope-autograder.zip"
# File in dist, template, and what it is for. Only the staff's repository knows a secret.
WORKFLOWS = {
    "github-student.yml": ("student.yml", "for the repository that students of GitHub start from"),
    "github-grade.yml": ("grade.yml", "for a private repository of the staff on GitHub"),
}
PRAIRIELEARN = "prairielearn.zip"
AUTOLAB = "autolab.zip"
TEMPLATES = "grader/report/templates"
# A platform grades one submission at a time.
WITHOUT = {"classroom", "upkeep"}
# A member's date is part of the archive's bytes.
DATE = (1980, 1, 1, 0, 0, 0)


def build(folder: Path, root: Path = ROOT) -> dict[Path, str]:
    """Build every bundle in a folder and return their paths, each with what it is for."""
    inside = grader_files(root)
    home = "serverFilesCourse/transformer-lab"
    course = tree_files(root / TEMPLATES / "prairielearn")
    graders = inside | {"run.sh": course.pop("run.sh")}
    course |= {f"{home}/{name}": content for name, content in graders.items()}
    worth = problems(settings.load(root / "lab.toml")).items()
    listed = {"problems.txt": "".join(f"{name} {most}\n" for name, most in worth).encode()}
    autolab = tree_files(root / TEMPLATES / "autolab") | {"autograde.tar": tar(inside | listed)}
    write(folder / NAME, inside | tree_files(root / TEMPLATES / "gradescope"))
    write(folder / PRAIRIELEARN, course)
    write(folder / AUTOLAB, autolab)
    made = {}
    for name, (template, purpose) in WORKFLOWS.items():
        replace_file(folder / name, (root / TEMPLATES / "github" / template).read_bytes())
        made[folder / name] = purpose
    return {
        folder / NAME: "for Gradescope, never for students",
        folder / PRAIRIELEARN: "for a course of PrairieLearn, never for students",
        folder / AUTOLAB: "for Autolab, never for students",
    } | made


def grader_files(root: Path) -> Files:
    """Return what every autograder holds, by name.

    Args:
        root: a whole repository.

    Raises:
        ReleaseError: the solution cannot be turned into a starter.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lab = root / "lab.toml"
    files = {
        "constraints.txt": (root / "constraints.txt").read_bytes(),
        "requirements.txt": "".join(f"{line}\n" for line in project["dependencies"]).encode(),
        "lab.toml": salted(lab.read_text(encoding="utf-8"), settings.load(lab).salt).encode(),
    }
    for name, content in tree_files(root / "grader").items():
        if name.split("/")[0] not in WITHOUT:
            files[f"grader/{name}"] = content
    # The given files as they were handed out; the tasks' bodies stay at home.
    given = starter_files(root / "solution", asked_tasks(root))
    return files | {f"grader/original/{name}": content for name, content in given.items()}


def salted(text: str, salt: str, remark: str = "of every default seed") -> str:
    """Return lab.toml with another salt.

    Raises:
        ReleaseError: The file does not look as expected.
    """
    line = f"salt = {json.dumps(salt)} # {remark}"
    changed, count = re.subn(r'(?m)^salt = ".*?".*$', lambda _: line, text)
    if count != 1:
        raise ReleaseError(f'lab.toml: expected one line salt = "...", found {count}')
    return changed


def write(path: Path, files: Files) -> None:
    """Write an archive, whole or not at all; scripts can be run."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            member = zipfile.ZipInfo(name, DATE)
            member.create_system = 3  # Unix, wherever it was built
            member.external_attr = (0o100000 | mode(content)) << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, content)
    replace_file(path, out.getvalue())


def tar(files: Files) -> bytes:
    """Return an archive whose members have neither owner nor date; scripts can be run."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def mode(content: bytes) -> int:
    """Return who may do what with a file: everybody may run a script."""
    return 0o755 if content.startswith(b"#!") else 0o644
