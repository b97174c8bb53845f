"""Gradebooks are filled in place: the right cells, and not one byte besides."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

from grader.base.csvtext import CsvError, read_table
from grader.classroom.gradebooks import Filled, Grade, GradebookError, fill_canvas, fill_moodle
from grader.classroom.people import name_key
from grader.classroom.uploads import feedback_zip, is_feedback_zip

CANVAS = (
    "Student,ID,SIS User ID,SIS Login ID,Section,Quiz (11),Lab (42),Final Score\r\n"
    "    Points Possible,,,,,10.00,100.00,(read only)\r\n"
    '"Doe, Jane",501,s1,jdoe,Lecture,3.00,,77\r\n'
    '"O""Neil, \'Al",502,s2,aoneil,"Lecture\nTwo",4.00,"12.00",88\r\n'
    '"Doe, Jane",503,s3,jane2,Lecture,,EX,\r\n'
    '"Student, Test",504,,,Lecture,,,\r\n'
)
MOODLE = (
    "Identifier,Full name,Email address,Status,Grade,Maximum Grade,Grade can be changed,"
    "Last modified (grade),Feedback comments\n"
    'Participant 31,Jane Doe,jane@x.org,"Submitted, late",,100.00,Yes,-,"old ""words"""\n'
    "Participant 37,Al O'Neil,al@x.org,No submission,5.00,100.00,Yes,-,\n"
    "Participant 41,Ann Lee,ann@x.org,Submitted,,100.00,No,-,\n"
)


def grade(
    platform_id: str = "", name: str = "", score: Any = 87.5, ids: tuple[str, ...] = ()
) -> Grade:
    return Grade(platform_id, ids, name, score, 100)


def changes(before: str, filled: Filled) -> list[tuple[str, str]]:
    """Return the lines that differ."""
    lines = filled.data.decode().split("\n")
    assert len(lines) == len(before.split("\n"))
    return [(a, b) for a, b in zip(before.split("\n"), lines, strict=True) if a != b]


def test_canvas_cell_of_the_user_id_is_filled_and_nothing_else() -> None:
    out = fill_canvas(CANVAS.encode(), [grade("501")], "Lab (42)")
    old, new = (
        '"Doe, Jane",501,s1,jdoe,Lecture,3.00,,77\r',
        '"Doe, Jane",501,s1,jdoe,Lecture,3.00,87.5,77\r',
    )
    assert changes(CANVAS, out) == [(old, new)]
    assert (out.filled, out.unmatched, out.notes) == (1, [], [])


def test_canvas_keeps_the_quotes_of_a_cell() -> None:
    out = fill_canvas(CANVAS.encode(), [grade("502")], "42")
    assert b'"Lecture\nTwo",4.00,"87.5",88\r\n' in out.data


def test_canvas_without_grades_is_the_same_file() -> None:
    data = b"\xef\xbb\xbf" + CANVAS.encode()
    assert fill_canvas(data, [], "Lab").data == data


def test_canvas_excused_student_stays_excused() -> None:
    out = fill_canvas(CANVAS.encode(), [grade("503", "Jane Doe")], "Lab")
    assert (out.data, out.filled) == (CANVAS.encode(), 0)
    assert out.notes == ["Jane Doe is excused: the cell was left alone"]


def test_canvas_matches_other_ids_and_a_name_that_is_alone() -> None:
    grades = [grade(ids=("S1",)), grade(name="'Al O\"Neil", score=20)]
    out = fill_canvas(CANVAS.encode(), grades, "Lab")
    assert (out.filled, len(changes(CANVAS, out))) == (2, 2)


def test_canvas_name_of_two_students_matches_neither() -> None:
    out = fill_canvas(CANVAS.encode(), [grade(name="Jane Doe")], "Lab")
    assert (out.data, out.unmatched) == (CANVAS.encode(), ["Jane Doe"])


def test_canvas_namesake_does_not_get_the_grade_of_one_who_left() -> None:
    data = CANVAS.replace('"Doe, Jane",503,s3,jane2,Lecture,,EX,\r\n', "").encode()
    out = fill_canvas(data, [grade("503", "Doe, Jane")], "Lab")
    assert (out.data, out.unmatched) == (data, ["Doe, Jane"])


def test_canvas_number_of_another_kind_is_not_the_user_id() -> None:
    data = CANVAS.replace("501,s1", "501,777").encode()
    assert fill_canvas(data, [grade("777")], "Lab").unmatched == ["777"]


def test_grader_error_leaves_the_cell_alone() -> None:
    out = fill_canvas(CANVAS.encode(), [grade("502", "Al", None)], "Lab")
    assert (out.data, out.notes) == (CANVAS.encode(), ["Al has no score: the cell was left alone"])


def test_two_grades_of_one_student_fill_nothing() -> None:
    out = fill_canvas(CANVAS.encode(), [grade("501"), grade("501", score=3)], "Lab")
    assert (out.data, out.unmatched) == (CANVAS.encode(), ["501", "501"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("Student,", "Name,"), "expected a Canvas gradebook"),
        (("Section", "Group"), "expected a Canvas gradebook"),
        (("Lab (42)", "Lab"), "expected the assignment 'Lab'"),
        (("Quiz (11)", "Lab (12)"), "Lab (12), Lab (42)"),
        (("100.00,(", "20.00,("), "has 20.00 points in the gradebook and 100 in the lab"),
        (("10.00,100.00", "10.00,(read only)"), "is read only"),
    ],
)
def test_canvas_refuses_what_is_unclear(change: tuple[str, str], message: str) -> None:
    data = CANVAS.replace(*change, 1).encode()
    with pytest.raises(GradebookError) as refused:
        fill_canvas(data, [grade("501")], "Lab")
    assert message in str(refused.value)


def test_canvas_assignment_may_be_left_out_where_one_fits() -> None:
    data = CANVAS.replace("Quiz (11)", "Quiz").encode()
    assert fill_canvas(data, [grade("501")]).filled == 1
    with pytest.raises(GradebookError, match="one assignment among"):
        fill_canvas(CANVAS.encode(), [grade("501")])


def test_semicolons_with_decimal_commas_stay() -> None:
    text = CANVAS.replace('"Doe, Jane"', "Jane Doe").replace('"Student, Test"', "Test")
    text = text.replace('"O""Neil, \'Al"', "Al").replace(",", ";").replace(".", ",")
    out = fill_canvas(text.encode(), [grade("501")], "Lab")
    assert [new for _, new in changes(text, out)] == ["Jane Doe;501;s1;jdoe;Lecture;3,00;87,5;77\r"]


def test_decimal_comma_between_commas_is_quoted() -> None:
    text = MOODLE.replace("100.00", '"100,00"').replace("5.00", '"5,00"')
    out = fill_moodle(text.encode(), [grade("31")])
    assert b',"Submitted, late","87,5","100,00",Yes' in out.data


def test_moodle_fills_the_participant_only() -> None:
    out = fill_moodle(MOODLE.encode(), [grade("31"), grade("37", score=100)])
    assert [new.split(",")[0] for _, new in changes(MOODLE, out)] == [
        "Participant 31",
        "Participant 37",
    ]
    assert b"No submission,100,100.00" in out.data


def test_moodle_locked_row_is_left_alone() -> None:
    out = fill_moodle(MOODLE.encode(), [grade("41", "Ann Lee")])
    assert (out.data, out.unmatched) == (MOODLE.encode(), ["Ann Lee"])
    assert out.notes == ["1 rows whose grade cannot be changed were left alone"]


def test_moodle_matches_the_address() -> None:
    assert fill_moodle(MOODLE.encode(), [grade(ids=("JANE@x.org",))]).filled == 1


def test_moodle_worksheet_in_another_language_is_understood() -> None:
    text = MOODLE.replace("Identifier,Full name", "ID,Vollst\u00e4ndiger Name")
    text = (
        text.replace("Participant ", "Teilnehmer/in").replace("Yes", "Ja").replace(",No,", ",Nein,")
    )
    text = text.replace(
        "Status,Grade,Maximum Grade,Grade can be changed", "Status,Bewertung,Beste,Offen"
    )
    for encoding in ("utf-8", "cp1252"):
        out = fill_moodle(text.encode(encoding), [grade("31")])
        assert out.data == text.replace(',"Submitted, late",,', ',"Submitted, late",87.5,').encode(
            encoding
        )


def test_moodle_grade_column_can_be_named() -> None:
    text = MOODLE.replace("Status,Grade,Maximum Grade", "Status,Punkte,Hoechst")
    assert fill_moodle(text.encode(), [grade("31")], "Punkte").filled == 1
    with pytest.raises(GradebookError, match="expected a column 'Note'"):
        fill_moodle(text.encode(), [grade("31")], "Note")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "expected a Moodle grading worksheet"),
        (MOODLE.replace("100.00", "10.00"), "has 10.00 points in the gradebook and 100 in the lab"),
        (MOODLE.replace("Grade,Max", "Note,Max").replace("100.00", ""), "which column holds"),
        (MOODLE.replace("Maximum Grade", "Scale"), "graded by a scale in Moodle"),
    ],
)
def test_moodle_refuses_what_is_unclear(text: str, message: str) -> None:
    with pytest.raises(GradebookError) as refused:
        fill_moodle(text.encode(), [grade("31")])
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04", "is a spreadsheet or a zip"),
        (b"a\x00b", "is not text"),
        (b"\xff\xfea", "is not utf-16-le text"),
    ],
)
def test_what_is_no_csv_is_said_to_be_none(data: bytes, message: str) -> None:
    with pytest.raises(CsvError, match=message):
        read_table(data)


@pytest.mark.parametrize("line", ["sep=;", '"sep=;"'])
def test_first_line_that_names_the_separator_is_no_heading(line: str) -> None:
    text = f"{line}\r\na,b;c\r\n1;2\r\n"
    table = read_table(text.encode())
    assert [table.values(row) for row in range(2)] == [["a,b", "c"], ["1", "2"]]
    assert table.changed({table.rows[1][1]: "9"}) == f"{line}\r\na,b;c\r\n1;9\r\n".encode()


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", ""])
def test_table_reads_back_what_it_was_read_from(mark: bytes, end: str) -> None:
    data = mark + f'a;"b;\n""c""";\r\n\r\n"d"e;;f{end}'.encode()
    table = read_table(data)
    assert table.changed({}) == data
    assert table.rows[0][1].value == 'b;\n"c"'
    assert [len(row) for row in table.rows] == [3, 3]


def test_bytes_that_are_no_letters_come_back() -> None:
    data = b"Student,ID,Section,Lab (42)\nA\x81\xff,501,x,\n"
    assert fill_canvas(data, [grade("501", score=7)]).data == data[:-1] + b"7\n"


def test_names_are_compared_without_order_case_and_direction_marks() -> None:
    assert name_key("\u200fDoe,  JANE") == name_key("Jane Doe\u200e") == "doe jane"


def test_feedback_zip_keeps_the_platforms_names_and_is_reproducible(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    items = [
        ("doejane_501_9001_", "report.md", tmp_path / "one"),
        ("Jane Doe_31_assignsubmission_file/", "report.md", tmp_path / "two"),
    ]
    first, second, made = io.BytesIO(), io.BytesIO(), tmp_path / "feedback.zip"
    feedback_zip(items, first)
    feedback_zip(reversed(items), second)
    assert first.getvalue() == second.getvalue()
    with zipfile.ZipFile(first) as archive:
        assert archive.namelist() == [
            "Jane Doe_31_assignsubmission_file/report.md",
            "doejane_501_9001_report.md",
        ]
    assert not is_feedback_zip(items, made)
    made.write_bytes(first.getvalue())
    assert is_feedback_zip(items, made) and not is_feedback_zip(items[:1], made)
    (tmp_path / "two").write_text("tw0")
    assert not is_feedback_zip(items, made)
    made.write_bytes(first.getvalue()[:-9])
    assert not is_feedback_zip(items, made)
