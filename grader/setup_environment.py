"""Build .venv and install the tested versions; a second run with nothing changed is instant.

Run as `python3 -I grader/setup_environment.py`, or by `make setup`. It needs nothing but Python's
own library and reads as Python 3.7, so that an older interpreter gets a sentence and not a syntax
error. pip's own settings (PIP_* variables, pip.conf) hold.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

OLDEST = (3, 11)
NEWER = ("python3.14", "python3.13", "python3.12", "python3.11")
ROOT = Path(__file__).resolve().parent.parent
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
OFFLINE = """\
Behind a mirror, set PIP_INDEX_URL. Without a network, put the wheels into a folder and run
    PIP_NO_INDEX=1 PIP_FIND_LINKS=that-folder make setup"""


class SetupError(Exception):
    """A set-up that cannot go on; the message says what to do."""


def venv_python(root: Path) -> Path:
    """Return the interpreter of the environment below `root`."""
    return root / ".venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def say(text: str) -> None:
    """Print one line of progress at once."""
    print(f"setup: {text}", flush=True)


def version_words(version: tuple[int, ...]) -> str:
    """Return a version as a person writes it."""
    return ".".join(map(str, version))


def newer_python() -> str | None:
    """Return an interpreter on the PATH that is new enough and runs."""
    test = f"import sys; sys.exit(sys.version_info < {OLDEST})"
    for path in filter(None, map(shutil.which, NEWER)):
        if subprocess.run([path, "-I", "-c", test], stderr=subprocess.DEVNULL).returncode == 0:
            return path
    return None


def check_modules() -> None:
    """Check that this Python can make environments.

    Raises:
        SetupError: It cannot; Debian keeps that in a package of its own.
    """
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError as error:
        package = f"python{version_words(sys.version_info[:2])}-venv"
        raise SetupError(
            f"{sys.executable} has no module {error.name}, which making .venv needs.\n"
            f"On Debian or Ubuntu: sudo apt install {package}"
        ) from None


def requirements(root: Path) -> list[str]:
    """Return the requirements of pyproject.toml, and of its `dev` extra where it has one."""
    import tomllib

    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *project.get("optional-dependencies", {}).get("dev", ())]


def stamp_path(root: Path) -> Path:
    """Return the file that tells how far a set-up came: absent, empty while pip works, or full."""
    return root / ".venv" / "set-up.txt"


def stamp_text(root: Path) -> str:
    """Return what a finished environment records: all that decides what it holds."""
    # The link's end changes when the system replaces one Python by another.
    interpreter = os.path.realpath(venv_python(root))
    constraints = (root / "constraints.txt").read_text(encoding="utf-8")
    return "\n".join([interpreter, *requirements(root), "", constraints])


def read_stamp(root: Path) -> str | None:
    """Return what the environment recorded, None where it recorded nothing."""
    try:
        return stamp_path(root).read_text(encoding="utf-8")
    except OSError:
        return None


def environment_version(python: Path) -> tuple[int, ...] | None:
    """Return major and minor version of a working environment with pip, or None."""
    words = "import sys, pip; print(*sys.version_info[:2])"
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return None
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else None


def is_finished(root: Path, chosen: bool) -> bool:
    """Tell whether the environment stands and nothing has changed since.

    Args:
        root: The project's folder.
        chosen: Whether a person chose this interpreter, which must then be the environment's.
    """
    python = venv_python(root)
    if not os.access(python, os.X_OK) or read_stamp(root) != stamp_text(root):
        return False
    return not chosen or environment_version(python) == sys.version_info[:2]


def is_usable(root: Path, chosen: bool) -> bool:
    """Tell whether pip can bring the environment that is there up to date."""
    there = environment_version(venv_python(root))
    if there is None or there < OLDEST or (chosen and there != sys.version_info[:2]):
        return False
    # Empty: pip was interrupted, and may have left a package half written.
    return read_stamp(root) != ""


def make_environment(root: Path) -> None:
    """Make .venv anew.

    Raises:
        SetupError: This Python cannot.
    """
    check_modules()
    say(f"making .venv with Python {version_words(sys.version_info[:3])}")
    # An activated environment is not the one to build from: it may be the one that goes.
    base = getattr(sys, "_base_executable", None) or sys.executable
    command = [base, "-I", "-m", "venv", "--clear", str(root / ".venv")]
    if subprocess.run(command).returncode:
        raise SetupError(f"{base} could not make .venv; its message stands above")


def chooses_index(python: Path) -> bool:
    """Tell whether pip's settings say where packages come from."""
    command = [str(python), "-I", "-m", "pip", "config", "list"]
    settings = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout
    names = ("index-url=", "find-links=", "no-index=")
    return any(name in settings.replace("_", "-") for name in names)


def holds_torch(root: Path) -> bool:
    """Tell whether .venv holds torch already, so that little is left to fetch."""
    homes = ("lib/python*", "Lib")
    return any(any((root / ".venv").glob(f"{h}/site-packages/torch-*.dist-info")) for h in homes)


def pip_install(root: Path, *words: str) -> bool:
    """Let pip install `words` at the tested versions; tell whether it did."""
    command = [str(venv_python(root)), "-I", "-m", "pip", "install", "--no-user", "--no-input"]
    command += ["--disable-pip-version-check", "--constraint", str(root / "constraints.txt")]
    # Settings that would put the packages elsewhere make no sense inside .venv.
    elsewhere = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT")
    kept = {name: value for name, value in os.environ.items() if name not in elsewhere}
    return subprocess.run([*command, *words], env=kept).returncode == 0


def install(root: Path) -> None:
    """Install the requirements at the tested versions.

    Raises:
        SetupError: pip failed, or what it installed does not load.
    """
    python = venv_python(root)
    wanted = requirements(root)
    quiet = ["--quiet"] if holds_torch(root) else []
    if quiet:
        say("bringing the packages up to date")
    else:
        say(f"installing {len(wanted)} packages and what they need; torch alone is some 200 MB")
    # On Linux the usual index holds torch with gigabytes of CUDA, which the lab does not use.
    if sys.platform.startswith("linux") and not chooses_index(python):
        torch = next(text for text in wanted if text.startswith("torch>"))
        place = ["--index-url", CPU_BUILDS, "--no-deps", "--retries", "1"]
        if not pip_install(root, *quiet, *place, torch):
            say("the builds without CUDA are out of reach; taking the large ones")
    if not pip_install(root, *quiet, *wanted):
        raise SetupError(
            f"pip could not install the packages; its message stands above.\n{OFFLINE}"
        )
    say("checking that torch loads")
    if subprocess.run([str(python), "-I", "-c", "import torch, numpy, safetensors"]).returncode:
        raise SetupError("the packages are installed but do not load; the message stands above")


@contextlib.contextmanager
def one_at_a_time(root: Path) -> Iterator[None]:
    """Hold the project's folder against a second set-up, where the system can."""
    try:
        import fcntl

        folder = os.open(root, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        with contextlib.suppress(OSError):  # a network folder may know no locks
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("waiting for the set-up that runs already")
                fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def set_up(root: Path, chosen: bool) -> None:
    """Bring .venv to what pyproject.toml and constraints.txt ask for.

    Args:
        root: The project's folder.
        chosen: Whether a person chose this interpreter.

    Raises:
        SetupError: It cannot be done; the message says what to do.
    """
    if is_finished(root, chosen):
        return
    with one_at_a_time(root):
        if is_finished(root, chosen):
            return
        if not is_usable(root, chosen):
            make_environment(root)
        stamp_path(root).write_text("", encoding="utf-8")
        install(root)
        stamp_path(root).write_text(stamp_text(root), encoding="utf-8")
        say("done")


def main() -> int:
    """Set up, or say why not; return 0 or 1."""
    if sys.version_info < OLDEST:
        found = newer_python()
        if found is not None:
            return subprocess.run([found, "-I", os.path.abspath(__file__)]).returncode
        print(
            f"setup: Python {version_words(OLDEST)} or newer is needed; {sys.executable} is "
            f"{version_words(sys.version_info[:3])}.\n"
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
        print("setup: stopped; the next run goes on from here", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
