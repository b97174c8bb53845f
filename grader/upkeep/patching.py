"""Trees made of the solution and a patch: edits, additions, deletions.

An edit finds its place by code. Both texts are read as Python's tokens, without comments, line
breaks and indentation, so a comment may be reworded and a long line broken without harm.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import marshal
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NamedTuple

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
        self.key, self.expected, self.got = key, expected, got
        super().__init__(f"{key}: expected {expected}, got {got!r}")

    def within(self, key: str) -> PatchError:
        """Return the same about a key inside `key`."""
        return PatchError(f"{key}.{self.key}", self.expected, self.got)


class Edit(Struct, frozen=True, forbid_unknown_fields=True):
    """In `transformer/<file>`, `replace` takes the place of `find`.

    Attributes:
        file: The file.
        function: Where to look, as in "MultiHeadAttention.forward"; a class will do. The whole
            file if empty.
        find: Whole statements or part of one. The whole body of `function` if empty.
        replace: What stands there afterwards, indented as it is beside `find`.
    """

    file: Inside
    function: str = ""
    find: str = ""
    replace: str = ""


class Extra(Struct, frozen=True, forbid_unknown_fields=True):
    """A file that the solution has not: a text, the bytecode of a text, or a symbolic link."""

    path: Inside
    text: str = ""
    bytecode: bool = False
    link: str = ""


# Finding code ----------------------------------------------------------------------------------


class Token(NamedTuple):
    """A token of code, where it stands, and whether a statement begins or ends with it."""

    text: str
    start: int
    end: int
    line: int
    begins: bool
    ends: bool


LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


@cache
def tokens(text: str) -> tuple[Token, ...]:
    """Return the code of a text, as far as it can be read."""
    starts = [0, *accumulate(map(len, io.StringIO(text)))]
    read: list[tokenize.TokenInfo] = []
    with contextlib.suppress(tokenize.TokenError, SyntaxError):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in LAYOUT:
                read.append(token)
    breaks = [True, *(token.type == tokenize.NEWLINE for token in read), True]
    return tuple(
        Token(
            token.string,
            starts[token.start[0] - 1] + token.start[1],
            starts[token.end[0] - 1] + token.end[1],
            token.start[0],
            begins=breaks[number],
            ends=breaks[number + 2],
        )
        for number, token in enumerate(read)
        if token.type != tokenize.NEWLINE
    )


def words_of(snippet: str) -> list[str]:
    """Return the tokens of a piece of code, which may begin deep inside or leave brackets open."""
    return [token.text for token in tokens(f"(\n{snippet}")[1:]]


@cache
def definitions(text: str) -> dict[str, ast.FunctionDef | ast.ClassDef]:
    """Return every function and class of a module, and their own, by dotted name."""

    def inside(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Any]]:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield prefix + node.name, node
                yield from inside(node.body, f"{prefix}{node.name}.")

    return dict(inside(ast.parse(text).body, ""))


def region(text: str, function: str, body_only: bool) -> tuple[Token, ...]:
    """Return the tokens of a function or class, with its decorators or behind its docstring.

    Raises:
        PatchError: There is none of that name.
    """
    if not function:
        return tokens(text)
    try:
        node = definitions(text).get(function)
    except SyntaxError as error:
        raise PatchError("function", "a file that Python can read", str(error)) from None
    if node is None:
        raise PatchError("function", "a function or class of the file", function)
    documented = ast.get_docstring(node, clean=False) is not None
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    if body_only:
        first = node.body[1 if documented else 0].lineno
    return tuple(t for t in tokens(text) if first <= t.line <= (node.end_lineno or 0))


def place(text: str, edit: Edit) -> tuple[int, int, bool]:
    """Return where the edit's code begins and ends in `text`, and whether it is whole statements.

    Whole statements go before parts of one: `import torch` is not the beginning of
    `import torch.nn`. They are replaced in whole lines, with the comment behind the last.

    Raises:
        PatchError: It stands nowhere, or in several places.
    """
    within = region(text, edit.function, body_only=not edit.find)
    wanted = words_of(edit.find) if edit.find else [token.text for token in within]
    if not wanted or not (edit.find or edit.function):
        raise PatchError("find", "code, or a function whose body is meant", edit.find)
    size = len(wanted)
    found = [
        within[start : start + size]
        for start in range(len(within) - size + 1)
        if within[start].text == wanted[0]
        and [token.text for token in within[start : start + size]] == wanted
    ]
    whole = [own for own in found if own[0].begins and own[-1].ends]
    if len(whole or found) != 1:
        where = f"{edit.function} of {edit.file}" if edit.function else edit.file
        words = f"code that stands once in {where}, comments and layout aside"
        raise PatchError("find", words, f"{len(whole or found)} times: {edit.find}")
    (own,) = whole or found
    return own[0].start, own[-1].end, bool(whole)


def replaced(text: str, edit: Edit, new: str) -> str:
    """Return `text` with `new` in the place of the edit's code.

    Raises:
        PatchError: The code stands nowhere, or in several places.
    """
    start, end, whole = place(text, edit)
    line = text.rfind("\n", 0, start) + 1
    shift = indentation(text[line:]) - indentation(edit.find or new)
    new = "".join(shifted(row, shift) for row in io.StringIO(new))
    if not whole:
        return text[:start] + new.lstrip(" ") + text[end:]
    if new and not new.endswith("\n"):
        new += "\n"
    return text[:line] + new + text[text.index("\n", end) + 1 :]


def indentation(text: str) -> int:
    """Return by how many blanks the first line that holds something is indented."""
    rows = (row for row in io.StringIO(text) if row.strip())
    first = next(rows, "")
    return len(first) - len(first.lstrip(" "))


def shifted(row: str, by: int) -> str:
    """Indent a line further, or less where `by` is negative; an empty line stays empty."""
    if not row.strip():
        return row
    return " " * by + row if by >= 0 else row[min(-by, indentation(row)) :]


# Trees -----------------------------------------------------------------------------------------


@cache
def base_files(base: str, solution: Path = SOLUTION) -> Mapping[str, bytes]:
    """Return the files of the tree that is patched, by name from the tree's root.

    Args:
        base: "solution", or "starter" for what a student begins with.
        solution: The folder that holds the solution.
    """
    if base == "starter":
        return release.starter_files(solution, release.asked_tasks())
    files = sorted((solution / release.PACKAGE).rglob("*.py"))
    return {path.relative_to(solution).as_posix(): path.read_bytes() for path in files}


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
    try:
        changed = replaced(text, edit, _filled(edit.replace, words))
    except PatchError as error:
        raise error.within(key) from None
    if changed == text:
        raise PatchError(f"{key}.replace", "a text that differs from find", edit.replace)
    tree[name] = changed.encode()


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
