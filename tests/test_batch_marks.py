"""What a person adds to the grader's scores, what lateness costs, and grading some again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from batch_cases import book, contents, run, small_class, student
from class_cases import LAB, as_zip, packed, tree, write

from grader.base import settings
from grader.classroom import marks

HEAD = "student,task,points,score,comment,author,date\n"


def test_a_persons_word_survives_runs_and_reaches_report_gradebook_and_fill(tmp_path: Path) -> None:
    source, out = small_class(tmp_path / "class", anna="x", ben="wrong", cem="y"), tmp_path / "out"
    run(source, out)
    before = contents(out)
    (out / marks.NAME).write_text(
        HEAD + 'anna,2.1,-1.5,,"read <b>, line 40",R. Berg,2026-12-03\nben,gate 4,,3,,R. Berg,\n'
        "cem,,,,well done,,\n"
    )
    for _ in range(2):
        run(source, out)
        rows = {row["student_id"]: row for row in book(out)}
        assert (rows["anna"]["score"], rows["anna"]["graded_score"]) == ("98.5", "100")
        assert (rows["ben"]["score"], rows["ben"]["graded_score"]) == ("22", "34")
        assert (rows["cem"]["score"], rows["cem"]["comments"]) == ("100", "well done")
        assert "R. Berg, 2026-12-03" in rows["anna"]["comments"]
        report = (out / "students/anna/report.html").read_text()
        assert "read &lt;b&gt;, line 40 (R. Berg, 2026-12-03)" in report
        assert report.count("From your instructor") == 1 and "98.5 of 100" in report
    (out / marks.NAME).unlink()
    run(source, out)
    after = contents(out)
    assert after == before


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("dora,,1,,,,", "line 2: nobody in the class is called 'dora'"),
        ("anna,9.9,1,,,,", "line 2: expected a task such as 2.1"),
        ("anna,,1,2,,,", "line 2: has points and a score"),
        ("anna,2.1,,2,,,", "line 2: gives a score to task 2.1"),
        ("anna,,x,,,,", "line 2: expected a number, got 'x'"),
    ],
)
def test_adjustment_that_cannot_be_applied_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, words: str
) -> None:
    source = small_class(tmp_path / "class", anna="x")
    (tmp_path / "own.csv").write_text(f"{HEAD}{line}\n")
    code, _ = run(source, tmp_path / "out", "--adjustments", str(tmp_path / "own.csv"))
    assert code == 2 and words in capsys.readouterr().err


def test_lateness_costs_by_the_day_after_grace_and_extension(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {
        "ann": "12-01-10-00-00", "ben": "12-01-12-10-00", "cem": "12-02-13-00-00",
        "dora": "12-02-13-00-00", "emil": "12-31-12-00-00",
    }  # fmt: skip
    files = {f"Lab_{n}_attempt_2026-{t}_lab.zip": packed(tree()) for n, t in times.items()}
    lab = tmp_path / "lab.toml"
    lab.write_text(
        settings.LAB_FILE.read_text(encoding="utf-8")
        + "\n[late]\ndeadline = 2026-12-01T12:00:00\ngrace_minutes = 15\npenalty_per_day = 0.1\n"
        "most = 0.5\n[late.extensions]\ndora = 3\n",
        encoding="utf-8",
    )
    late = settings.load(lab)
    assert replace(late, late=None) == LAB
    monkeypatch.setattr(settings, "load", lambda *_: late)
    run(as_zip(tmp_path / "c.zip", files), tmp_path / "out")
    rows = {row["student_id"]: row for row in book(tmp_path / "out")}
    scores = {name: (row["score"], row["late_penalty"]) for name, row in rows.items()}
    assert scores == {
        "ann": ("100", "0"), "ben": ("100", "0"), "cem": ("80", "20"), "dora": ("100", "0"),
        "emil": ("50", "50"),
    }  # fmt: skip
    assert "2 days late: 20 of 100 points are taken off." in rows["cem"]["comments"]


@pytest.mark.parametrize("table", ["deadline = 3", "grace_minutes = 1", "deadline = 2026-12-01"])
def test_late_policy_that_cannot_be_is_refused(tmp_path: Path, table: str) -> None:
    lab = tmp_path / "lab.toml"
    text = settings.LAB_FILE.read_text(encoding="utf-8")
    lab.write_text(f"{text}\n[late]\n{table}\n", encoding="utf-8")
    with pytest.raises(settings.SettingsError, match="late"):
        settings.load(lab)


@pytest.mark.parametrize(
    ("only", "asked"),
    [("student=anna", ["x"]), ("status=not_passed", ["wrong"]), ("flag=odd", ["wrong", "x"])],
)
def test_only_some_are_graded_again_and_the_rest_is_kept(
    tmp_path: Path, only: str, asked: list[str]
) -> None:
    source, out = small_class(tmp_path / "class", anna="x", ben="wrong"), tmp_path / "out"
    run(source, out)
    before = contents(out, lambda name: name != "timings.csv")
    write(source, student("cem", "new"))
    code, engine = run(source, out, "--only", only)
    assert (code, sorted(engine.asked)) == (0, sorted([*asked, "new"]))
    assert [row["student_id"] for row in book(out)] == ["anna", "ben", "cem"]
    after = contents(out)
    assert all(after[name] == before[name] for name in before if name.startswith("students/"))


def test_only_refuses_what_it_does_not_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = small_class(tmp_path / "class", anna="x")
    assert run(source, tmp_path / "out", "--only", "colour=red")[0] == 2
    assert "--only expects student=, status=, task= or flag=" in capsys.readouterr().err
