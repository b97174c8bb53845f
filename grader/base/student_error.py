"""What a submission's code raised, as its worker describes it."""

from __future__ import annotations

from functools import cache
from typing import Any

from grader.base.settings import shipped

Json = dict[str, Any]


class StudentError(Exception):
    """What the submission's code raised, or why it could not be asked."""

    def __init__(self, error: Json) -> None:
        """Keep the worker's description."""
        super().__init__(f"{error.get('type')}: {error.get('message')}")
        self.kind = str(error.get("kind"))
        self.task = str(error["task"]) if error.get("task") else None
        self.type = str(error.get("type"))
        self.message = str(error.get("message"))
        frames, detail = error.get("frames"), error.get("detail")
        self.frames: list[Json] = [
            {k: str(f.get(k, "")) for k in ("file", "line", "function", "text")}
            for f in (frames if isinstance(frames, list) else [])
            if isinstance(f, dict)
        ]
        self.detail: Json = detail if isinstance(detail, dict) else {}

    @property
    def part(self) -> str | None:
        """Return the student's file that raised it, without `.py`, or None."""
        frame = self._frame()
        name = task_file(frame["file"]) if frame else ""
        return name if name in students_files() else None

    @property
    def while_importing(self) -> bool:
        """Tell whether a file could not be imported."""
        if self.type in ("SyntaxError", "IndentationError", "TabError"):
            return True
        frame = self._frame()
        return frame is not None and frame["function"] == "<module>"

    def _frame(self) -> Json | None:
        """Return the innermost frame in a file of the student's, or else the innermost one."""
        own = [f for f in self.frames if task_file(f["file"]) in students_files()]
        found = own or self.frames
        return found[-1] if found else None

    @property
    def waits_for_keyboard(self) -> bool:
        """Tell whether a breakpoint() or an input() found no terminal."""
        asked = self.type == "EOFError" and "reading a line" in self.message
        return self.kind == "raised" and (self.type == "BdbQuit" or asked)

    @property
    def line(self) -> str:
        """Return the source line that raised it, or an empty text."""
        frame = self._frame()
        return frame["text"].strip() if frame else ""

    def place(self) -> str:
        """Return `file, line N, in function`, or an empty text if no frame is the student's."""
        frame = self._frame()
        if frame is None:
            return ""
        function = frame["function"]
        inside = f", in {function}" if function and function != "<module>" else ""
        return f"{frame['file']}, line {frame['line']}{inside}"


@cache
def students_files() -> frozenset[str]:
    """Return the files that hold a task, stretch tasks included, without `.py`."""
    points = shipped().points
    files = {*points.files.values(), *(stub.file for stub in points.stretch)}
    return frozenset(file.removesuffix(".py") for file in files)


def task_file(path: str) -> str:
    """Return the name of a file without folders and `.py`."""
    return path.rsplit("/", 1)[-1].removesuffix(".py")
