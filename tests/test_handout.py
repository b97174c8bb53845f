"""The handout: nothing secret in it, and everything a student needs."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path

import pytest
from safetensors.numpy import load

from grader.asking.expectations import Expectations
from grader.base import settings
from grader.run.engine import Referee, Request
from grader.upkeep import bundles, corpus, handout, patching

ROOT = Path(__file__).resolve().parent.parent
CANARY = "canary_5c1e7b"
SECRET_SALT = "secret-salt-9f20"
SOURCES = ("solution", "grader", "handout", "notebooks", ".devcontainer", "lab.toml", "LICENSE",
           "Makefile", "pyproject.toml", "constraints.txt", ".gitignore")  # fmt: skip
# Lines of a task body that the grader has too, and that give nothing away.
ANYONES = {"longest = max(map(len, answers))", "for name, weight in weights.items():"}


def marked_repository(home: Path) -> Path:
    """Copy what a handout is made of; every task body gets the canary, lab.toml a secret salt."""
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, home / name)
    for path in (home / "solution/transformer").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        mark = rf"\g<0>\n\1# {CANARY}\n\1{CANARY} = '{CANARY}'"
        path.write_text(re.sub(r"( *)# BEGIN SOLUTION .*", mark, text), encoding="utf-8")
    lab = (home / "lab.toml").read_text(encoding="utf-8")
    lab = re.sub(r'(?m)^salt = ".*?"', f'salt = "{SECRET_SALT}"', lab)
    (home / "lab.toml").write_text(lab, encoding="utf-8")
    return home


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive, built once for all test processes from a marked copy of the repository."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    home, done = shared / "handout-sources", shared / "handout.zip"
    try:
        home.mkdir()
    except FileExistsError:
        while not done.exists():
            time.sleep(0.5)
        return done
    bundles.write(done, handout.handout_files(marked_repository(home)))
    return done


@pytest.fixture(scope="module")
def unpacked(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("student's copy")
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(folder)
    return folder / handout.NAME


def run(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run Python in a student's copy, away from home and from this repository."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "GRADER_SALT")}
    kept |= {"HOME": str(folder.parent), "COLUMNS": "200"}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True)


def members(bundle: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(bundle) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


# What is in it ---------------------------------------------------------------------------------


def test_no_byte_of_a_solution_or_a_secret_is_in_it(bundle: Path) -> None:
    found = members(bundle) | {"the archive": bundle.read_bytes()}
    for secret in (CANARY, SECRET_SALT, "BEGIN SOLUTION"):
        assert [n for n, content in found.items() if secret.encode() in content] == []


def test_no_line_of_a_task_body_is_in_it(bundle: Path) -> None:
    given = b"\n".join(content for n, content in members(bundle).items() if "/starter/" in n)
    bodies = set()
    for path in (ROOT / "solution/transformer").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        for body in re.findall(r"(?s)# BEGIN SOLUTION \S+\n(.*?)# END SOLUTION", text):
            bodies |= {line.strip() for line in body.split("\n")}
    telling = [t for t in bodies - ANYONES if len(t) > 30 and t.encode() not in given]
    assert len(telling) > 40
    found = [(n, t) for n, c in members(bundle).items() for t in telling if t.encode() in c]
    assert found == []


def test_no_answers_no_cases_and_no_private_tests_are_in_it(bundle: Path) -> None:
    names = [name.removeprefix(f"{handout.NAME}/") for name in members(bundle)]
    private = (
        r"solution|tests/(?!test_tasks)|grader/(oracle|corpus|verify|mut|release|handout|batch)"
    )
    assert [name for name in names if re.match(private, name)] == []
    assert {name.split("/")[0] for name in names} == {
        ".devcontainer", ".gitignore", ".vscode", "LICENSE", "Makefile", "README.md",
        "architecture.svg", "constraints.txt", "examples.py",
        "grader", "lab.toml", "notebooks", "pyproject.toml", "starter", "tests",
    }  # fmt: skip


def test_the_starter_in_it_is_the_starter(bundle: Path) -> None:
    found = members(bundle)
    for path in (ROOT / "starter/transformer").glob("*.py"):
        for folder in ("starter", "grader/original"):
            assert found[f"{handout.NAME}/{folder}/transformer/{path.name}"] == path.read_bytes()


@pytest.mark.slow
def test_the_same_sources_make_the_same_bytes(bundle: Path, tmp_path: Path) -> None:
    home = tmp_path / "elsewhere"
    home.mkdir()
    again = tmp_path / "again.zip"
    bundles.write(again, handout.handout_files(marked_repository(home)))
    assert again.read_bytes() == bundle.read_bytes()


def test_a_broken_solution_is_not_handed_out(tmp_path: Path) -> None:
    home = marked_repository(tmp_path)
    masks = home / "solution/transformer/masks.py"
    masks.write_text(masks.read_text("utf-8").replace("ids != pad_id", "ids == pad_id"), "utf-8")
    with pytest.raises(handout.ReleaseError, match="the solution does not pass 1 masks: "):
        handout.recorded_answers(home)


# That it works ----------------------------------------------------------------------------------


def test_every_module_in_it_loads_without_the_rest(unpacked: Path) -> None:
    names = [p.relative_to(unpacked).with_suffix("") for p in unpacked.glob("grader/**/*.py")]
    modules = [
        ".".join(n.parts).removesuffix(".__init__") for n in names if "original" not in n.parts
    ]
    loaded = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    done = run(unpacked, "-c", loaded, *modules)
    assert (done.returncode, done.stderr) == (0, "")


def test_its_commands_are_the_students(unpacked: Path) -> None:
    text = run(unpacked, "-m", "grader", "--help").stdout
    offered = re.findall(r"(?m)^    ([a-z]+)\b", text)
    assert offered == ["grade", "check", "watch", "hint", "reset", "export", "notebooks",
                       "notebook", "doctor"]  # fmt: skip
    done = run(unpacked, "-m", "grader", "verify")
    assert done.returncode == 2 and "invalid choice: 'verify'" in done.stderr


def test_the_starter_is_refused_politely(unpacked: Path, tmp_path: Path) -> None:
    done = run(unpacked, "-m", "grader", "grade", "starter", "--out", tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert "0 of 100 points. Still to write: tasks 1, 2, 3, 4, 5, 6." in done.stdout


def test_another_seed_is_refused_with_the_reason(unpacked: Path) -> None:
    done = run(unpacked, "-m", "grader", "grade", "starter", "--seed", 5)
    assert done.returncode == 2
    assert "knows the answers for seed " in done.stderr and "leave --seed out" in done.stderr


def test_a_changed_given_file_is_graded_as_it_was_handed_out(
    unpacked: Path, tmp_path: Path
) -> None:
    tree = tmp_path / "starter"
    shutil.copytree(unpacked / "starter", tree)
    norms = tree / "transformer/norms.py"
    norms.write_text(norms.read_text("utf-8") + "\nraise SystemExit\n", "utf-8")
    run(unpacked, "-m", "grader", "check", "1", "--tree", tree, "--out", tmp_path / "out")
    found = json.loads((tmp_path / "out/results.json").read_bytes())
    assert "handout's own were graded: transformer/norms.py" in found["submission"]["notes"][0]


@pytest.mark.slow
def test_a_solved_copy_gets_every_point(unpacked: Path, tmp_path: Path) -> None:
    done = run(unpacked, "-m", "grader", "grade", ROOT / "solution", "--out", tmp_path)
    found = json.loads((tmp_path / "results.json").read_bytes())
    assert (done.returncode, found["score"], found["grader_error"]) == (0, 100, None)
    assert found["seed"] == handout.public_seed()
    assert {entry["status"] for entry in found["stretch"]} == {"passed"}


@pytest.mark.slow
@pytest.mark.parametrize("every", [pytest.param(n, id=f"from {n}") for n in range(4)])
def test_known_mistakes_find_their_answers_recorded(unpacked: Path, every: int) -> None:
    lab = settings.load(unpacked / "lab.toml", {})
    cases = [c for c in corpus.load(lab, kinds=("wrong",)) if c.scope(lab.points).gates < 4]
    trouble = {}
    with Referee(lab) as referee:
        referee.public_seed = handout.public_seed()
        referee.expectations = Expectations.load(unpacked / "grader/expected.safetensors")
        for case in cases[every * 5 :: 40]:
            path = unpacked.parent / case.name
            patching.write(case.tree(), path)
            scope = case.scope(lab.points)
            found = referee.grade(Request(path, tasks=scope.tasks, gates=scope.gates))
            trouble[case.name] = found["grader_error"]
    assert len(trouble) > 2
    assert {name: text for name, text in trouble.items() if text} == {}


def test_its_tests_run_where_an_editor_finds_them(unpacked: Path) -> None:
    listed = run(unpacked, "-m", "pytest", "--collect-only", "-q").stdout
    lab = settings.load()
    ids = [stub.id for stub in (*lab.points.stubs, *lab.points.stretch)]
    assert re.findall(r"test_task\[(.+)\]", listed) == ids
    own = unpacked / "tests/test_own.py"
    own.write_text("def test_own():\n    pass\n", encoding="utf-8")
    done = run(unpacked, "-m", "pytest", "-q", "-rs", "-k", "1.1 or 1.2 or own")
    own.unlink()
    assert done.returncode == 0 and "1 passed, 2 skipped" in done.stdout, done.stdout
    assert "task 1.1 is not implemented yet" in done.stdout


def test_its_notebooks_are_built_and_run(unpacked: Path, tmp_path: Path) -> None:
    done = run(unpacked, "-m", "grader", "notebooks", "1", "--out", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.match(r"01_masks: \d to do\n", done.stdout)
    assert len(list((unpacked / "notebooks").glob("0*.ipynb"))) == 7


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_its_make_targets_are_the_students(unpacked: Path) -> None:
    # Run by make, as `make test` does, it would hear of the outer make.
    own = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    done = subprocess.run(
        ["make"], cwd=unpacked, env=own, capture_output=True, text=True, check=True
    )
    listed = [line.split()[1] for line in done.stdout.splitlines()]
    assert listed == [name for name in handout.TARGETS if name != "help"]
    for name in listed:
        shown = ["make", "-n", name, "PYTHON=python3"]
        text = subprocess.run(
            shown, cwd=unpacked, env=own, capture_output=True, text=True, check=True
        ).stdout
        assert "starter" in text or name in ("setup", "check", "watch", "notebook", "clean")


# What it says -----------------------------------------------------------------------------------


def test_students_read_the_same_table_as_instructors() -> None:
    def table(path: Path) -> str:
        return path.read_text("utf-8").split("| task | file |")[1].split("\n\n")[0]

    assert table(ROOT / "handout/README.md") == table(ROOT / "README.md")


def test_what_the_students_readme_names_is_there(unpacked: Path) -> None:
    text = (unpacked / "README.md").read_text(encoding="utf-8")
    for name in re.findall(r"`((?:starter|notebooks|\.devcontainer)/[\w./]*)`", text):
        assert (unpacked / name).exists(), name
    assert set(re.findall(r"make ([a-z]+)", text)) <= set(handout.TARGETS)
    assert "solution" not in text and "All checks here are public" in text


def test_settings_say_that_the_salt_is_public(unpacked: Path) -> None:
    lab = tomllib.loads((unpacked / "lab.toml").read_text(encoding="utf-8"))
    assert lab["salt"] == handout.PUBLIC_SALT
    assert lab["points"] == tomllib.loads((ROOT / "lab.toml").read_text("utf-8"))["points"]


def test_a_lab_without_one_salt_is_refused() -> None:
    with pytest.raises(handout.ReleaseError, match="found 0"):
        bundles.salted("name = 'x'\n", handout.PUBLIC_SALT)


def test_recorded_answers_name_their_seed(unpacked: Path) -> None:
    content = (unpacked / "grader/expected.safetensors").read_bytes()
    assert f'"seed":"{handout.public_seed()}"'.encode() in content[:4096]
    assert len(load(content)) > 500


def test_archive_has_one_folder_and_no_dates(bundle: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(bundle.read_bytes())) as archive:
        infos = archive.infolist()
    assert {info.filename.split("/")[0] for info in infos} == {handout.NAME}
    assert {info.date_time for info in infos} == {bundles.DATE}
    assert [i.filename for i in infos] == sorted(i.filename for i in infos)
