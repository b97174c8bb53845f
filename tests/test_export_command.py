"""`python -m grader export` writes what was asked for, or says why it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from platform_cases import mixed, tree

from grader.__main__ import main
from grader.arguments import FORMATS
from grader.platforms import EXPORTERS, ExportError, export


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
