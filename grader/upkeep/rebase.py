"""Fit the corpus to a solution that has changed, from the one that it used to fit.

Where an edit's code is gone, the same function is compared before and after. If only names have
changed there, the edit takes the new names. Otherwise the edit is made on the old solution, merged
with the new one, and written anew from what the merge holds.
"""

from __future__ import annotations

import ast
import difflib
import io
import json
import re
import subprocess
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rich.console import Console
from rich.text import Text

from grader.base.places import ROOT
from grader.base.settings import Settings
from grader.upkeep import corpus, patching, release
from grader.upkeep.corpus import Case, CorpusError
from grader.upkeep.patching import SOLUTION, Edit, PatchError, place, region, replaced, tokens


def solution_at(revision: str, folder: Path) -> Path:
    """Write the solution of a git revision into `folder` and return where it stands.

    Raises:
        CorpusError: git does not know the revision.
    """
    command = ["git", "archive", "--format=tar", revision, "solution"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True)
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip()
        raise CorpusError(f"expected a revision that holds the solution, got {revision}: {words}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "solution"


def rebase(case: Case, old: Mapping[str, bytes], new: Mapping[str, bytes]) -> list[Edit]:
    """Return the edits of a case, made to fit `new`, the files of its base as they are now.

    Raises:
        PatchError: They did not fit `old` either, or a person has to decide.
    """
    before = {name: text.decode() for name, text in old.items()}
    after = {name: text.decode() for name, text in new.items()}
    edits = []
    for number, edit in enumerate(case.edit):
        name = f"{release.PACKAGE}/{edit.file}"
        if name not in before or name not in after:
            raise PatchError(f"edit[{number}].file", "a file of both solutions", edit.file)
        try:
            changed = replaced(before[name], edit, edit.replace)
            for one in fitting(edit, before[name], after[name], changed):
                edits.append(one)
                after[name] = replaced(after[name], one, one.replace)
        except PatchError as error:
            raise error.within(f"edit[{number}]") from None
        before[name] = changed
    return edits


def fitting(edit: Edit, before: str, after: str, changed: str) -> list[Edit]:
    """Return what takes the place of one edit: itself, itself with other names, or a merge.

    Args:
        edit: The edit.
        before: The file that it fits.
        after: The file that it must fit.
        changed: `before` with the edit.

    Raises:
        PatchError: Both changed the same code.
    """
    for one in (edit, renamed(edit, before, after)):
        try:
            place(after, one)
        except PatchError:
            continue
        return [one]
    together = merged(after, before, changed)
    if together is None:
        words = "code that has not changed since"
        raise PatchError("find", words, edit.find or f"the body of {edit.function}")
    return list(expressed(edit.file, "".join(statements(after)), together))


def renamed(edit: Edit, before: str, after: str) -> Edit:
    """Return the edit with the names that its function has now, as far as they were replaced."""
    try:
        was, now = (region(text, edit.function, body_only=False) for text in (before, after))
    except PatchError:
        return edit
    old, new = [t.text for t in was], [t.text for t in now]
    names: dict[str, str] = {}
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "replace" and b - a == d - c:
            names |= {
                word: other
                for word, other in zip(old[a:b], new[c:d], strict=True)
                if word.isidentifier() and other.isidentifier() and word not in new
            }
    if not names:
        return edit
    words = re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, names))})\b")
    find, replace = (words.sub(lambda m: names[m[0]], t) for t in (edit.find, edit.replace))
    return Edit(edit.file, edit.function, find, replace)


def merged(ours: str, base: str, theirs: str) -> str | None:
    """Merge two changes of a file by statements; return None where they touch or make no sense."""
    with tempfile.TemporaryDirectory(prefix="grader-rebase-") as folder:
        paths = [Path(folder, name) for name in ("ours", "base", "theirs")]
        for path, text in zip(paths, (ours, base, theirs), strict=True):
            lines = (json.dumps(statement) + "\n" for statement in statements(text))
            path.write_text("".join(lines), encoding="utf-8")
        done = subprocess.run(["git", "merge-file", "-p", *paths], capture_output=True, text=True)
    if done.returncode:
        return None
    together = "".join(map(json.loads, done.stdout.splitlines()))
    try:
        ast.parse(together)
    except SyntaxError:
        return None
    return together


def statements(text: str) -> Iterator[str]:
    """Yield every statement of a text, or the head of one, on one line and without comments."""
    line, end = "", 0
    for token in tokens(text):
        gap = text[end : token.start]
        if token.begins:
            line, gap = "", text[text.rfind("\n", 0, token.start) + 1 : token.start]
        elif "\n" in gap:
            gap = "" if line.endswith(("(", "[", "{")) or token.text in ")]}" else " "
        line += gap + text[token.start : token.end]
        end = token.end
        if token.ends:
            yield f"{line}\n"


def expressed(file: str, text: str, changed: str) -> Iterator[Edit]:
    """Yield edits that turn `text` into `changed`, one for each run of statements that differ.

    Raises:
        PatchError: No edit says so.
    """
    old, new = list(statements(text)), list(statements(changed))
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    runs = [code[1:] for code in matcher.get_opcodes() if code[0] != "equal"]
    current = text
    for first, last, start, end in runs:
        # Where nothing goes, the statement before the new ones tells where they belong.
        kept = max(first - 1, 0) if first == last else first
        find = "".join(old[kept:last])
        replace = "".join([*old[kept:first], *new[start:end]])
        one = anchored(file, current, find, replace)
        current = replaced(current, one, one.replace)
        yield one
    if [t.text for t in tokens(current)] != [t.text for t in tokens(changed)]:
        raise PatchError("find", "code that an edit can name", file)


def anchored(file: str, text: str, find: str, replace: str) -> Edit:
    """Return the edit with the innermost function or class in which `find` stands once."""
    for function in [*sorted(patching.definitions(text), key=lambda n: -n.count(".")), ""]:
        one = Edit(file, function, find, replace)
        try:
            place(text, one)
        except PatchError:
            continue
        return one
    raise PatchError("find", "code that stands once", find)


# The command -----------------------------------------------------------------------------------


def main(lab: Settings, revision: str, console: Console, folder: Path = corpus.CORPUS) -> int:
    """Rebase every case that no longer fits, from the solution of `revision`.

    Returns:
        1 if a case is left that needs a person, else 0.
    """
    rebased, left = 0, 0
    with tempfile.TemporaryDirectory(prefix="grader-rebase-") as scratch:
        solution = solution_at(revision, Path(scratch))
        for path in corpus.files(corpus=folder):
            case = corpus.read(path, lab)
            try:
                case.tree()
                continue
            except PatchError:
                before, after = (patching.base_files(case.base, s) for s in (solution, SOLUTION))
            try:
                text = with_edits(path.read_text(encoding="utf-8"), rebase(case, before, after))
            except PatchError as error:
                left += 1
                console.print(
                    Text(f"needs a person  {corpus.where(path)}: {error}"), soft_wrap=True
                )
                continue
            path.write_text(text, encoding="utf-8")
            rebased += 1
            console.print(Text(f"rebased  {corpus.where(path)}"), soft_wrap=True)
    console.print(f"{rebased} cases rebased, {left} left; verify those that were rebased")
    return 1 if left else 0


# Case files ------------------------------------------------------------------------------------


def with_edits(text: str, edits: Iterable[Edit]) -> str:
    """Return the text of a case file with other edits, in the place of its first."""
    heads = [m.start() for m in re.finditer(r"(?m)^\[", text) if is_toml(text[: m.start()])]
    blocks = [text[a:b] for a, b in zip([0, *heads], [*heads, len(text)], strict=True)]
    own = [n for n, block in enumerate(blocks) if block.startswith("[[edit]]")]
    rest = [b for n, b in enumerate(blocks) if n not in own]
    rest[own[0] : own[0]] = map(toml, edits)
    return "\n".join(f"{block.strip()}\n" for block in rest)


def is_toml(text: str) -> bool:
    """Tell whether a text can be read, so that what follows it begins a table."""
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def toml(edit: Edit) -> str:
    """Return an edit as a case file has it."""
    rows = {name: getattr(edit, name) for name in edit.__struct_fields__}
    rows = {name: value for name, value in rows.items() if value or name == "replace"}
    return "[[edit]]\n" + "".join(f"{name} = {quoted(value)}\n" for name, value in rows.items())


def quoted(text: str) -> str:
    """Return a text as a TOML string, over several lines where it has several."""
    if "\n" in text and "'''" not in text:
        return f"'''\n{text}'''"
    if "\n" not in text and "'" not in text and ('"' in text or "\\" in text):
        return f"'{text}'"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"""\n{escaped}"""' if "\n" in text else f'"{escaped}"'
