"""The catalogue of what checks say: nothing in it is unused, and nothing is said beside it."""

from __future__ import annotations

import re

import pytest

from grader.base import places
from grader.base.result import CheckFailed
from grader.parts import causes

GRADER = places.GRADER
SOURCE = "\n".join(path.read_text(encoding="utf-8") for path in sorted(GRADER.rglob("*.py")))
# Tables whose entries are slips: the checks try all of them, and tests/test_slips.py each.
SLIPS = re.findall(r'"(\w+)"', " ".join(re.findall(r"\bslips\(([^)]*)\)", SOURCE)))


def test_every_subject_is_spoken_of():
    assert [subject for subject in causes.CATALOGUE if f'"{subject}"' not in SOURCE] == []


@pytest.mark.parametrize("subject", sorted(set(causes.CATALOGUE) - set(SLIPS)))
def test_every_entry_is_used(subject):
    made_up = {f"{name}_dropped" for name in ("attention_mask", "key_valid", "causal")}
    unused = [code for code in causes.CATALOGUE[subject] if f'"{code}"' not in SOURCE]
    assert set(unused) <= made_up


def test_a_failure_says_what_was_seen():
    with pytest.raises(CheckFailed) as failure:
        causes.fail("decoder", "handed", "cache_not_handed_on", {"module": "blocks.1"},
                    what="Decoder", module="blocks.1", shown="no cache")  # fmt: skip
    diagnosis = failure.value.diagnosis
    assert (diagnosis.code, diagnosis.part) == ("cache_not_handed_on", "decoder")
    assert diagnosis.cause.startswith("Decoder with a cache: blocks.1 is handed no cache")
    assert failure.value.evidence == {"module": "blocks.1"}


def test_a_mistake_may_have_several_entries():
    found = causes.suspect("loss", "loss_counts_padding", 0.5, entry="loss_divided_by_all")
    assert found.code == "loss_counts_padding"
    assert "divided by the number of all" in found.cause


def test_only_later_branches_can_read_what_came_before():
    branches = causes.in_branches("first", "second")
    assert "starts_again:second" in branches and "starts_again:first" not in branches
    assert branches["branch_twice:first"][0].startswith("in first, ")
