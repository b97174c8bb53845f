"""A worker that gives no answer is told apart by the place where its code was."""

import ast
import os
import textwrap
import time
from dataclasses import replace

import pytest

from grader import sandbox
from grader.asking.submission import Submission, call
from grader.base import settings
from grader.link.launchers import LogDrain
from grader.link.whereabouts import FUNCTIONS, LOOPS, Frame, Whereabouts, narrowed
from grader.link.workers import WorkerLost
from grader.link.workshop import Workshop
from grader.run.outcomes import Place, lost_outcome

FILES = {
    "__init__.py": "",
    "masks.py": """
        import itertools, os, time
        import torch

        def spin(x):
            for _ in range(50):
                x = x + 1
            return x

        def plain(x):
            y = x + 1
            return y * 2

        def loop():
            x = torch.ones(3)
            done = False
            while not done:
                y = x * 2
                x = spin(y)

        def count():
            for i in itertools.count():
                x = i + 1
                y = x * 2

        def wait():
            time.sleep(1000)

        def through():
            return [loop() for _ in range(3)]

        def crash():
            import ctypes
            ctypes.string_at(0)

        def given_up():
            import faulthandler, signal
            faulthandler.unregister(signal.SIGUSR1)
            while True:
                pass

        def threads():
            import threading
            def sleeper(n):
                sleeper(n - 1) if n else time.sleep(1000)
            for _ in range(5):
                threading.Thread(target=sleeper, args=(120,), daemon=True).start()
            while True:
                pass

        def printing():
            while True:
                print("x" * 100_000)

        def listed():
            return [
                n
                for n in itertools.count()
                if n < 0
            ]

        def blocks():
            for step in itertools.cycle([plain, plain]):
                step(torch.ones(3))
                plain(torch.ones(4))

        def silent():
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            while True:
                pass
    """,
    "attention.py": """
        from .training import train

        def later():
            return train
    """,
    "training.py": """
        def train():
            n = 0
            while n >= 0:
                n += 1

        train()
    """,
}


def source(name):
    return textwrap.dedent(FILES[name]).lstrip("\n")


@pytest.fixture(scope="module", params=["fork", "spare"])
def shop(request):
    limits = replace(settings.load().limits, import_s=1.5)
    isolation = sandbox.choose("auto" if request.param == "fork" else "portable")
    with Workshop(isolation, limits, fork=request.param == "fork") as workshop:
        package = workshop.trees / "tree" / "transformer"
        package.mkdir(parents=True)
        for name in FILES:
            (package / name).write_text(source(name))
        yield workshop


def lost(shop, target):
    proxy = Submission(lambda: shop.worker(shop.trees / "tree"), lambda event: None)
    began = time.monotonic()
    try:
        with pytest.raises(WorkerLost) as caught:
            proxy.ask(call(target), deadline_s=2.0)
    finally:
        proxy.close()
    assert time.monotonic() - began < 20.0
    return caught.value


def line_of(name, text, function=""):
    lines = source(name).split("\n")
    start = lines.index(f"def {function}():") if function else 0
    return lines.index(text, start) + 1


@pytest.mark.parametrize(
    ("target", "function", "text"),
    [
        ("masks.loop", "loop", "    while not done:"),
        ("masks.through", "loop", "    while not done:"),
        ("masks.count", "count", "    for i in itertools.count():"),
        ("masks.blocks", "blocks", "    for step in itertools.cycle([plain, plain]):"),
        ("masks.wait", "wait", "    time.sleep(1000)"),
        ("masks.threads", "threads", "    while True:"),
        ("masks.printing", "printing", "    while True:"),
    ],
)
def test_the_loop_that_does_not_end_is_named(shop, target, function, text):
    found = lost(shop, target)
    assert (found.status, found.importing) == ("timeout", "")
    assert found.calls[-1] == {
        "file": "transformer/masks.py", "line": line_of("masks.py", text, function),
        "function": function, "text": ""}  # fmt: skip


def test_an_import_that_does_not_end_is_given_up_early(shop):
    found = lost(shop, "attention.later")
    assert (found.status, found.detail) == ("timeout", "no answer within 1.5 s")
    assert found.importing == "training.py"
    places = [(c["file"], c["function"]) for c in found.calls]
    assert places[-3:] == [
        ("transformer/attention.py", "<module>"),
        ("transformer/training.py", "<module>"),
        ("transformer/training.py", "train"),
    ]
    assert found.calls[-1]["line"] == line_of("training.py", "    while n >= 0:")


def test_a_crash_says_where_it_happened(shop):
    found = lost(shop, "masks.crash")
    assert (found.status, found.detail) == (
        "crashed", "it was ended by signal 11 (Segmentation fault)")  # fmt: skip
    assert found.calls[-1]["function"] == "crash"
    assert found.calls[-1]["line"] == line_of("masks.py", "    ctypes.string_at(0)")


@pytest.mark.parametrize("target", ["masks.silent", "masks.given_up"])
def test_code_that_cannot_be_asked_is_late_all_the_same(shop, target):
    found = lost(shop, target)
    assert (found.status, found.calls) == ("timeout", [])


def test_a_comprehension_is_named_by_a_line_of_its_own(shop):
    found = lost(shop, "masks.listed")
    first = line_of("masks.py", "    return [", "listed")
    assert first <= found.calls[-1]["line"] <= first + 4


CODE = textwrap.dedent(
    """
    def outer():
        while True:
            inner()

    def inner():
        for i in range(3):
            x = i
            y = x

    def flat():
        x = 1
        y = 2

    while True:
        def nested():
            x = 1
            y = 2
        nested()
    """
).lstrip("\n")
NODES = [n for n in ast.walk(ast.parse(CODE)) if isinstance(n, (*LOOPS, *FUNCTIONS))]


@pytest.mark.parametrize(
    ("looks", "wanted"),
    [
        # The innermost `while`, whatever is called in it.
        ([[("outer", 3), ("inner", 7)], [("outer", 3), ("inner", 8)]], [("outer", 2)]),
        ([[("outer", 3), ("inner", 7)], [("outer", 2)]], [("outer", 2)]),
        # Without one: what all looks agree on, by its loop where they differ.
        ([[("inner", 7)], [("inner", 8)]], [("inner", 6)]),
        ([[("flat", 11)], [("flat", 11)]], [("flat", 11)]),
        ([[("flat", 11)], [("flat", 12)]], [("flat", 10)]),
        ([[("flat", 11)], [("outer", 3)]], []),
        # A loop over calls, wherever these are; and a call in which nothing moves.
        ([[("inner", 8), ("flat", 11)], [("inner", 8), ("flat", 12)]], [("inner", 6)]),
        ([[("inner", 8), ("flat", 11)], [("inner", 8), ("flat", 11)]],
         [("inner", 6), ("flat", 11)]),
        # What is around a lambda is not one of its loops.
        ([[("<lambda>", 7)], [("<lambda>", 8)]], [("<lambda>", 7)]),
        ([[]], []),
        ([], []),
        # A loop around a function is not one of its calls.
        ([[("<module>", 18), ("nested", 16)], [("<module>", 18), ("nested", 17)]],
         [("<module>", 14)]),
    ],
)  # fmt: skip
def test_looks_are_narrowed_to_one_place(looks, wanted):
    seen = [[Frame("transformer/masks.py", line, name) for name, line in look] for look in looks]
    found = narrowed(seen, lambda file: NODES)
    assert [(f.function, f.line) for f in found] == wanted


def test_a_while_of_given_code_does_not_end_the_search():
    looks = [
        [Frame("transformer/models.py", 3, "outer"), Frame("transformer/masks.py", 7, "inner")]
    ]
    assert narrowed(looks, lambda file: NODES)[-1].function == "inner"


def told(tmp_path, text):
    """Return what is made of a log that the submission wrote as it liked."""
    log = LogDrain()
    os.write(log.write_end, b"Fatal Python error: x\n" + text.encode("utf-8"))
    os.close(log.write_end)
    return Whereabouts(os.getpid(), log, tmp_path).crashed()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_log_can_name_nothing_outside_the_tree(tmp_path):
    package = tmp_path / "tree"
    package.mkdir()
    (package / "masks.py").write_text("x = 1\n")
    (package / "link.py").symlink_to(__file__)
    (package / "folder").symlink_to(tmp_path)
    os.mkfifo(package / "pipe.py")
    (tmp_path / "secret.py").write_text("x = 1\n")
    names = [
        "../secret.py",
        "/etc/passwd",
        "link.py",
        "pipe.py",
        "absent.py",
        "folder/secret.py",
        "x" * 3000,
        "masks.py",
    ]
    lines = "".join(f'  File "{package}/{name}", line 1 in f\n' for name in names)
    text = f"Current thread 0x01 (most recent call first):\n{lines}"
    assert [c["file"] for c in told(package, text)] == ["masks.py"]
    assert Whereabouts(os.getpid(), LogDrain(), package)._nodes("link.py") == []
    assert Whereabouts(os.getpid(), LogDrain(), package)._nodes("pipe.py") == []


def test_a_log_without_a_crash_says_nothing(tmp_path):
    assert told(tmp_path, "") == []
    assert told(tmp_path, "Current thread 0x01 (most recent call first):\n") == []


def test_a_log_made_to_be_slow_is_read_at_once(tmp_path):
    began = time.monotonic()
    for piece in ("Thread 0x" + "a" * 30_000 + "(" * 30_000, '  File "' * 7_000, " " * 60_000):
        assert told(tmp_path, f"{piece}\n(most recent call first):\n{piece}") == []
    assert time.monotonic() - began < 5.0


CALL = {"file": "transformer/masks.py", "line": 7, "function": "f", "text": ""}


@pytest.mark.parametrize(
    ("status", "calls", "part", "cause", "advice"),
    [
        ("timeout", [CALL], "masks", "transformer/masks.py, line 7, in f: late.", "a loop or"),
        ("timeout", [CALL | {"function": "<module>"}], "masks",
         "transformer/masks.py, line 7, while masks.py is imported: late.", "__main__"),
        ("crashed", [CALL], "masks", "transformer/masks.py, line 7, in f: late.", "an exit call"),
        ("timeout", [], "decoder", "The process that ran your code gave no answer: late.",
         "Look for a loop"),
        ("protocol", [CALL], "masks", "The process that ran your code gave no answer: late.",
         "Return plain tensors"),
    ],
)  # fmt: skip
def test_a_lost_worker_is_told_by_its_place(status, calls, part, cause, advice):
    found = lost_outcome(WorkerLost(status, "late", calls), Place("5.1", None, None))
    assert found.diagnosis and found.diagnosis.code == status
    assert (found.diagnosis.part, found.summary) == (part, cause)
    assert advice in found.diagnosis.advice
