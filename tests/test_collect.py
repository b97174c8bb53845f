"""Every layout of a class is recognised, and each submission comes out as what was handed in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from class_cases import FILES, LAB, as_zip, packed, tree, write

from grader.classroom.collect import CollectError, Collection, Student, collect, examine
from grader.intake.entries import IntakeError


def staged(collection: Collection) -> dict[str, dict[str, bytes]]:
    """Read every submission: its files by key."""
    found = {}
    for one in collection.submissions:
        files = examine(one, LAB, []).files
        found[one.key] = {Path(name).name: content for name, content in files.items()}
    return found


def keys(collection: Collection) -> list[str]:
    return [one.key for one in collection.submissions]


def both(files: dict[str, bytes], folder: Path) -> list[Path]:
    """Return the same class as a folder, a zip, and a zip that wraps it in a folder."""
    wrapped = {f"download/{name}": content for name, content in files.items()}
    return [
        write(folder / "class", files),
        as_zip(folder / "class.zip", files),
        as_zip(folder / "wrapped.zip", wrapped),
        write(folder / "outer", wrapped),
    ]


def test_folders_are_one_submission_each(tmp_path: Path) -> None:
    for source in both(tree("anna/") | tree("bob/work/"), tmp_path):
        found = collect(source, LAB)
        assert (found.report.layout, keys(found)) == ("folders", ["anna", "bob"])
        assert staged(found) == {"anna": FILES, "bob": FILES}


def test_archives_are_one_submission_each(tmp_path: Path) -> None:
    notebook = {
        "nbformat": 4, "nbformat_minor": 5, "metadata": {},
        "cells": [
            {"cell_type": "code", "id": "a", "metadata": {}, "outputs": [], "execution_count": None,
             "source": f"%%writefile transformer/{name}\n{content.decode().rstrip()}"}
            for name, content in FILES.items()
        ],
    }  # fmt: skip
    files = {"anna.zip": packed(tree("lab/")), "carl.ipynb": json.dumps(notebook).encode()}
    for source in both(files, tmp_path):
        found = collect(source, LAB)
        assert (found.report.layout, keys(found)) == ("archives", ["anna", "carl"])
        assert staged(found) == {"anna": FILES, "carl": FILES}


def test_archive_in_a_folder_is_opened_and_reported(tmp_path: Path) -> None:
    files = {"anna/lab.zip": packed(tree()), "anna/readme.txt": b"hi"} | tree("bob/")
    for source in both(files, tmp_path):
        found = collect(source, LAB)
        assert [line.split(":")[0] for line in found.report.nested] == ["anna"]
        assert staged(found) == {"anna": FILES, "bob": FILES}


CANVAS = {
    "doejane_501_9001_masks-1.py": FILES["masks.py"],
    "doejane_501_9002_attention.py": FILES["attention.py"],
    "oneilal_LATE_502_9003_lab-1.zip": packed(tree("lab/")),
    "anon_Xy7_9004_lab.zip": packed(tree()),
    "LATE_anon_Zq2_9005_lab.tar-1.gz": packed(tree()),
    "leeann_503_text.html": b"<p>my answer</p>",
}


def test_canvas_download_is_grouped_by_user_id(tmp_path: Path) -> None:
    for source in both(CANVAS, tmp_path):
        found = collect(source, LAB)
        assert found.report.layout == "Canvas"
        assert keys(found) == ["501", "502", "503", "anon_Xy7", "anon_Zq2"]
        late = {one.key: one.late for one in found.submissions}
        assert late == {
            "501": False,
            "502": True,
            "503": False,
            "anon_Xy7": False,
            "anon_Zq2": True,
        }
        readable = [one for one in found.submissions if one.key != "503"]
        assert staged(Collection(readable, found.report)) == dict.fromkeys(
            ("501", "502", "anon_Xy7", "anon_Zq2"), FILES
        )


def test_canvas_resubmission_suffix_is_taken_off_and_reported(tmp_path: Path) -> None:
    report = collect(as_zip(tmp_path / "c.zip", CANVAS), LAB).report
    assert report.renamed == ["doejane: masks-1.py is masks.py, which the platform renamed"]
    assert report.late == ["oneilal", "anon_Zq2"]


AGAIN = tree() | {"transformer/masks.py": b"again = 1\n"}


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("ana_7_999_lab.zip", "ana_7_1000_lab-1.zip"),
        ("ana_LATE_7_1000_lab.zip", "ana_LATE_7_1001_lab.zip"),
        ("anon_Xy7_998_lab.tar.gz", "anon_Xy7_1001_lab.tar-2.gz"),
    ],
)
def test_canvas_archive_that_came_again_is_taken_from_the_newer(
    tmp_path: Path, older: str, newer: str
) -> None:
    files = {older: packed(tree("old/")), newer: packed(AGAIN)}
    for source in both(files, tmp_path):
        found = collect(source, LAB)
        said = f"came more than once: {newer} is graded, not {older}"
        assert found.submissions[0].notes == (said,)
        assert found.report.duplicated == [f"{found.submissions[0].who}: {said}"]
        assert newer.startswith(found.submissions[0].upload) and found.submissions[0].upload
        (came,) = staged(found).values()
        assert came["masks.py"] == b"again = 1\n"


def test_canvas_loose_file_that_came_again_is_taken_from_the_newer(tmp_path: Path) -> None:
    names = ("ana_7_21_masks.py", "ana_7_22_attention.py", "ana_7_105_masks-2.py")
    files = dict(zip(names, (b"old", FILES["attention.py"], b"again = 1\n"), strict=True))
    found = collect(write(tmp_path / "c", files), LAB)
    said = "ana: came more than once: ana_7_105_masks-2.py is graded, not ana_7_21_masks.py"
    assert (found.report.duplicated, found.report.refused) == ([said], [])
    assert staged(found)["7"]["masks.py"] == b"again = 1\n"


def test_canvas_archives_of_other_names_are_all_opened_the_newest_first(tmp_path: Path) -> None:
    part = {name: content for name, content in tree().items() if "masks" not in name}
    files = {"ana_7_9_part-1.zip": packed(AGAIN), "ana_7_10_part-2.zip": packed(part)}
    found = collect(write(tmp_path / "c", files), LAB)
    assert found.report.duplicated == [
        "ana: several archives: a file that more than one holds is taken from part-2.zip, then "
        "part-1.zip"
    ]
    assert staged(found)["7"] == FILES | {"masks.py": b"again = 1\n"}


def test_several_notebooks_are_nothing_twice(tmp_path: Path) -> None:
    files = {f"ana/{name}.ipynb": b"{}" for name in ("01_masks", "02_attention")} | tree("ben/")
    assert not collect(write(tmp_path / "c", files), LAB).report.duplicated


def test_canvas_page_of_text_is_a_submission_that_cannot_be_graded(tmp_path: Path) -> None:
    found = collect(as_zip(tmp_path / "c.zip", CANVAS), LAB)
    one = next(one for one in found.submissions if one.key == "503")
    with pytest.raises(IntakeError, match="a text or a link was handed in"):
        examine(one, LAB, [])


def test_canvas_upload_names_carry_both_ids(tmp_path: Path) -> None:
    found = collect(as_zip(tmp_path / "c.zip", CANVAS), LAB)
    names = {one.key: one.upload for one in found.submissions}
    assert names["501"] == "doejane_501_9001_"
    assert names["502"] == "oneilal_LATE_502_9003_"
    assert names["anon_Zq2"] == "LATE_anon_Zq2_9005_"


@pytest.mark.parametrize("end", ["", "_"])
def test_moodle_download_with_folders(tmp_path: Path, end: str) -> None:
    files = {
        f"Jane Doe_31_assignsubmission_file{end}/lab.zip": packed(tree()),
        f"Jane Doe_31_assignsubmission_onlinetext{end}/onlinetext.html": b"hello",
        f"Participant_37_assignsubmission_file{end}/masks.py": FILES["masks.py"],
        f"Participant_37_assignsubmission_file{end}/attention.py": FILES["attention.py"],
    }
    for source in both(files, tmp_path):
        found = collect(source, LAB)
        assert (found.report.layout, keys(found)) == ("Moodle", ["31", "37"])
        assert [s.name for one in found.submissions for s in one.students] == ["Jane Doe", ""]
        assert found.submissions[0].upload == f"Jane Doe_31_assignsubmission_file{end}/"
        assert staged(found) == {"31": FILES, "37": FILES}


def test_moodle_download_that_is_flat(tmp_path: Path) -> None:
    files = {
        "Jane Doe_31_assignsubmission_file_masks.py": FILES["masks.py"],
        "Jane Doe_31_assignsubmission_file_attention.py": FILES["attention.py"],
        "jdoe_Al Lee_37_assignsubmission_file_lab.zip": packed(tree()),
    }
    found = collect(as_zip(tmp_path / "m.zip", files), LAB)
    assert (found.report.layout, keys(found)) == ("Moodle", ["31", "37"])
    assert staged(found) == {"31": FILES, "37": FILES}


GRADESCOPE_YAML = b"""\
submission_71:
  :submitters:
  - :name: Jane Doe
    :sid: '007'
    :email: jane@x.org
  - :name: Al O'Neil
    :sid: 0123
  :created_at: 2026-02-30 10:00:00.1 Z
  :score: 3.0
  :results: !ruby/object:Foo
    :tests: []
submission_73:
  :submitters:
  - :name: Ann Lee
    :sid:
submission_79:
  :submitters:
  - :name: Gone
"""


def test_gradescope_group_is_one_submission_with_all_its_students(tmp_path: Path) -> None:
    files = tree("submission_71/") | {"submission_73/lab.zip": packed(tree())}
    files["submission_metadata.yml"] = GRADESCOPE_YAML
    for source in both(files, tmp_path):
        found = collect(source, LAB)
        assert (found.report.layout, keys(found)) == (
            "Gradescope",
            ["submission_71", "submission_73"],
        )
        assert found.submissions[0].students == (
            Student("", ("007",), "Jane Doe", "jane@x.org"),
            Student("", ("0123",), "Al O'Neil", ""),
        )
        assert found.report.notes == [
            "submission_79 (Gone) is in submission_metadata.yml but did not come"
        ]
        assert staged(found) == dict.fromkeys(keys(found), FILES)


@pytest.mark.parametrize("text", [b"a: [", b"- 1", b"\xff", b"[" * 9000])
def test_gradescope_metadata_that_is_none_is_refused(tmp_path: Path, text: bytes) -> None:
    files = tree("submission_71/") | {"submission_metadata.yml": text}
    with pytest.raises(CollectError, match=r"submission_metadata\.yml"):
        collect(write(tmp_path / "g", files), LAB)


def test_blackboard_latest_attempt_is_graded(tmp_path: Path) -> None:
    name = "Lab 1_jdoe_attempt_2026-01-0{}-10-00-00{}"
    files = {
        name.format(1, "_lab.zip"): packed({"transformer/masks.py": b"old = 1\n"}),
        name.format(1, ".txt"): b"Naam: Jane Doe (jdoe)",
        name.format(2, "_lab.zip"): packed(tree()),
        name.format(2, ".txt"): b"Naam: Jane Doe (jdoe)",
    }
    found = collect(as_zip(tmp_path / "gradebook_X_Lab_2026.zip", files), LAB)
    assert (found.report.layout, keys(found)) == ("Blackboard", ["jdoe"])
    assert found.report.duplicated == [
        "jdoe: several attempts: the latest, 2026-01-02-10-00-00, is graded"
    ]
    assert staged(found) == {"jdoe": FILES}


def test_classroom_clones_are_called_as_their_users(tmp_path: Path) -> None:
    files = tree("lab-1-anna/") | tree("lab-1-bob-lee/")
    files |= {"lab-1-anna/.git/HEAD": b"x", "lab-1-bob-lee/.git/HEAD": b"x"}
    found = collect(write(tmp_path / "clones", files), LAB)
    assert found.report.layout == "GitHub repositories"
    assert [one.students[0].ids for one in found.submissions] == [("anna",), ("bob-lee",)]
    assert staged(found) == {"lab-1-anna": FILES, "lab-1-bob-lee": FILES}


def test_pattern_takes_any_layout(tmp_path: Path) -> None:
    files = {
        "week3/late/anna__masks.py": FILES["masks.py"],
        "week3/late/anna__attention.py": FILES["attention.py"],
        "week3/ok/bob__lab.zip": packed(tree()),
        "week3/notes.txt": b"x",
    }
    pattern = r"week3/(?:(?P<late>late)|ok)/(?P<student_id>\w+?)__"
    for source in both(files, tmp_path)[:2]:
        found = collect(source, LAB, pattern=pattern)
        assert (keys(found), [one.late for one in found.submissions]) == (
            ["anna", "bob"],
            [True, False],
        )
        assert found.report.ignored == ["week3/notes.txt"]
        assert staged(found) == {"anna": FILES, "bob": FILES}


@pytest.mark.parametrize("pattern", ["(", "a(b)", "(?P<student_id>nobody)"])
def test_pattern_that_finds_nobody_is_refused(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(CollectError):
        collect(write(tmp_path / "c", tree("anna/")), LAB, pattern=pattern)


def test_tenth_attempt_is_later_than_the_ninth(tmp_path: Path) -> None:
    files = {f"anna/{number}/masks.py": b"N = %d\n" % number for number in (9, 10)}
    pattern = r"(?P<student_id>\w+)/(?P<timestamp>\d+)/"
    found = collect(write(tmp_path / "c", files), LAB, pattern=pattern)
    assert staged(found) == {"anna": {"masks.py": b"N = 10\n"}}


def test_canvas_zip_with_backslashes_beside_a_loose_file_keeps_its_files(tmp_path: Path) -> None:
    inner = {name.replace("/", "\\"): content for name, content in tree().items()}
    files = {
        "doejane_501_9001_lab.zip": packed(inner),
        "doejane_501_9002_residual.py": b"RESIDUAL = 1\n",
    }
    found = collect(write(tmp_path / "c", files), LAB)
    assert staged(found) == {"501": FILES}
