"""Where a referee gets its workers: the isolation, the launcher and the folders."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from grader import sandbox
from grader.base.settings import Limits
from grader.link.launchers import ForkLauncher, Launcher, SpareLauncher, clean_environment
from grader.link.workers import Worker


class Workshop:
    """Starts the workers of one referee."""

    def __init__(
        self, isolation: sandbox.Isolation, limits: Limits, *, fork: bool | None = None
    ) -> None:
        """Create the working folder and start to load torch at once.

        Args:
            isolation: the layers in use.
            limits: what each worker may use.
            fork: whether workers are forked from a zygote; None = wherever that is safe.
        """
        self.isolation = isolation
        self.limits = limits
        self.base = Path(tempfile.mkdtemp(prefix="grader-"))
        self.base.chmod(0o755)
        self.trees = self.base / "trees"
        self.scratches = self.base / "scratch"
        for folder in (self.trees, self.scratches):
            folder.mkdir()
        environment = clean_environment(self.scratches)
        self.launcher: Launcher
        # A forked worker starts at once; a new process has to import torch.
        if fork if fork is not None else sys.platform.startswith("linux"):
            command = isolation.command(self.trees, self.scratches)
            self.launcher = ForkLauncher(command, environment, self.base / "zygote.log")
        else:
            self.launcher = SpareLauncher(environment)
        self.workers = 0
        # Called about ten times a second while we wait for a worker; may raise to give up.
        self.heed: Callable[[], None] = lambda: None

    def worker(self, tree: Path) -> Worker:
        """Start a worker on the staged `tree`."""
        self.workers += 1
        scratch = self.scratches / str(self.workers)
        scratch.mkdir(mode=0o700)
        plan = self.isolation.plan(tree=tree, scratch=scratch, limits=self.limits)
        worker = Worker(self.launcher, tree, plan, self.limits)
        worker.heed = self.heed
        try:
            worker.hello()
        except BaseException:
            worker.close()
            raise
        return worker

    def close(self) -> None:
        """End every process and remove every file."""
        self.launcher.close()
        shutil.rmtree(self.base, ignore_errors=True)

    def __enter__(self) -> Workshop:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()
