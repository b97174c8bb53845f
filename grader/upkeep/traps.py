"""What an attack may leave behind: the traps that a hostile case is graded among."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

from grader.base.places import ROOT
from grader.run.engine import Referee

# How much a referee may grow over one submission: four of the largest replies it accepts.
REPLIES_HELD = 4
SHARED_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/run/lock")
WATCHED = ("lab.toml", "solution")


class Listener:
    """A local server that counts the connections it should never get."""

    def __init__(self, server: socket.socket) -> None:
        """Listen on a bound socket."""
        self.server = server
        self.count = 0
        server.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it has been closed
            while True:
                self.server.accept()[0].close()
                self.count += 1

    def close(self) -> None:
        """Stop listening."""
        # Closing alone would leave the thread waiting.
        with contextlib.suppress(OSError):
            self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()


class Traps:
    """Names, files and servers for one attack, and what they show afterwards."""

    def __init__(self, referee: Referee) -> None:
        """Set the traps and remember how things stood."""
        self.referee = referee
        self.token = f"token{secrets.token_hex(8)}"
        self.folder = Path(tempfile.mkdtemp(prefix="grader-traps-"))
        self.secret = self.folder / "secret"
        self.secret.write_text("Nobody but the harness may read this.\n")
        self.secret.chmod(0o600)
        self.folder.chmod(0o755)
        local = socket.create_server(("127.0.0.1", 0))
        path = socket.socket(socket.AF_UNIX)
        path.bind(str(self.folder / "socket"))
        (self.folder / "socket").chmod(0o777)
        self.listeners = {"TCP port": Listener(local), "Unix socket": Listener(path)}
        self.words = {
            "REPOSITORY": str(ROOT),
            "TOKEN": self.token,
            "PORT": str(local.getsockname()[1]),
            "SOCKET": str(self.folder / "socket"),
            "SECRET": str(self.secret),
        }
        self.processes = self._processes()
        self.folders = self._folders()
        self.digest = self._digest()
        self.resident = psutil.Process().memory_info().rss

    def close(self) -> None:
        """Take the traps away."""
        for listener in self.listeners.values():
            listener.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Traps:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def sprung(self) -> Iterator[str]:
        """Yield one sentence for everything that the attack reached or left behind."""
        after = self._processes()
        # A zygote that was killed has been replaced by another.
        if len(after) > len(self.processes):
            left = ", ".join(map(str, sorted(after - self.processes)))
            yield f"left processes running: {left}"
        for folder in {*SHARED_FOLDERS, str(Path.cwd()), str(Path.home()), str(ROOT)}:
            with contextlib.suppress(OSError):
                for name in os.listdir(folder):
                    if self.token in name:
                        yield f"left {Path(folder, name)}"
        for path in self._folders() - self.folders:
            yield f"left its own folder {path}"
        for what, listener in self.listeners.items():
            if listener.count:
                yield f"connected to a {what} {listener.count} times"
        if self._digest() != self.digest:
            yield f"changed a file of {', '.join(WATCHED)}"
        growth = psutil.Process().memory_info().rss - self.resident
        limit = REPLIES_HELD * self.referee.settings.limits.reply_mib << 20
        if growth > limit:
            yield f"made the referee grow by {growth >> 20} MiB, more than {limit >> 20} MiB"

    def _folders(self) -> set[Path]:
        """Return the staged trees and scratch folders that stand."""
        workshop = self.referee.workshop
        return {*workshop.trees.iterdir(), *workshop.scratches.glob("[0-9]*")}

    def _processes(self) -> set[int]:
        """Return the processes that began in this workshop, wherever they are by now."""
        home = os.fsencode(self.referee.workshop.base)
        token = os.fsencode(self.token)
        found = set()
        for process in psutil.process_iter():
            folder = Path("/proc", str(process.pid))
            with contextlib.suppress(OSError, psutil.Error):
                started = (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
                if process.status() != psutil.STATUS_ZOMBIE and (
                    home in started or token in started
                ):
                    found.add(process.pid)
        return found

    def _digest(self) -> str:
        state = hashlib.sha256()
        for name in WATCHED:
            top = ROOT / name
            for path in sorted(top.rglob("*.py")) if top.is_dir() else [top]:
                state.update(path.read_bytes())
        return state.hexdigest()
