"""Code that submissions share: what counts, what does not, and what it costs."""

from __future__ import annotations

import csv
import random
import time
from pathlib import Path

import pytest

from grader.__main__ import main
from grader.classroom import similar

STARTER = Path("starter/transformer")
FORM = """
def scaled_dot_product_attention(query, key, value, mask=None):
    {s} = query @ key.transpose(-2, -1)
    {s} = {s} * (query.shape[-1] ** -0.5)
    if mask is not None:
        for row in range(mask.shape[0]):
            assert mask[row].any(-1).all(), "{text}"
        {s} = {s}.masked_fill(mask.logical_not(), float("-inf"))
    {w} = torch.exp({s} - torch.logsumexp({s}, -1, keepdim=True))
    return torch.einsum("bhts,bhsk->bhtk", {w}, value), {w}
"""
USUAL = """
def scaled_dot_product_attention(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = scores.softmax(dim=-1)
    return weights @ value, weights
"""
NOTHING: frozenset[str] = frozenset()


def taken(key: str, text: str, handout: frozenset[str] = NOTHING) -> similar.Submitted:
    return similar.submitted(key, {"attention.py": text}, handout)


def form(**names: str) -> str:
    return FORM.format(**({"s": "scores", "w": "weights", "text": "no key"} | names))


def test_renamed_variables_other_texts_comments_and_layout_are_identical():
    other = form(s="points", w="shares", text="a row without a key").replace(
        "    if mask is not None:", "\n    # hide what must not be seen\n    if mask is not None:"
    )
    (pair,) = similar.pairs([taken("a", form()), taken("b", other)])
    assert pair.identical
    assert pair.share == 1.0


def test_one_changed_statement_leaves_most_of_it_shared():
    other = form().replace("query.shape[-1] ** -0.5", "1 / math.sqrt(query.size(3))")
    (pair,) = similar.pairs([taken("a", form()), taken("b", other)])
    assert not pair.identical
    assert 0.4 < pair.share < 1.0


def test_what_the_handout_gives_counts_for_nothing():
    handout = similar.functions_of([form()])
    assert not taken("a", form(), handout).prints
    assert similar.pairs([taken("a", form(), handout), taken("b", form(), handout)]) == []


def test_what_many_wrote_weighs_less_than_what_two_wrote():
    many = [taken(f"usual {n}", USUAL) for n in range(6)]
    two = [taken("a", form()), taken("b", form())]
    found = similar.pairs(many + two)
    assert {found[0].first, found[0].second} == {"a", "b"}
    assert found[0].rare > 0
    assert all(pair.rare == 0 for pair in found[1:])


def test_two_different_forms_share_nothing():
    assert similar.pairs([taken("a", form()), taken("b", USUAL)]) == []


@pytest.mark.parametrize("text", ["def f(:\n    return 1\n", "x = " + "(" * 5000, "\0", ""])
def test_a_file_that_does_not_parse_is_compared_all_the_same(text):
    taken("a", text)


def test_copies_that_do_not_parse_are_found():
    broken = form() + "\ndef unfinished(:\n"
    (pair,) = similar.pairs([taken("a", broken), taken("b", broken)])
    assert pair.identical


def test_a_deep_expression_is_walked_without_recursion():
    text = "x = " + "+".join(["y"] * 800) + "\n"
    assert taken("a", text).prints


def write_class(folder: Path, texts: dict[str, str]) -> None:
    for who, text in texts.items():
        home = folder / who
        home.mkdir(parents=True)
        for file in STARTER.glob("*.py"):
            (home / file.name).write_bytes(file.read_bytes())
        given = (STARTER / "attention.py").read_text(encoding="utf-8")
        (home / "attention.py").write_text(given + text, encoding="utf-8")


def test_the_command_writes_a_page_and_a_table_and_keeps_fingerprints(tmp_path, capsys):
    copied = form().replace("scaled_dot_product_attention", "my_attention")
    write_class(
        tmp_path / "class",
        {"anna": copied, "=ben": copied.replace("scores", "s"), "cleo": USUAL, "dora": ""},
    )
    out = tmp_path / "out"
    words = ["similar", str(tmp_path / "class"), "--out", str(out), "--quiet"]
    assert main(words) == 0
    assert "pairs to look at: 1, of them identical: 1" in capsys.readouterr().out
    rows = list(csv.DictReader((out / "similar.csv").read_text(encoding="utf-8").splitlines()))
    assert [{row["first"], row["second"]} for row in rows] == [{"'=ben", "anna"}]
    page = (out / "similar.html").read_text(encoding="utf-8")
    assert "logsumexp" in page and "cleo" not in page and "<script" not in page
    before = page, (out / "fingerprints.json").read_bytes()
    (out / "fingerprints.json").write_text("{")  # a corrupt file counts as missing
    assert main(words) == 0
    assert before == (
        (out / "similar.html").read_text(encoding="utf-8"),
        (out / "fingerprints.json").read_bytes(),
    )


def test_no_class_is_refused_with_a_sentence(tmp_path, capsys):
    assert main(["similar", str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 2
    assert "cannot compare the class" in capsys.readouterr().err


@pytest.mark.slow
def test_a_thousand_submissions_are_paired_within_seconds():
    rng = random.Random(5)
    lines = [
        f"    x = x.{name}({number})"
        for name in ["add", "mul", "view", "sum", "mean", "flip", "roll", "sort", "abs", "neg"]
        for number in range(30)
    ]
    class_of = [
        taken(str(n), "def f(x):\n" + "\n".join(rng.sample(lines, 60)) + "\n") for n in range(1000)
    ]
    began = time.monotonic()
    similar.pairs(class_of)
    assert time.monotonic() - began < 60
