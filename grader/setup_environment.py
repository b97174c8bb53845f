"""Build .venv and install the tested versions; a second run with nothing changed is instant.

Run as `python3 -I grader/setup_environment.py`, or by `make setup`. It needs nothing but Python's
own library and reads as Python 3.7, so that an older interpreter gets a sentence and not a syntax
error. pip's own settings (PIP_* variables, pip.conf) hold.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path

OLDEST = (3, 11)
NEWER = ("python3.14", "python3.13", "python3.12", "python3.11")
ROOT = Path(__file__).resolve().parent.parent
STAMP = ".venv/set-up.txt"
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
OFFLINE = """\
Behind a mirror, set PIP_INDEX_URL. Without a network, put the wheels into a folder and run
    PIP_NO_INDEX=1 PIP_FIND_LINKS=that-folder make setup"""


class SetupError(Exception):
    """A set-up that cannot go on; the message says what to do."""


def say(text: str) -> None:
    """Print one line of progress at once."""
    print(f"setup: {text}", flush=True)


def output(*command: str | Path) -> str:
    """Return what a command prints, nothing where it fails or cannot be started."""
    with contextlib.suppress(OSError):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return done.stdout if done.returncode == 0 else ""
    return ""


def venv_python(root: Path) -> Path:
    """Return the interpreter of the environment below `root`."""
    return root / ".venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def requirements(root: Path) -> list[str]:
    """Return the requirements of pyproject.toml, and of its `dev` extra where it has one."""
    import tomllib

    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *project.get("optional-dependencies", {}).get("dev", ())]


def stamps(root: Path) -> tuple[str | None, str]:
    """Return what .venv recorded (None: nothing; empty: pip did not end) and all that decides it.

    A finished environment recorded all that decides what it holds.
    """
    file = root / STAMP
    recorded = file.read_text(encoding="utf-8") if file.is_file() else None
    # The link's end changes when the system replaces one Python by another.
    interpreter = os.path.realpath(venv_python(root))
    constraints = (root / "constraints.txt").read_text(encoding="utf-8")
    return recorded, "\n".join([interpreter, *requirements(root), "", constraints])


def is_usable(root: Path, chosen: bool) -> bool:
    """Tell whether a working environment with pip is there, of the version that was `chosen`."""
    words = "import sys, pip; print(*sys.version_info[:2])"
    there = tuple(map(int, output(venv_python(root), "-I", "-c", words).split()))
    return there == sys.version_info[:2] if chosen else there >= OLDEST


def is_finished(root: Path, chosen: bool) -> bool:
    """Tell whether the environment stands and nothing has changed since."""
    recorded, wanted = stamps(root)
    there = recorded == wanted and os.access(venv_python(root), os.X_OK)
    return there and (not chosen or is_usable(root, chosen))


def make_environment(root: Path) -> None:
    """Make .venv anew, or raise SetupError."""
    say(f"making .venv with Python {platform.python_version()}")
    # An activated environment is not the one to build from: it may be the one that goes.
    base = getattr(sys, "_base_executable", None) or sys.executable
    if subprocess.run([base, "-I", "-m", "venv", "--clear", str(root / ".venv")]).returncode:
        raise SetupError(f"{base} could not make .venv; its message stands above")


def pip_install(root: Path, *words: str) -> bool:
    """Let pip install `words` at the tested versions; tell whether it did.

    A terminal shows the last line of what pip says, in place; a failure shows the last few.
    """
    command = [str(venv_python(root)), "-I", "-m", "pip", "install", "--no-user", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "off"]
    command += ["--constraint", str(root / "constraints.txt"), *words]
    # Settings that would put the packages elsewhere make no sense inside .venv.
    elsewhere = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT")
    kept = {name: value for name, value in os.environ.items() if name not in elsewhere}
    room = shutil.get_terminal_size().columns - 8 if sys.stdout.isatty() else 0
    said: deque[str] = deque(maxlen=10)
    clear = "\r\033[K" if room else ""
    try:
        with subprocess.Popen(
            command, env=kept, text=True, errors="replace",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as pip:  # fmt: skip
            for line in pip.stdout or ():
                if not line.startswith("WARNING"):
                    said.append(line)
                if room:
                    print(f"{clear}setup: {line.strip()[:room]}", end="", flush=True)
    finally:
        print(clear, end="", flush=True)
    if pip.returncode:
        print("".join(said), end="", file=sys.stderr, flush=True)
    return pip.returncode == 0


def install(root: Path) -> None:
    """Install the requirements at the tested versions, or raise SetupError."""
    python = venv_python(root)
    wanted = requirements(root)
    homes = [*root.glob(".venv/lib/python*"), root / ".venv" / "Lib"]
    if any(any(home.glob("site-packages/torch-*.dist-info")) for home in homes):
        say("bringing the packages up to date")
    else:
        say(f"installing {len(wanted)} packages and what they need; torch alone is some 200 MB")
    # On Linux the usual index holds torch with gigabytes of CUDA, which the lab does not use.
    settings = output(python, "-I", "-m", "pip", "config", "list").replace("_", "-")
    chosen = any(name in settings for name in ("index-url=", "find-links=", "no-index="))
    if sys.platform.startswith("linux") and not chosen:
        torch = next(text for text in wanted if text.startswith("torch>"))
        if not pip_install(root, "--index-url", CPU_BUILDS, "--no-deps", "--retries", "1", torch):
            say("the builds without CUDA are out of reach; taking the large ones")
    if not pip_install(root, *wanted):
        raise SetupError(
            f"pip could not install the packages; its message stands above.\n{OFFLINE}"
        )
    say("checking that torch loads")
    if subprocess.run([str(python), "-I", "-c", "import torch, numpy, safetensors"]).returncode:
        raise SetupError("the packages are installed but do not load; the message stands above")


@contextlib.contextmanager
def one_at_a_time(root: Path) -> Iterator[None]:
    """Hold the project's folder against a second set-up, where the system can."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):  # Windows; a network folder without locks
            import fcntl

            folder = os.open(root, os.O_RDONLY)
            stack.callback(os.close, folder)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("waiting for the set-up that runs already")
                fcntl.flock(folder, fcntl.LOCK_EX)
        yield


def set_up(root: Path, chosen: bool) -> None:
    """Bring .venv to what pyproject.toml and constraints.txt ask for.

    Args:
        root: The project's folder.
        chosen: Whether a person chose this interpreter, which must then be the environment's.

    Raises:
        SetupError: It cannot be done; the message says what to do.
    """
    if is_finished(root, chosen):
        return
    with one_at_a_time(root):
        if is_finished(root, chosen):
            return
        # Empty: pip was interrupted, and may have left a package half written.
        if stamps(root)[0] == "" or not is_usable(root, chosen):
            make_environment(root)
        root.joinpath(STAMP).write_text("", encoding="utf-8")
        install(root)
        root.joinpath(STAMP).write_text(stamps(root)[1], encoding="utf-8")
        say("done")


def main() -> int:
    """Set up, or say why not; return 0 or 1."""
    if sys.version_info < OLDEST:
        for newer in filter(None, map(shutil.which, NEWER)):
            if output(newer, "-I", "-c", "print('runs')"):  # and is no mere shim
                return subprocess.run([newer, "-I", os.path.abspath(__file__)]).returncode
        need = f"Python {'.'.join(map(str, OLDEST))} or newer is needed"
        print(
            f"setup: {need}; {sys.executable} is {platform.python_version()}.\n"
            "Install a newer one, then name it: PYTHON=python3.12 make setup",
            file=sys.stderr,
        )
        return 1
    try:
        set_up(ROOT, chosen=bool(os.environ.get("PYTHON")))
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: stopped; the next run begins anew", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
