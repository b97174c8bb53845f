"""`notebook`: start JupyterLab from the lab's own environment; it is fetched at the first use."""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping

from grader.base.places import NOTEBOOKS, ROOT

WANTED = "jupyterlab>=4.4,<5"
SIZE = "some 220 MB on disk"
CANNOT_START = 2


def fetch() -> bool:
    """Let pip install JupyterLab at versions that go with the tested ones; tell whether it did."""
    print(f"notebook: JupyterLab is not here yet; fetching it once, {SIZE}", flush=True)
    command = [sys.executable, "-I", "-m", "pip", "install", "--quiet", "--no-input",
               "--disable-pip-version-check", "--constraint", str(ROOT / "constraints.txt"),
               WANTED]  # fmt: skip
    if subprocess.run(command).returncode:
        print("notebook: it could not be fetched; what pip says stands above. VS Code and PyCharm\n"
              "open the notebooks without it, and `make notebooks` writes them as pages to read.",
              file=sys.stderr)  # fmt: skip
        return False
    return True


def command(environment: Mapping[str, str], first: str = "01_masks.ipynb") -> list[str]:
    """Return the command that starts JupyterLab without a question to the network."""
    words = [
        sys.executable, "-m", "jupyterlab", str(NOTEBOOKS / first),
        f"--ServerApp.root_dir={ROOT}",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]  # fmt: skip
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        words.append("--allow-root")
    if "SSH_CONNECTION" in environment or os.path.exists("/.dockerenv"):
        # The browser is on another machine; the address to open is printed.
        words.append("--no-browser")
    return words


def main(_: argparse.Namespace) -> int:
    """Start JupyterLab and wait for its end; return the exit code."""
    if importlib.util.find_spec("jupyterlab") is None and not fetch():
        return CANNOT_START
    # The kernel is this environment's, whatever kernels the home folder knows.
    return subprocess.run(
        command(os.environ), env=os.environ | {"JUPYTER_PREFER_ENV_PATH": "1"}
    ).returncode
