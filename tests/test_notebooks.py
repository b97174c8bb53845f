"""The notebooks: well built, honest with the starter, right with the solution."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from grader.base import settings
from grader.cli import notebooks

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "notebooks"
STEMS = [path.stem for path in notebooks.sources(FOLDER)]
GRADED = {
    name.rpartition(".")[2]
    for stub in (*settings.load().points.stubs, *settings.load().points.stretch)
    for name in stub.functions
} - {"forward", "append"}
slow_but_first = [
    pytest.param(stem, marks=[] if stem == STEMS[0] else pytest.mark.slow) for stem in STEMS
]


def source(stem: str) -> str:
    return (FOLDER / f"{stem}.py").read_text(encoding="utf-8")


def cells(stem: str, kind: str) -> list[str]:
    return [c.source for c in notebooks.read(source(stem), stem).cells if c.cell_type == kind]


def test_the_course_has_seven_notebooks_in_order() -> None:
    words = ["masks", "attention", "residual", "encoder_decoder", "training", "gates", "modern"]
    assert [f"0{n}_{word}" for n, word in enumerate(words, start=1)] == STEMS


def test_every_task_has_its_heading() -> None:
    text = "\n".join(map(source, STEMS))
    lab = settings.load()
    ids = [stub.id for stub in (*lab.points.stubs, *lab.points.stretch)]
    headings = "\n".join(re.findall(r"(?m)^# #+ .*", text))
    assert [i for i in ids if i not in headings] == []


@pytest.mark.parametrize("stem", STEMS)
def test_notebook_in_git_is_the_built_one_without_outputs(stem: str) -> None:
    content = (FOLDER / f"{stem}.ipynb").read_bytes()
    assert content == notebooks.build(FOLDER / f"{stem}.py"), "run `make notebooks`"
    code = [c for c in nbformat.reads(content.decode(), 4).cells if c.cell_type == "code"]
    assert [c.outputs for c in code] == [[]] * len(code)
    assert {c.execution_count for c in code} == {None}


@pytest.mark.parametrize("stem", STEMS)
def test_notebook_defines_no_graded_code(stem: str) -> None:
    tree = ast.parse("\n".join(cells(stem, "code")))
    defined = {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    assigned = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and "Store" in str(n.ctx)}
    assert not (defined | assigned) & GRADED


@pytest.mark.parametrize("stem", STEMS)
def test_every_idea_has_a_picture_and_a_question(stem: str) -> None:
    prose = cells(stem, "markdown")
    ideas = [text for text in prose if text.startswith("## ")]
    questions = [text for text in prose if "**Question.**" in text and "*Your answer:*" in text]
    pictures = [c for c in cells(stem, "code") if re.search(r"lab\.(grids|lines|bars)\(", c)]
    assert len(ideas) >= 5
    assert len(pictures) >= len(ideas)
    assert len(questions) >= len(ideas) - 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\n# %%\n", "nb.py:1: expected '# %%', got 'x = 1'"),
        ("# %% [markdown]\n# fine\nx = 1\n", "nb.py:3: expected '# x = 1', got 'x = 1'"),
        ("# %%\n" + "x = 1\n" * 16, "a cell of 16 lines, expected at most 15; it begins with 'x"),
    ],
)
def test_source_that_cannot_be_built_is_named(text: str, words: str) -> None:
    with pytest.raises(notebooks.NotebookError, match=re.escape(words)):
        notebooks.read(text, "nb.py")


def test_cells_are_what_stands_between_the_marks() -> None:
    text = "# %% [markdown]\n# # Title\n#\n# Prose.\n\n\n# %%\nx = 1\n\n# a comment\ny = 2\n"
    wanted = [("markdown", "# Title\n\nProse."), ("code", "x = 1\n\n# a comment\ny = 2")]
    cells = notebooks.read(text, "nb.py").cells
    assert [(cell.cell_type, cell.source) for cell in cells] == wanted


@pytest.mark.parametrize("stem", slow_but_first)
def test_with_the_starter_it_runs_to_its_end_and_says_what_is_to_do(stem: str) -> None:
    book = notebooks.run(FOLDER / f"{stem}.ipynb", ROOT / "starter")
    found = notebooks.boxes(book)
    todo = [sentence for word, sentence in found if word == "to do"]
    assert todo
    assert [s for s in todo if not re.match(r"task (\d\.\d|S\d): write \w", s)] == []
    assert [sentence for word, sentence in found if word == "does not hold"] == []
    assert "Traceback" not in nbformat.writes(book)


@pytest.mark.parametrize("stem", slow_but_first)
def test_with_the_solution_every_claim_holds(stem: str) -> None:
    book = notebooks.run(FOLDER / f"{stem}.ipynb", ROOT / "solution")
    found = notebooks.boxes(book)
    assert [box for box in found if box[0] != "holds"] == []
    assert len(found) == sum(text.count("lab.claim(") for text in cells(stem, "code"))
    drawn = [
        o for c in book.cells for o in c.get("outputs", ()) if "image/png" in o.get("data", ())
    ]
    assert len(drawn) >= 4
    assert not [o for c in book.cells for o in c.get("outputs", ()) if o.get("name") == "stderr"]


def command(*words: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "grader", "notebooks", *map(str, words)]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
def test_command_counts_the_claims_and_writes_a_page(tmp_path: Path) -> None:
    wrong = tmp_path / "tree" / "transformer"
    wrong.mkdir(parents=True)
    for path in (ROOT / "solution/transformer").glob("*.py"):
        text = path.read_text(encoding="utf-8").replace("every_pair.tril(offset)", "every_pair")
        (wrong / path.name).write_text(text, encoding="utf-8")
    done = command("1", "--tree", wrong.parent, "--out", tmp_path / "pages")
    assert done.returncode == 1, done.stderr
    assert re.search(r"01_masks: \d claims hold, \d do not\n", done.stdout)
    page = (tmp_path / "pages" / "01_masks.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64") >= 4
    assert "does not hold" in page


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["9"], "no notebook is called 9; there are 01_masks, "),
        (["--tree", "nowhere"], "expected the folder transformer/ in nowhere"),
    ],
)
def test_command_says_what_it_cannot_run(words: list[str], sentence: str, tmp_path: Path) -> None:
    done = command(*words, "--out", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
