"""Gradescope's bundle works in a root laid out as Gradescope lays it out."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from platform_cases import GRADESCOPE, PRAIRIELEARN, mixed

from grader import __main__ as command_line
from grader.base import settings
from grader.report import platforms
from grader.report.platforms import jobs
from grader.upkeep import bundles
from grader.upkeep.patching import ROOT

STARTER = ROOT / "starter" / "transformer"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    bundles.build(folder)
    return folder / bundles.NAME


def laid_out(root: Path, bundle: Path) -> Path:
    """Lay out a root: the bundle unpacked, run_autograder beside it, and an empty submission."""
    for folder in ("source", "submission", "results"):
        (root / folder).mkdir(parents=True)
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(root / "source")
    for name in ("setup.sh", "run_autograder"):
        (root / "source" / name).chmod(0o755)
    shutil.copy(root / "source/run_autograder", root / "run_autograder")
    metadata = {"id": 7, "users": [{"name": "Anna", "email": "a@x.org", "id": 1}]}
    (root / "submission_metadata.json").write_text(json.dumps(metadata))
    return root


def run(root: Path) -> subprocess.CompletedProcess[str]:
    # setup.sh would make such an environment; this one holds the same packages.
    environment = os.environ | {"AUTOGRADER_ROOT": str(root), "LAB_HOME": sys.prefix}
    return subprocess.run(
        [str(root / "run_autograder")], env=environment, cwd="/", capture_output=True, text=True
    )


def result(root: Path) -> dict[str, Any]:
    found = json.loads((root / "results/results.json").read_bytes())
    jsonschema.validate(found, GRADESCOPE)
    return found


def test_scripts_lie_at_the_top_and_no_solution_comes_along(bundle):
    with zipfile.ZipFile(bundle) as archive:
        modes = {member.filename: member.external_attr >> 16 for member in archive.infolist()}
        texts = {name: archive.read(name) for name in modes}
    assert modes["setup.sh"] & stat.S_IXUSR and modes["run_autograder"] & stat.S_IXUSR
    assert "grader/run/engine.py" in texts and "lab.toml" in texts and "requirements.txt" in texts
    kept_at_home = ("solution/", "tests/", "grader/classroom", "grader/upkeep")
    assert not [name for name in texts if name.startswith(kept_at_home)]
    assert b'raise NotImplementedError("task 1.2' in texts["grader/original/transformer/masks.py"]


@pytest.mark.parametrize("salt", [None, 'a "quoted" \\1 \u00fc'])
def test_salt_of_the_environment_goes_along(tmp_path, monkeypatch, salt):
    monkeypatch.delenv("GRADER_SALT", raising=False)
    if salt is not None:
        monkeypatch.setenv("GRADER_SALT", salt)
    (tmp_path / "lab.toml").write_bytes(bundles.grader_files(ROOT)["lab.toml"])
    found, ours = settings.load(tmp_path / "lab.toml", {}), settings.load()
    assert found == ours and found.salt == (salt or settings.load(environment={}).salt)


def test_same_sources_make_the_same_bytes(bundle, tmp_path):
    for path in bundles.build(tmp_path):
        assert path.read_bytes() == (bundle.parent / path.name).read_bytes()


def test_starter_is_graded_in_a_scratch_root(bundle, tmp_path):
    root = laid_out(tmp_path / "autograder", bundle)
    shutil.copytree(STARTER, root / "submission/transformer")
    done = run(root)
    assert (done.returncode, done.stderr) == (0, "")
    found = result(root)
    assert found["score"] == 0 and found["extra_data"]["complete"]
    assert sum(test.get("max_score", 0) for test in found["tests"]) == 100
    for folder in ("source", "results"):
        assert stat.S_IMODE((root / folder).stat().st_mode) == 0o700


@pytest.mark.slow
def test_solution_passes_in_a_scratch_root(bundle, tmp_path):
    root = laid_out(tmp_path / "autograder", bundle)
    shutil.copytree(ROOT / "solution/transformer", root / "submission/transformer")
    done = run(root)
    assert done.returncode == 0
    assert result(root)["score"] == 100


def test_what_cannot_be_graded_earns_nothing_and_says_what_was_expected(bundle, tmp_path):
    root = laid_out(tmp_path / "autograder", bundle)
    (root / "submission/essay.txt").write_text("no code")
    assert run(root).returncode == 0
    found = result(root)
    assert found["score"] == 0 and "expected a folder transformer/" in found["output"]
    assert str(root) not in found["output"]


def test_image_without_isolation_gives_no_score(tmp_path, monkeypatch):
    portable = jobs.sandbox.choose("portable")
    monkeypatch.setattr(jobs.sandbox, "choose", lambda requested: portable)
    (tmp_path / "submission").mkdir()
    assert jobs.main("gradescope", tmp_path) == 0
    found = result(tmp_path)
    assert "score" not in found and "Nothing in this image hides the grader" in found["output"]


def test_failure_of_the_grader_gives_no_score(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "graded", lambda *_: 1 / 0)
    assert jobs.main("gradescope", tmp_path) == 3
    found = result(tmp_path)
    assert "score" not in found and "not your submission" in found["output"]


@pytest.mark.parametrize("new", [True, False], ids=["new Python", "old Python"])
def test_set_up_installs_what_the_grader_needs(bundle, tmp_path, new):
    root = laid_out(tmp_path / "autograder", bundle)
    tools = tmp_path / "tools"
    tools.mkdir()
    log = tmp_path / "log"
    made = 'mkdir -p "$3/bin"; cp "$0" "$3/bin/python"' if new else ""
    scripts = {"apt-get": "", "chmod": ""}
    scripts |= {
        name: f'case "$1 $2" in "-c "*) exit {int(not new)};; "-m venv") {made};; esac'
        for name in ("python3.13", "python3.12", "python3.11", "python3")
    }
    for name, body in scripts.items():
        (tools / name).write_text(f'#!/bin/sh\necho "{name} $*" >> "{log}"\n{body}\n')
        (tools / name).chmod(0o755)
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "AUTOGRADER_ROOT": str(root)}
    environment["LAB_HOME"] = str(tmp_path / "made")
    done = subprocess.run(
        [str(root / "source/setup.sh")], env=environment, capture_output=True, text=True
    )
    said = log.read_text()
    assert "apt-get install -y --no-install-recommends python3 python3-venv" in said
    if new:
        assert done.returncode == 0
        assert f"-r {root}/source/requirements.txt -c {root}/source/constraints.txt" in said
    else:
        assert done.returncode == 1 and "choose a base image" in done.stderr


def step_of(tmp_path: Path, workflow: str, job: str, name: str) -> str:
    """Return what a step of a workflow runs."""
    bundles.build(tmp_path / "dist")
    found = yaml.safe_load((tmp_path / "dist" / workflow).read_text())
    (step,) = [s for s in found["jobs"][job]["steps"] if s.get("name") == name]
    return step["run"]


def checked(tmp_path: Path, tree: dict[str, Any] | None, code: int) -> tuple[int, str]:
    """Run the step of a student's workflow that checks, with a stand-in for the grader."""
    text = step_of(tmp_path, "github-student.yml", "check", "check")
    python = tmp_path / "repository/.venv/bin/python"
    python.parent.mkdir(parents=True)
    log = tmp_path / "words"
    python.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > "{log}"\nexit {code}\n')
    python.chmod(0o755)
    if tree is not None:
        out = tmp_path / "repository/reports/starter"
        platforms.export(tree, ["github", "markdown"], out)
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", text], cwd=tmp_path / "repository",
        env=os.environ | {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary")},
        capture_output=True, text=True,
    )  # fmt: skip
    command_line.parser().parse_args(log.read_text().split()[2:])
    return done.returncode, done.stdout


def test_students_workflow_annotates_and_sums_up(tmp_path):
    code, said = checked(tmp_path, mixed(), 1)
    # Paths are those within the repository.
    assert code == 1 and "::error file=starter/transformer/masks.py,title=" in said
    assert "file=starter/transformer/residual.py,line=3," in said
    assert "34 of 100 points" in (tmp_path / "summary").read_text()


@pytest.mark.parametrize("code", [2, 3])
def test_students_workflow_ends_with_what_went_wrong(tmp_path, code):
    assert checked(tmp_path, None, code)[0] == code


def test_nothing_secret_is_in_a_students_workflow(tmp_path):
    bundles.build(tmp_path)
    assert "secrets." not in (tmp_path / "github-student.yml").read_text()
    staff = yaml.safe_load((tmp_path / "github-grade.yml").read_text())
    for step in staff["jobs"]["grade"]["steps"]:
        secret = "secrets.LAB_TOKEN" in str(step.get("env", {}))
        assert secret == (step.get("name") in ("clone", "report")), step


def test_staffs_workflow_clones_grades_and_reports(tmp_path):
    steps = [
        step_of(tmp_path, "github-grade.yml", "grade", name)
        for name in ("clone", "grade", "report")
    ]
    lab, tools, log = tmp_path / "lab", tmp_path / "tools", tmp_path / "log"
    (lab / ".venv/bin").mkdir(parents=True)
    tools.mkdir()
    rows = "submission,status,score,max_score\nlab-ann,passed,100,100\nlab-bob,ungradable,,100\n"
    scripts = {
        tools / "gh": f"""echo "gh $*" >> "{log}"
            case "$1 $2" in
              "repo list") printf 'lab-ann\\nother\\nLAB-bob\\n';;
              "repo clone") git init -q "$4" && git -C "$4" -c user.name=a -c user.email=b \
                commit -q --allow-empty -m one;;
            esac""",
        lab / ".venv/bin/python": f"""
            if [ "$1" = - ]; then exec "{sys.executable}" -; fi
            echo "$*" >> "{log}"; mkdir ../grading
            printf '{rows}' > ../grading/gradebook.csv; exit 1""".replace("\nlab", "\\nlab")
        .replace("max_score\n", "max_score\\n")
        .replace(",100\n'", ",100\\n'"),
    }
    for path, body in scripts.items():
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tools}:{os.environ['PATH']}", "ORGANISATION": "uni", "PREFIX": "lab-",
    }  # fmt: skip
    for text in steps:
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", text],
            cwd=lab, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    said = log.read_text()
    assert "gh repo clone uni/lab-ann ../clones/lab-ann" in said and "other" not in said
    assert "clone uni/LAB-bob" in said
    (batch,) = [line for line in said.splitlines() if line.startswith("-m grader batch")]
    command_line.parser().parse_args(batch.split()[2:])
    (told,) = [line for line in said.splitlines() if line.startswith("gh api")]
    assert "repos/uni/lab-ann/statuses/" in told and "state=success" in told
    assert told.endswith("description=100 of 100 points")


def prairielearn(tmp_path: Path, bundle: Path) -> tuple[int, dict[str, Any]]:
    """Run PrairieLearn's entry point in a folder laid out as its containers are."""
    with zipfile.ZipFile(bundle.parent / bundles.PRAIRIELEARN) as archive:
        archive.extractall(tmp_path)
    question = tmp_path / "questions/transformer-lab"
    entry = json.loads((question / "info.json").read_text())["externalGradingOptions"]["entrypoint"]
    script = tmp_path / Path(entry).relative_to("/grade")
    script.chmod(0o755)
    environment = os.environ | {"GRADE_ROOT": str(tmp_path), "PYTHON": sys.executable}
    done = subprocess.run([script], env=environment, capture_output=True, text=True)
    found = json.loads((tmp_path / "results/results.json").read_bytes())
    jsonschema.validate(found, PRAIRIELEARN)
    return done.returncode, found


def test_prairielearn_question_is_whole_and_stays_the_same(bundle, tmp_path):
    with zipfile.ZipFile(bundle.parent / bundles.PRAIRIELEARN) as archive:
        archive.extractall(tmp_path)
    course = json.loads((tmp_path / "infoCourse.json").read_text())
    assert {"uuid", "name", "title", "topics", "tags", "assessmentSets"} == set(course)
    info = json.loads((tmp_path / "questions/transformer-lab/info.json").read_text())
    # The uuid is what PrairieLearn knows the question by: another one would be another question.
    assert info["uuid"] == "040197b4-b885-41f5-af02-2a24c88514da"
    assert {"uuid", "title", "topic", "type", "gradingMethod", "singleVariant"} | {
        "externalGradingOptions"
    } == set(info)
    assert info["topic"] in [topic["name"] for topic in course["topics"]]
    options = info["externalGradingOptions"]
    assert options["timeout"] <= 600 and set(options) <= {
        "enabled", "image", "entrypoint", "timeout", "serverFilesCourse", "enableNetworking",
        "environment",
    }  # fmt: skip
    page = (tmp_path / "questions/transformer-lab/question.html").read_text()
    assert page.count("<pl-file-upload") == 1
    taken = [
        re.search(rf'(?<![-\w]){n}="(.*?)"', page)[1] for n in ("file-names", "optional-file-names")
    ]
    points = settings.load().points
    required = list(dict.fromkeys(stub.file for stub in points.stubs))
    rest = dict.fromkeys(stub.file for stub in points.stretch if stub.file not in required)
    assert taken == [", ".join(required), ", ".join(rest)]
    for element in ("pl-question-panel", "pl-submission-panel", "pl-external-grader-results"):
        assert f"<{element}>" in page
    assert platforms.EXPORTERS["prairielearn"].most_bytes <= 1_000_000


def test_prairielearn_grades_a_starter(bundle, tmp_path):
    # Uploads are flat.
    shutil.copytree(STARTER, tmp_path / "student", ignore=shutil.ignore_patterns("__*"))
    code, found = prairielearn(tmp_path, bundle)
    assert (code, found["gradable"], found["score"]) == (0, True, 0.0)


def test_prairielearn_takes_no_attempt_for_what_cannot_be_graded(bundle, tmp_path):
    (tmp_path / "student").mkdir()
    code, found = prairielearn(tmp_path, bundle)
    assert (code, found["gradable"]) == (0, False)
    assert "is empty: expected a folder transformer/" in found["message"]
    assert str(tmp_path) not in found["message"]


def autolab(tmp_path: Path, bundle: Path) -> tuple[str, dict[str, Any], dict[str, str]]:
    """Run make as Autolab does; return what it says, the scores, and the problems' points."""
    with zipfile.ZipFile(bundle.parent / bundles.AUTOLAB) as archive:
        archive.extractall(tmp_path)
    (tmp_path / "autograde-Makefile").rename(tmp_path / "Makefile")
    # Not as a part of the make that may have started these tests: it would add lines of its own.
    own = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    done = subprocess.run(
        ["make", f"PYTHON={sys.executable}"],
        cwd=tmp_path, env=own, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pairs = (line.split() for line in (tmp_path / "lab/problems.txt").read_text().splitlines())
    return done.stdout, json.loads(done.stdout.splitlines()[-1])["scores"], dict(pairs)


def test_autolab_grades_a_hand_in_and_knows_its_problems(bundle, tmp_path):
    with zipfile.ZipFile(tmp_path / "lab.zip", "w") as archive:
        for path in STARTER.glob("*.py"):
            tree = "solution" if path.name == "masks.py" else "starter"
            archive.write(ROOT / tree / f"transformer/{path.name}", f"transformer/{path.name}")
    said, scores, worth = autolab(tmp_path, bundle)
    assert scores == dict.fromkeys(worth, 0) | {"masks": 6}
    assert sum(map(float, worth.values())) == 100 and "not implemented yet" in said


def test_autolab_gives_zero_for_what_cannot_be_graded(bundle, tmp_path):
    (tmp_path / "lab.zip").write_bytes(b"essay")
    said, scores, worth = autolab(tmp_path, bundle)
    assert scores == dict.fromkeys(worth, 0) and "lab.zip" not in said
    assert "expected" in said


def test_failure_of_the_grader_leaves_autolab_and_prairielearn_ungraded(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(jobs, "graded", lambda *_: 1 / 0)
    assert jobs.main("autolab", tmp_path) == 3
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"scores": {}}
    assert jobs.main("prairielearn", tmp_path) == 3
    assert not json.loads((tmp_path / "results/results.json").read_bytes())["gradable"]
