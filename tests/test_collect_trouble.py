"""Bad input to a class intake is named, left out or refused; nothing is lost or escapes."""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path

import pytest
from class_cases import FILES, LAB, as_zip, packed, tree, write

from grader.classroom.collect import CollectError, collect, examine
from grader.classroom.collect.model import MOST_KEY, safe_key
from grader.intake.entries import IntakeError

NAMES = {
    "newline": "Jane\nDoe",
    "quotes": 'O\'Neil "Al"',
    "marks": "\u202eDoe \u200fAnn",
    "letters": "\u0141ukasz \u674e",
    "command": "$(reboot); -rf",
    "dots": "..hidden..",
    "formula": "=1+1",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_odd_name_becomes_a_safe_key_and_a_readable_line(tmp_path: Path, name: str) -> None:
    found = collect(as_zip(tmp_path / "c.zip", tree(f"{name}/") | tree("bob/")), LAB)
    odd = next(one for one in found.submissions if one.key != "bob")
    assert re.fullmatch(r"[\w.-]+", odd.key) and not odd.key.startswith(".")
    assert odd.who.isprintable() and odd.who
    assert examine(odd, LAB, []).files


def test_odd_names_lie_in_folders_too(tmp_path: Path) -> None:
    files: dict[str, bytes] = {}
    for name in NAMES.values():
        if not name.startswith("."):
            files |= tree(f"{name}/")
    found = collect(write(tmp_path / "c", files), LAB)
    assert len(found.submissions) == len(NAMES) - 1
    assert all(line.isprintable() for line in found.report.lines())


def test_long_path_in_a_zip_is_left_out_and_the_rest_graded(tmp_path: Path) -> None:
    files = tree("anna/") | {f"anna/{'x' * 300}.py": b"x = 1\n"} | tree(f"{'y' * 300}/")
    found = collect(as_zip(tmp_path / "c.zip", files), LAB)
    assert max(len(one.key) for one in found.submissions) <= MOST_KEY + 9
    anna, other = (examine(one, LAB, []) for one in found.submissions)
    assert len(anna.files) == len(other.files) == 2
    assert anna.notes[0].startswith("left out, because the name is too long") and not other.notes


def test_two_students_of_one_name_stay_two(tmp_path: Path) -> None:
    files = {
        f"Ann Lee_{number}_assignsubmission_file_/lab.zip": packed(
            {"transformer/masks.py": b"N = %d\n" % number}
        )
        for number in (31, 37)
    }
    found = collect(as_zip(tmp_path / "c.zip", files), LAB)
    assert [one.key for one in found.submissions] == ["31", "37"]
    assert [one.who for one in found.submissions] == ["Ann Lee", "Ann Lee"]
    assert found.report.duplicated == []


def test_names_that_differ_in_case_only_get_two_keys(tmp_path: Path) -> None:
    found = collect(as_zip(tmp_path / "c.zip", tree("Anna/") | tree("anna/")), LAB)
    one, other = (one.key.casefold() for one in found.submissions)
    assert one != other


def test_folder_and_archive_of_one_name_are_reported_as_twice(tmp_path: Path) -> None:
    files = tree("anna/") | {"anna.zip": packed(tree())}
    found = collect(write(tmp_path / "c", files), LAB)
    assert found.report.duplicated == ["anna: came more than once: anna is graded, not anna.zip"]
    assert found.submissions[0].path == tmp_path / "c" / "anna"


def test_zip_that_is_none_fails_alone(tmp_path: Path) -> None:
    files = {"anna.zip": b"hello", "bob.zip": packed(tree()), "carl.zip": b""}
    for source in (write(tmp_path / "c", files), as_zip(tmp_path / "c.zip", files)):
        found = collect(source, LAB)
        anna, bob, carl = found.submissions
        for one, words in ((anna, r"anna\.zip is a text file"), (carl, r"carl\.zip is empty")):
            with pytest.raises(IntakeError, match=words):
                examine(one, LAB, [])
        assert examine(bob, LAB, []).files


def test_damaged_member_of_a_class_zip_fails_alone(tmp_path: Path) -> None:
    path = as_zip(tmp_path / "c.zip", {"anna/masks.py": b"A" * 99, "bob/masks.py": b"B" * 97})
    path.write_bytes(path.read_bytes().replace(b"A" * 99, b"Z" * 99))
    anna, bob = collect(path, LAB).submissions
    with pytest.raises(IntakeError, match=r"masks\.py cannot be read"):
        examine(anna, LAB, [])
    assert examine(bob, LAB, []).files == {"transformer/masks.py": b"B" * 97}


@pytest.mark.parametrize(
    "evil", ["../evil.py", "anna/../../evil.py", "/evil.py", "anna\\..\\..\\evil.py", "C:/evil.py"]
)
def test_unsafe_path_in_a_class_zip_is_refused(tmp_path: Path, evil: str) -> None:
    path = as_zip(tmp_path / "c.zip", tree("anna/") | tree("bob/") | {evil: b"x = 1\n"})
    found = collect(path, LAB)
    assert len(found.report.refused) == 1
    for one in found.submissions:
        assert not [name for name in examine(one, LAB, []).files if "evil" in name]


def test_unsafe_path_in_an_inner_archive_is_refused(tmp_path: Path) -> None:
    inner = packed({"../../evil.py": b"x = 1\n"} | tree())
    files = {
        "doejane_501_9001_lab.zip": inner,
        "doejane_501_9002_masks.py": FILES["masks.py"],
    }
    one = collect(as_zip(tmp_path / "c.zip", files), LAB).submissions[0]
    found = examine(one, LAB, [])
    assert not [name for name in found.files if "evil" in name]
    assert "left out, because the path leads outside the submission" in found.notes[0]


def test_links_are_not_followed(tmp_path: Path) -> None:
    source = write(tmp_path / "c", tree("anna/"))
    secret = write(tmp_path / "secret", tree())
    (source / "bob").symlink_to(secret)
    (source / "carl.zip").symlink_to(as_zip(tmp_path / "s.zip", tree()))
    found = collect(source, LAB)
    assert [one.key for one in found.submissions] == ["anna"]
    assert len(found.report.refused) == 2


def test_link_in_a_class_zip_is_refused(tmp_path: Path) -> None:
    path = as_zip(tmp_path / "c.zip", tree("anna/") | tree("bob/"))
    with zipfile.ZipFile(path, "a") as archive:
        member = zipfile.ZipInfo("anna/transformer/decoder.py")
        member.external_attr = 0o120777 << 16
        archive.writestr(member, "/etc/passwd")
    assert collect(path, LAB).report.refused == [
        "anna/transformer/decoder.py: an unsafe path or a special file"
    ]


def test_bomb_stops_at_the_cap(tmp_path: Path) -> None:
    path = tmp_path / "c.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("anna/masks.py", bytes(80 << 20))
        archive.writestr("bob/masks.py", FILES["masks.py"])
    anna, bob = collect(path, LAB).submissions
    with pytest.raises(IntakeError, match=r"masks\.py is larger than \d+ KiB"):
        examine(anna, LAB, [])
    assert examine(bob, LAB, []).files


def test_junk_of_operating_systems_is_nobodys(tmp_path: Path) -> None:
    files = tree("anna/") | {".DS_Store": b"x", "Thumbs.db": b"x", "__MACOSX/anna/._m.py": b"x"}
    for source in (
        write(tmp_path / "c", files | tree("bob/")),
        as_zip(tmp_path / "c.zip", files | tree("bob/")),
    ):
        found = collect(source, LAB)
        assert ([one.key for one in found.submissions], found.report.ignored) == (
            ["anna", "bob"],
            [],
        )


def test_folder_without_anything_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "c", tree("anna/"))
    (source / "bob").mkdir()
    _, bob = collect(source, LAB).submissions
    with pytest.raises(IntakeError, match="bob is empty: expected a folder transformer/"):
        examine(bob, LAB, [])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_folder_without_permission_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "c", tree("anna/") | tree("bob/"))
    (source / "bob").chmod(0)
    found = collect(source, LAB)
    with pytest.raises(IntakeError, match="no permission"):
        examine(found.submissions[1], LAB, [])
    (source / "bob").chmod(0o755)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "is empty: expected one folder or archive for each student"),
        (tree(), "is one submission, not a class: use the command grade"),
        (FILES, "is one submission, not a class: use the command grade"),
        ({"a.txt": b"x", "b.pdf": b"y"}, "has no layout that is known (found a.txt, b.pdf)"),
    ],
)
def test_source_that_is_no_class_is_refused(
    tmp_path: Path, files: dict[str, bytes], message: str
) -> None:
    (tmp_path / "c").mkdir()
    for source in (write(tmp_path / "c", files), as_zip(tmp_path / "c.zip", files)):
        with pytest.raises(CollectError) as refused:
            collect(source, LAB)
        assert message in str(refused.value)


def test_source_that_is_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CollectError, match="does not exist"):
        collect(tmp_path / "nothing", LAB)
    (tmp_path / "c.zip").write_bytes(b"hello")
    with pytest.raises(CollectError, match="neither a folder nor a zip"):
        collect(tmp_path / "c.zip", LAB)


def test_keys_differ_where_names_do() -> None:
    names = ["a/b", "a_b", "a b", "", ".", "..", "\u202ea", "a", "x" * 300, "x" * 301, "\ud800"]
    keys = [safe_key(name) for name in names]
    assert len(set(keys)) == len(names)
    assert all(key and len(key.encode()) <= MOST_KEY + 9 for key in keys)
