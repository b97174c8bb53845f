"""Notebooks: built from percent-format sources, run against a tree, kept as pages to read.

A source is Python in which `# %%` begins a cell and `# %% [markdown]` one of comments.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from rich.console import Console
from rich.progress import track

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
CELL = re.compile(r"# %%( \[markdown\])?")
LONGEST_CELL = 15
CELL_S = 120
DONE, CLAIM_FAILED, CANNOT_RUN = 0, 1, 2


class NotebookError(ValueError):
    """A notebook that cannot be built or run; the message names it and the place."""


def sources(folder: Path = FOLDER) -> list[Path]:
    """Return the sources in the order of the course: their names begin with a number."""
    return sorted(folder.glob("[0-9]*.py"))


def cells_of(text: str, file: str) -> list[tuple[str, str]]:
    """Return kind ("markdown" or "code") and text of every cell.

    Args:
        text: the source.
        file: what messages call it.

    Raises:
        NotebookError: Something stands before the first cell, a markdown cell holds code, or a
            cell is too long.
    """
    cells: list[tuple[str, list[str]]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        mark = CELL.fullmatch(line)
        if mark is not None:
            cells.append(("markdown" if mark[1] else "code", []))
            continue
        if not cells:
            raise NotebookError(f"{file}:{number}: expected a cell, which begins with # %%")
        kind, lines = cells[-1]
        if kind == "markdown" and line and not re.match(r"#( |$)", line):
            raise NotebookError(f"{file}:{number}: expected a comment in a markdown cell")
        lines.append(line[2:] if kind == "markdown" else line)
    for _, lines in cells:
        long = "\n".join(lines).strip("\n").count("\n") + 1
        if long > LONGEST_CELL:
            what = f"a cell of {long} lines, expected at most {LONGEST_CELL}"
            raise NotebookError(f"{file}: {what}; it begins with {lines[0]!r}")
    return [(kind, "\n".join(lines).strip("\n")) for kind, lines in cells]


def build(source: Path) -> bytes:
    """Return the notebook of a source, without outputs; the same source makes the same bytes.

    Raises:
        NotebookError: As `cells_of`.
    """
    v4 = nbformat.v4
    cells = []
    for number, (kind, text) in enumerate(cells_of(source.read_text("utf-8"), source.name)):
        if kind == "markdown":
            cells.append(v4.new_markdown_cell(text, id=f"cell-{number}"))
        else:
            cells.append(v4.new_code_cell(text, id=f"cell-{number}"))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book = v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.validate(book)
    return f"{nbformat.writes(book)}\n".encode()


def built(folder: Path = FOLDER) -> dict[str, bytes]:
    """Return every notebook of a folder of sources by file name."""
    return {f"{path.stem}.ipynb": build(path) for path in sources(folder)}


def run(notebook: Path, tree: Path) -> Any:
    """Run a notebook from top to bottom and return it with its outputs.

    Args:
        notebook: an .ipynb; the cells run in its folder.
        tree: the folder that holds the package `transformer`.

    Raises:
        NotebookError: A cell raised, or took longer than CELL_S seconds.
    """
    # Loading these takes a second that no other command should pay.
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    from nbconvert.preprocessors import ExecutePreprocessor
    from traitlets.config import Config

    book = nbformat.read(notebook, as_version=4)
    with tempfile.TemporaryDirectory(prefix="notebook-") as scratch:
        # A socket that is a file needs no network and lets nobody else in.
        socket = {"transport": "ipc", "ip": str(Path(scratch, "kernel"))}
        config = Config({"KernelManager": {} if os.name == "nt" else socket})
        runner = ExecutePreprocessor(timeout=CELL_S, kernel_name="python3", config=config)
        changed = {
            "LAB_TREE": str(tree.resolve()),
            "OMP_NUM_THREADS": "1",
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        }
        kept = os.environ.copy()
        os.environ.update(changed | {"JUPYTER_RUNTIME_DIR": scratch})
        try:
            runner.preprocess(book, {"metadata": {"path": str(notebook.parent)}})
        except CellExecutionError as error:
            words = f"{error.ename}: {error.evalue}"
            raise NotebookError(f"{notebook.name}: a cell raised {words}") from None
        except (CellTimeoutError, DeadKernelError) as error:
            raise NotebookError(f"{notebook.name}: {error}") from None
        finally:
            os.environ.clear()
            os.environ.update(kept)
    return book


def boxes(book: Any) -> list[tuple[str, str]]:
    """Return word and sentence of every box that a run notebook shows: "to do", "holds" ..."""
    found = []
    for cell in book.cells:
        for output in cell.get("outputs", ()):
            text = output.get("data", {}).get("text/plain", "")
            word, _, sentence = text.partition(": ")
            if word in ("to do", "holds", "does not hold"):
                found.append((word, sentence))
    return found


def page(book: Any, title: str) -> str:
    """Return a run notebook as one HTML page."""
    from nbconvert.exporters import HTMLExporter

    exporter = HTMLExporter()
    exporter.embed_images = True
    text, _ = exporter.from_notebook_node(book, {"metadata": {"name": title}})
    return str(text)


def main(options: argparse.Namespace) -> int:
    """Build the notebooks where their sources are, run them, and write their pages.

    Returns:
        0, 1 if a claim does not hold, 2 if a notebook cannot run; what is to do is no failure.
    """
    try:
        for name, content in built().items():
            FOLDER.joinpath(name).write_bytes(content)
        return _run_all(options.names, options.tree, options.out, options.quiet)
    except (NotebookError, OSError) as error:
        print(f"notebooks: {error}", file=sys.stderr)
        return CANNOT_RUN


def _run_all(names: Sequence[str], tree: Path, out: Path, quiet: bool) -> int:
    if not (tree / "transformer").is_dir():
        raise NotebookError(f"expected the folder transformer/ in {tree}")
    books = [p for p in sorted(FOLDER.glob("[0-9]*.ipynb")) if _chosen(p, names)]
    if not books:
        known = ", ".join(p.stem for p in sorted(FOLDER.glob("[0-9]*.ipynb")))
        raise NotebookError(f"no notebook is called {' or '.join(names)}; there are {known}")
    out.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False)
    code = DONE
    hidden = quiet or not console.is_terminal
    for path in track(books, "running", console=console, disable=hidden, transient=True):
        book = run(path, tree)
        out.joinpath(f"{path.stem}.html").write_text(page(book, path.stem), encoding="utf-8")
        found = [word for word, _ in boxes(book)]
        if "does not hold" in found:
            code = CLAIM_FAILED
        counts = [f"{found.count(word)} {words}" for word, words in (
            ("holds", "claims hold"), ("does not hold", "do not"), ("to do", "to do"),
        ) if found.count(word)]  # fmt: skip
        console.print(f"{path.stem}: {', '.join(counts)}", soft_wrap=True)
    console.print(f"pages to read: {out}/", soft_wrap=True)
    return code


def _chosen(path: Path, names: Sequence[str]) -> bool:
    """Tell whether a notebook was asked for, by number or name."""
    return not names or any(path.stem == n or path.stem.split("_")[0].lstrip("0") == n.lstrip("0")
                            for n in names)  # fmt: skip
