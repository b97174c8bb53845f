"""What is refused or left out of a submission, and the one sentence that says so."""

from __future__ import annotations

import os
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from made_submissions import LAB, SMALL, TREE, lay, noted, tarred, zipped

from grader.base import settings
from grader.intake import staging
from grader.intake.staging import IntakeError, Staged

Stage = Callable[..., Staged]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    def run(path: Path, lab: settings.Settings = LAB) -> Staged:
        return staging.stage(path, tmp_path / "staged", lab)

    return run


def refusal(stage: Stage, path: Path, lab: settings.Settings = LAB) -> str:
    with pytest.raises(IntakeError) as caught:
        stage(path, lab)
    text = str(caught.value)
    assert "\n" not in text
    return text.replace(str(path), "PATH")


# Refusals ----------------------------------------------------------------------------------------

KNOWN = "a folder, .zip, .tar.gz, .tgz, .tar or .ipynb"
WANTED = (
    "a folder transformer/ with masks.py, attention.py, residual.py, encoder.py, decoder.py, "
    "training.py"
)


def test_missing_path_is_refused(stage: Stage, tmp_path: Path) -> None:
    assert refusal(stage, tmp_path / "none") == f"PATH does not exist: expected {KNOWN}"


def test_empty_folder_is_refused(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    assert refusal(stage, tmp_path / "x") == f"PATH is empty: expected {WANTED}"


def test_other_assignment_is_refused_with_what_was_found(stage: Stage, tmp_path: Path) -> None:
    path = lay(tmp_path / "x", {"mlp.py": "", "data/x.csv": "", "README.md": ""})
    expected = (
        f"PATH does not look like this lab: expected {WANTED} (in {KNOWN}), "
        "found README.md, data/, mlp.py"
    )
    assert refusal(stage, path) == expected


def test_two_trees_are_refused(stage: Stage, tmp_path: Path) -> None:
    both = {f"{top}/{name}": text for top in ("b", "a") for name, text in TREE.items()}
    expected = "PATH holds 2 trees: a/transformer, b/transformer; name the one to grade"
    assert refusal(stage, lay(tmp_path / "x", both)) == expected


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("a.rar", b"Rar!\x1a\x07", "a RAR archive"),
        ("a.7z", b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
        ("a.zip", b"Rar!\x1a\x07", "a RAR archive"),
        ("a.tar.xz", b"\xfd7zXZ\x00", "an xz archive"),
        ("a.zip", b"<!DOCTYPE html>", "a web page (was a log-in page saved instead of the file?)"),
        ("a.zip", b"", "empty"),
        ("a.zip", b"\x01\x00\x02", "no archive"),
        ("masks.py", b"x = 1\n", "a single Python file"),
        ("a.txt", b"see my link", "a text file"),
    ],
)
def test_file_of_no_known_kind_is_named(
    name: str, content: bytes, what: str, stage: Stage, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert refusal(stage, path) == f"PATH is {what}: expected {KNOWN}"


@pytest.mark.parametrize("make", [zipped, tarred])
def test_unfinished_archive_is_refused(
    make: Callable[[Path, Mapping[str, str]], Path], stage: Stage, tmp_path: Path
) -> None:
    path = make(tmp_path / ("a.zip" if make is zipped else "a.tar.gz"), TREE)
    path.write_bytes(path.read_bytes()[:-40])
    text = refusal(stage, path)
    assert text.startswith("PATH is damaged or unfinished (")
    assert text.endswith("): make or download it again")


def test_damaged_member_is_refused(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in TREE.items():
            archive.writestr(name, text)
    path.write_bytes(path.read_bytes().replace(b"# masks.py\n", b"# mosks.py\n"))
    assert refusal(stage, path).startswith("PATH is damaged or unfinished (Bad CRC-32 for file")


def test_locked_archive_is_refused(stage: Stage, tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", TREE)
    data = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = -1
        while (at := data.find(mark, at + 1)) >= 0:
            data[at + offset] |= 1
    path.write_bytes(data)
    expected = "PATH is locked with a password: make it again without one"
    assert refusal(stage, path) == expected


def test_unreadable_file_is_refused(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = lay(tmp_path / "x", TREE)
    real = os.open

    def closed(path: Path, *rest: int) -> int:
        if str(path).endswith("masks.py"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *rest)

    monkeypatch.setattr(os, "open", closed)
    expected = "no permission to read PATH/transformer/masks.py: change its mode, or copy it"
    assert refusal(stage, source) == expected


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_unreadable_folder_is_refused(stage: Stage, tmp_path: Path) -> None:
    source = lay(tmp_path / "x", TREE)
    (source / "transformer").chmod(0)
    text = refusal(stage, source)
    (source / "transformer").chmod(0o755)
    assert text == "no permission to read PATH/transformer: change its mode, or copy it"


# Limits and tricks -------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lay, zipped, tarred])
def test_limits_count_what_is_really_read(
    make: Callable[[Path, Mapping[str, str]], Path], stage: Stage, tmp_path: Path
) -> None:
    big = make(tmp_path / "a", TREE | {"transformer/masks.py": "#" * 2049})
    assert refusal(stage, big, SMALL) == "transformer/masks.py is larger than 2 KiB"
    text = "transformer/ holds more than 7 files or 5 KiB of Python: hand in the lab's files only"
    many = make(tmp_path / "b", TREE | {f"transformer/x{i}.py": "" for i in range(2)})
    assert refusal(stage, many, SMALL) == text
    much = make(tmp_path / "c", dict.fromkeys(TREE, "#" * 1024))
    assert refusal(stage, much, SMALL) == text


def test_zip_that_lies_about_its_sizes_is_refused(stage: Stage, tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", TREE | {"transformer/masks.py": "#" * 100_000})
    data = path.read_bytes().replace(struct.pack("<I", 100_000), struct.pack("<I", 10))
    path.write_bytes(data)
    text = refusal(stage, path, SMALL)
    assert text.startswith(("PATH is damaged", "transformer/masks.py is larger than"))


def test_archive_of_very_many_files_is_refused(stage: Stage, tmp_path: Path) -> None:
    few = replace(LAB, staging=replace(LAB.staging, max_archive_entries=11))
    many = TREE | {f"data/{i}": "" for i in range(13)}
    for path in (
        lay(tmp_path / "x", many),
        zipped(tmp_path / "a.zip", many),
        tarred(tmp_path / "a.tgz", many),
    ):
        assert refusal(stage, path, few).startswith("PATH holds more than 11 files: hand in")


def test_archive_that_unpacks_to_too_much_is_refused(stage: Stage, tmp_path: Path) -> None:
    path = tarred(tmp_path / "a.tgz", TREE | {"data/zeros": bytes(100_000)})
    assert refusal(stage, path, SMALL).startswith("PATH unpacks to more than 0 MiB")
    plain = tarred(tmp_path / "a.tar", TREE | {"data/zeros": bytes(100_000)})
    assert refusal(stage, plain, SMALL).startswith("PATH is larger than 0 MiB")


@pytest.mark.parametrize("make", [zipped, tarred])
@pytest.mark.parametrize(
    "name",
    ["../transformer/evil.py", "/transformer/evil.py", "C:/transformer/evil.py", "a/../../e.py"],
)
def test_paths_that_lead_outside_are_left_out(
    name: str, make: Callable[[Path, Mapping[str, str]], Path], stage: Stage, tmp_path: Path
) -> None:
    staged = stage(make(tmp_path / "a", TREE | {name: "evil"}))
    assert sorted(staged.files) == sorted(TREE)
    expected = f"left out, because the path leads outside the submission: {name}"
    assert staged.notes == [expected]
    assert not [p for p in tmp_path.rglob("*") if p.name in ("evil.py", "e.py")]


def test_names_that_cannot_be_shown_are_left_out(stage: Stage, tmp_path: Path) -> None:
    odd = {"transformer/a\x1b[2J.py": "", "transformer/" + "n" * 300 + ".py": ""}
    staged = stage(tarred(tmp_path / "a.tar", TREE | odd))
    assert sorted(staged.files) == sorted(TREE)
    assert staged.notes[0].startswith("left out, because the name is too long or not printable: ")
    assert staged.notes[0].isprintable()


def test_links_in_a_folder_are_not_followed(stage: Stage, tmp_path: Path) -> None:
    secret = tmp_path / "secret.py"
    secret.write_text("answers")
    source = lay(tmp_path / "x", TREE)
    (source / "transformer/linked.py").symlink_to(secret)
    (source / "transformer/folder").symlink_to(tmp_path)
    staged = stage(source)
    assert sorted(staged.files) == sorted(TREE)
    expected = "transformer/folder, transformer/linked.py"
    assert staged.notes == [f"links are not followed and were left out: {expected}"]


def test_linked_package_is_refused(stage: Stage, tmp_path: Path) -> None:
    lay(tmp_path / "other", TREE)
    (tmp_path / "x").mkdir()
    (tmp_path / "x/transformer").symlink_to(tmp_path / "other/transformer")
    text = refusal(stage, tmp_path / "x")
    assert text == "PATH: transformer is a link, and no link is followed: copy the folder"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_named_pipe_is_not_waited_for(stage: Stage, tmp_path: Path) -> None:
    source = lay(tmp_path / "x", TREE)
    os.mkfifo(source / "transformer/pipe.py")
    expected = "left out, because they are no ordinary files: transformer/pipe.py"
    assert stage(source).notes == [expected]


def test_links_in_archives_are_left_out(stage: Stage, tmp_path: Path) -> None:
    with zipfile.ZipFile(zipped(tmp_path / "a.zip", TREE), "a") as archive:
        member = zipfile.ZipInfo("transformer/linked.py")
        member.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(member, "/etc/passwd")
    with tarfile.open(tarred(tmp_path / "a.tar", TREE), "a") as archive_tar:
        for name, kind in (("soft", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE)):
            link = tarfile.TarInfo(f"transformer/{name}.py")
            link.type, link.linkname = kind, "/etc/passwd"
            archive_tar.addfile(link)
        device = tarfile.TarInfo("transformer/device.py")
        device.type = tarfile.CHRTYPE
        archive_tar.addfile(device)
    words = "links are not followed and were left out: "
    assert stage(tmp_path / "a.zip").notes == [words + "transformer/linked.py"]
    assert stage(tmp_path / "a.tar").notes == [
        words + "transformer/hard.py, transformer/soft.py",
        "left out, because they are no ordinary files: transformer/device.py",
    ]


def test_tar_that_leads_in_circles_ends(stage: Stage, tmp_path: Path) -> None:
    path = tarred(tmp_path / "a.tar", TREE)
    data = bytearray(path.read_bytes())
    # A negative size (base 256) would send the reader back to this header for ever.
    data[124:136] = b"\xff" * 10 + struct.pack(">h", -1024)
    path.write_bytes(data)
    assert refusal(stage, path).startswith("PATH ")


def test_names_that_differ_in_case_keep_the_lower_one(stage: Stage, tmp_path: Path) -> None:
    staged = stage(zipped(tmp_path / "a.zip", TREE | {"transformer/Masks.py": "# other\n"}))
    assert staged.files["transformer/masks.py"] == b"# masks.py\n"
    same = "left out, because transformer/masks.py has the same letters: transformer/Masks.py"
    assert (sorted(staged.files), staged.notes) == (sorted(TREE), [same])
    clash = TREE | {"transformer/Tools.py": "", "transformer/TOOLS.py": ""}
    text = refusal(stage, zipped(tmp_path / "b.zip", clash))
    names = "transformer/TOOLS.py, transformer/Tools.py"
    assert text == f"names that differ only in case: {names}; keep one of them"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_same_name_twice_is_refused_unless_the_same(stage: Stage, tmp_path: Path) -> None:
    for name, content in (("a.zip", "# masks.py\n"), ("b.zip", "# other\n")):
        with zipfile.ZipFile(zipped(tmp_path / name, TREE), "a") as archive:
            archive.writestr("transformer/masks.py", content)
    assert sorted(stage(tmp_path / "a.zip").files) == sorted(TREE)
    text = refusal(stage, tmp_path / "b.zip")
    assert text == "transformer/masks.py came twice with different content: keep one of them"


def test_notebook_without_such_cells_is_refused(stage: Stage, tmp_path: Path) -> None:
    text = refusal(stage, noted(tmp_path / "a.ipynb", ["x = 1"]))
    assert text.startswith("PATH has no cell that starts with %%writefile transformer/<name>.py")
    (tmp_path / "b.ipynb").write_text('{"cells": 7}')
    assert refusal(stage, tmp_path / "b.ipynb").startswith("PATH is not a notebook: ")
