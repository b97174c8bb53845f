"""Draw the curves of a bench.json: python -m bench.plots BENCH_JSON FOLDER."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def draw(curve: dict[str, Any], rounds: list[dict[str, float]], path: Path) -> None:
    """Draw one curve on two logarithmic axes."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams["svg.hashsalt"] = curve["name"]  # the same curve gives the same file
    figure, axes = pyplot.subplots(figsize=(6.0, 3.6), layout="constrained")
    for key, label in curve["series"].items():
        found = [(r[curve["x"]], r[key]) for r in rounds if key in r]
        axes.plot(*zip(*found, strict=True), marker="o", label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = [r[curve["x"]] for r in rounds]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xlabel(curve["x"])
    axes.set_ylabel(curve["unit"])
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    """Draw every curve that was measured."""
    source, folder = map(Path, sys.argv[1:])
    tree = json.loads(source.read_text(encoding="utf-8"))
    try:
        for curve in tree["curves"]:
            found = tree["experiments"].get(curve["experiment"], {"rounds": []})["rounds"]
            if found:
                draw(curve, found, folder / f"bench_{curve['name']}.svg")
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}; pip install '.[bench]' brings it") from None


if __name__ == "__main__":
    main()
