"""The tables that `calibrate` makes: margins of the thresholds, and rates of rejection."""

from __future__ import annotations

import math
from typing import Any

from grader.pages import measured, table

Json = dict[str, Any]


def upper_rate(failures: int, trials: int) -> float:
    """Return the 95% upper bound of a rate (Clopper and Pearson 1934), by bisection."""
    low, high = failures / max(trials, 1), 1.0
    for _ in range(60):
        middle = (low + high) / 2
        tail = sum(
            math.comb(trials, k) * middle**k * (1 - middle) ** (trials - k)
            for k in range(failures + 1)
        )
        low, high = (middle, high) if tail > 0.05 else (low, middle)
    return high


def attempts(evidence: Json) -> list[float]:
    """Return the exact match of every training that a gate's evidence tells of."""
    inner = [evidence, *(v for v in evidence.values() if isinstance(v, dict))]
    return next((list(e["attempts"]) for e in inner if "attempts" in e), [])


def rates(right: list[Json], gate: str) -> list[list[str]]:
    """Return, for each configuration, the right cases and all, how many were rejected.

    `gate` is the one that trains.
    """
    names = dict.fromkeys(r["configuration"] for r in right)
    groups = {n or "right cases": [r for r in right if r["configuration"] == n] for n in names}
    rows = []
    for name, own in (groups | {"all together": right}).items():
        bad = sum(not r["passed"] for r in own)
        trained = [made for r in own if (made := attempts(r["gates"][gate][1]))]
        first = [made[0] for made in trained]
        again = sum(len(made) > 1 for made in trained)
        least = f"{min(first):.4g}" if first else "-"
        bound = f"{100 * upper_rate(bad, len(own)):.2g}%"
        rows.append([name, str(len(own)), least, str(again), str(bad), bound])
    return rows


RATES = ["submissions", "runs", "least first attempt", "trained again", "rejected", "at most"]
HEADINGS = ["threshold", "bound", "nearest right", "runs", "nearest wrong", "cases"]


def markdown(near: list[list[str]], rated: list[list[str]]) -> str:
    """Return the page that docs/ keeps."""
    return (
        "# Margins of the gates\n\n"
        f"{measured()} by `make calibrate`: the solution "
        "in every configuration that can solve its task, over many seeds; every right case of the "
        "corpus; and every wrong case, shown to the gates alone, whatever its parts say. With "
        "`--verified reports/verify/verify.json` the cases whose gates `make verify` has asked are "
        "not asked again.\n\n"
        "How far each threshold is from the nearest right and the nearest wrong submission:\n\n"
        f"{table(HEADINGS, near)}\n"
        "What gates 1 and 2 measure counts in units of max(1, largest logit). A right submission "
        "beyond gate 2's bound rounds, as a softmax in float32 does when there are more columns: "
        "the gate has told that from a leak by other embeddings of PAD in calls of one shape. A "
        "wrong case counts where its gate failed, by how far it went beyond the threshold.\n\n"
        "How often a right submission is rejected, with the 95% upper bound of that rate (Clopper "
        "and Pearson 1934). Gate 4 trains once more, from another seed, where a training ends "
        "between `near_miss` and `exact_match` of lab.toml, and the better attempt counts: "
        "without that rule everything trained again would have been rejected.\n\n"
        f"{table(RATES, rated)}"
    )
