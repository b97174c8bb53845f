"""What the mutation run tells: a line now and then, a table, and a page."""

import io
from dataclasses import asdict

from rich.console import Console

from grader.upkeep import mutants
from grader.upkeep.mutants import Fate, Mutant

FATES = [
    Fate("masks.py", "1.2: <= -> <", 40, "1.2 (failed)"),
    Fate("masks.py", "1.2: diagonal -> 1", 41, "1.2 (error)"),
    Fate("masks.py", "1.3: a & b -> b & a", 60, ""),
    Fate("training.py", "6.4: 1.0 -> 2.0", 90, ""),
]
KNOWN = {"masks.py 1.3: a & b -> b & a": "either order is the same"}


def test_equivalent_mutants_do_not_count_against_the_checks():
    assert mutants.tally(FATES, KNOWN) == [
        ["masks.py", "3", "2", "1", "0", "100.0%"],
        ["training.py", "1", "0", "0", "1", "0.0%"],
        ["all", "4", "2", "1", "1", "66.7%"],
    ]


def test_page_counts_the_killers_and_names_the_survivors():
    page = mutants.markdown(FATES, KNOWN)
    assert "| 1.2 | 2 |" in page
    assert "- training.py, line 90: `6.4: 1.0 -> 2.0`" in page
    assert "None survives." in mutants.markdown(FATES[:3], KNOWN)


def test_fates_stand_in_the_order_of_their_mutants_whichever_ends_first(monkeypatch):
    todo = mutants.all_mutants(["masks"])[:4]

    class Pool:
        def __init__(self, *words: object) -> None:
            pass

        def __enter__(self) -> "Pool":
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def map(self, tasks):
            for task in reversed(list(tasks)):
                mutant = Mutant(**task)
                yield task, asdict(Fate(mutant.file, mutant.key, mutant.line, "1.1 (failed)"))

    monkeypatch.setattr(mutants, "Pool", Pool)
    fates = mutants.run(todo, 2, Console(file=io.StringIO()))
    assert [fate.key for fate in fates] == [mutant.key for mutant in todo]
