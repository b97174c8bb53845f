"""What comes in and goes out in odd forms: names, rosters, layouts, gradebooks to fill."""

from __future__ import annotations

import json
import re
import shlex
import zipfile
from pathlib import Path

import pytest
from batch_cases import book, run, small_class, student
from class_cases import as_zip, packed, tree, write

from grader import __main__ as command_line
from grader.classroom import command, rows
from grader.upkeep.patching import ROOT

ODD = {
    "newline": "Ann\na",
    "quotes": "O\"Neil, 'Jr'",
    "right-to-left": "\u202egnp.exe",
    "formula": "=cmd()",
    "umlaut": "J\u00fcrgen \u4e2d\u6587",
    "long": "n" * 255,
    "hidden": ".anna",
}


def test_odd_names_are_whole_rows_and_safe_folders(tmp_path):
    files: dict[str, bytes] = {}
    for name in ODD.values():
        files |= student(name)
    write(tmp_path / "class", files)
    code, _ = run(tmp_path / "class", tmp_path / "out")
    found = book(tmp_path / "out")
    assert code == 0 and len(found) == len(ODD)
    assert {row["status"] for row in found} == {"passed"}
    text = (tmp_path / "out/gradebook.csv").read_text(encoding="utf-8")
    assert len(text.splitlines()) == len(ODD) + 1 and "\u202e" not in text
    assert "'=cmd()" in text
    page = (tmp_path / "out/index.html").read_text(encoding="utf-8")
    assert "\u202e" not in page and ODD["umlaut"] in page
    folders = [path.name for path in (tmp_path / "out/students").iterdir()]
    assert all(len(name.encode()) < 100 for name in folders)


def test_path_of_300_bytes_and_one_that_leads_out_are_named(tmp_path):
    deep = "/".join(["d" * 60] * 5)
    files = tree() | {f"transformer/{deep}/x.py": b"1", "../../out.py": b"bad"}
    write(tmp_path / "class", {"anna.zip": packed(files), "ben.zip": packed(tree())})
    code, _ = run(tmp_path / "class", tmp_path / "out")
    assert [row["status"] for row in book(tmp_path / "out")] == ["passed", "passed"]
    assert code == 0 and not list(tmp_path.rglob("out.py"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"PK\x03\x04 torn", "damaged"),
        (b"<html>log in</html>", "web page"),
        (b"", "empty"),
    ],
)
def test_archive_that_is_none_is_named_and_the_others_are_graded(tmp_path, content, words):
    write(tmp_path / "class", {"anna.zip": content, "ben.zip": packed(tree())})
    code, _ = run(tmp_path / "class", tmp_path / "out")
    anna, ben = book(tmp_path / "out")
    assert (code, anna["status"], ben["status"]) == (1, "ungradable", "passed")
    assert words in anna["cause"] and str(tmp_path) not in anna["cause"]
    assert words in (tmp_path / "out/students/anna/message.txt").read_text()


def test_two_students_of_one_name_stay_two(tmp_path):
    names = ["Anna Lee_1_assignsubmission_file_", "Anna Lee_2_assignsubmission_file_"]
    files = tree(f"{names[0]}/") | student(names[1], "wrong")
    write(tmp_path / "class", files)
    roster = tmp_path / "roster.csv"
    roster.write_bytes(b"moodle id,id,name\n1,s1,Anna Lee\n2,s2,Anna Lee\n3,s3,Anna Lee\n")
    code, _ = run(tmp_path / "class", tmp_path / "out", "--roster", str(roster))
    found = book(tmp_path / "out")
    assert [(r["student_id"], r["score"], r["status"]) for r in found] == [
        ("s1", "100", "passed"), ("s2", "34", "not_passed"), ("s3", "", "missing"),
    ]  # fmt: skip
    assert code == 1


def test_roster_with_semicolons_mark_and_duplicates(tmp_path):
    text = "\ufeffstudent_id;name;email\nanna;Anna A;a@x.org\nanna;Anna A;a@x.org\n"
    text += 'ben;"B, Ben";b@x.org\nzoe;Zoe;z@x.org\n'
    roster = tmp_path / "roster.csv"
    roster.write_bytes(text.encode())
    source = small_class(tmp_path / "class", anna="x", carl="y")
    code, _ = run(source, tmp_path / "out", "--roster", str(roster))
    found = book(tmp_path / "out")
    assert [(r["student_id"], r["name"], r["status"]) for r in found] == [
        ("anna", "Anna A", "passed"), ("carl", "", "passed"), ("ben", "B, Ben", "missing"),
        ("zoe", "Zoe", "missing"),
    ]  # fmt: skip
    report = (tmp_path / "out/collection.txt").read_text()
    assert code == 1 and "row 3 repeats row 2" in report and "unknown (1):" in report


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"colour,size\nred,3\n", "needs a column that tells students apart"),
        (b"PK\x03\x04", "spreadsheet"),
        (None, "cannot be read: No such file"),
    ],
)
def test_roster_that_is_none_is_refused_before_anything_is_written(
    tmp_path, capsys, content, words
):
    roster = tmp_path / "roster.csv"
    if content is not None:
        roster.write_bytes(content)
    source = small_class(tmp_path / "class", anna="x", ben="y")
    assert run(source, tmp_path / "out", "--roster", str(roster))[0] == command.CANNOT_RUN
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def canvas_class(root: Path) -> Path:
    """Write a Canvas download: one late, one a resubmission, one that cannot be read."""
    return write(root, {
        "aana_7_11_lab.zip": packed(tree()),
        "bben_LATE_8_12_lab-1.zip": packed(tree() | {"transformer/masks.py": b"wrong"}),
        "ccarl_9_13_masks.py": b"x", "ccarl_9_14_attention-1.py": b"y",
        "eeve_11_15_lab.rar": b"Rar!\x1a\x07\x00",
    })  # fmt: skip


def test_canvas_gradebook_is_filled_and_feedback_named_for_upload(tmp_path, capsys):
    head = "Student,ID,SIS Login ID,Section,Lab (42),Essay (43)\r\n"
    text = (
        head + '    Points Possible,,,,100,10\r\n"Ana, A",7,ana,S1,,5\r\n"Ben, B",8,ben,S1,3,\r\n'
    )
    text += '"Carl, C",9,carl,S1,EX,\r\n"Dora, D",10,dora,S1,,\r\n'
    (tmp_path / "grades.csv").write_bytes(text.encode())
    source = canvas_class(tmp_path / "class")
    words = ("--fill", str(tmp_path / "grades.csv"))
    code, engine = run(source, tmp_path / "out", *words)
    assert (code, engine.asked) == (command.CANNOT_RUN, [])
    assert "Lab (42), Essay (43): name it with --column" in capsys.readouterr().err
    code, engine = run(source, tmp_path / "out", *words, "--column", "Essay")
    assert (code, engine.asked) == (command.CANNOT_RUN, [])
    assert "has 10 points in the gradebook and 100 in the lab" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert run(source, tmp_path / "out", *words, "--column", "Lab")[0] == command.NEEDS_A_PERSON
    filled = (tmp_path / "out/upload/grades.csv").read_bytes().decode()
    assert filled == text.replace("S1,,5", "S1,100,5").replace("S1,3,", "S1,34,")
    assert (tmp_path / "grades.csv").read_bytes() == text.encode()
    assert "ccarl is excused: the cell was left alone" in capsys.readouterr().out
    names = zipfile.ZipFile(tmp_path / "out/upload/feedback.zip").namelist()
    assert names == [
        "aana_7_11_report.html", "bben_LATE_8_12_report.html", "ccarl_9_13_report.html",
        "eeve_11_15_message.txt",
    ]  # fmt: skip
    late = {row["submission"]: row["late"] for row in book(tmp_path / "out")}
    assert late == {"7": "no", "8": "yes", "9": "no", "11": "no"}


def test_gradebook_saved_as_utf_16_is_filled(tmp_path):
    text = "Student\tID\tSection\tLab (42)\r\n\u00c4na\t7\tS1\t\r\n"
    (tmp_path / "grades.csv").write_bytes(text.encode("utf-16"))
    source = canvas_class(tmp_path / "class")
    run(source, tmp_path / "out", "--fill", str(tmp_path / "grades.csv"))
    filled = (tmp_path / "out/upload/grades.csv").read_bytes()
    assert filled == text.replace("S1\t", "S1\t100").encode("utf-16")


def test_moodle_worksheet_is_filled(tmp_path):
    names = ["Anna A_101_assignsubmission_file_", "Ben B_102_assignsubmission_file_"]
    write(tmp_path / "class", tree(f"{names[0]}/") | student(names[1], "wrong"))
    text = "Identifier,Full name,Email address,Status,Grade,Maximum Grade,Feedback comments\n"
    text += "Participant 101,Anna A,a@x.org,,,100.00,\nParticipant 102,Ben B,b@x.org,,,100.00,\n"
    (tmp_path / "sheet.csv").write_text(text)
    code, _ = run(tmp_path / "class", tmp_path / "out", "--fill", str(tmp_path / "sheet.csv"))
    filled = (tmp_path / "out/upload/sheet.csv").read_text()
    assert code == 0
    assert filled == text.replace("a@x.org,,,", "a@x.org,,100,").replace(
        "b@x.org,,,", "b@x.org,,34,"
    )
    members = zipfile.ZipFile(tmp_path / "out/upload/feedback.zip").namelist()
    assert members == [f"{name}/report.html" for name in names]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--shard", "1/2", "--merge"), "give --merge when all shards have ended"),
        (("--shard", "1/2", "--fill", "x.csv"), "give --fill when all shards have ended"),
        (("--column", "Lab"), "--column names a column of the gradebook that --fill names"),
    ],
)
def test_option_that_would_be_passed_over_is_refused(tmp_path, capsys, words, said):
    source, out = small_class(tmp_path / "class", anna="x", ben="y"), tmp_path / "out"
    assert run(source, out, *words)[0] == command.CANNOT_RUN
    assert said in capsys.readouterr().err and not out.exists()


def test_output_where_it_would_be_handed_in_or_cannot_be_is_refused(tmp_path, capsys):
    source = small_class(tmp_path / "class", anna="x", ben="y")
    (tmp_path / "file").write_bytes(b"")
    for out, said in (
        (source / "out", "would be taken for a submission: choose another --out"),
        (tmp_path / "file", "cannot be made (File exists): choose another --out"),
        (tmp_path / "file/out", "cannot be made (Not a directory): choose another --out"),
    ):
        code, engine = run(source, out)
        assert (code, engine.asked) == (command.CANNOT_RUN, [])
        assert said in capsys.readouterr().err
    assert sorted(path.name for path in source.iterdir()) == ["anna", "ben"]


def test_two_archives_of_one_student_say_which_is_used(tmp_path):
    old, new = packed(student("x", "old")), packed(student("x", "new"))
    write(tmp_path / "class", {"ana_7_11_lab.zip": old, "ana_7_12_lab-1.zip": new})
    _, engine = run(tmp_path / "class", tmp_path / "out")
    said = "came more than once: ana_7_12_lab-1.zip is graded, not ana_7_11_lab.zip"
    assert engine.asked == ["new"] and said in book(tmp_path / "out")[0]["notes"]
    assert f"duplicated (1):\n  ana: {said}\n" in (tmp_path / "out/collection.txt").read_text()
    assert f"ana: {said}" in (tmp_path / "out/index.html").read_text()


def replays(out: Path) -> dict[str, str]:
    """Return the command in each student's results.json, without the seed."""
    files = sorted(out.glob("students/*/results.json"))
    texts = {file.parent.name: json.loads(file.read_bytes())["replay"] for file in files}
    return {name: text.split(" --seed ")[0] for name, text in texts.items()}


def test_replay_names_what_can_be_graded(tmp_path):
    files = {
        "ana_7_11_lab.zip": packed(tree()),
        "ben_8_12_masks.py": b"x", "ben_8_13_attention.py": b"y", "carl_9_14_masks.py": b"z",
    }  # fmt: skip
    folder, archive = write(tmp_path / "class", files), as_zip(tmp_path / "class.zip", files)
    grade = "python -m grader grade"
    run(folder, tmp_path / "out")
    assert replays(tmp_path / "out") == {
        "7": f"{grade} {folder}/ana_7_11_lab.zip", "8": f"{grade} PATH", "9": f"{grade} PATH",
    }  # fmt: skip
    run(archive, tmp_path / "out")
    first = f"python -m zipfile -e {archive} unpacked && "
    assert replays(tmp_path / "out") == {
        "7": f"{first}{grade} unpacked/ana_7_11_lab.zip",
        "8": f"{grade} PATH", "9": f"{grade} PATH",
    }  # fmt: skip


def test_replay_of_a_wrapped_zip_leads_through_its_folders(tmp_path):
    inner = {"all/ben/lab 1.zip": packed(tree()), "all/ben/readme.txt": b"hi"}
    source = as_zip(tmp_path / "class.zip", tree("all/anna/") | inner)
    run(source, tmp_path / "out")
    with zipfile.ZipFile(source) as file:
        file.extractall(tmp_path / "unpacked")
    made = {name: shlex.split(text)[-1] for name, text in replays(tmp_path / "out").items()}
    assert made == {"anna": "unpacked/all/anna", "ben": "unpacked/all/ben/lab 1.zip"}
    assert all((tmp_path / path).exists() for path in made.values())


def test_any_other_layout_comes_by_pattern(tmp_path, capsys):
    files = {f"week3__{name}__lab/x/masks.py": b"1" for name in ("anna", "ben")}
    write(tmp_path / "class", files)
    pattern = r"week3__(?P<student_id>\w+?)__lab/x/"
    assert run(tmp_path / "class", tmp_path / "out", "--pattern", pattern)[0] == 0
    assert [row["student_id"] for row in book(tmp_path / "out")] == ["anna", "ben"]
    assert run(tmp_path / "class", tmp_path / "new", "--pattern", "(")[0] == command.CANNOT_RUN
    assert "no regular expression" in capsys.readouterr().err


def test_every_status_says_what_to_do():
    for status in rows.STATUSES:
        assert rows.action(rows.no_verdict(status, "", 100)) == rows.STATUSES[status] != ""


def test_commands_of_the_guide_parse():
    text = (ROOT / "docs/instructor.md").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(r"(?m)^ +\S*python -m grader (batch .+)$", text)
    assert len(lines) >= 7
    for line in lines:
        words = shlex.split(line.replace("$SLURM_ARRAY_TASK_ID", "3"))
        command_line.parser().parse_args(words)
    rows_of_guide = text.split("| status | to do |")[1].split("\n\n")[0]
    assert all(status in rows_of_guide for status in rows.STATUSES)
