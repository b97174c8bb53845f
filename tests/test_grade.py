"""`python -m grader grade`: what a person and a CI job get, from outside."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from jsonschema import ValidationError
from results_schema import SCHEMA, valid

from grader.base.result import Status

ROOT = Path(__file__).resolve().parent.parent
SEPARATE = ("environment", "isolation", "seconds")


def grader(*arguments: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, "-m", "grader", *map(str, arguments)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def result_in(folder: Path) -> dict[str, Any]:
    return valid(json.loads((folder / "results.json").read_text(encoding="utf-8")))


def without_circumstances(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {k: without_circumstances(v) for k, v in tree.items() if k not in SEPARATE}
    return [without_circumstances(v) for v in tree] if isinstance(tree, list) else tree


def statuses(tree: dict[str, Any], key: str) -> list[str]:
    return [entry["status"] for entry in tree[key]]


def copy_of(tree: str, folder: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(ROOT / tree, folder, ignore=ignored))


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    out = tmp_path_factory.mktemp("solved")
    return grader("grade", "solution", "--out", out), result_in(out)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    out = tmp_path_factory.mktemp("untouched")
    return grader("grade", "starter", "--out", out), result_in(out)


def test_solution_passes_with_full_marks(solved):
    done, tree = solved
    assert done.returncode == 0, done.stdout + done.stderr
    assert tree["complete"] and tree["passed"] and tree["gates_passed"]
    assert tree["score"] == tree["max_score"] == 100
    assert statuses(tree, "parts") == ["passed"] * 6
    assert statuses(tree, "gates") == ["passed"] * 4
    assert tree["integrity"]["flags"] == []
    assert "Traceback" not in done.stdout + done.stderr


def test_result_has_the_promised_fields(solved):
    _, tree = solved
    assert tree["schema"] == 1
    assert [g["name"] for g in tree["gates"]] == [
        "future_independence", "padding_invariance", "finite_gradients", "greedy_accuracy",
    ]  # fmt: skip
    assert [(p["task"], p["name"]) for p in tree["parts"]] == [
        ("1", "masks"), ("2", "attention"), ("3", "residual"), ("4", "encoder"), ("5", "decoder"),
        ("6", "training"),
    ]  # fmt: skip
    fields = {"name", "status", "score", "max_score", "summary", "diagnosis", "evidence", "seconds"}
    for entry in tree["gates"] + tree["parts"]:
        assert fields <= set(entry)
        assert entry["score"] <= entry["max_score"]
    assert set(tree["submission"]) == {"name", "sha256", "files", "notes"}
    assert set(tree["isolation"]) == {"level", "contained", "layers"}
    assert tree["replay"].endswith(f"--seed {tree['seed']}")


def test_starter_is_refused_politely(untouched):
    done, tree = untouched
    assert done.returncode == 1
    assert tree["score"] == 0 and not tree["passed"]
    assert statuses(tree, "parts") == ["not_implemented"] * 6
    assert statuses(tree, "gates") == ["blocked"] * 4
    for part in tree["parts"]:
        assert f"task {part['task']}" in part["summary"]
        assert f"{part['name']}.py" in part["summary"]
    assert "task 1" in tree["gates"][0]["summary"]
    for gate in tree["gates"][1:]:
        assert "future_independence" in gate["summary"]
    assert "Traceback" not in done.stdout + done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_same_submission_gives_the_same_bytes_and_replay_works(untouched, tmp_path):
    _, first = untouched
    replay = first["replay"].split()[3:]
    done = grader(*replay, "--out", tmp_path / "replayed")
    assert done.returncode == 1
    again = result_in(tmp_path / "replayed")
    assert json.dumps(without_circumstances(again)) == json.dumps(without_circumstances(first))


def test_the_task_files_alone_pass(tmp_path):
    names = ["masks", "attention", "residual", "encoder", "decoder", "training"]
    with zipfile.ZipFile(tmp_path / "six.zip", "w") as archive:
        for name in names:
            archive.write(ROOT / "solution" / "transformer" / f"{name}.py", f"{name}.py")
    done = grader("grade", tmp_path / "six.zip", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    found = result_in(tmp_path / "out")
    assert found["passed"] and "given" not in found
    assert "rotary.py is missing" in json.dumps(found["stretch"])


def test_nested_folder_is_found(tmp_path):
    copy_of("starter", tmp_path / "handed in" / "wrapping" / "my tree")
    done = grader("grade", tmp_path / "handed in", "--out", tmp_path / "out")
    assert done.returncode == 1, done.stderr
    assert statuses(result_in(tmp_path / "out"), "parts") == ["not_implemented"] * 6


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_archive_is_taken(tmp_path, kind):
    tree = copy_of("starter", tmp_path / "tree")
    archive = tmp_path / f"work.{kind}"
    files = [p for p in tree.rglob("*") if p.is_file()]
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as out:
            for file in files:
                out.write(file, f"anna/{file.relative_to(tree)}")
            out.writestr("__MACOSX/anna/transformer/._masks.py", b"\x00\x05\x16\x07")
    else:
        with tarfile.open(archive, "w:gz") as out:
            for file in files:
                out.add(file, f"anna/{file.relative_to(tree)}")
    done = grader("grade", archive, "--out", tmp_path / "out")
    assert done.returncode == 1, done.stderr
    tree = result_in(tmp_path / "out")
    assert tree["submission"]["name"] == "work"
    assert statuses(tree, "parts") == ["not_implemented"] * 6


def empty(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def other_assignment(folder: Path) -> Path:
    (folder / "other").mkdir()
    (folder / "other" / "linear_regression.py").write_text("x = 1\n")
    return folder / "other"


def no_archive(folder: Path) -> Path:
    (folder / "work.zip").write_text("this is no zip")
    return folder / "work.zip"


def missing(folder: Path) -> Path:
    return folder / "nowhere"


@pytest.mark.parametrize("make", [empty, other_assignment, no_archive, missing])
def test_what_cannot_be_graded_is_said_in_one_message(tmp_path, make):
    path = make(tmp_path)
    done = grader("grade", path, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.startswith("cannot grade: ")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "results.json").exists()


def test_missing_file_is_named_with_what_was_found(tmp_path):
    tree = copy_of("solution", tmp_path / "tree")
    masks = tree / "transformer" / "masks.py"
    masks.rename(masks.with_name("masks (1).py"))
    done = grader("grade", tree, "--out", tmp_path / "out")
    assert done.returncode == 1, done.stderr
    part = result_in(tmp_path / "out")["parts"][0]
    assert part["status"] == "not_implemented"
    assert part["diagnosis"]["code"] == "missing_file"
    assert "masks.py" in part["diagnosis"]["cause"]
    assert "masks (1).py" in part["diagnosis"]["cause"]


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("attention.py", "def broken(:\n    pass\n", "SyntaxError"),
        ("attention.py", "import does_not_exist\n", "does_not_exist"),
        ("masks.py", "from .decoder import Decoder\n", "circle: transformer/masks.py, line 1"),
        ("masks.py", "padding_mask = None\n", "causal_mask"),
        ("attention.py", "name = input()\n", "attention.py, line 1: an input() stops here"),
    ],
    ids=["syntax", "import", "circular", "names", "input"],
)
def test_file_that_does_not_import_is_explained(tmp_path, file, text, words):
    tree = copy_of("solution", tmp_path / "tree")
    (tree / "transformer" / file).write_text(text)
    done = grader("grade", tree, "--out", tmp_path / "out")
    assert done.returncode == 1, done.stdout + done.stderr
    found = result_in(tmp_path / "out")
    task = {"masks.py": 0, "attention.py": 1}[file]
    part = found["parts"][task]
    assert part["status"] in ("error", "failed")
    assert words in json.dumps(part)
    assert part["diagnosis"]["part"] == file.removesuffix(".py")
    assert "Traceback" not in done.stdout + done.stderr
    # One cause is said once, however many checks it stops, and nothing is said to follow from it.
    checks = [
        check for kind in ("parts", "gates") for item in found[kind] for check in item["checks"]
    ]
    causes = {check["diagnosis"]["cause"] for check in checks if check["diagnosis"]}
    assert done.stdout.count("    look at ") == len(causes)
    for error in ("SyntaxError", "ImportError", "ModuleNotFoundError"):
        assert f"expected ValueError, got {error}" not in done.stdout


def test_killed_run_leaves_a_valid_result(tmp_path):
    out = tmp_path / "out"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "grader", "grade", "solution", "--out", str(out), "--quiet"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not (out / "results.json").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    tree = result_in(out)
    assert not tree["complete"] and not tree["passed"]


def test_json_format_prints_the_result_alone(tmp_path):
    done = grader("grade", "starter", "--out", tmp_path, "--format", "json")
    assert json.loads(done.stdout) == result_in(tmp_path)


def test_unknown_isolation_is_refused():
    done = grader("grade", "starter", "--isolation", "fort-knox")
    assert done.returncode == 2
    assert "fort-knox" in done.stderr and "landlock" in done.stderr


def test_schema_names_every_status():
    assert SCHEMA["$defs"]["status"]["enum"] == [str(status) for status in Status]


@pytest.mark.parametrize("wrong", [{"seed": None}, {"score": "100"}, {"more": 1}, {"gates": [{}]}])
def test_schema_refuses_what_is_no_result(untouched, wrong):
    with pytest.raises(ValidationError):
        valid(untouched[1] | wrong)
