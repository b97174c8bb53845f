"""`watch`: check again whenever a file is saved, from the warm zygote.

The tasks of the saved file come first, then those that build on them, then gates 1 to 3. A file
saved meanwhile ends the round. On a terminal it draws one screen and listens to keys; it stays at
the task that you are at until you move on.
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import watchfiles
from rich.console import Console, Group
from rich.text import Text

from grader.base.result import Outcome, Status, clean_text
from grader.base.settings import Settings
from grader.base.stopping import asked
from grader.cli import check, desk, screen
from grader.intake.staging import IntakeError
from grader.link.workshop import Workshop
from grader.report import checklist
from grader.report.terminal import MARKS
from grader.run import engine
from grader.run.outcomes import is_required, task_of

# Endless loops are common while one writes: no question waits longer.
QUESTION_S = 4.0
GATE_QUESTION_S = 20.0
SETTLE_MS = 20
LOOK_MS = 500
# Whose checks build on whose code.
DEPENDENTS = {"1": ("2", "4", "5"), "2": ("4", "5"), "3": ("4", "5")}


class Key(str):
    """A key that was pressed; it comes the way that names of files come."""


class Saves:
    """The names of saved files, as they come; survives a tree that is deleted and comes back."""

    def __init__(self, tree: Path) -> None:
        """Watch `tree` in a thread."""
        self.tree = tree
        self.names: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        gone = False
        while not self.stop.is_set():
            try:
                for changes in self._changes(self.tree.stat().st_ino):
                    # A tree that came back is a change in itself.
                    for name in {Path(path).name for _, path in changes} | (
                        {""} if gone else set()
                    ):
                        self.names.put(name)
                    gone = False
            except OSError:
                if not gone:
                    self.names.put("")
                gone = True
                self.stop.wait(LOOK_MS / 1000)

    def _changes(self, inode: int) -> Iterator[set[tuple[watchfiles.Change, str]]]:
        """Yield changes, an empty set now and then, until the folder is another or none."""
        for changes in watchfiles.watch(
            self.tree, watch_filter=watchfiles.PythonFilter(), step=SETTLE_MS, stop_event=self.stop,
            rust_timeout=LOOK_MS, yield_on_timeout=True, raise_interrupt=False,
        ):  # fmt: skip
            if self.tree.stat().st_ino != inode:
                raise FileNotFoundError(self.tree)
            yield changes

    @property
    def waiting(self) -> bool:
        """Tell whether a file was saved that nobody has taken yet."""
        return not self.names.empty()

    def take(self, idle: Callable[[], None] = lambda: None) -> set[str]:
        """Wait for a saved file; return its name and those of others saved with it.

        Args:
            idle: Called now and then while nothing comes.
        """
        names: set[str] = set()
        while not names:
            idle()
            if asked():  # and the interrupt was lost on the way here
                raise KeyboardInterrupt
            # A Ctrl-C that comes just before an endless wait would not end it.
            with contextlib.suppress(queue.Empty):
                names.add(self.names.get(timeout=LOOK_MS / 1000))
        while self.waiting:
            names.add(self.names.get())
        return names

    def close(self) -> None:
        """End the thread."""
        self.stop.set()
        self.thread.join(timeout=2.0)


class Watcher:
    """Checks a tree again and again, and remembers what each check said last."""

    def __init__(
        self, lab: Settings, referee: engine.Referee, path: Path, tasks: frozenset[str] | None,
        console: Console,
    ) -> None:  # fmt: skip
        """Check `tasks` of the tree in `path`, and the gates where that is all of them."""
        self.lab = lab
        self.referee = referee
        self.path = path
        self.tasks = tasks
        self.console = console
        self.outcomes: dict[str, Outcome] = {}
        self.owed: list[str] = []
        self.superseded = False
        self.saved = False
        every = [stub.id for stub in check.stubs_of(lab)]
        self.stubs = [s for s in every if tasks is None or {s, task_of(s)} & tasks]
        self.saves = Saves(path)
        self.focus = ""
        self.busy = True
        self.note = ""
        self.size = console.size
        self.desk = desk.Desk(path)
        self.keep = False
        referee.workshop.heed = self.heed

    def run(self) -> None:
        """Look at every task once, then at what is saved, until a KeyboardInterrupt."""
        try:
            with screen.keys(self.press):
                self.round([], time.monotonic())
                while True:
                    self.busy = False
                    names = self.saves.take(self.idle)
                    pressed = [name for name in names if isinstance(name, Key)]
                    for key in pressed:
                        self.obey(key)
                    if len(pressed) < len(names):
                        self.busy = self.saved = True
                        self.round(self.tasks_in(names), time.monotonic())
        finally:
            self.saves.close()

    def press(self, key: str) -> None:
        """Take a key, from another thread; while checks run it is dropped."""
        if not self.busy:
            self.saves.names.put(Key(key))

    def idle(self) -> None:
        """Draw anew when the terminal has another size."""
        if self.console.is_terminal and self.console.size != self.size:
            self.draw()

    def obey(self, key: str) -> None:
        """Do what a key asks for."""
        stub = next((s for s in check.stubs_of(self.lab) if s.id == self.focus), None)
        resetting = self.note.startswith("Reset ")
        self.note = ""
        try:
            if key == "h" and stub:
                self.note = self.desk.next_hint(stub)
            elif key == "x" and stub:
                self.note = f"Reset task {stub.id}? Your version is kept. y yes, any other key no"
            elif key == "y" and resetting and stub:
                self.note = self.desk.reset(stub)
            elif key == "n":
                self.focus = screen.next_of(self.rows(), self.focus)
            elif key in ("r", "c"):
                self.busy = True
                self.round([task_of(self.focus)] if key == "r" and stub else [], time.monotonic())
                return
        except (IntakeError, OSError) as error:
            self.note = str(error)
        if key == "l":
            self.console.clear()
            self.console.print(self.whole(), Text("any key goes back", style="reverse"))
        else:
            self.draw()

    def tasks_in(self, names: set[str]) -> list[str]:
        """Return the tasks whose code stands in these files."""
        found = [stub.id for stub in check.stubs_of(self.lab) if stub.file in names]
        return list(dict.fromkeys(task_of(stub) for stub in found if stub in self.stubs))

    def round(self, first: list[str], began: float) -> None:
        """Check the tasks `first`, or all without any, then what builds on them, then gates.

        After a save with which nothing is known to be wrong, the gates come before what builds on
        the tasks: they look at all of it at once.
        """
        every = dict.fromkeys(map(task_of, self.stubs))
        own = [t for t in first if not t.startswith("S")] or first or list(every)
        later = [d for t in own for d in DEPENDENTS.get(t, ()) if d in every]
        # The save may have mended the cause of any mistake, also where no task says so.
        later += [t for t in every if t in self.wrong()]
        # What an earlier round did not come to is still owed.
        self.owed = [t for t in dict.fromkeys([*first, *later, *self.owed]) if t not in own]
        self.outcomes = {k: o for k, o in self.outcomes.items() if o.stub}
        self.superseded = False
        try:
            self.look(own)
            more = bool(self.owed) or self.tasks is None
            self.show(first, began, last=not more)
            gates_first = self.owed and self.tasks is None and not self.unfinished()
            if gates_first:
                self.look([], gates=True)
                self.show([], began, last=False, what="gates 1 to 3")
            if self.owed:
                self.look(self.owed)
                self.owed = []
            if self.tasks is None and not (gates_first and not self.unfinished()):
                self.look([], gates=True)
            if more:
                self.show([], began, last=True)
        except IntakeError as error:
            if self.console.is_terminal:
                self.console.clear()
            self.say(f"cannot check: {error}; waiting for the next save")
        except KeyboardInterrupt:
            if not self.superseded or asked():
                raise
            self.owed = list(dict.fromkeys([*self.owed, *own]))

    def unfinished(self) -> bool:
        """Tell whether some required task is not known to be right."""
        required = [o for o in self.outcomes.values() if is_required(o.stub)]
        return not required or any(o.status is not Status.PASSED for o in required)

    def wrong(self) -> set[str]:
        """Return the tasks with a mistake in what is written."""
        idle = (Status.PASSED, Status.NOT_IMPLEMENTED, Status.BLOCKED)
        found = [o for o in self.outcomes.values() if o.status not in idle]
        return {task_of(o.stub) for o in found if o.stub}

    def look(self, tasks: list[str], *, gates: bool = False) -> None:
        """Run the checks of `tasks`, or the gates that train nothing."""
        limits = replace(self.lab.limits, question_s=GATE_QUESTION_S if gates else QUESTION_S)
        self.referee.adopt(replace(self.lab, limits=limits))
        wanted = frozenset(s for s in self.stubs if task_of(s) in tasks)
        known = tuple(o for o in self.outcomes.values() if o.stub and o.stub not in wanted)
        asked = engine.Request(
            self.path, tasks=wanted, gates=None if gates else 0, slow=False, known=known
        )
        self.referee.grade(asked, self.heard)

    def heard(self, event: dict[str, Any]) -> None:
        """Keep each outcome."""
        if event["kind"] == "end":
            self.outcomes[event["outcome"].check] = event["outcome"]
        elif event["kind"] == "start":
            self.heed()

    def heed(self) -> None:
        """Give the round up when another file was saved."""
        if self.saves.waiting:
            self.superseded = True
            raise KeyboardInterrupt

    def show(self, tasks: list[str], began: float, *, last: bool, what: str = "everything") -> None:
        """Print the verdict: all of it on a terminal, elsewhere only what is new."""
        seconds = f"{time.monotonic() - began:.2f} s"
        found = self.rows()
        if self.keep:
            self.desk.keep_passed([row.stub for row in found if row.done])
        about = f"task {', '.join(tasks)}" if tasks else what
        since = " after the save" if self.saved else ""
        after = "" if last else "; going on"
        if self.console.is_terminal:
            self.focus = screen.focus_of(found, self.focus, tasks)
            self.note = f"{about}: {seconds}{since}{after}"
            self.draw()
            return
        if tasks:
            for row in found:
                if task_of(row.stub.id) in tasks:
                    word, _ = checklist.WORDS.get(row.status, checklist.WRONG)
                    self.say(f"{row.stub.id} {word}: {checklist.explanation(row.decisive)[0]}")
        else:
            shown = Group(*[self.whole()] * last, *self.gates())
            self.console.print(shown, soft_wrap=True)
        self.say(f"{about}: {seconds}{since}{after}; Ctrl-C ends")

    def rows(self) -> list[checklist.Row]:
        """Return a row for each task of which something is known."""
        checks = [o.to_json() for o in self.outcomes.values() if o.stub]
        return checklist.rows(checks, check.stubs_of(self.lab))

    def whole(self) -> Group:
        """Return the whole checklist."""
        return checklist.render(self.rows(), self.path, complete=self.tasks is None)

    def draw(self) -> None:
        """Draw the screen."""
        self.size = self.console.size
        found = self.rows()
        here = [row for row in found if row.stub.id == self.focus]
        below: list[Text] = []
        if here and not here[0].done and (said := self.desk.since_passed(here[0].stub)):
            below.append(Text(clean_text(said), style="yellow"))
        if here and not here[0].done and task_of(self.focus) not in self.owed:
            step = checklist.next_step(here, self.path, complete=False)
            below.append(Text(f"next: {step}", style="bold"))
        below += [*self.gates(), Text(clean_text(self.note), style="dim")]
        self.console.clear()
        self.console.print(screen.draw(found, self.focus, self.owed, below))

    def gates(self) -> list[Text]:
        """Return a line for each gate that was tried."""
        lines = []
        for outcome in self.outcomes.values():
            if outcome.gate and outcome.status is not Status.BLOCKED:
                word, style = MARKS[str(outcome.status)]
                text = f"gate {outcome.gate}: {word}"
                if outcome.status is not Status.PASSED:
                    text += f": {outcome.summary}"
                lines.append(Text(clean_text(text), style=style))
        return lines

    def say(self, text: str) -> None:
        """Print one line at once."""
        self.console.print(Text(clean_text(text), style="dim"), soft_wrap=True)


def watch(options: argparse.Namespace, lab: Settings, workshop: Workshop) -> int:
    """Watch a tree until Ctrl-C; return the exit code."""
    path = options.tree or check.default_tree()
    if not path.is_dir():
        raise IntakeError(f"{path} is no folder: watch looks at the folder you work in")
    tasks = check.chosen(options.tasks, lab)
    console = Console(highlight=False)
    with engine.Referee(lab, workshop=workshop) as referee:
        watcher = Watcher(lab, referee, path, tasks, console)
        watcher.keep = options.tree is None
        watcher.say(f"watching {path}; Ctrl-C ends")
        try:
            watcher.run()
        except KeyboardInterrupt:
            watcher.say("stopped")
    return 0
