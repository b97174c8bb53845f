"""Workers answer, and every way of not answering is told apart and leaves nothing behind."""

import contextlib
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from grader import sandbox
from grader.asking.submission import Submission, call
from grader.base import settings
from grader.base.student_error import StudentError
from grader.base.text import printed
from grader.link.workers import Worker, WorkerLost
from grader.link.workshop import Workshop
from grader.run.context import Job

TREE = {
    "__init__.py": "",
    "masks.py": """
        import os, time, subprocess, sys
        import torch

        def double(x):
            return x * 2

        def in_place(x):
            x.mul_(2)
            return x

        def todo():
            raise NotImplementedError("task 1.2: write causal_mask in masks.py")

        def wrong():
            return undefined_name

        def leave():
            os._exit(0)

        def hang():
            while True:
                try:
                    time.sleep(10)
                except BaseException:
                    pass

        def allocate():
            return torch.ones(2 ** 33)

        def grow():
            held = []
            while True:
                held.append(torch.ones(1 << 20))

        def chatter():
            for _ in range(3000):
                print("x" * 100_000)
            return torch.ones(1)

        def babble():
            while True:
                print("x" * 100_000)

        def say(end=False):
            print("\x1b[31mshape", torch.ones(2, 3).shape)
            print("at", object())
            for _ in range(5):
                print("again")
            if end:
                os._exit(3)

        def odd():
            class Liar:
                def __eq__(self, other):
                    return True
            return Liar()

        class Mean(torch.Tensor):
            def __eq__(self, other):
                return True

        def subclass():
            return torch.ones(2, 3).as_subclass(Mean)

        def child():
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
            return pid
    """,
}


def write_tree(folder: Path) -> Path:
    package = folder / "transformer"
    package.mkdir(parents=True)
    for name, text in TREE.items():
        lines = text.splitlines()
        (package / name).write_text("\n".join(line[8:] for line in lines))
    return folder


@pytest.fixture(scope="module", params=["fork", "spare"])
def shop(request):
    limits = replace(settings.load().limits, question_s=20.0, memory_mib=1024)
    isolation = sandbox.choose("auto" if request.param == "fork" else "portable")
    with Workshop(isolation, limits, fork=request.param == "fork") as workshop:
        write_tree(workshop.trees / "tree")
        yield workshop


@pytest.fixture
def submission(shop):
    proxy = Submission(lambda: shop.worker(shop.trees / "tree"), lambda event: None)
    yield proxy
    proxy.close()


def test_worker_returns_what_the_code_returns(submission):
    x = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(submission.call("masks.double", x), 2 * x)


def test_answers_come_in_the_order_of_asking(submission):
    given = submission.ask(*(call("masks.double", np.full((1,), float(i))) for i in range(5)))
    assert [answer["value"][0] for answer in given] == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_argument_changed_in_place_is_named(submission):
    (answer,) = submission.ask(call("masks.in_place", np.ones(3)))
    assert answer["inputs_changed"] == ["0"]


def test_stub_is_told_apart_from_an_error(submission):
    todo, wrong, missing = submission.attempt(
        call("masks.todo"), call("masks.wrong"), call("masks.absent")
    )
    assert isinstance(todo, StudentError) and (todo.kind, todo.task) == ("not_implemented", "1.2")
    assert isinstance(wrong, StudentError) and wrong.type == "NameError"
    assert wrong.place() == "transformer/masks.py, line 16, in wrong"
    assert isinstance(missing, StudentError) and missing.kind == "missing_name"


def test_subclass_arrives_as_plain_array_and_objects_as_their_name(submission):
    subclass, odd = submission.ask(call("masks.subclass"), call("masks.odd"))
    np.testing.assert_array_equal(subclass["value"], np.ones((2, 3)))
    assert odd["value"] == {"$object": "Liar"}


def test_early_exit_is_a_crash_and_the_next_worker_answers(submission):
    with pytest.raises(WorkerLost, match="exited with code 0") as lost:
        submission.call("masks.leave")
    assert lost.value.status == "crashed"
    assert submission.call("masks.double", np.ones(1))[0] == 2.0


def test_endless_loop_is_a_timeout(submission):
    began = time.monotonic()
    with pytest.raises(WorkerLost) as lost:
        submission.ask(call("masks.hang"), deadline_s=1.0)
    assert lost.value.status == "timeout"
    assert time.monotonic() - began < 10.0


def test_huge_tensor_is_out_of_memory(submission):
    (answer,) = submission.attempt(call("masks.allocate"))
    assert isinstance(answer, StudentError) and answer.kind == "out_of_memory"


def test_growing_memory_is_out_of_memory(submission):
    try:
        (answer,) = submission.attempt(call("masks.grow"))
    except WorkerLost as lost:
        assert lost.status == "out_of_memory"
    else:
        assert isinstance(answer, StudentError) and answer.kind == "out_of_memory"


def test_flood_of_output_costs_nothing(submission):
    (answer,) = submission.ask(call("masks.chatter"))
    assert answer["value"].shape == (1,)
    kept = submission.worker.log.text()
    assert len(kept) < 200_000 and "bytes not kept" in kept


def test_endless_output_is_named(submission):
    with pytest.raises(WorkerLost) as lost:
        submission.ask(call("masks.babble"), deadline_s=3.0)
    assert (lost.value.status, lost.value.detail) == (
        "timeout", "no answer within 3 s while it printed megabytes")  # fmt: skip


def descendants():
    """Count the living processes below this one."""
    below = psutil.Process().children(recursive=True)
    return sum(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in below)


@pytest.mark.parametrize("end", [False, True])
def test_what_the_code_prints_arrives_with_the_answer_or_from_the_log(shop, end):
    said: list[str] = []

    def start() -> Worker:
        worker = shop.worker(shop.trees / "tree")
        worker.tell = said.append
        return worker

    proxy = Submission(start, lambda event: None)
    with contextlib.suppress(WorkerLost):
        proxy.call("masks.say", end=end)
    proxy.close()
    found = printed("".join(said)).split("\n")
    assert found[0] == "shape torch.Size([2, 3])"
    assert found[1].startswith("at <object object at 0x...") and found[2] == "again  (x5)"
    assert len(found) == 3


def test_endless_printing_is_cut(submission):
    said: list[str] = []
    submission.worker.tell = said.append
    submission.call("masks.chatter")
    assert 0 < sum(map(len, said)) <= 4000
    assert printed("\n".join(map(str, range(100)))).endswith("39\n... (the rest is cut)")


def test_closed_worker_leaves_no_process_and_no_file(submission):
    submission.call("masks.double", np.ones(1))
    worker: Worker = submission.worker
    before = descendants()
    (answer,) = submission.attempt(call("masks.child"))
    # Below the filter of system calls there is no second process to begin with.
    assert descendants() == before + (not isinstance(answer, StudentError))
    submission.close()
    assert descendants() <= before
    assert not worker.scratch.exists()


@pytest.mark.parametrize(
    ("unanswered", "importing", "check", "gate"),
    [
        ([], False, 1, 1),
        (["2.1"], False, 10, 3),
        (["2.1"], True, 30, 3),  # whatever needs the file will be imported no better
        (["S1", "S2"], False, 10, 1),  # what optional parts did costs a gate nothing
        (["2.1", "2.2", "2.3"], False, 10, 3),
        (["2.1", "2.2", "2.3", "4.1"], False, 30, 10),
    ],
)
def test_the_more_stubs_got_no_answer_the_shorter_is_the_wait(unanswered, importing, check, gate):
    job = Job(settings.load(), 0, lambda: None, lambda event: None, unanswered=unanswered)
    job.importing = importing
    assert (job.haste(gate=False), job.haste(gate=True)) == (check, gate)
