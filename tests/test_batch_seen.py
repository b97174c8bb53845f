"""A class that lies there as it lay is not read again; whatever was touched is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from batch_cases import Stub, book, contents, run, small_class, student
from class_cases import as_zip, write

from grader.batch import loop
from grader.batch.store import SEEN
from grader.collect import stamps


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a class count as settled that was written this moment."""
    monkeypatch.setattr(stamps, "_SETTLED_NS", -(10**9))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of those that were read in fact."""
    names: list[str] = []
    read = loop.read

    def noted(one, lab, scratch):
        names.append(one.key)
        return read(one, lab, scratch)

    monkeypatch.setattr(loop, "read", noted)
    return names


def again(source: Path, out: Path, reads: list[str], *words: str) -> tuple[list[str], Stub]:
    """Run once more; return who was read, and the engine."""
    reads.clear()
    _, engine = run(source, out, *words)
    return sorted(reads), engine


def canvas(root: Path) -> Path:
    for number, name in enumerate(("anna", "ben"), 1):
        for file, content in student("x", name).items():
            write(root, {f"{name}_{number}_{number}7_{file.split('/')[-1]}": content})
    return root


FORMS: dict[str, Callable[[Path], Path]] = {
    "folders": lambda base: small_class(base / "class", anna="x", ben="y"),
    "zip": lambda base: as_zip(base / "class.zip", student("anna", "x") | student("ben", "y")),
    "archives": lambda base: as_zip(base / "class" / "anna.zip", student("t")).parent,
    "canvas": lambda base: canvas(base / "class"),
}


@pytest.mark.parametrize("form", FORMS)
def test_class_that_lies_as_it_lay_is_not_read_again(tmp_path, form, settled, reads):
    (tmp_path / "class").mkdir()
    source, out = FORMS[form](tmp_path), tmp_path / "out"
    run(source, out)
    assert reads
    before = contents(out, lambda name: name not in (".lock", "timings.csv"))
    who, engine = again(source, out, reads)
    assert (who, engine.asked) == ([], [])
    assert contents(out, lambda name: name not in (".lock", "timings.csv")) == before


def test_class_that_was_changed_a_moment_ago_is_read_again(tmp_path, reads):
    source, out = small_class(tmp_path / "class", anna="x", ben="y"), tmp_path / "out"
    run(source, out)
    assert again(source, out, reads)[0] == ["anna", "ben"]
    assert len((out / SEEN).read_bytes().splitlines()) == 1


def rewritten(masks: Path) -> None:
    """Write as many bytes, and set the time of change back."""
    before = masks.stat()
    masks.write_bytes(b"Y" * before.st_size)
    os.utime(masks, ns=(before.st_atime_ns, before.st_mtime_ns))


def replaced(masks: Path) -> None:
    """Put another file of that size and time in its place."""
    other = masks.with_suffix(".new")
    shutil.copy2(masks, other)
    other.replace(masks)


TOUCHED: dict[str, Callable[[Path], None]] = {
    "rewritten": rewritten,
    "replaced": replaced,
    "grown": lambda masks: masks.write_bytes(b"longer than before"),
    "gone": lambda masks: masks.unlink(),
    "renamed": lambda masks: Path(masks.rename(masks.with_name("attention2.py"))).touch(),
    "joined": lambda masks: (masks.parent / "more.py").write_bytes(b""),
    "linked": lambda masks: (masks.parent / "link.py").symlink_to(masks),
    "deep": lambda masks: write(masks.parent / "a" / "b", {"c.py": b""}) and None,
}


@pytest.mark.parametrize("touch", TOUCHED)
def test_whatever_was_touched_is_read_again_alone(tmp_path, touch, settled, reads):
    source, out = small_class(tmp_path / "class", anna="first", ben="wrong"), tmp_path / "out"
    run(source, out)
    TOUCHED[touch](source / "anna/transformer/masks.py")
    assert again(source, out, reads)[0] == ["anna"]
    fresh = tmp_path / "fresh"
    run(source, fresh)
    kept = {name: text for name, text in contents(out).items() if name.startswith("students/")}
    new = {name: text for name, text in contents(fresh).items() if name.startswith("students/")}
    assert kept == new and book(out) == book(fresh)


def test_another_grader_reads_everything_again(tmp_path, settled, reads, monkeypatch):
    source, out = small_class(tmp_path / "class", anna="x", ben="y"), tmp_path / "out"
    run(source, out)
    monkeypatch.setattr("grader.batch.store.source", lambda: "another")
    assert again(source, out, reads)[0] == ["anna", "ben"]


@pytest.mark.parametrize("content", [b"", b"{}\n", b"[]\n[]\n", b"\xff\n", None])
def test_spoilt_note_of_what_was_seen_costs_time_only(tmp_path, settled, reads, content):
    source, out = small_class(tmp_path / "class", anna="x", ben="y"), tmp_path / "out"
    run(source, out)
    head = (out / SEEN).read_bytes().splitlines(keepends=True)[0]
    (out / SEEN).write_bytes(head + b'{"name": "anna"}\n{' if content is None else content)
    who, engine = again(source, out, reads)
    assert (who, engine.asked) == (["anna", "ben"], [])


def test_result_that_left_the_store_is_graded_again(tmp_path, settled, reads):
    source, out = small_class(tmp_path / "class", anna="x", ben="y"), tmp_path / "out"
    run(source, out)
    shutil.rmtree(out / "store")
    who, engine = again(source, out, reads)
    assert who == ["anna", "ben"] and sorted(engine.asked) == ["x", "y"]


def test_report_that_was_deleted_comes_back_without_reading(tmp_path, settled, reads):
    source, out = small_class(tmp_path / "class", anna="x", ben="y"), tmp_path / "out"
    run(source, out)
    before = contents(out / "students")
    (out / "students/anna/report.html").unlink()
    assert again(source, out, reads)[0] == []
    assert contents(out / "students") == before
