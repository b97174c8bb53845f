"""Notebooks: built from percent-format sources, run against a tree, kept as pages to read.

A source is Python in which `# %%` begins a cell and `# %% [markdown]` one of comments.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import nbformat
from rich.console import Console
from rich.progress import track

from grader.base.places import NOTEBOOKS

KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
LONGEST_CELL = 15
CELL_S = 120
DONE, CLAIM_FAILED, CANNOT_RUN = 0, 1, 2


class NotebookError(ValueError):
    """A notebook that cannot be built or run; the message names it and the place."""


def sources(folder: Path = NOTEBOOKS) -> list[Path]:
    """Return the sources in the order of the course: their names begin with a number."""
    return sorted(folder.glob("[0-9]*.py"))


def read(text: str, file: str) -> Any:
    """Return the notebook of a source, without outputs.

    Args:
        text: the source.
        file: what messages call it.

    Raises:
        NotebookError: The source is not as jupytext would write it (something stands before the
            first cell, a markdown cell holds code), or a cell is too long.
    """
    import jupytext  # other commands need not load it

    book = jupytext.reads(text, fmt="py:percent")
    book.metadata = {"jupytext": {"notebook_metadata_filter": "-all"}}
    lines = zip_longest(text.split("\n"), jupytext.writes(book, fmt="py:percent").split("\n"))
    for number, (came, wanted) in enumerate(lines, start=1):
        if came != wanted:
            raise NotebookError(f"{file}:{number}: expected {wanted!r}, got {came!r}")
    for number, cell in enumerate(book.cells):
        # The same source makes the same bytes.
        cell.id, cell.metadata = f"cell-{number}", {}
        first, *rest = cell.source.split("\n")
        if len(rest) >= LONGEST_CELL:
            what = f"a cell of {len(rest) + 1} lines, expected at most {LONGEST_CELL}"
            raise NotebookError(f"{file}: {what}; it begins with {first!r}")
    book.metadata = {"kernelspec": KERNEL}
    nbformat.validate(book)
    return book


def build(source: Path) -> bytes:
    """Return the notebook of a source as its file; raises NotebookError as `read` does."""
    return f"{nbformat.writes(read(source.read_text('utf-8'), source.name))}\n".encode()


def built(folder: Path = NOTEBOOKS) -> dict[str, bytes]:
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
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    from traitlets.config import Config

    book = nbformat.read(notebook, as_version=4)
    changed = {
        "LAB_TREE": str(tree.resolve()),
        "OMP_NUM_THREADS": "1",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
    with tempfile.TemporaryDirectory(prefix="notebook-") as scratch:
        kernel = {"connection_file": str(Path(scratch, "kernel.json"))}
        if os.name != "nt":
            # A socket that is a file needs no network and lets nobody else in.
            kernel |= {"transport": "ipc", "ip": str(Path(scratch, "kernel"))}
        client = NotebookClient(
            book, timeout=CELL_S, kernel_name="python3", config=Config({"KernelManager": kernel}),
            resources={"metadata": {"path": str(notebook.parent)}},
        )  # fmt: skip
        try:
            client.execute(env=os.environ | changed)
        except CellExecutionError as error:
            words = f"{error.ename}: {error.evalue}"
            raise NotebookError(f"{notebook.name}: a cell raised {words}") from None
        except (CellTimeoutError, DeadKernelError) as error:
            raise NotebookError(f"{notebook.name}: {error}") from None
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
            NOTEBOOKS.joinpath(name).write_bytes(content)
        return _run_all(options.names, options.tree, options.out, options.quiet)
    except (NotebookError, OSError) as error:
        print(f"notebooks: {error}", file=sys.stderr)
        return CANNOT_RUN


def _run_all(names: Sequence[str], tree: Path, out: Path, quiet: bool) -> int:
    if not (tree / "transformer").is_dir():
        raise NotebookError(f"expected the folder transformer/ in {tree}")
    every = sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))
    # By name, or by number: "1" is 01_masks.
    books = [p for p in every if not names or p.stem in names
             or p.stem[:2].lstrip("0") in [name.lstrip("0") for name in names]]  # fmt: skip
    if not books:
        known = ", ".join(path.stem for path in every)
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
        said = {"holds": "claims hold", "does not hold": "do not", "to do": "to do"}
        counts = [f"{found.count(word)} {said[word]}" for word in said if word in found]
        console.print(f"{path.stem}: {', '.join(counts)}", soft_wrap=True)
    console.print(f"pages to read: {out}/", soft_wrap=True)
    return code
