"""`python -m grader export` writes what was asked for, or says why it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from platform_cases import mixed, tree

from grader.__main__ import main
from grader.cli.arguments import FORMATS
from grader.report.platforms import EXPORTERS, ExportError, export


def test_export_command_writes_beside_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(mixed()), encoding="utf-8")
    assert main(["export", str(path), "--format", "junit, gradescope", "--format", "markdown"]) == 0
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {"results.json", "junit.xml", "gradescope.json", "report.md"}
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 1}', "\x00"])
def test_export_command_refuses_what_is_no_result(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.json"
    path.write_text(text, encoding="utf-8")
    assert main(["export", str(path), "--format", "junit"]) == 2
    assert capsys.readouterr().err.startswith(f"cannot export {path}: ")
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


def test_command_line_names_every_format() -> None:
    assert FORMATS.split(", ") == list(EXPORTERS)


def test_nothing_is_written_when_one_format_fails(tmp_path: Path) -> None:
    with pytest.raises(ExportError):
        export(tree() | {"score": 1}, ["junit", "gradescope"], tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("result", "format_", "out", "said"),
    [
        ("results.json", "json", "x", "text and json are what grade prints: name a platform"),
        ("none.json", "junit", "x", "No such file or directory"),
        ("results.json", "junit", "results.json/x", "Not a directory"),
        ("torn.json", "junit", "x", "it is no JSON that can be read ("),
    ],
)
def test_export_command_says_what_is_wrong_in_words(
    result: str, format_: str, out: str, said: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "results.json").write_text(json.dumps(mixed()), encoding="utf-8")
    (tmp_path / "torn.json").write_text(json.dumps(mixed())[:99], encoding="utf-8")
    path, words = tmp_path / result, ("--format", format_, "--out", str(tmp_path / out))
    assert main(["export", str(path), *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"cannot export {path}: ") and said in error and "Errno" not in error
