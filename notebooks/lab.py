"""What all notebooks share: the mounted tree, the to-do box, claims, and pictures.

Nothing here is graded, and nothing here computes what a task asks for.
"""

import html
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import matplotlib.pyplot as plt
import torch
from IPython import get_ipython
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
BLUE, ORANGE, GREEN, GREY = "#2a6f97", "#e07a1f", "#3a7d44", "#8d99ae"
COLOURS = (BLUE, ORANGE, GREEN, GREY, "#9c4dab", "#b5838d")
NAMES = {0: "pad", 1: "bos", 2: "eos"}


def mount() -> None:
    """Let `import transformer` find the tree LAB_TREE, starter/ by default, and see its edits."""
    tree = Path(os.environ.get("LAB_TREE", "") or ROOT / "starter")
    tree = tree if tree.is_absolute() else ROOT / tree
    if not (tree / "transformer").is_dir():
        raise FileNotFoundError(f"expected the folder transformer/ in {tree}")
    sys.path.insert(0, str(tree))
    torch.manual_seed(0)
    plt.rcParams.update({"figure.dpi": 110, "axes.grid": True, "grid.alpha": 0.25, "font.size": 9})
    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
    shell = get_ipython()
    if shell is not None:
        # A saved file counts from the next cell on, without a restart.
        shell.run_line_magic("load_ext", "autoreload")
        shell.run_line_magic("autoreload", "2")
    _box("tree", f"These cells use the code in {tree.name}/transformer/.", BLUE)


@contextmanager
def todo() -> Iterator[None]:
    """Show a box in place of a traceback where a task is not written yet."""
    try:
        yield
    except NotImplementedError as missing:
        _box("to do", f"{missing}; then run this cell again", ORANGE)


def claim(sentence: str, holds: bool | Tensor) -> None:
    """Say a sentence about your code, and whether it holds."""
    if holds:
        _box("holds", sentence, GREEN)
    else:
        _box("does not hold", f"{sentence} (make check says why)", "#b3261e")


def _box(word: str, sentence: str, colour: str) -> None:
    style = f"border-left:4px solid {colour};padding:.3em .8em;margin:.2em 0"
    marked = f'<div style="{style}"><b>{word}</b>: {html.escape(sentence)}</div>'
    display({"text/plain": f"{word}: {sentence}", "text/html": marked}, raw=True)


# Pictures -----------------------------------------------------------------------------------


def grids(
    panels: Mapping[str, Any], down: str, across: str, *, texts: Any = None, power: float = 1.0
) -> None:
    """Draw matrices side by side, dark where they are large.

    Args:
        panels: title -> (rows, columns), not negative, all to one scale.
        down: what the rows are.
        across: what the columns are.
        texts: title -> (rows, columns) of ids to write into the squares.
        power: below 1 it lets small values show.
    """
    matrices = {k: torch.as_tensor(v).detach().float() for k, v in panels.items()}
    top = max(float(m.max()) for m in matrices.values()) or 1.0
    widths = [max(m.shape[1], 3) for m in matrices.values()]
    side = min(0.42, 9.0 / sum(widths))
    tall = max(m.shape[0] for m in matrices.values())
    size = (sum(widths) * side + 1.1 * len(widths), tall * side + 1.1)
    figure, axes = plt.subplots(1, len(panels), figsize=size, width_ratios=widths, squeeze=False)
    for ax, (title, matrix) in zip(axes[0], matrices.items(), strict=True):
        ax.imshow((matrix / top) ** power, cmap="Blues", vmin=0.0, vmax=1.15, aspect="equal")
        _squares(ax, matrix)
        ax.set(title=title, xlabel=across, ylabel=down if ax is axes[0, 0] else "")
        for (row, column), value in _entries((texts or {}).get(title)):
            dark = matrix[row, column] > 0.6 * top
            ax.text(column, row, NAMES.get(value, str(value)), ha="center", va="center",
                    fontsize=7, color="white" if dark else "black")  # fmt: skip
    _show(figure)


def _squares(ax: Axes, matrix: Tensor) -> None:
    rows, columns = matrix.shape
    ax.set_xticks(range(0, columns, 1 + columns // 12))
    ax.set_yticks(range(0, rows, 1 + rows // 12))
    ax.grid(False)
    if rows * columns <= 400:
        ax.set_xticks([c - 0.5 for c in range(1, columns)], minor=True)
        ax.set_yticks([r - 0.5 for r in range(1, rows)], minor=True)
        ax.grid(True, which="minor", color="#d5dbe3", alpha=1.0)
    ax.tick_params(which="both", length=0)
    for spine in ax.spines.values():
        spine.set(visible=True, color="#d5dbe3")


def _entries(text: Any) -> Iterator[tuple[tuple[int, int], int]]:
    for row, line in enumerate([] if text is None else torch.as_tensor(text).tolist()):
        for column, value in enumerate(line):
            yield (row, column), value


def lines(
    curves: Mapping[str, Sequence[float]], across: str, up: str, *,
    at: Sequence[float] | None = None, log: str = "", level: tuple[str, float] | None = None,
) -> None:  # fmt: skip
    """Draw curves over `at` (0, 1, 2 ...), with a dashed line at a named level; log: "x", "y"."""
    figure, ax = plt.subplots(figsize=(6.0, 3.0))
    for (label, values), colour in zip(curves.items(), COLOURS, strict=False):
        ax.plot(range(len(values)) if at is None else at, values, label=label, color=colour)
    if level is not None:
        ax.axhline(level[1], color="black", linestyle="--", linewidth=0.8, label=level[0])
    scales = {f"{axis}scale": "log" for axis in log}
    ax.set(xlabel=across, ylabel=up, **scales)
    if at is None:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(curves) + (level is not None) > 1:
        ax.legend(frameon=False)
    _show(figure)


def bars(values: Mapping[str, float], along: str, *, log: bool = False, mark: str = "") -> None:
    """Draw one horizontal bar per name; those whose name holds `mark` are orange."""
    figure, ax = plt.subplots(figsize=(6.0, 0.6 + 0.22 * len(values)))
    colours = [ORANGE if mark and mark in name else BLUE for name in values]
    ax.barh(list(values), [float(v) for v in values.values()], color=colours)
    ax.set(xlabel=along, xscale="log" if log else "linear")
    ax.invert_yaxis()
    ax.grid(False, axis="y")
    ax.set_axisbelow(True)
    _show(figure)


def _show(figure: Figure) -> None:
    figure.tight_layout()
    plt.show()
    plt.close(figure)


# Looking into the code ------------------------------------------------------------------------


def influence(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return how far output position t moves when input position s changes, (T, S).

    Args:
        function: maps (1, S, ...) to (1, T, ...).
        x: (1, S) token ids above 3, or (1, S, D) float.
    """
    with torch.no_grad():
        before = function(x)
        columns = []
        for s in range(x.shape[1]):
            other = x.clone()
            other[:, s] = x[:, s] - 1 if x.dtype == torch.int64 else -x[:, s]
            columns.append((function(other) - before)[0].abs().amax(dim=-1))
    return torch.stack(columns, dim=1)


@contextmanager
def attention_weights() -> Iterator[list[Tensor]]:
    """Collect the weights (B, H, T, S) of every attention that runs inside the `with`."""
    from transformer import attention

    right, seen = attention.scaled_dot_product_attention, []

    def listening(*args: Any, **kwargs: Any) -> Any:
        attended = right(*args, **kwargs)
        seen.append(attended.weights.detach())
        return attended

    with mock.patch.object(attention, "scaled_dot_product_attention", listening):
        yield seen


SMALL: dict[str, Any] = {"vocab_size": 10, "min_length": 2, "max_length": 5}


def trained(steps: int = 150, mistake: str = "", **choices: Any) -> tuple[Any, list[float]]:
    """Train a small encoder-decoder to reverse; return it with its losses.

    The same call trains once, until a file of the tree changes.

    Args:
        steps: of 64 rows each.
        mistake: names what the caller has put into the code for the moment.
        choices: fields of ModelConfig.
    """
    import transformer

    folder = Path(transformer.__file__ or "").parent
    saved = max(path.stat().st_mtime_ns for path in folder.glob("*.py"))
    return _trained((saved, mistake), steps, **choices)


@cache
def _trained(version: tuple[int, str], steps: int, **choices: Any) -> tuple[Any, list[float]]:
    from transformer.config import ModelConfig, TrainingRecipe
    from transformer.data import sequence_batches
    from transformer.models import Seq2SeqTransformer
    from transformer.training import train

    torch.manual_seed(1)
    model = Seq2SeqTransformer(ModelConfig(vocab_size=SMALL["vocab_size"], **choices))
    batches = sequence_batches("reverse", steps=steps, batch_size=64, seed=1, **SMALL)
    return model, train(model, batches, TrainingRecipe(steps=steps, batch_size=64))


def held_out(rows: int = 256, **lengths: Any) -> Any:
    """Return one batch of sequences that training never sees."""
    from transformer.data import sequence_batches

    sizes = SMALL | lengths
    drawn = sequence_batches("reverse", steps=1, batch_size=rows, seed=2, held_out=True, **sizes)
    return next(iter(drawn))
