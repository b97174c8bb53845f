"""The set-up explains what is missing, repairs what was interrupted, and is instant when done.

Nothing here reaches a network: pip is replaced by a recorder of its command lines.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grader import setup_environment as setup

ROOT = Path(__file__).resolve().parent.parent
VERSION = sys.version_info[:2]


class Recorder:
    """Stands in for `subprocess.run`: notes each command and plays the programs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commands: list[list[str]] = []
        self.environments: list[dict[str, str]] = []
        self.fails: set[str] = set()
        self.pip_settings = ""
        self.version: tuple[int, int] | None = None

    def __call__(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        command = list(map(str, command))
        self.commands.append(command)
        self.environments.append(options.get("env", {}))
        kind = self.kind(command)
        if self.fails & {kind, *command}:
            return subprocess.CompletedProcess(command, 1, "")
        if kind == "version":
            code = 1 if self.version is None else 0
            words = " ".join(map(str, self.version or ()))
            return subprocess.CompletedProcess(command, code, words)
        if kind == "venv":
            python = setup.venv_python(self.root)
            shutil.rmtree(self.root / ".venv", ignore_errors=True)
            python.parent.mkdir(parents=True)
            python.touch(mode=0o755)
            self.version = VERSION
        return subprocess.CompletedProcess(command, 0, self.pip_settings)

    def start(self, command: list[str], **options: Any) -> contextlib.AbstractContextManager[Any]:
        """Stand in for `subprocess.Popen`, with a pip that says what it does."""
        done = self(command, **options)
        done.stdout = [
            "WARNING: odd\n",
            "Collecting rich\n",
            "Installing collected packages: rich\n",
        ]
        return contextlib.nullcontext(done)

    @staticmethod
    def kind(command: list[str]) -> str:
        words = command[2:]
        if words[:2] == ["-m", "venv"]:
            return "venv"
        if words[:2] == ["-m", "pip"]:
            return words[2]
        return "version" if "sys.version_info" in words[-1] else "import"

    def kinds(self) -> list[str]:
        return [self.kind(command) for command in self.commands]

    def pip(self) -> list[list[str]]:
        return [command for command in self.commands if self.kind(command) == "install"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


@pytest.fixture
def ran(project: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder(project)
    recorder.pip_settings = "global.index-url='https://mirror/simple'"
    monkeypatch.setattr(setup.subprocess, "run", recorder)
    monkeypatch.setattr(setup.subprocess, "Popen", recorder.start)
    return recorder


def test_first_set_up_makes_installs_and_tries(project: Path, ran: Recorder) -> None:
    setup.set_up(project, chosen=False)
    wanted = ["version", "venv", "install", "import"]
    assert [kind for kind in ran.kinds() if kind != "config"] == wanted


def test_second_set_up_starts_nothing(project: Path, ran: Recorder) -> None:
    setup.set_up(project, chosen=False)
    ran.commands.clear()
    setup.set_up(project, chosen=False)
    assert ran.commands == []


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_changed_requirement_installs_into_what_is_there(
    project: Path, ran: Recorder, name: str
) -> None:
    setup.set_up(project, chosen=False)
    ran.commands.clear()
    text = (project / name).read_text(encoding="utf-8")
    (project / name).write_text(text.replace("rich", "rich2"), encoding="utf-8")
    setup.set_up(project, chosen=False)
    assert "install" in ran.kinds() and "venv" not in ran.kinds()


def test_change_that_concerns_no_package_starts_nothing(project: Path, ran: Recorder) -> None:
    setup.set_up(project, chosen=False)
    ran.commands.clear()
    with (project / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write("\n[tool.other]\nvalue = 7\n")
    setup.set_up(project, chosen=False)
    assert ran.commands == []


def test_interrupted_install_is_made_anew(project: Path, ran: Recorder) -> None:
    ran.fails = {"install"}
    with pytest.raises(setup.SetupError, match="PIP_NO_INDEX=1 PIP_FIND_LINKS=that-folder"):
        setup.set_up(project, chosen=False)
    ran.fails.clear()
    ran.commands.clear()
    setup.set_up(project, chosen=False)
    assert "venv" in ran.kinds()
    recorded, wanted = setup.stamps(project)
    assert recorded == wanted


def test_environment_that_no_longer_runs_is_made_anew(project: Path, ran: Recorder) -> None:
    setup.set_up(project, chosen=False)
    ran.commands.clear()
    ran.version = None
    setup.venv_python(project).unlink()
    setup.set_up(project, chosen=False)
    assert "venv" in ran.kinds()


def test_persons_own_environment_is_kept(project: Path, ran: Recorder) -> None:
    ran.version = VERSION
    (project / ".venv").mkdir()
    setup.set_up(project, chosen=False)
    assert "venv" not in ran.kinds()


@pytest.mark.parametrize(("chosen", "remade"), [(True, True), (False, False)])
def test_chosen_python_replaces_another_version(
    project: Path, ran: Recorder, chosen: bool, remade: bool
) -> None:
    setup.set_up(project, chosen=False)
    ran.commands.clear()
    ran.version = (VERSION[0], VERSION[1] + 1)
    setup.set_up(project, chosen=chosen)
    assert ("venv" in ran.kinds()) == remade


def test_old_environment_is_made_anew(project: Path, ran: Recorder) -> None:
    ran.version = (3, 10)
    setup.set_up(project, chosen=False)
    assert "venv" in ran.kinds()


def test_failed_import_is_told(project: Path, ran: Recorder) -> None:
    ran.fails = {"import"}
    with pytest.raises(setup.SetupError, match="installed but do not load"):
        setup.set_up(project, chosen=False)
    assert setup.stamps(project)[0] == ""


def test_failed_environment_is_told(project: Path, ran: Recorder) -> None:
    ran.fails = {"venv"}
    with pytest.raises(setup.SetupError, match="could not make .venv"):
        setup.set_up(project, chosen=False)


def test_pip_gets_requirements_and_constraints(project: Path, ran: Recorder) -> None:
    setup.set_up(project, chosen=False)
    (command,) = ran.pip()
    assert command[command.index("--constraint") + 1] == str(project / "constraints.txt")
    assert {"torch>=2.6", "ruff>=0.9"} <= set(command)


def test_pip_keeps_its_settings_but_for_other_targets(
    project: Path, ran: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "wheels")
    monkeypatch.setenv("PIP_TARGET", "elsewhere")
    setup.set_up(project, chosen=False)
    given = ran.environments[ran.commands.index(ran.pip()[0])]
    assert given["PIP_FIND_LINKS"] == "wheels" and "PIP_TARGET" not in given


@pytest.mark.parametrize(
    ("system", "settings", "small"),
    [
        ("linux", "", True),
        ("linux", ":env:.default-timeout='180'\n", True),
        ("linux", ":env:.find-links='wheels'\n", False),
        ("linux", "global.index-url='https://mirror/simple'\n", False),
        ("linux", "user.extra_index_url='https://mirror/simple'\n", False),
        ("linux", ":env:.no-index='1'\n", False),
        ("darwin", "", False),
    ],
)
def test_torch_comes_without_cuda_unless_an_index_is_chosen(
    project: Path, ran: Recorder, monkeypatch: pytest.MonkeyPatch,
    system: str, settings: str, small: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(setup.sys, "platform", system)
    ran.pip_settings = settings
    setup.set_up(project, chosen=False)
    first, *rest = ran.pip()
    assert (setup.CPU_BUILDS in first, len(rest)) == (small, int(small))


def test_torch_with_cuda_serves_where_the_small_builds_are_out_of_reach(
    project: Path, ran: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup.sys, "platform", "linux")
    ran.pip_settings = ""
    ran.fails = {setup.CPU_BUILDS}
    setup.set_up(project, chosen=False)
    assert "torch>=2.6" in ran.pip()[1]


def test_old_python_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "OLDEST", (99, 7))
    monkeypatch.setenv("PATH", "")
    assert setup.main() == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("setup: Python 99.7 or newer is needed; ")
    assert second.endswith("PYTHON=python3.12 make setup")


def test_old_python_hands_over_to_a_newer_one_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "OLDEST", (99, 7))
    for name, code in (("python3.13", "exit 127"), ("python3.12", 'echo "$@" >> "$0.log"; echo 1')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{code}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert setup.main() == 0
    *_, last = (tmp_path / "python3.12.log").read_text().splitlines()
    assert last == f"-I {ROOT / 'grader/setup_environment.py'}"


def test_pip_shows_one_line_on_a_terminal_and_none_in_a_file(
    project: Path, ran: Recorder, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    setup.pip_install(project, "rich")
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    setup.pip_install(project, "rich")
    shown = capsys.readouterr().out
    assert "\n" not in shown
    assert shown.split("\r\x1b[K") == [
        "", "setup: WARNING: odd", "setup: Collecting rich",
        "setup: Installing collected packages: rich", "",
    ]  # fmt: skip


def test_failure_shows_what_pip_said_last_and_no_warnings(
    project: Path, ran: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    ran.fails = {"install"}
    assert not setup.pip_install(project, "rich")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "Collecting rich\nInstalling collected packages: rich\n")


def test_stopped_set_up_is_not_taken_for_a_whole_one(
    project: Path, ran: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(setup, "pip_install", stop)
        with pytest.raises(KeyboardInterrupt):
            setup.set_up(project, chosen=False)
    assert not setup.is_finished(project, chosen=False)
    ran.commands.clear()
    setup.set_up(project, chosen=False)
    assert "venv" in ran.kinds() and setup.is_finished(project, chosen=False)


def test_error_is_one_message_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(root: Path, chosen: bool) -> None:
        raise setup.SetupError("no disk is left")

    monkeypatch.setattr(setup, "set_up", fail)
    assert setup.main() == 1
    assert capsys.readouterr().err == "setup: no disk is left\n"


def test_second_set_up_waits_for_the_first(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("fcntl")
    code = (
        "import sys, pathlib; from grader import setup_environment as s\n"
        "with s.one_at_a_time(pathlib.Path(sys.argv[1])): print('in', flush=True)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with setup.one_at_a_time(tmp_path):
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        waiting = process.stdout.readline()
    with process.stdout as rest:
        assert (waiting, rest.read()) == (
            "setup: waiting for the set-up that runs already\n",
            "in\n",
        )
    assert process.wait() == 0


def test_script_needs_only_the_standard_library(project: Path) -> None:
    (project / "grader").mkdir()
    script = shutil.copy(ROOT / "grader/setup_environment.py", project / "grader")
    fake = setup.venv_python(project)
    fake.parent.mkdir(parents=True)
    fake.symlink_to(sys.executable)
    project.joinpath(setup.STAMP).write_text(setup.stamps(project)[1], encoding="utf-8")
    bare = {"PATH": os.environ["PATH"], "HOME": str(project / "nowhere")}
    command = [sys.executable, "-I", "-S", str(script)]
    done = subprocess.run(command, env=bare, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
