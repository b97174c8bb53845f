"""`python -m grader check`: a checklist in task order, one next line, nothing left behind."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from grader.base import settings
from grader.cli import check
from grader.report import checklist

ROOT = Path(__file__).resolve().parent.parent
STUBS = check.stubs_of(settings.load())
DIAGNOSIS = {"code": "c", "part": "masks", "cause": "too wide.", "advice": "Look there."}


def outcome(stub: str, status: str, **fields: Any) -> dict[str, Any]:
    base = {"stub": stub, "status": status, "summary": "s", "diagnosis": None, "evidence": {}}
    return base | fields


def shown(checks: list[dict[str, Any]], path: Path, *, complete: bool = True) -> str:
    console = Console(file=io.StringIO(), width=100)
    found = checklist.rows(checks, STUBS)
    console.print(checklist.render(found, path, complete=complete))
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def tree(folder: Path, text: str, file: str = "masks.py") -> Path:
    (folder / "transformer").mkdir(parents=True, exist_ok=True)
    (folder / "transformer" / file).write_text(text)
    return folder


def checked(*arguments: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "100"}
    command = [sys.executable, "-m", "grader", "check", *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )


def test_checklist_shows_every_state_and_the_witness(tmp_path):
    text = shown(
        [
            outcome("1.1", "passed"),
            outcome("1.2", "failed", diagnosis=DIAGNOSIS,
                    evidence={"index": [0, 3], "expected": False, "got": True}),
            outcome("1.3", "not_implemented"),
            outcome("2.1", "blocked", summary="waits for task 1.3 (masks.py)"),
        ],
        tmp_path,
    )  # fmt: skip
    assert text.splitlines()[:9] == [
        "Task 1  masks.py",
        "  1.1   done         padding_mask",
        "  1.2   wrong        causal_mask",
        "        too wide.",
        "        seen: first place that differs (0, 3); expected False; got True",
        "        try: Look there.",
        "  1.3   not started  combine_masks",
        "Task 2  attention.py",
        "  2.1   waits        scaled_dot_product_attention",
    ]
    assert "public checks: 1 of 4 passed" in text
    assert text.count("next: ") == 1


def test_next_names_the_line_of_the_first_function_that_is_not_written(tmp_path):
    text = "\n\ndef split_heads(x): ...\n\n\ndef merge_heads(x):\n    raise NotImplementedError\n"
    path = tree(tmp_path, text, "attention.py")
    found = shown([outcome("2.2", "not_implemented")], path)
    file = path / "transformer" / "attention.py"
    assert f"next: write merge_heads in {file}, line 6 (task 2.2)" in found.replace("\n", " ")


def test_next_names_a_method_by_its_class(tmp_path):
    text = (
        "class Other:\n    def forward(self): ...\n\nclass Encoder:\n    def forward(self): ...\n"
    )
    path = tree(tmp_path, text, "encoder.py")
    row = checklist.rows([outcome("4.2", "failed", diagnosis=DIAGNOSIS)], STUBS)
    step = checklist.next_step(row, path, complete=True)
    assert step.startswith("mend Encoder.forward in ") and ", line 5 (task 4.2)" in step


@pytest.mark.parametrize(
    ("text", "frames", "line"),
    [
        (
            "def causal_mask():\n    return 1 / 0\n",
            [{"file": "transformer/masks.py", "line": "2"}],
            2,
        ),
        ("\n\n\ndef causal_mask():\n    pass\n", [{"file": "models.py", "line": "71"}], 4),
    ],
    ids=["raised", "raised elsewhere"],
)
def test_next_names_the_line_that_raised(tmp_path, text, frames, line):
    path = tree(tmp_path, text)
    row = outcome("1.2", "error", diagnosis=DIAGNOSIS, evidence={"frames": frames})
    step = checklist.next_step(checklist.rows([row], STUBS), path, complete=True)
    assert f"line {line} (task 1.2)" in step


def test_next_passes_over_a_task_that_waits(tmp_path):
    rows = checklist.rows([outcome("1.1", "blocked"), outcome("1.2", "failed")], STUBS)
    assert "causal_mask" in checklist.next_step(rows, tmp_path, complete=True)


def test_next_says_what_comes_after_the_parts(tmp_path):
    rows = checklist.rows([outcome("1.1", "passed")], STUBS)
    assert "make grade" in checklist.next_step(rows, tmp_path, complete=True)
    assert "make check" in checklist.next_step(rows, tmp_path, complete=False)


def test_stretch_task_is_shown_once_it_is_begun():
    idle, begun = outcome("S1", "not_implemented"), outcome("S2", "failed", diagnosis=DIAGNOSIS)
    assert [row.stub.id for row in checklist.rows([idle, begun], STUBS)] == ["S2"]
    assert len(checklist.rows([idle, begun], STUBS, begun_only=False)) == 2


def test_hostile_text_cannot_steer_the_terminal(tmp_path):
    cause = "\x1b[2J[bold red]\x07 boo"
    row = outcome("1.2", "error", diagnosis=DIAGNOSIS | {"cause": cause})
    text = shown([row], tmp_path)
    assert "\x1b" not in text and "\x07" not in text and "[bold red]" in text


def test_what_the_code_printed_stands_below_its_task(tmp_path):
    many = "\n".join(f"row {n}" for n in range(30))
    text = shown([outcome("1.1", "passed", printed=many),
                  outcome("1.2", "failed", diagnosis=DIAGNOSIS, printed="\x1b[2Jwidth 4")],
                 tmp_path)  # fmt: skip
    lines = text.splitlines()
    assert "        printed: row 0" in lines and "printed: row 10" not in text
    assert "        printed: ... and 20 more lines" in lines
    assert lines.index("        printed: width 4") > lines.index("        try: Look there.")


def test_small_values_stand_side_by_side_and_what_differs_is_marked(tmp_path):
    around = {"slice": [], "starts": [0, 0], "expected": [[True, False], [True, True]],
              "got": [[True, True], [True, True]]}  # fmt: skip
    seen = {"index": [0, 1], "expected": False, "got": True, "around": around}
    row = outcome("1.2", "failed", diagnosis=DIAGNOSIS, evidence=seen)
    lines = shown([row], tmp_path).splitlines()
    place = lines.index("        expected    got")
    assert lines[place + 1] == "         1  .        1 [1]"
    assert lines[place + 2] == "         1  1        1  1"


def test_check_shows_what_the_code_prints_and_keeps_it(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__")
    path = Path(shutil.copytree(ROOT / "solution", tmp_path / "tree", ignore=ignored))
    masks = path / "transformer/masks.py"
    text = masks.read_text()
    line = "    return every_pair.tril(offset)"
    assert line in text
    masks.write_text(text.replace(line, f"    print('so far', 1)\n{line}", 1))
    done = checked("1.2", "--tree", path, "--out", tmp_path / "out")
    assert "        printed: so far 1" in done.stdout
    tree = json.loads((tmp_path / "out/results.json").read_text())
    kept = [c["printed"] for e in tree["parts"] for c in e["checks"] if "printed" in c]
    assert kept and kept[0].startswith("so far 1")


def test_check_prints_a_checklist_and_keeps_nothing(tmp_path):
    before = sorted((ROOT / "reports").glob("*")) if (ROOT / "reports").is_dir() else []
    done = checked("1", "--tree", "starter")
    assert done.returncode == 1, done.stderr
    assert done.stdout.count("not started") == 3
    line = checklist.functions(ROOT / "starter/transformer/masks.py")["padding_mask"].lineno
    where = f"padding_mask in starter/transformer/masks.py, line {line} (task 1.1)"
    assert done.stdout.splitlines()[-1] == f"next: write {where}"
    assert "gate" not in done.stdout
    assert sorted((ROOT / "reports").glob("*")) == before or not before


def test_check_keeps_the_result_where_it_is_asked_to(tmp_path):
    done = checked("1.2", "--tree", "solution", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "results.json").exists()
    assert "public checks: 2 of 2 passed" in done.stdout


def test_check_points_at_the_line_that_is_no_python(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__")
    path = Path(shutil.copytree(ROOT / "starter", tmp_path / "tree", ignore=ignored))
    tree(path, "\ndef broken(:\n")
    done = checked("1.2", "--tree", path)
    assert done.returncode == 1, done.stderr
    said = " ".join(done.stdout.split())
    assert "next: mend " in said and "masks.py, line 2 (task 1.2)" in said


def test_check_refuses_a_task_that_does_not_exist():
    done = checked("7", "--tree", "solution")
    assert done.returncode == 2
    assert "there is no task 7; expected one of 1, 2, " in done.stderr


def test_check_of_a_wrong_tree_explains_and_points(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__")
    path = Path(shutil.copytree(ROOT / "solution", tmp_path / "tree", ignore=ignored))
    masks = path / "transformer" / "masks.py"
    masks.write_text(masks.read_text().replace("tril(offset)", "tril(offset + 1)"))
    done = checked("1.2", "--tree", path)
    assert done.returncode == 1, done.stderr
    assert "wrong" in done.stdout and "seen: " in done.stdout and "try: " in done.stdout
    assert "next: mend causal_mask in" in done.stdout
    assert not [line for line in done.stdout.splitlines() if line != line.rstrip()]


@pytest.mark.parametrize(
    "checks, words",
    [
        ([("S1", "not_implemented", "s")], "next: write KVCache.append"),
        ([("3.1", "passed", "s")], "next: task 3 is done; `make check` looks at every task"),
        ([("6.3", "passed", "s")], "next: task 6.3 is done; `make check` looks at every task"),
        ([("4.1", "blocked", "waits for task 2.3 (attention.py)")],
         "next: task 4.1 waits for task 2.3 (attention.py): begin there"),
    ],
)  # fmt: skip
def test_next_fits_the_task_that_was_asked_for(tmp_path, checks, words):
    console = Console(file=io.StringIO(), width=200)
    every = [outcome(stub, status, summary=summary) for stub, status, summary in checks]
    found = checklist.rows(every, STUBS, begun_only=False)
    console.print(checklist.render(found, tmp_path, complete=False))
    assert isinstance(console.file, io.StringIO)
    assert words in console.file.getvalue()


def test_what_an_earlier_task_explains_is_said_in_a_few_words(tmp_path):
    wrong = outcome("1.2", "failed", diagnosis=DIAGNOSIS)
    frames = [{"file": "transformer/attention.py", "line": "7"}]
    raised = DIAGNOSIS | {"cause": "line 7: shapes (3,) and (4,)."}
    text = shown(
        [
            wrong,
            outcome("2.1", "failed", diagnosis=DIAGNOSIS | {"cause": "far off."},
                    evidence={"built_on": "1.2"}),
            outcome("2.3", "failed", diagnosis=DIAGNOSIS),
            outcome("4.1", "error", diagnosis=raised, evidence={"frames": frames}),
            outcome("4.2", "error", diagnosis=raised | {"cause": "line 7: shapes (5,) and (6,)."},
                    evidence={"frames": frames}),
        ],
        tmp_path,
    )  # fmt: skip
    assert "builds on task 1.2, which does not pass" in text and "far off." not in text
    assert "as task 1.2" in text and text.count("too wide.") == 1
    assert "raises at the same line as task 4.1" in text and "(5,)" not in text


def test_what_no_shown_task_explains_is_said_in_full(tmp_path):
    row = outcome("2.3", "failed", diagnosis=DIAGNOSIS, evidence={"built_on": "2.1"})
    assert "too wide." in shown([row], tmp_path)


def test_next_never_names_a_line_of_another_function(tmp_path):
    path = tree(tmp_path, "def causal_mask():\n    return padding_mask()\n\n\ndef padding_mask():\n"
                "    return 1 / 0\n")  # fmt: skip
    frames = [{"file": "transformer/masks.py", "line": line} for line in ("2", "6")]
    row = outcome("1.2", "error", diagnosis=DIAGNOSIS, evidence={"frames": frames})
    step = checklist.next_step(checklist.rows([row], STUBS), path, complete=True)
    assert "causal_mask in" in step and "line 2 (task 1.2)" in step


@pytest.mark.parametrize(
    "code", ["import_failed", "circular_import", "forbidden_name", "breakpoint_left", "timeout"]
)
def test_next_names_the_line_that_keeps_a_file_from_being_used(tmp_path, code):
    path = tree(tmp_path, "", "attention.py")
    found = DIAGNOSIS | {"code": code, "cause": "transformer/attention.py, line 303: no."}
    row = outcome("2.1", "failed", diagnosis=found)
    step = checklist.next_step(checklist.rows([row], STUBS), path, complete=True)
    assert step == f"mend {path / 'transformer' / 'attention.py'}, line 303 (task 2.1)"


def test_optional_tasks_of_a_file_that_stops_are_not_begun(tmp_path):
    found = DIAGNOSIS | {"code": "import_failed", "cause": "attention.py cannot be imported."}
    first = outcome("2.1", "error", diagnosis=found)
    assert "S1" not in shown([first, outcome("S1", "error", diagnosis=found)], tmp_path)
    other = outcome("S1", "error", diagnosis=found | {"cause": "something else"})
    assert "S1" in shown([first, other], tmp_path)


def test_several_tasks_are_done(tmp_path):
    found = checklist.rows([outcome("1.1", "passed"), outcome("2.1", "passed")], STUBS)
    step = checklist.next_step(found, tmp_path, complete=False)
    assert step.startswith("tasks 1.1, 2.1 are done")  # of either task there is more


def test_next_names_the_constructor_that_was_changed(tmp_path):
    text = "class Encoder:\n    def __init__(self): ...\n\n    def forward(self): ...\n"
    path = tree(tmp_path, text, "encoder.py")
    row = outcome("4.2", "failed", diagnosis=DIAGNOSIS | {"code": "constructor_changed"})
    step = checklist.next_step(checklist.rows([row], STUBS), path, complete=True)
    assert step.startswith("mend Encoder.__init__ in ") and ", line 2 (task 4.2)" in step


def test_endless_message_is_cut(tmp_path):
    text = shown([outcome("1.2", "error", diagnosis=DIAGNOSIS | {"cause": "A" * 4000})], tmp_path)
    assert 400 < text.count("A") < 600 and " ..." in text


def test_missing_file_is_to_be_put_back(tmp_path):
    gone = DIAGNOSIS | {"code": "missing_file", "cause": "residual.py is missing."}
    text = shown([outcome("3.1", "not_implemented", diagnosis=gone)], tmp_path)
    assert "  3.1   missing      ResidualBranch.forward" in text and "is missing." in text
    assert "next: put residual.py back where the other task files are (task 3.1)" in text
