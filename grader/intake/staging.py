"""Staging: from whatever was handed in to a clean copy of the package, with notes on what was not.

Only regular `.py` files of the package `transformer` are copied. Whatever else came is left where
it is, so that nothing of it can be imported, collected or run.
"""

from __future__ import annotations

import difflib
import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from grader.base.settings import Settings, Staging
from grader.intake.entries import Entry, IntakeError, list_archive, list_entries, only_archive
from grader.intake.locate import PACKAGE, Found, choose, clean, locate, resembles, some, wanted

__all__ = [
    "IntakeError",
    "Staged",
    "examine",
    "examine_entries",
    "lay_out",
    "overlay_given",
    "stage",
]

_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".npy", ".npz", ".pkl", ".pickle")


@dataclass(frozen=True)
class Staged:
    """A submission as it will be graded.

    Attributes:
        name: of the folder or file that was handed in.
        root: the folder that holds the staged package.
        files: staged paths, such as "transformer/masks.py", and their bytes.
        sha256: of the sorted paths and bytes as they came.
        notes: sentences for the student.
        missing: the student's files that did not come, and a sentence on each.
        tasks: the names of the files with required tasks.
        stretch: the names of the further files that are the student's.
        given: staged paths that hold the original given code.
        weights: files beside the code that look like trained weights; not staged.
    """

    name: str
    root: Path
    files: dict[str, bytes]
    sha256: str
    notes: list[str]
    missing: dict[str, str]
    tasks: tuple[str, ...]
    stretch: tuple[str, ...] = ()
    given: frozenset[str] = frozenset()
    weights: tuple[str, ...] = ()


def stage(path: Path, destination: Path, settings: Settings) -> Staged:
    """Copy the package in `path` to `destination`/transformer.

    Args:
        path: as `examine` takes it.
        destination: a folder that is new or empty.
        settings: names the task files and the limits.

    Raises:
        IntakeError: nothing was found that can be graded.
    """
    return lay_out(examine(path, settings), destination)


def lay_out(staged: Staged, destination: Path) -> Staged:
    """Write the files to `destination`, a folder that is new or empty."""
    _write_all(destination, staged.files)
    return replace(staged, root=destination)


def examine(path: Path, settings: Settings) -> Staged:
    """Read the package in `path` and write nothing: the root is left blank.

    Args:
        path: a folder, .zip, .tar.gz, .tgz, .tar or .ipynb with the package at most two folders
            deep, or with the task files lying loose in one folder, or with one of these alone.
        settings: names the task files and the limits.

    Raises:
        IntakeError: nothing was found that can be graded.
    """
    return examine_entries(path, list_entries(path, settings.staging), settings)


def examine_entries(path: Path, entries: list[Entry], settings: Settings) -> Staged:
    """Read the package among the entries of what is called `path`; see `examine`."""
    tasks = tuple(dict.fromkeys(stub.file for stub in settings.points.stubs))
    optional = dict.fromkeys(stub.file for stub in settings.points.stretch)
    stretch = tuple(name for name in optional if name not in tasks)
    if not entries:
        raise IntakeError(f"{path} is empty: expected {wanted(tasks)}")
    notes: list[str] = []
    inner = only_archive(entries)
    if inner:
        path, entries = _opened(path, inner, settings.staging, notes)
    found = clean(entries, settings.staging, notes)
    home = locate(path, found, tasks)
    chosen = choose(found, home, notes)
    files = _read(chosen, len(home.folder), settings.staging)
    if home.loose:
        notes.append(f"the files lay loose: they were read as the package {PACKAGE}")
    wide = [name for name, content in files.items() if content[:2] in _UTF16_MARKS]
    if wide:
        notes.append(f"saved as UTF-16, which Python cannot read; save as UTF-8: {some(wide)}")
    beside = [f.name for f in found if f.folder in (home.folder, home.folder[:-1])]
    return Staged(
        name=_name_of(path),
        root=Path(),
        files=files,
        sha256=_digest(files),
        notes=notes,
        missing=_missing(files, (*tasks, *stretch), beside),
        tasks=tasks,
        stretch=stretch,
        weights=tuple(f.path for f in found if f.name.lower().endswith(_WEIGHTS)),
    )


def _opened(
    path: Path, inner: Entry, limits: Staging, notes: list[str]
) -> tuple[Path, list[Entry]]:
    """Return the archive within what was handed in, by what it is called, and its entries."""
    shown = clean([inner], limits, notes)
    if not shown:
        raise IntakeError(f"{path} holds one archive, which has no proper name: rename it")
    notes.append(f"an archive within was opened: {shown[0].path}")
    inside = path / shown[0].path
    entries = list_archive(inside, inner.read, limits)
    return inside, sorted(entries, key=lambda entry: entry.path)


def overlay_given(staged: Staged, original: Path) -> Staged:
    """Put the original given files in place of those that came, and note which differed.

    Args:
        staged: what `stage` returned.
        original: a folder that holds the complete package, such as the starter.
    """
    theirs = {f"{PACKAGE}/{name}" for name in staged.tasks}
    # The rest of the package needs a stretch file even where its task was not tried.
    theirs |= {f"{PACKAGE}/{name}" for name in staged.stretch} & set(staged.files)
    given = {
        name: file.read_bytes()
        for file in sorted((original / PACKAGE).rglob("*.py"))
        if (name := file.relative_to(original).as_posix()) not in theirs
    }
    # A folder norms/ would be imported instead of norms.py.
    stems = {name.removesuffix(".py") + "/" for name in given}
    hiding = sorted(n for n in staged.files if n not in given and n.startswith(tuple(stems)))
    for name in hiding:
        (staged.root / name).unlink()
    files = {name: content for name, content in staged.files.items() if name not in hiding}
    changed = [n for n in given if n in files and _plain(files[n]) != _plain(given[n])]
    absent = [n for n in given if n not in files]
    _write_all(staged.root, given)
    notes = list(staged.notes)
    if changed:
        notes.append(
            f"changes to given files were not used, the handout's own were graded: {some(changed)}"
        )
    if absent:
        notes.append(f"given files that were missing were added: {some(absent)}")
    if hiding:
        notes.append(f"files that would hide a given file were left out: {some(hiding)}")
    return replace(staged, files=files | given, notes=notes, given=frozenset(given))


def _read(chosen: list[Found], depth: int, limits: Staging) -> dict[str, bytes]:
    """Read the files, counting every byte; paths become relative to the staged root."""
    files: dict[str, bytes] = {}
    total = 0
    for found in chosen:
        most = limits.max_file_kib * 1024
        content = found.entry.read(most + 1)
        if len(content) > most:
            raise IntakeError(f"{found.path} is larger than {limits.max_file_kib} KiB")
        name = "/".join((PACKAGE, *found.parts[depth:]))
        if files.setdefault(name, content) != content:
            raise IntakeError(f"{found.path} came twice with different content: keep one of them")
        total += len(content)
        if len(files) > limits.max_files or total > limits.max_total_kib * 1024:
            raise IntakeError(
                f"{PACKAGE}/ holds more than {limits.max_files} files or "
                f"{limits.max_total_kib} KiB of Python: hand in the lab's files only"
            )
    return dict(sorted(files.items()))


def _missing(files: dict[str, bytes], tasks: tuple[str, ...], names: list[str]) -> dict[str, str]:
    """Return a sentence on each file of the student's that did not come."""
    missing = {}
    for task in tasks:
        if f"{PACKAGE}/{task}" in files:
            continue
        renamed = [n for n in names if resembles(n, tasks) == task]
        close = difflib.get_close_matches(task, [n for n in names if n not in tasks], 1, 0.8)
        sentence = f"{task} is missing"
        if renamed:
            sentence += f"; found {renamed[0]}: did the browser or a program rename it?"
        elif close:
            sentence += f"; found {close[0]}: is that it, misspelt?"
        missing[task] = sentence
    return missing


def _plain(content: bytes) -> list[bytes]:
    """Return the lines as they read: no byte-order mark, line ends or trailing blanks."""
    text = content.removeprefix(b"\xef\xbb\xbf")
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _digest(files: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        for piece in (name.encode(), content):
            digest.update(len(piece).to_bytes(8, "big") + piece)
    return digest.hexdigest()


def _write_all(root: Path, files: dict[str, bytes]) -> None:
    """Write files that every user may read and none should write, whatever the umask is."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        path.chmod(0o444)
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
        folder.chmod(0o755)


def _name_of(path: Path) -> str:
    name = path.resolve().name
    for suffix in (".zip", ".tar.gz", ".tgz", ".tar", ".ipynb"):
        if name.lower().endswith(suffix):
            name = name[: -len(suffix)]
            break
    return "".join(c if c.isprintable() else "_" for c in name) or "submission"
