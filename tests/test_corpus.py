"""The corpus: its reader, the comparison, the traps, and every case of it."""

import io
import json
import os
import re
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from rich.console import Console

from grader.base import settings
from grader.run.pool import Pool
from grader.upkeep import corpus, mutants, patching, rebase
from grader.upkeep.corpus import Case, CorpusError, Wrong
from grader.upkeep.traps import Traps
from grader.upkeep.verify import (
    Naming,
    Result,
    accuracy,
    compare_hostile,
    compare_right,
    compare_run,
    compare_wrong,
    markdown,
    naming_of,
    result_of,
    rows,
    tally,
)

LAB = settings.load()
CASES = corpus.load(LAB)
# Every commit tries some of the cases, 16 commits all of them; `make verify` does at once.
SOME = [pytest.mark.slow(times=4)]


@pytest.fixture(scope="session")
def judges() -> Iterator[Pool]:
    with Pool(1, "grader.upkeep.verify", "auto") as pool:
        yield pool


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=f"{case.kind}/{case.name}", marks=SOME) for case in CASES],
)
def test_case_gets_its_verdict(judges: Pool, case: Case) -> None:
    result = result_of(case, judges.judge({"case": str(case.path)}))
    if result.skipped:
        pytest.skip(result.skipped)
    assert result.problems == []


def test_titles_are_distinct() -> None:
    titles = [case.title for case in CASES]
    assert sorted(titles) == sorted(set(titles))


# Reading ---------------------------------------------------------------------------------------

TITLE = 'title = "the causal mask hides nothing"\n'
EDIT = """
[[edit]]
file = "masks.py"
function = "causal_mask"
find = "every_pair.tril(offset)"
replace = "every_pair"
"""
VERDICT = 'caught_by = ["1.2"]\npart = "masks"\ncode = "no_causal_mask"\n'


def write_case(folder: Path, text: str, kind: str = "wrong") -> Path:
    gate = re.search(r'caught_by = \["(.*?)"', text)
    path = folder / kind / (gate[1] if gate else "1.2") / "a_case.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_case_is_read_with_its_verdict(tmp_path: Path) -> None:
    case = corpus.read(write_case(tmp_path, TITLE + VERDICT + EDIT), LAB)
    assert isinstance(case, Wrong)
    assert (case.name, case.kind, case.trains) == ("a_case", "wrong", False)
    assert (case.caught_by, case.part, case.code) == (("1.2",), "masks", "no_causal_mask")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title", "expected a TOML file, got: Expected '='"),
        ('title = "short"\n' + VERDICT + EDIT, "Expected `str` matching regex"),
        (VERDICT + EDIT, "Object missing required field `title`"),
        (TITLE + VERDICT, "edit: expected a change to the tree, got 'none'"),
        (TITLE + VERDICT + "wrong = 1\n" + EDIT, "Object contains unknown field `wrong`"),
        (TITLE + VERDICT + 'name = "b"\n' + EDIT, "name: expected a key that the README"),
        (TITLE + EDIT, "Object missing required field `caught_by`"),
        (TITLE + 'caught_by = ["1.2"]\n' + EDIT, "Object missing required field `part`"),
        (TITLE + VERDICT.replace("1.2", "1.9") + EDIT, "caught_by: expected one of 1.1, 1.2,"),
        (
            TITLE + VERDICT.replace('["1.2"]', '["finite_gradients", "greedy_accuracy"]') + EDIT,
            "caught_by: expected at most one gate, for the later ones wait for it",
        ),
        (
            TITLE + VERDICT + EDIT.replace("every_pair.tril(offset)", "every_pair"),
            "edit[0].find: expected code that stands once in causal_mask of masks.py, comments "
            "and layout aside, got '2 times: every_pair'",
        ),
        (
            TITLE + VERDICT + EDIT.replace("tril", "triu"),
            "edit[0].find: expected code that stands once in causal_mask of masks.py, comments "
            "and layout aside, got '0 times: every_pair.triu(offset)'",
        ),
        (
            TITLE + VERDICT + EDIT.replace('"every_pair"', '"every_pair.tril(offset)"'),
            "edit[0].replace: expected a text that differs from find",
        ),
        (
            TITLE + VERDICT + EDIT.replace('"causal_mask"', '"causal"'),
            "edit[0].function: expected a function or class of the file, got 'causal'",
        ),
        (
            TITLE + VERDICT + "[[edit]]\nfile = 'masks.py'\nreplace = 'pass'\n",
            "edit[0].find: expected code, or a function whose body is meant, got ''",
        ),
        (
            TITLE + VERDICT + EDIT.replace("masks.py", "mask.py"),
            "edit[0].file: expected a file of the package, got 'mask.py'",
        ),
        (
            TITLE + VERDICT + '[[file]]\npath = "transformer/masks.py"\ntext = ""\n',
            "file[0].path: expected a new file; edit is for others, got 'transformer/masks.py'",
        ),
        (
            TITLE + VERDICT + '[[file]]\npath = "../masks.py"\ntext = ""\n',
            "Expected `str` matching regex",
        ),
        (
            TITLE + VERDICT + 'delete = ["transformer/mask.py"]\n',
            "delete: expected a file of the tree, got 'transformer/mask.py'",
        ),
    ],
)
def test_case_that_cannot_be_used_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = write_case(tmp_path, text)
    with pytest.raises(CorpusError) as caught:
        corpus.load(LAB, tmp_path)
    assert str(caught.value).startswith(f"wrong/{path.parent.name}/a_case.toml: ")
    assert message in str(caught.value)


def test_all_cases_that_cannot_be_used_are_listed_at_once(tmp_path: Path) -> None:
    write_case(tmp_path, TITLE + VERDICT + EDIT)
    for name, text in (("bad", "title"), ("late", EDIT.replace("tril", "triu"))):
        (tmp_path / "wrong" / "1.2" / f"{name}.toml").write_text(TITLE + VERDICT + text)
    (tmp_path / "wrong" / "1.1").mkdir()
    (tmp_path / "wrong" / "1.1" / "moved.toml").write_text(TITLE + VERDICT + EDIT)
    with pytest.raises(CorpusError) as caught:
        corpus.load(LAB, tmp_path)
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        "wrong/1.1/moved.toml", "wrong/1.2/bad.toml", "wrong/1.2/late.toml"
    ]  # fmt: skip
    assert "path: expected the folder 1.2, the first of caught_by, got '1.1'" in lines[0]


def test_names_are_distinct_within_a_kind(tmp_path: Path) -> None:
    for folder in ("several", "1.2"):
        path = tmp_path / "right" / folder / "a_case.toml"
        path.parent.mkdir(parents=True)
        path.write_text(TITLE + EDIT)
    with pytest.raises(CorpusError, match="^right/a_case: expected one case of this name$"):
        corpus.load(LAB, tmp_path)


def test_case_of_the_old_layout_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "wrong" / "a_case" / "case.toml"
    path.parent.mkdir(parents=True)
    path.write_text(TITLE + VERDICT + EDIT)
    words = "wrong/a_case/case.toml: path: expected <kind>/<folder>/<name>.toml, not the old layout"
    with pytest.raises(CorpusError, match=words):
        corpus.load(LAB, tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Object missing required field `max_score`"),
        ("max_score = 3\nmin_score = 5\n", "min_score: expected at most max_score = 3, got '5'"),
        ("max_score = 0\nneeds = ['luck']\n", "Invalid enum value 'luck' - at `$.needs[0]`"),
        ("max_score = 0\n[statuses]\n9 = 'passed'\n", "statuses: expected one of 1, 1.1, 1.2"),
        ("max_score = 0\n[statuses]\n1 = 'won'\n", "statuses: expected one of blocked, crashed"),
    ],
)
def test_hostile_case_that_cannot_be_used_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(CorpusError) as caught:
        corpus.read(write_case(tmp_path, TITLE + text + EDIT, "hostile"), LAB)
    assert message in str(caught.value)


def test_folder_without_cases_is_refused(tmp_path: Path) -> None:
    words = "expected wrong or right or hostile/<folder>/<name>.toml, found none"
    with pytest.raises(CorpusError, match=words):
        corpus.load(LAB, tmp_path)


def test_wrong_case_runs_only_what_its_verdict_depends_on(tmp_path: Path) -> None:
    part = corpus.read(write_case(tmp_path / "1", TITLE + VERDICT + EDIT), LAB)
    gate = VERDICT.replace('["1.2"]', '["1.2", "padding_invariance"]')
    late = corpus.read(write_case(tmp_path / "2", TITLE + gate + EDIT), LAB)
    assert part.scope(LAB.points) == (frozenset({"1.2"}), 0)
    assert late.scope(LAB.points) == (None, 2)


def test_only_cases_that_need_it_are_trained(tmp_path: Path) -> None:
    part = corpus.read(write_case(tmp_path / "1", TITLE + VERDICT + EDIT), LAB)
    gate = VERDICT.replace("1.2", "greedy_accuracy")
    late = corpus.read(write_case(tmp_path / "2", TITLE + gate + EDIT), LAB)
    right = corpus.read(write_case(tmp_path / "3", TITLE + EDIT, "right"), LAB)
    quick = TITLE + "needs_training = false\n" + EDIT
    spared = corpus.read(write_case(tmp_path / "4", quick, "right"), LAB)
    assert [case.trains for case in (part, late, right, spared)] == [False, True, True, False]


# Patching --------------------------------------------------------------------------------------


def test_patched_tree_is_written_with_words_filled_in(tmp_path: Path) -> None:
    edit = patching.Edit("masks.py", "causal_mask", "every_pair.tril(offset)", '"@TOKEN@"')
    extras = [
        patching.Extra("conftest.py", "# @TOKEN@ @OTHER@"),
        patching.Extra("transformer/gone.py", link="@TOKEN@/gone.py"),
    ]
    tree = patching.patched("solution", [edit], extras, ["transformer/norms.py"], {"TOKEN": "t7"})
    patching.write(tree, tmp_path)
    assert 'return "t7"' in (tmp_path / "transformer" / "masks.py").read_text()
    assert (tmp_path / "conftest.py").read_text() == "# t7 @OTHER@"
    assert (tmp_path / "transformer" / "gone.py").readlink() == Path("t7/gone.py")
    assert not (tmp_path / "transformer" / "norms.py").exists()


def test_starter_is_patched_as_released() -> None:
    tree = patching.patched("starter", [])
    assert b"raise NotImplementedError" in bytes(tree["transformer/masks.py"])


def test_unchecked_bytecode_runs_instead_of_its_source(tmp_path: Path) -> None:
    """The attack works on an unprotected interpreter, so the case that uses it shows something."""
    (tmp_path / "victim.py").write_text("print('source')")
    cached = tmp_path / "__pycache__" / f"victim.{sys.implementation.cache_tag}.pyc"
    cached.parent.mkdir()
    cached.write_bytes(patching.unchecked_bytecode("print('bytecode')", "victim.py"))
    command = [sys.executable, "-c", "import victim"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "bytecode\n"


FILE = '''
import torch.nn
import torch  # tensors


def scale(x):
    """Scale it."""
    # BEGIN
    y = x * 2  # twice
    if y.ndim:
        # not a number
        y = y.sum(
            -1, keepdim=True
        )
    return y
    # END


class Model:
    def scale(self, x):
        return x * 2
'''


SUM = "        y = y.sum(\n            -1, keepdim=True\n        )\n"
HEAD = "    if y.ndim:\n        # not a number\n"
IMPORTS = "import torch\nimport math\n"


@pytest.mark.parametrize(
    ("function", "find", "replace", "old", "new"),
    [
        ("", "import torch", IMPORTS, "import torch  # tensors\n", IMPORTS),
        ("Model.scale", "x * 2", "x * 3", "return x * 2", "return x * 3"),
        ("Model", "x * 2", "x * 3", "return x * 2", "return x * 3"),
        ("scale", "y = x * 2  # other", "y = x", "    y = x * 2  # twice", "    y = x"),
        ("scale", "if y.ndim:\n    y = y.sum(-1, keepdim=True)", "", HEAD + SUM, ""),
        ("scale", "sum(-1,", "mean(-1,", "sum(\n            -1,", "mean(-1,"),
        ("scale", "y = y.sum(-1, keepdim=True)", "y = 1", SUM, "        y = 1\n"),
        (
            "scale",
            "    y = y.sum(-1, keepdim=True)\nreturn y",
            "return 1",
            SUM + "    return y\n",
            "    return 1\n",
        ),
        (
            "scale",
            "",
            "if x:\n    return x",
            FILE[FILE.index("    y = x") : FILE.index("    # END")],
            "    if x:\n        return x\n",
        ),
    ],
)
def test_edit_finds_code_whatever_its_comments_and_layout(
    function: str, find: str, replace: str, old: str, new: str
) -> None:
    edit = patching.Edit("scale.py", function, find, replace)
    assert patching.replaced(FILE, edit, replace) == FILE.replace(old, new)


def test_code_in_two_places_is_refused() -> None:
    with pytest.raises(patching.PatchError, match="once in scale.py, .*2 times: x . 2"):
        patching.place(FILE, patching.Edit("scale.py", "", "x * 2", "x"))


# Rebasing --------------------------------------------------------------------------------------


def rebased(new: str, *edits: patching.Edit) -> list[patching.Edit]:
    case = SimpleNamespace(edit=edits)
    old, after = ({"transformer/scale.py": text.encode()} for text in (FILE, new))
    return rebase.rebase(case, old, after)  # type: ignore[arg-type]


def test_edit_that_fits_stays() -> None:
    edit = patching.Edit("scale.py", "scale", "y = x * 2", "y = x")
    assert rebased(FILE.replace("twice", "two times"), edit) == [edit]


def test_edit_takes_the_new_name_of_a_local() -> None:
    edit = patching.Edit("scale.py", "scale", "y = x * 2", "y = x")
    new = (
        FILE.replace("y ", "scaled ").replace("y.", "scaled.").replace("return y", "return scaled")
    )
    assert rebased(new, edit) == [
        patching.Edit("scale.py", "scale", "scaled = x * 2", "scaled = x")
    ]


def test_edit_is_merged_with_a_change_beside_it() -> None:
    body = "if y.ndim:\n    y = y.sum(-1, keepdim=True)\nreturn "
    edit = patching.Edit("scale.py", "scale", body + "y", body + "x")
    new = FILE.replace("y.ndim", "y.numel()")
    (one,) = rebased(new, edit)
    assert patching.replaced(new, one, one.replace) == new.replace("return y", "return x")


def test_edit_that_touches_a_change_needs_a_person() -> None:
    edit = patching.Edit("scale.py", "scale", "y = x * 2\nif y.ndim:", "y = x * 2\nif y.numel():")
    with pytest.raises(patching.PatchError, match="expected code that has not changed since"):
        rebased(FILE.replace("y = x * 2", "y = 2 * x.clone()"), edit)


def test_edit_of_code_that_changed_needs_a_person() -> None:
    edit = patching.Edit("scale.py", "Model.scale", "x * 2", "x * 3")
    with pytest.raises(patching.PatchError, match="expected code that has not changed since"):
        rebased(FILE.replace("return x * 2", "return x * 7"), edit)


QUOTE, DOUBLE = "'", '"'


@pytest.mark.parametrize(
    "text",
    ["a", "it's", 'say "a"', "a\\b", "a\nb\n", f"\n{3 * QUOTE}\n{3 * DOUBLE}\\n", QUOTE + DOUBLE],
)
def test_case_file_keeps_what_stands_beside_its_edits(text: str) -> None:
    before = (
        TITLE
        + VERDICT
        + EDIT
        + "[[file]]\npath = 'a'\ntext = "
        + f"{3 * QUOTE}\n[[edit]]\n{3 * QUOTE}\n"
    )
    edits = [patching.Edit("masks.py", "", text, text), patching.Edit("masks.py", "f")]
    after = tomllib.loads(rebase.with_edits(before, edits))
    found = after.pop("edit")
    assert [patching.Edit(**edit) for edit in found] == edits
    assert after == {k: v for k, v in tomllib.loads(before).items() if k != "edit"}


def test_cases_are_rebased_by_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_case(tmp_path, TITLE + VERDICT + EDIT)
    lost = tmp_path / "wrong" / "1.2" / "lost.toml"
    lost.write_text(TITLE + VERDICT + EDIT.replace("tril", "triu"))
    base = patching.base_files("solution")
    masks = bytes(base["transformer/masks.py"]).replace(b"every_pair", b"all_pairs")
    now = {**base, "transformer/masks.py": masks}
    monkeypatch.setattr(rebase, "solution_at", lambda revision, folder: "old")
    monkeypatch.setattr(
        patching, "base_files", lambda _, where=None: base if where == "old" else now
    )
    shown = io.StringIO()
    assert rebase.main(LAB, "HEAD", Console(file=shown, width=100), tmp_path) == 1
    assert "rebased  wrong/1.2/a_case.toml" in shown.getvalue()
    assert "needs a person  wrong/1.2/lost.toml: edit[0].find" in shown.getvalue()
    assert 'find = "all_pairs.tril(offset)"' in path.read_text()


def test_solution_of_a_revision_that_git_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="expected a revision that holds the solution, got nope"):
        rebase.solution_at("nope", tmp_path)


# Comparing -------------------------------------------------------------------------------------


def check(place: str, status: str, part: str = "", code: str = "") -> dict[str, object]:
    diagnosis = {"part": part, "code": code} if part else None
    stub = place if place[0].isdigit() else None
    return {"stub": stub, "status": status, "summary": f"{place} says", "diagnosis": diagnosis}


def tree(*found: dict[str, object], passed: bool = False, **fields: object) -> dict[str, object]:
    entry = {"name": "future_independence", "task": "1", "status": "passed", "summary": "is fine"}
    return {
        "parts": [entry | {"checks": list(found)}], "stretch": [], "gates": [],
        "passed": passed, "gates_passed": passed,
        "score": 7, "complete": True, "grader_error": None,
        "integrity": {"flags": []}, "submission": {"notes": []},
    } | fields  # fmt: skip


def compared(compare: object, case: object, found: dict[str, object]) -> Result:
    result = Result("a_case", "wrong", "a sentence", list(compare_run(found)))
    result.problems += compare(case, found)  # type: ignore[operator]
    if compare is compare_wrong:
        result.namings.append(naming_of(case, found))  # type: ignore[arg-type]
    return result


def wrong(*caught_by: str, code: str) -> SimpleNamespace:
    return SimpleNamespace(caught_by=caught_by, part="masks", code=code)


def right(*loses: str) -> SimpleNamespace:
    return SimpleNamespace(loses=loses, trains=True)


WRONG = wrong("1.2", "future_independence", code="causal_too_wide")


def test_wrong_case_is_as_expected_when_caught_and_named() -> None:
    found = tree(
        check("1.2", "failed", "masks", "causal_too_wide"), check("future_independence", "failed")
    )
    result = compared(compare_wrong, WRONG, found)
    assert (result.verdict, result.problems) == ("as expected", [])
    assert accuracy([result]) == {"diagnoses": 1, "part named": 1, "cause named": 1}


def test_wrong_case_that_is_accepted_is_a_mismatch() -> None:
    result = compared(compare_wrong, WRONG, tree(check("1.2", "passed"), passed=True))
    assert result.problems == [
        "it was accepted",
        "expected 1.2 to catch it, got none",
        "expected future_independence to catch it, got none",
        "1.2: expected the diagnosis masks/causal_too_wide, got none/none: it did not fail",
    ]


def test_wrong_case_with_another_diagnosis_is_a_mismatch() -> None:
    found = tree(
        check("1.2", "failed", "masks", "values_differ"), check("future_independence", "failed")
    )
    result = compared(compare_wrong, WRONG, found)
    assert result.problems == [
        "1.2: expected the diagnosis masks/causal_too_wide, got masks/values_differ: 1.2 says"
    ]
    assert accuracy([result]) == {"diagnoses": 1, "part named": 1, "cause named": 0}


def test_difference_without_a_cause_counts_as_no_cause() -> None:
    case = wrong("1.2", code="values_differ")
    result = compared(compare_wrong, case, tree(check("1.2", "failed", "masks", "values_differ")))
    assert result.problems == []
    assert accuracy([result])["cause named"] == 0


def test_blocked_check_catches_nothing() -> None:
    result = compared(compare_wrong, WRONG, tree(check("1.2", "blocked")))
    assert "expected 1.2 to catch it, got none" in result.problems


def test_right_case_must_pass_without_flags() -> None:
    flagged = {"flags": [{"code": "dynamic_import", "message": "line 3"}]}
    found = tree(check("1.2", "passed"), check("2.1", "timeout"), integrity=flagged)
    result = compared(compare_right, right(), found)
    assert result.problems == [
        "2.1: expected passed, got timeout: 2.1 says",
        "it was not accepted",
        "flagged dynamic_import: line 3",
    ]


def test_right_case_may_lose_what_its_constructors_cost() -> None:
    lost = check("2.3", "failed", "attention", "constructor_changed")
    result = compared(compare_right, right("2.3"), tree(lost, gates_passed=True))
    assert result.problems == []
    result = compared(compare_right, right("2.3"), tree(check("2.3", "passed")))
    assert result.problems == [
        "2.3: expected constructor_changed, got no failure",
        "it was not accepted",
    ]


def test_hostile_case_is_held_to_its_points_statuses_and_marks(tmp_path: Path) -> None:
    text = (
        TITLE + 'max_score = 5\nflags = ["weights"]\nnotes = ["dropped"]\n[statuses]\n1 = "error"\n'
    )
    case = corpus.read(write_case(tmp_path, text + EDIT, "hostile"), LAB)
    breach = check("1.2", "error")
    breach["summary"] = "RuntimeError: Breached: read it\x1b"
    result = compared(compare_hostile, case, tree(breach))
    assert result.problems == [
        "expected 0 to 5 points, got 7",
        "1: expected error, got passed: is fine",
        "expected the flag weights, got none",
        "expected a note with 'dropped', got none",
        "1.2: it reached what it must not: RuntimeError: Breached: read it\x1b",
        "a control character reached the result",
    ]


def test_fault_of_the_grader_is_a_mismatch() -> None:
    found = tree(check("1.2", "passed"), passed=True, grader_error="boom", complete=False)
    result = compared(compare_right, right(), found)
    assert result.problems == ["the grader failed: boom", "the grading did not finish"]


def test_results_survive_the_way_between_processes() -> None:
    result = compared(compare_wrong, WRONG, tree(check("1.2", "failed", "masks", "other")))
    assert Result.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_table_has_a_row_for_each_kind_and_the_page_what_was_left_out() -> None:
    good, bad = Result("a", "right", "t"), Result("b", "wrong", "t", ["no"])
    bad.namings = [Naming(("masks", "one"), ("masks", "two"))]
    skipped = Result("c", "hostile", "t", skipped="needs seccomp")
    results = [bad, good, skipped]
    assert rows(results) == [
        ("wrong", "1", "0", "1", "0", "1", "100.0%", "0.0%"),
        ("right", "1", "1", "0", "0", "-", "-", "-"),
        ("hostile", "1", "0", "0", "1", "-", "-", "-"),
    ]
    page = markdown(results, 90.0, 2)
    assert "3 cases in 2 minutes on 2 processes" in page
    assert "| wrong | 1 | 0 | 1 | 0 | 1 | 100.0% | 0.0% |" in page
    assert "- wrong/b: no" in page
    assert "- hostile/c: needs seccomp" in page


def test_tally_counts_each_kind() -> None:
    good, bad = Result("a", "right", "t"), Result("b", "right", "t", ["no"])
    skipped = Result("c", "hostile", "t", skipped="needs seccomp")
    assert tally([good, bad, skipped]) == {
        "right": {"as expected": 1, "mismatch": 1, "skipped": 0},
        "hostile": {"as expected": 0, "mismatch": 0, "skipped": 1},
    }


# Traps -----------------------------------------------------------------------------------------


@pytest.fixture
def traps(tmp_path: Path) -> Iterator[Traps]:
    workshop = SimpleNamespace(
        base=tmp_path, trees=tmp_path / "trees", scratches=tmp_path / "scratch"
    )
    workshop.trees.mkdir()
    workshop.scratches.mkdir()
    with Traps(SimpleNamespace(workshop=workshop, settings=LAB)) as traps:  # type: ignore[arg-type]
        yield traps


def test_traps_stay_silent_when_nothing_happens(traps: Traps) -> None:
    assert list(traps.sprung()) == []


def test_traps_see_files(traps: Traps) -> None:
    left = Path("/dev/shm" if os.path.isdir("/dev/shm") else "/tmp", f"x{traps.token}")
    left.touch()
    (traps.referee.workshop.scratches / "7").mkdir()
    try:
        problems = sorted(traps.sprung())
    finally:
        left.unlink()
    own = traps.referee.workshop.scratches / "7"
    assert problems == [f"left {left}", f"left its own folder {own}"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_traps_see_processes(traps: Traps) -> None:
    home = os.fsdecode(traps.referee.workshop.base)
    process = subprocess.Popen(["sleep", "60"], env={"HOME": home}, start_new_session=True)
    try:
        # The system counts a process as started a moment before it shows its environment.
        deadline = time.monotonic() + 10.0
        while not psutil.Process(process.pid).environ() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert list(traps.sprung()) == [f"left processes running: {process.pid}"]
    finally:
        process.kill()
        process.wait()


def test_traps_see_connections(traps: Traps) -> None:
    with socket.create_connection(("127.0.0.1", int(traps.words["PORT"]))) as connection:
        assert connection.recv(1) == b""
    assert list(traps.sprung()) == ["connected to a TCP port 1 times"]


# The command -----------------------------------------------------------------------------------


def verify(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "grader", "verify", *arguments]
    return subprocess.run(command, cwd=patching.ROOT, capture_output=True, text=True)


def test_verify_prints_counts_and_writes_them(tmp_path: Path) -> None:
    done = verify("exit_at_import", "--jobs", "1", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "as expected  hostile/exit_at_import" in done.stdout
    written = json.loads((tmp_path / "verify.json").read_text())
    assert written["cases"] == {"hostile": {"as expected": 1, "mismatch": 0, "skipped": 0}}
    assert [r["verdict"] for r in written["results"]] == ["as expected"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no_such_case"], "cannot verify: expected names of cases, got no_such_case"),
        (["--shard", "3/2"], "expected I/N with 1 <= I <= N, got 3/2"),
    ],
)
def test_verify_refuses_what_it_cannot_do(arguments: list[str], message: str) -> None:
    done = verify(*arguments)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.slow
def test_every_equivalent_is_a_mutant_of_the_solution() -> None:
    made = {f"{m.file} {m.key}" for m in mutants.all_mutants(list(mutants.TASK_FILES))}
    assert set(mutants.equivalents()) - made == set()
