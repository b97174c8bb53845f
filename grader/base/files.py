"""Replace files so that a reader sees the old one or the new one, never a part; measure folders."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

# The names of files that are still being written begin with this.
UNFINISHED = ".writing-"


@contextlib.contextmanager
def replacing(path: Path, *, lasting: bool = True) -> Iterator[BinaryIO]:
    """Open a new file that replaces `path` when the block ends without an error.

    A `lasting` one is on the disk by then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=UNFINISHED)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def replace_file(path: Path, data: bytes, *, lasting: bool = True) -> None:
    """Write `data` to `path`; create its folder if necessary."""
    with replacing(path, lasting=lasting) as file:
        file.write(data)


def written_bytes(folder: Path) -> int:
    """Return the size of the readable files in `folder` and below it."""
    total = 0
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    total += written_bytes(Path(entry.path))
                else:
                    total += entry.stat(follow_symlinks=False).st_size
    return total
