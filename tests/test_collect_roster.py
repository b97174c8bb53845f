"""The roster is read in any dialect, and a class is compared with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from class_cases import LAB, as_zip, packed, tree

from grader.base.csvtext import CsvError
from grader.classroom.collect import Collection, Roster, RosterError, Student, collect, read_roster

ANN = Student("", ("s7", "alee"), "Ann Lee", "ann@x.org")
BOB = Student("", ("s11", "bob"), "Bob Ray", "bob@x.org")
TEXT = "student_id,username,name,email\ns7,alee,Ann Lee,ann@x.org\ns11,bob,Bob Ray,bob@x.org\n"


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_roster_is_read_in_every_dialect(mark: str, delimiter: str, end: str) -> None:
    text = mark + TEXT.replace(",", delimiter).replace("\n", end)
    assert read_roster(text.encode()) == Roster([ANN, BOB], [])


def test_roster_is_read_in_windows_and_utf_16_encodings() -> None:
    text = TEXT.replace("Ann Lee", "\u00c4nn L\u00ebe")
    for encoding in ("cp1252", "utf-16"):
        assert read_roster(text.encode(encoding)).students[0].name == "\u00c4nn L\u00ebe"


def test_roster_columns_have_many_names() -> None:
    text = "Last Name,First Name,SIS Login ID,E-Mail\nLee,Ann,alee,ann@x.org\n"
    assert read_roster(text.encode()).students == [Student("", ("alee",), "Ann Lee", "ann@x.org")]


@pytest.mark.parametrize(
    ("text", "student"),
    [
        ("Identifier,Full name\nParticipant 201,Ann Lee\n", Student("201", (), "Ann Lee")),
        ("identifier,github_username,name\ns7,alee,Ann\n", Student("", ("s7", "alee"), "Ann")),
        ("student_username,roster_identifier\nalee,s7\n", Student("", ("s7", "alee"))),
        ("sep=;\nstudent_id;name\ns7;Ann\n", Student("", ("s7",), "Ann")),
    ],
)
def test_what_platforms_export_serves_as_a_roster(text: str, student: Student) -> None:
    assert read_roster(text.encode()).students == [student]


def test_roster_rows_that_repeat_are_left_out_and_named() -> None:
    text = TEXT + "s7,alee,Ann Lee,ann@x.org\nS11,,Someone Else,\n,,No Id,\n"
    roster = read_roster(text.encode())
    assert roster.students == [ANN, BOB]
    assert roster.notes == [
        "row 4 repeats row 2 with the same content: left out",
        "row 5 repeats row 3 with another content: left out",
        "row 6 names no student: left out",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,group\nAnn,1\n", "needs a column that tells students apart.*name, group"),
        ("student_id,name\n", "headings but no students"),
        ("student_id,name\n,Ann\n", "headings but no students"),
    ],
)
def test_roster_without_students_is_refused(text: str, message: str) -> None:
    with pytest.raises(RosterError, match=message):
        read_roster(text.encode())


@pytest.mark.parametrize("data", [b"", b"\n\n", b"PK\x03\x04..."])
def test_roster_that_is_no_table_is_refused(data: bytes) -> None:
    with pytest.raises(CsvError):
        read_roster(data)


def compared(folder: Path, files: dict[str, bytes], *students: Student) -> Collection:
    return collect(as_zip(folder / "c.zip", files), LAB, Roster(list(students), []))


def test_report_says_who_is_missing_and_who_is_unknown(tmp_path: Path) -> None:
    found = compared(tmp_path, tree("alee/") | tree("eve/"), ANN, BOB)
    assert (found.report.missing, found.report.unknown) == (["Bob Ray"], ["eve"])
    assert found.submissions[0].students == (ANN,)


def test_canvas_download_is_matched_by_number_and_run_together_name(tmp_path: Path) -> None:
    files = {f"{name}_{i}_90_lab.zip": packed(tree()) for name, i in (("leeann", 501), ("x", 503))}
    bob = Student("503", ("s11",), "Bob Ray", "bob@x.org")
    found = compared(tmp_path, files, ANN, bob)
    assert (found.report.missing, found.report.unknown) == ([], [])
    assert [one.students[0].platform_id for one in found.submissions] == ["501", "503"]
    assert [one.who for one in found.submissions] == ["Ann Lee", "Bob Ray"]


def test_two_of_one_name_are_matched_by_nothing_but_an_id(tmp_path: Path) -> None:
    twins = [Student("", (i,), "Ann Lee", "") for i in ("s7", "s11")]
    files = {f"Ann Lee_{i}_assignsubmission_file_/lab.zip": packed(tree()) for i in (31, 37)}
    found = compared(tmp_path, files, *twins)
    assert found.report.missing == found.report.unknown == ["Ann Lee", "Ann Lee"]


def test_every_member_of_a_group_is_matched(tmp_path: Path) -> None:
    text = "submission_1:\n  :submitters:\n  - :sid: s7\n  - :email: BOB@x.org\n"
    files = tree("submission_1/") | {"submission_metadata.yml": text.encode()}
    found = compared(tmp_path, files, ANN, BOB)
    assert found.submissions[0].students == (ANN, BOB)
    assert found.report.missing == []


def test_report_reads_as_lines(tmp_path: Path) -> None:
    lines = compared(tmp_path, tree("alee/") | tree("eve/"), ANN, BOB).report.lines()
    assert lines[0].startswith("2 submissions; layout: folders (2 at the top")
    assert lines[1:] == ["missing (1):", "  Bob Ray", "unknown (1):", "  eve"]
