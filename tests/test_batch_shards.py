"""Shards joined are the class graded at once; a regrade names each changed score and its cause."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import batch_cases
import pytest
from batch_cases import Stub, book, contents, run, small_class
from class_cases import LAB
from platform_cases import mixed

from grader.classroom import command, keys

CLASS = {f"s{i}": ("right", "wrong", "same")[i % 3] + str(i // 5) for i in range(11)}


def results(out: Path) -> dict[str, bytes]:
    return contents(out, lambda name: not name.startswith((".", "shard-", "timings.csv")))


def changes(out: Path) -> dict[str, dict[str, str]]:
    with open(out / "changes.csv", encoding="utf-8", newline="") as file:
        return {row["submission"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize("apart", [False, True], ids=["one folder", "a folder each"])
def test_shards_joined_are_the_class(tmp_path, apart):
    source = small_class(tmp_path / "class", **CLASS)
    run(source, tmp_path / "whole")
    asked: list[str] = []
    folders = [tmp_path / (f"part{i}" if apart else "out") for i in (1, 2, 3)]
    for i, folder in enumerate(folders, 1):
        code, engine = run(source, folder, "--shard", f"{i}/3")
        assert code == 0 and not (folder / "gradebook.csv").exists()
        asked += engine.asked
    assert len(asked) >= len(set(CLASS.values()))
    merged = ["--merge", *(map(str, folders) if apart else [])]
    code, engine = run(source, tmp_path / "out", *merged)
    assert (code, engine.asked) == (0, [])
    assert results(tmp_path / "out") == results(tmp_path / "whole")


def test_shard_that_is_missing_is_named_and_can_follow(tmp_path):
    source = small_class(tmp_path / "class", **{f"s{i}": f"right{i}" for i in range(5)})
    run(source, tmp_path / "out", "--shard", "1/2")
    code, _ = run(source, tmp_path / "out", "--merge")
    rows = book(tmp_path / "out")
    assert code == command.NEEDS_A_PERSON
    assert [row["status"] for row in rows] == ["passed", "not_graded"] * 2 + ["passed"]
    assert "run that shard again, then merge" in rows[1]["to_do"]
    run(source, tmp_path / "out", "--shard", "2/2")
    assert run(source, tmp_path / "out", "--merge")[0] == 0


def test_merge_refuses_what_does_not_belong_together(tmp_path, capsys):
    source = small_class(tmp_path / "class", **CLASS)
    assert run(source, tmp_path / "out", "--merge")[0] == command.CANNOT_RUN
    assert "found no shard" in capsys.readouterr().err
    for i in (1, 2):
        run(source, tmp_path / f"part{i}", "--shard", f"{i}/2")
    note = tmp_path / "part2/shard-2-of-2.json"
    note.write_text(json.dumps(json.loads(note.read_text()) | {"seed": "other"}))
    words = ("--merge", str(tmp_path / "part1"), str(tmp_path / "part2"))
    assert run(source, tmp_path / "out", *words)[0] == command.CANNOT_RUN
    assert "different seed: run one of them again" in capsys.readouterr().err


def test_changed_code_is_the_cause(tmp_path, capsys):
    source = small_class(tmp_path / "class", anna="right", ben="right", carl="wrong")
    run(source, tmp_path / "out")
    small_class(source, ben="wrong", dora="right")
    shutil.rmtree(source / "carl")
    run(source, tmp_path / "out", "--compare", str(tmp_path / "out"))
    found = changes(tmp_path / "out")
    assert sorted(found) == ["ben", "carl", "dora"]
    ben = found["ben"]
    assert (ben["old_score"], ben["new_score"], ben["change"]) == ("100", "34", "-66")
    assert ben["cause"] == "code" and "task 1 masks: 6 to 4" in ben["where"]
    assert found["carl"]["new_status"] == found["dora"]["old_status"] == "absent"
    assert "ben: 100 to 34, because of code (" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["grader", "configuration", "seed", "versions"])
def test_changed_inputs_are_the_cause(tmp_path, monkeypatch, name):
    source = small_class(tmp_path / "class", anna="right", ben="right")
    run(source, tmp_path / "old")
    usual = keys.inputs(LAB, True)
    other = replace(usual, **{name: "other"})
    monkeypatch.setattr(keys, "inputs", lambda lab, contained: other)
    monkeypatch.setattr(batch_cases, "result", lambda masks: mixed())
    run(source, tmp_path / "new", "--compare", str(tmp_path / "old"), engine=Stub())
    assert {n: row["cause"] for n, row in changes(tmp_path / "new").items()} == dict.fromkeys(
        ("anna", "ben"), name
    )


def test_score_that_changed_for_no_reason_is_called_so(tmp_path):
    source = small_class(tmp_path / "class", anna="right", ben="right")
    run(source, tmp_path / "old")
    state = tmp_path / "old/batch.jsonl"
    state.write_text(state.read_text().replace('"score":100', '"score":93', 1))
    run(source, tmp_path / "new", "--compare", str(tmp_path / "old"))
    (row,) = changes(tmp_path / "new").values()
    assert row["cause"] == "none: the same inputs gave another score"


def test_compare_with_what_is_no_batch_is_refused(tmp_path, capsys):
    source = small_class(tmp_path / "class", **CLASS)
    words = ("--compare", str(tmp_path / "class"))
    assert run(source, tmp_path / "out", *words)[0] == command.CANNOT_RUN
    assert "--compare expects the output folder of a batch" in capsys.readouterr().err
