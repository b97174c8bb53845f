"""A class is graded once, goes on where it was stopped, and depends on nothing but its inputs."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from batch_cases import Stub, book, contents, run, small_class, student
from class_cases import LAB, as_zip, packed, tree, write

from grader.classroom import command, keys
from grader.classroom.store import BatchError, Output

NOT_A_RESULT = (".lock", ".temporary", "timings.csv")


def results(out: Path) -> dict[str, bytes]:
    return contents(out, lambda name: not name.startswith(NOT_A_RESULT))


def test_class_gets_a_row_a_folder_and_a_status_each(tmp_path):
    source = small_class(tmp_path / "class", anna="x", ben="wrong", carl="crash", dora="broken")
    write(source, {"empty/readme.txt": b"no code", "torn.zip": b"not a zip"})
    code, _ = run(source, tmp_path / "out")
    rows = {row["submission"]: row for row in book(tmp_path / "out")}
    assert code == command.GRADER_FAILED
    assert {name: row["status"] for name, row in rows.items()} == {
        "anna": "passed", "ben": "not_passed", "carl": "grader_error", "dora": "grader_error",
        "empty": "ungradable", "torn": "ungradable",
    }  # fmt: skip
    assert rows["anna"]["score"] == "100" and rows["carl"]["score"] == rows["torn"]["score"] == ""
    assert rows["ben"]["stopped_at"] == "gate 1 future_independence"
    assert (rows["ben"]["first_problem"], rows["ben"]["how"]) == ("task 1 masks", "failed")
    assert rows["ben"]["diagnosis"] == "mask_off_by_one"
    assert rows["carl"]["to_do"].startswith("regrade")
    assert "torn.zip is a text file: expected" in rows["torn"]["cause"]
    said = (tmp_path / "out/collection.txt").read_text()
    assert f"ungradable (2):\n  empty: {rows['empty']['cause']}" in said
    folders = tmp_path / "out" / "students"
    found = json.loads((folders / "ben" / "results.json").read_bytes())
    assert found["submission"]["name"] == "ben" and f"{source}/ben" in found["replay"]
    assert "<title>ben" in (folders / "ben" / "report.html").read_text()
    assert "process ended" in (folders / "carl" / "message.txt").read_text()


def test_flags_are_what_is_to_be_looked_at_first(tmp_path):
    run(small_class(tmp_path / "class", anna="x", ben="y"), tmp_path / "out")
    assert {row["to_do"] for row in book(tmp_path / "out")} == {
        "look at the flags in results.json before the score counts"
    }


def test_second_run_grades_nothing_and_changes_nothing(tmp_path):
    source, out = small_class(tmp_path / "class", anna="x", ben="wrong", carl="y"), tmp_path / "out"
    run(source, out)
    before = results(out)
    stamps = {path: path.stat().st_mtime_ns for path in (out / "students").rglob("*.*")}
    code, engine = run(source, out)
    assert (code, engine.asked) == (0, [])
    assert results(out) == before
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps


def canvas(base: Path) -> Path:
    names = enumerate(("anna", "ben"), 1)
    return write(base / "class", {f"{n}_{i}_{i}7_masks.py": n.encode() for i, n in names})


FORMS: dict[str, Callable[[Path], Path]] = {
    "zip": lambda base: as_zip(base / "class.zip", student("anna", "x") | student("ben", "y")),
    "archives": lambda base: write(base / "class", {"anna.zip": packed(tree()), "b.txt": b"x"}),
    "canvas": canvas,
}


@pytest.mark.parametrize("form", FORMS)
def test_second_run_changes_nothing_in_whatever_form_the_class_came(tmp_path, form):
    source, out = FORMS[form](tmp_path), tmp_path / "out"
    assert run(source, out)[1].asked
    before = results(out)
    assert run(source, out)[1].asked == []
    assert results(out) == before


def test_result_that_left_the_store_is_graded_again(tmp_path):
    source, out = small_class(tmp_path / "class", anna="x", ben="y"), tmp_path / "out"
    run(source, out)
    before = results(out)
    shutil.rmtree(out / "store")
    assert sorted(run(source, out)[1].asked) == ["x", "y"]
    assert results(out) == before


def test_only_what_changed_is_graded_again(tmp_path):
    source, out = small_class(tmp_path / "class", anna="x", ben="y", carl="crash"), tmp_path / "out"
    assert run(source, out)[0] == command.GRADER_FAILED
    small_class(source, ben="wrong", dora="z")
    _, engine = run(source, out)
    assert sorted(engine.asked) == ["crash", "wrong", "z"]
    assert [row["status"] for row in book(out)] == [
        "passed", "not_passed", "grader_error", "passed",
    ]  # fmt: skip


def test_same_files_in_another_form_are_not_graded_again(tmp_path):
    source = small_class(tmp_path / "class", anna="x", ben="y")
    run(source, tmp_path / "out")
    files = {
        f"transformer/{n}": c for n, c in (("masks.py", b"x"), ("attention.py", b"HEADS = 7\n"))
    }
    zipped = as_zip(tmp_path / "anna.zip", files)
    (source / "anna.zip").write_bytes(zipped.read_bytes())
    for path in sorted((source / "anna").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (source / "anna").rmdir()
    code, engine = run(source, tmp_path / "out")
    assert (code, engine.asked) == (0, [])


@pytest.mark.parametrize(
    "change",
    [
        {"limits": replace(LAB.limits, question_s=LAB.limits.question_s + 1)},
        {"salt": "another"},
        {"name": "Another Lab"},
    ],
    ids=["limit", "salt", "name"],
)
def test_other_settings_are_another_key(change):
    before, after = keys.inputs(LAB, True), keys.inputs(replace(LAB, **change), True)
    names = keys.causes(before.__dict__, after.__dict__)
    assert before.key != after.key
    assert names == (["seed"] if "salt" in change else ["configuration"])


def test_equal_submissions_are_graded_once_and_keep_their_names(tmp_path):
    source = small_class(tmp_path / "class", anna="same", ben="same", carl="same")
    _, engine = run(source, tmp_path / "out", engine=Stub(1))
    assert engine.asked == ["same"]
    for name in ("anna", "ben", "carl"):
        found = json.loads((tmp_path / "out/students" / name / "results.json").read_bytes())
        assert found["submission"]["name"] == name


@pytest.mark.parametrize("jobs", [1, 5])
def test_any_number_of_jobs_writes_the_same_bytes(tmp_path, jobs):
    names = {f"s{i:02}": ("wrong", "right", "crash", "same")[i % 4] + str(i % 7) for i in range(30)}
    source = small_class(tmp_path / "class", **names)
    run(source, tmp_path / "one", engine=Stub(3, pause_s=0.01))
    run(source, tmp_path / "other", engine=Stub(jobs, pause_s=0.02))
    assert results(tmp_path / "one") == results(tmp_path / "other")


def test_what_waits_does_not_grow_with_the_class(tmp_path):
    source = small_class(tmp_path / "class", **{f"s{i}": f"n = {i}" for i in range(40)})
    _, engine = run(source, tmp_path / "out", engine=Stub(2))
    assert engine.most_waiting <= 4


def test_unfinished_submissions_come_last_and_change_no_file(tmp_path):
    stub = 'raise NotImplementedError("task 1.1: write padding_mask in masks.py")'
    optional = stub.replace("1.1", "S1")
    source = small_class(tmp_path / "class", anna=stub, ben=f"{optional} # ben", carl="crash",
                         dora=stub, emil=f"{stub} # emil", fred="fred")  # fmt: skip
    _, engine = run(source, tmp_path / "out", engine=Stub(1))
    assert engine.asked == [f"{optional} # ben", "crash", "fred", stub, f"{stub} # emil"]
    assert [row["submission"] for row in book(tmp_path / "out")] == sorted(os.listdir(source))
    before = results(tmp_path / "out")
    _, engine = run(source, tmp_path / "out")
    assert engine.asked == ["crash"] and results(tmp_path / "out") == before
    _, engine = run(small_class(source, aron=stub, gwen="gwen"), tmp_path / "out")
    assert engine.asked == ["crash", "gwen"]


def test_student_who_left_the_class_leaves_the_folder(tmp_path):
    source, out = small_class(tmp_path / "class", anna="x", ben="y"), tmp_path / "out"
    run(source, out)
    (out / "students/ben/mine.txt").write_text("a note of the instructor's")
    run(small_class(tmp_path / "smaller", anna="x", carl="z"), out)
    kept = contents(out / "students")
    assert {name.split("/")[0] for name in kept} == {"anna", "ben", "carl"}
    assert [name for name in kept if name.startswith("ben/")] == ["ben/mine.txt"]


def test_lost_files_of_a_student_are_written_again(tmp_path):
    source, out = small_class(tmp_path / "class", anna="x", ben="y"), tmp_path / "out"
    run(source, out)
    before = results(out)
    (out / "students/ben/report.html").unlink()
    (out / "batch.jsonl").unlink()
    assert run(source, out)[1].asked == []
    assert results(out) == before


def test_spoilt_result_counts_as_none(tmp_path):
    source, out = small_class(tmp_path / "class", anna="x", ben="y"), tmp_path / "out"
    run(source, out)
    before = results(out)
    for path in (out / "store").rglob("*.json"):
        path.write_bytes(path.read_bytes()[:50])
    (out / "batch.jsonl").unlink()
    assert len(run(source, out)[1].asked) == 2
    assert results(out) == before


def test_two_batches_on_one_folder_are_refused(tmp_path, capsys):
    source, out = small_class(tmp_path / "class", anna="x", ben="y"), tmp_path / "out"
    with Output(out):
        code, engine = run(source, out)
        with pytest.raises(BatchError, match="another batch"):
            Output(out, "1-of-2")
    assert (code, engine.asked) == (command.CANNOT_RUN, [])
    assert "another batch (process " in capsys.readouterr().err
    with Output(out, "1-of-2"), Output(out, "2-of-2"):
        with pytest.raises(BatchError, match="at work"):
            Output(out, "2-of-2")
    assert run(source, out)[0] == 0


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({".batch": b"transformer-lab batch, format 0\n"}, "written by another version"),
        ({"thesis.txt": b"mine"}, "something that no batch wrote"),
    ],
)
def test_folder_of_another_version_or_kind_is_refused(tmp_path, capsys, files, words):
    source, out = small_class(tmp_path / "class", anna="x", ben="y"), write(tmp_path / "out", files)
    assert run(source, out)[0] == command.CANNOT_RUN
    assert words in capsys.readouterr().err
    assert contents(out) == files


@pytest.mark.parametrize("room", [0, 1, 3, 4, 5, 8, 11, 12, 15])
def test_full_disk_is_named_and_nothing_is_lost(tmp_path, capsys, monkeypatch, room):
    source = small_class(tmp_path / "class", anna="x", ben="wrong", carl="y")
    run(source, tmp_path / "whole")
    left = [room]
    flush = os.fsync

    def full(handle: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        code, _ = run(source, tmp_path / "out")
    assert code == command.CANNOT_RUN
    assert "No space left on device" in capsys.readouterr().err
    for path in (tmp_path / "out").rglob("*.json"):
        json.loads(path.read_bytes())
    kept = len(list((tmp_path / "out/store").rglob("*.json")))
    code, second = run(source, tmp_path / "out")
    assert code == 0 and len(second.asked) == 3 - kept
    assert results(tmp_path / "out") == results(tmp_path / "whole")


def test_other_grader_on_the_machine_that_graded_is_noticed(tmp_path):
    engine = Stub()
    engine.inputs |= {"versions": "other", "contained": False}
    source = small_class(tmp_path / "class", anna="x", ben="y")
    code, _ = run(source, tmp_path / "out", engine=engine)
    assert code == command.GRADER_FAILED
    assert {row["cause"] for row in book(tmp_path / "out")} == {
        "the machine that graded it has another versions and contained than this one"
    }
    assert not (tmp_path / "out/store").exists()


def test_batch_refuses_what_hides_nothing_unless_it_is_named(tmp_path, capsys, monkeypatch):
    portable = command.chosen_isolation("portable")
    monkeypatch.setattr(command.sandbox, "choose", lambda requested: portable)
    source = small_class(tmp_path / "class", anna="x", ben="y")
    code, engine = run(source, tmp_path / "out")
    assert (code, engine.asked) == (command.CANNOT_RUN, [])
    assert "ask for --isolation portable by name" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    engine = Stub()
    engine.inputs["contained"] = False
    assert run(source, tmp_path / "out", "--isolation", "portable", engine=engine)[0] == 0


def test_group_is_graded_once_and_has_a_row_for_each(tmp_path):
    yml = "submission_1:\n  :submitters:\n  - :name: Anna A\n    :sid: '1'\n    :email: a@x.org\n"
    yml += "  - :name: Ben B\n    :sid: '2'\n    :email: b@x.org\n"
    yml += "submission_2:\n  :submitters:\n  - :name: Carl, C\n    :sid: '3'\n"
    files = {"submission_metadata.yml": yml.encode()}
    write(tmp_path / "class", files | tree("submission_1/") | student("submission_2", "wrong"))
    _, engine = run(tmp_path / "class", tmp_path / "out")
    assert len(engine.asked) == 2
    rows = book(tmp_path / "out")
    assert [(r["student_id"], r["name"], r["score"]) for r in rows] == [
        ("1", "Anna A", "100"), ("2", "Ben B", "100"), ("3", "Carl, C", "34"),
    ]  # fmt: skip
