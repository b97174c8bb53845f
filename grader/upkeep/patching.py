"""Trees made of the solution and a patch: edits, additions, deletions."""

from __future__ import annotations

import importlib.util
import marshal
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from msgspec import Meta, Struct

from grader.base.places import ROOT
from grader.upkeep import release

SOLUTION = ROOT / "solution"

# A path that stays inside the tree.
Inside = Annotated[str, Meta(pattern=r"(?s)\A(?!/)(?!.*\.\./).+\Z")]
Tree = dict[str, bytes | PurePosixPath]


class PatchError(ValueError):
    """A patch that does not fit; the message names key, what was expected and what came."""

    def __init__(self, key: str, expected: str, got: Any) -> None:
        """Say what `key` should have been."""
        super().__init__(f"{key}: expected {expected}, got {got!r}")


class Edit(Struct, frozen=True, forbid_unknown_fields=True):
    """In `transformer/<file>`, `new` takes the place of `old`."""

    file: Inside
    old: Annotated[str, Meta(min_length=1)]
    new: str


class Extra(Struct, frozen=True, forbid_unknown_fields=True):
    """A file that the solution has not: a text, the bytecode of a text, or a symbolic link."""

    path: Inside
    text: str = ""
    bytecode: bool = False
    link: str = ""


@cache
def base_files(base: str) -> Mapping[str, bytes]:
    """Return the files of the tree that is patched, by name from the tree's root.

    Args:
        base: "solution", or "starter" for what a student begins with.
    """
    if base == "starter":
        return release.starter_files(SOLUTION, release.asked_tasks())
    files = sorted((SOLUTION / release.PACKAGE).rglob("*.py"))
    return {path.relative_to(SOLUTION).as_posix(): path.read_bytes() for path in files}


def patched(
    base: str,
    edits: Iterable[Edit],
    extras: Iterable[Extra] = (),
    deletions: Iterable[str] = (),
    words: Mapping[str, str] | None = None,
) -> Tree:
    """Return the patched tree: by name what a file holds, or where a symbolic link leads.

    Args:
        base: "solution" or "starter".
        edits: Applied in order.
        extras: Files to add.
        deletions: Files to remove.
        words: What stands for @WORD@ in new text.

    Raises:
        PatchError: The patch does not fit the tree.
    """
    tree: Tree = dict(base_files(base))
    for path in deletions:
        if tree.pop(path, None) is None:
            raise PatchError("delete", "a file of the tree", path)
    for number, edit in enumerate(edits):
        _apply(tree, edit, f"edit[{number}]", words)
    for number, extra in enumerate(extras):
        path = extra.path.replace("@TAG@", sys.implementation.cache_tag or "")
        if path in tree:
            raise PatchError(f"file[{number}].path", "a new file; edit is for others", path)
        tree[path] = _content(extra, words)
    return tree


def _apply(tree: Tree, edit: Edit, key: str, words: Mapping[str, str] | None) -> None:
    name = f"{release.PACKAGE}/{edit.file}"
    content = tree.get(name)
    if not isinstance(content, bytes):
        raise PatchError(f"{key}.file", "a file of the package", edit.file)
    text = content.decode()
    count = text.count(edit.old)
    if count != 1:
        expected = f"a text that occurs exactly once in {edit.file}"
        raise PatchError(f"{key}.old", expected, f"one that occurs {count} times")
    if edit.old == edit.new:
        raise PatchError(f"{key}.new", "a text that differs from old", edit.new)
    tree[name] = text.replace(edit.old, _filled(edit.new, words)).encode()


def _filled(text: str, words: Mapping[str, str] | None) -> str:
    for word, value in (words or {}).items():
        text = text.replace(f"@{word}@", value)
    return text


def _content(extra: Extra, words: Mapping[str, str] | None) -> bytes | PurePosixPath:
    if extra.link:
        return PurePosixPath(_filled(extra.link, words))
    text = _filled(extra.text, words)
    return unchecked_bytecode(text, extra.path) if extra.bytecode else text.encode()


def unchecked_bytecode(text: str, path: str) -> bytes:
    """Compile `text` to bytecode that an interpreter runs without a look at any source."""
    flags = (1).to_bytes(4, "little")  # a hash follows, and nobody compares it
    code = compile(text, PurePosixPath(path).name, "exec")
    return importlib.util.MAGIC_NUMBER + flags + bytes(8) + marshal.dumps(code)


def write(tree: Tree, folder: Path) -> None:
    """Write a tree into `folder`."""
    for name, content in tree.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.symlink_to(content)
