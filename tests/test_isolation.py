"""What `choose` takes and refuses, what bwrap and the other user really keep away, the doctor."""

from __future__ import annotations

import ast
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from grader import sandbox
from grader.base import settings
from grader.cli import doctor
from grader.sandbox import isolation, landlock, probe, seccomp

ROOT = Path(__file__).resolve().parent.parent
LINUX = sys.platform.startswith("linux")
LAB = settings.load()
needs_landlock = pytest.mark.skipif(
    landlock.abi() < 1, reason="this kernel has no Landlock (Linux 5.13 or later has)"
)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Let no test see what another one found."""
    isolation._find.cache_clear()
    yield
    isolation._find.cache_clear()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def chosen(requested: str, python: str = sys.executable) -> sandbox.Isolation:
    """Choose, or skip the test with the reason why this machine cannot."""
    try:
        return sandbox.choose(requested, python)
    except sandbox.IsolationUnavailable as error:
        pytest.skip(str(error))


def interpreter_for_all() -> str:
    """Return an interpreter that another user can run, or skip the test."""
    if not LINUX or os.geteuid() != 0:
        pytest.skip("only root can change the user")
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        new = "import sys; sys.exit(sys.version_info < (3, 11))"
        if Path(python).exists() and subprocess.run([python, "-I", "-c", new]).returncode == 0:
            try:
                sandbox.choose("uid", python)
            except sandbox.IsolationUnavailable:
                continue
            return python
    pytest.skip("no interpreter of Python 3.11 or later here is readable for another user")


def test_portable_asks_nothing_of_the_machine() -> None:
    found = sandbox.choose("portable")
    assert (found.level, found.contained, found.uid) == ("portable", False, None)
    assert dict(found.layers) == dict.fromkeys(sandbox.LAYERS, "skipped: not asked for")
    assert found.command(Path("/a"), Path("/b")) == []


def test_auto_names_every_layer_and_what_it_found() -> None:
    found = sandbox.choose("auto")
    assert list(found.layers) == list(sandbox.LAYERS)
    for state in found.layers.values():
        assert state == "active" or state.startswith("skipped: ")
    separating = [n for n in sandbox.LAYERS if n != "seccomp" and found.active(n)]
    assert found.level == ("+".join(separating) or "portable")
    assert sandbox.choose("auto") is found


def test_every_name_that_is_asked_for_is_taken_and_no_other() -> None:
    found = chosen("landlock")
    assert found.level == "landlock"
    assert (found.active("landlock"), found.active("uid"), found.active("bwrap")) == (
        True, False, False,
    )  # fmt: skip
    assert found.contained
    assert found.layers["bwrap"] == "skipped: not asked for"


@pytest.mark.parametrize("requested", ["", "docker", "landlock+docker", "AUTO"])
def test_unknown_isolation_is_refused(requested: str) -> None:
    with pytest.raises(sandbox.IsolationUnavailable) as caught:
        sandbox.choose(requested)
    assert str(caught.value) == (
        "isolation must be auto, portable, or one or more of landlock, seccomp, uid, bwrap "
        f"joined by '+', got {requested!r}"
    )


def test_isolation_that_is_missing_is_refused_by_name_and_skipped_by_auto(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    reason = "bwrap (package bubblewrap) is not installed" if LINUX else "needs Linux"
    with pytest.raises(sandbox.IsolationUnavailable) as caught:
        sandbox.choose("bwrap")
    assert str(caught.value) == (
        f"isolation 'bwrap' was asked for and does not work here: {reason}; "
        "--isolation auto takes the strongest that works"
    )
    assert sandbox.choose("auto").layers["bwrap"] == f"skipped: {reason}"


@pytest.mark.skipif(not LINUX, reason="needs Linux")
def test_bwrap_that_is_installed_but_does_not_work_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text(
        "#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n"
    )
    broken.chmod(0o755)
    real = shutil.which
    monkeypatch.setattr(shutil, "which", lambda n: str(broken) if n == "bwrap" else real(n))
    found = sandbox.choose("auto")
    assert found.layers["bwrap"] == "skipped: bwrap: setting up uid map: Permission denied"
    assert found.level == sandbox.choose("landlock").level or not landlock.abi() or found.uid


@pytest.mark.skipif(not LINUX, reason="needs Linux")
def test_layer_that_fails_when_tried_is_given_up_and_the_rest_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if seccomp.unsupported():
        pytest.skip(f"no filter here: {seccomp.unsupported()}")

    def fails(*_: object) -> None:
        raise OSError("refused by the container")

    monkeypatch.setattr(landlock, "abi", lambda: 1)
    monkeypatch.setattr(landlock, "restrict", fails)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    found = sandbox.choose("auto")
    assert found.layers["landlock"] == "skipped: refused by the container"
    assert found.layers["seccomp"] == "active"


@needs_landlock
def test_grader_below_a_readable_folder_is_not_called_contained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = sandbox.choose("landlock")
    assert (found.level, found.contained) == ("landlock", True)
    # As if the grader were installed beside the interpreter's own modules.
    monkeypatch.setattr(isolation, "_WITNESS", Path(os.__file__))
    isolation._find.cache_clear()
    found = sandbox.choose("landlock")
    assert (found.level, found.contained) == ("landlock", False)


def test_plan_grants_the_tree_and_one_scratch_folder(tmp_path: Path) -> None:
    found = sandbox.choose("auto")
    plan = found.plan(tree=tmp_path / "tree", scratch=tmp_path, limits=LAB.limits)
    assert plan.scratch == str(tmp_path)
    assert str(tmp_path / "tree") in plan.readable
    assert not any(str(ROOT).startswith(path) for path in plan.readable)
    assert plan.address_space == LAB.limits.address_space_mib << 20
    assert plan.file_size == LAB.limits.written_file_mib << 20
    assert (plan.landlock, plan.seccomp) == (found.active("landlock"), found.active("seccomp"))


def test_worker_side_imports_nothing_else_of_the_grader() -> None:
    package = ROOT / "grader"
    ours = {path for name in isolation.WORKER_SIDE for path in package.glob(name)}
    ours |= set((package / "sandbox").glob("*.py"))
    names = {p.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for p in ours}
    for path in (p for p in ours if p.suffix == ".py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("grader"):
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    known = node.module in names - {"grader"} or inner in names
                    assert known or node.module in ("grader.sandbox", "grader.base.settings"), path


# bwrap and the other user, for real ---------------------------------------------------------------

LOOK = """
import json, os, socket, sys
def attempt(action):
    try:
        return repr(action())
    except OSError as error:
        return type(error).__name__
def connect():
    return socket.create_connection(('127.0.0.1', PORT), 2)
print(json.dumps({
    'user': os.getuid(),
    'witness': attempt(lambda: open(WITNESS).read(1)),
    'etc': attempt(lambda: os.listdir('/etc')),
    'tree': attempt(lambda: open(TREE + '/x').read()),
    'tree written': attempt(lambda: open(TREE + '/y', 'w')),
    'scratch': attempt(lambda: open(SCRATCH + '/x', 'w').write('x')),
    'root written': attempt(lambda: open('/x', 'w')),
    'own interpreter': attempt(lambda: len(os.listdir(sys.base_prefix)) > 0),
    'network': attempt(connect),
    'processes': attempt(lambda: len([n for n in os.listdir('/proc') if n.isdigit()]) < 4),
}))
"""


def look_below(found: sandbox.Isolation, base: Path, python: str) -> dict[str, object]:
    """Run the look at the surroundings as a zygote would be run."""
    trees, scratches = base / "trees", base / "scratch"
    for folder in (trees, scratches):
        folder.mkdir(mode=0o755)
    (trees / "x").write_text("task")
    own = scratches / "1"
    own.mkdir()
    found.plan(tree=trees, scratch=own, limits=LAB.limits)
    with socket.create_server(("127.0.0.1", 0)) as server:
        known = {
            "WITNESS": str(ROOT / "grader" / "policy.py"),
            "TREE": str(trees),
            "SCRATCH": str(own),
            "PORT": server.getsockname()[1],
        }
        code = "".join(f"{k} = {v!r}\n" for k, v in known.items()) + LOOK
        done = subprocess.run(
            [*found.command(trees, scratches), python, "-I", "-S", "-c", code],
            capture_output=True, text=True, timeout=30, cwd="/",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_bwrap_hides_everything_but_what_a_worker_needs(open_folder: Path) -> None:
    seen = look_below(chosen("bwrap"), open_folder, sys.executable)
    assert seen | {"user": 0} == {
        "user": 0,
        "witness": "FileNotFoundError",
        "etc": repr([p.name for p in (Path("/etc/ld.so.cache"),) if p.exists()]),
        "tree": "'task'",
        "tree written": "OSError",
        "scratch": "1",
        "root written": "OSError",
        "own interpreter": "True",
        "network": "ConnectionRefusedError",
        "processes": "True",
    }


def test_bwrap_runs_as_the_other_user_when_it_can(open_folder: Path) -> None:
    python = interpreter_for_all()
    found = chosen("uid+bwrap", python)
    seen = look_below(found, open_folder, python)
    assert (seen["user"], seen["scratch"], seen["witness"]) == (found.uid, "1", "FileNotFoundError")


def test_other_user_reads_the_interpreter_and_not_a_closed_file(open_folder: Path) -> None:
    python = interpreter_for_all()
    found = chosen("uid", python)
    assert (found.level, found.uid is not None) == ("uid", True)
    secret = open_folder / "secret"
    secret.write_text("expected values")
    secret.chmod(0o600)
    scratch = open_folder / "scratch"
    scratch.mkdir()
    plan = found.plan(tree=open_folder, scratch=scratch, limits=LAB.limits)
    task = probe.Task(
        ("uid",), found.uid or 0, plan.scratch, found.readable, (python,), str(secret)
    )  # fmt: skip
    assert probe.try_layers(task) == probe.Answer(("uid",), {}, True)
    assert probe.try_layers(replace(task, layers=())).hidden is False


@pytest.mark.skipif(not LINUX or os.geteuid() != 0, reason="only root can change the user")
def test_interpreter_in_a_closed_folder_skips_the_other_user(open_folder: Path) -> None:
    closed = open_folder / "home"
    closed.mkdir(mode=0o700)
    (closed / "python").symlink_to("/usr/bin/env")
    task = probe.Task(("uid",), 60579, "/", (), (str(closed / "python"),), str(open_folder))
    answer = probe.try_layers(task)
    assert answer.layers == ()
    assert answer.skipped == {"uid": "the other user cannot write in /"}
    scratch = open_folder / "scratch"
    scratch.mkdir()
    os.chown(scratch, 60579, 60579)
    answer = probe.try_layers(replace(task, scratch=str(scratch)))
    words = f"the interpreter's own {closed / 'python'} cannot be read"
    assert answer.skipped == {"uid": words}


# Doctor -------------------------------------------------------------------------------------------


def test_doctor_says_every_layer_and_never_imports_torch() -> None:
    code = "from grader.cli import doctor; print(doctor.text())"
    code += "; import sys; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("python ", "torch ", "cores ", "memory ", "contained ", *sandbox.LAYERS):
        assert word in done.stdout


def test_doctor_explains_what_is_missing() -> None:
    layers = {"landlock": "active", "seccomp": "skipped: no table"}
    bare = sandbox.Isolation("portable", False, layers, 3, (), None)
    found = doctor.Survey({"python": "3.11.5"}, "Linux", 2, 1024, bare, 0.017)
    assert doctor.text(found).splitlines() == [
        "python          3.11.5",
        "system          Linux",
        "cores           2",
        "memory          1024 MiB",
        "isolation       portable (found in 17 ms)",
        "  landlock      active",
        "  seccomp       skipped: no table",
        "  Landlock ABI  3, which does not cover TCP, signals to the grader",
        "contained       no: a submission can read every file that you can; grade strangers' code "
        "elsewhere",
    ]
