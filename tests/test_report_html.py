"""`report.html`: what it shows, that nothing in it runs, and that a browser agrees."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from html.parser import HTMLParser
from typing import Any

import pytest

from grader.base.result import clean
from grader.report import html_report
from grader.report.figures import figures

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
VOID = {"meta", "br", "link", "img", "hr", "input"}
GATES = ["future_independence", "padding_invariance", "finite_gradients", "greedy_accuracy"]
PARTS = ["masks", "attention", "residual", "encoder", "decoder", "training"]
ATTACK = "<script>document.title='owned'</script>\x1b[2J\u202e" + "A" * 5000


def check(status: str, stub: str | None = None, **evidence: Any) -> dict[str, Any]:
    bad = status not in ("passed", "blocked", "not_implemented")
    words = {"code": "c", "part": "masks", "cause": "It leaks.", "advice": "Look there."}
    return {"check": "part_1_masks.py::test_x", "stub": stub, "status": status, "summary": "s",
            "diagnosis": words if bad else None, "evidence": evidence, "seconds": 0.1}  # fmt: skip


def entry(name: str, found: dict[str, Any], **fields: Any) -> dict[str, Any]:
    score = 15 if found["status"] == "passed" else 0
    return fields | {"name": name, "score": score, "max_score": 15, "checks": [found]} | {
        k: found[k] for k in ("status", "summary", "diagnosis", "evidence", "seconds")
    }  # fmt: skip


def tree(gates: list[dict[str, Any]], part: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a tree whose gates are `gates` and whose first part is `part`."""
    first = part or check("passed", "1.1")
    parts = [entry(name, first if i == 1 else check("passed", f"{i}.1"), task=str(i))
             for i, name in enumerate(PARTS, 1)]  # fmt: skip
    found = [entry(name, gate) for name, gate in zip(GATES, gates, strict=True)]
    passed = all(e["status"] == "passed" for e in parts + found)
    return {
        "schema": 1, "complete": True, "passed": passed, "score": 100 if passed else 40,
        "gates_passed": all(e["status"] == "passed" for e in found), "max_score": 100,
        "grader_error": None, "gates": found, "parts": parts, "stretch": [],
        "submission": {"name": "anna", "sha256": "0" * 64, "files": [], "notes": []},
        "integrity": {"flags": [{"code": "x", "message": "only for staff"}]},
        "environment": {"python": "3.11", "torch": "2.13.0"}, "seed": 7411,
        "replay": "python -m grader grade anna --seed 7411",
    }  # fmt: skip


LEAK = check(
    "failed", influence=[[1.0, 0.5, 0.0], [0.2, 1.0, 0.5], [0.1, 0.2, 1.0]], tolerance=1e-6,
    position=0, changed=1, first_sublayer="decoder.blocks.0.self_attention",
)  # fmt: skip
TRAINED = check(
    "passed", loss_curve=[2.5, 1.0, "nan", 0.1], batches=300, exact_match=1.0,
    exact_match_wanted=0.95, accuracy_by_length={"3": 1.0, "7": 0.5},
    example={"source": [3, 4], "expected": [4, 3, 2], "got": [4, 5, 2, 2]},
    attention={"cross-attention": {"queries": [1, 4], "keys": [3, 4],
                                   "weights": [[[0.9, 0.1], [0.2, 0.8]]] * 4}},
)  # fmt: skip
PASSED = tree([check("passed"), check("passed"), check("passed"), TRAINED])
FAILED = tree([LEAK, *[check("blocked")] * 3])
BLOCKED = tree([check("blocked")] * 4, check("not_implemented", "1.1"))


def hostile() -> dict[str, Any]:
    found = check("error", "1.1", type=ATTACK, message=ATTACK,
                  frames=[{"file": ATTACK, "line": "1", "function": ATTACK, "text": ATTACK}],
                  parameters=[ATTACK] * 100, gradient_norms={ATTACK: 1.0, "b": None},
                  influence=[[ATTACK]], difference_by_sublayer={ATTACK: [1.0, ATTACK]},
                  loss_curve=[ATTACK, ATTACK], accuracy_by_length={ATTACK: ATTACK},
                  source=[ATTACK], expected=[ATTACK], got=[ATTACK],
                  attention={ATTACK: {"queries": [ATTACK], "keys": [ATTACK],
                                      "weights": [[[ATTACK]]]}})  # fmt: skip
    found["diagnosis"] = dict.fromkeys(("code", "part", "cause", "advice"), ATTACK)
    found[ATTACK] = ATTACK
    made = tree([check("blocked")] * 4, found)
    made["submission"] |= {"name": ATTACK, "notes": [ATTACK] * 500}
    return made


class Outline(HTMLParser):
    """Collects tags, and refuses a page whose tags do not match."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.mark.parametrize("made", [PASSED, FAILED, BLOCKED, hostile()],
                         ids=["passed", "failed", "blocked", "hostile"])  # fmt: skip
def test_page_is_well_formed_self_contained_and_readable(made):
    page = html_report.render(made)
    outline = Outline(page)
    assert {tag for tag, _ in outline.tags} & {"script", "link", "img", "iframe", "object"} == set()
    for _, attributes in outline.tags:
        assert not [name for name in attributes if name.startswith("on")]
        assert not str(attributes.get("href") or "#").startswith(("http", "javascript"))
    assert "default-src 'none'" in page
    assert all(a.get("aria-label") and a.get("role") == "img" for a in outline.all("svg"))
    assert len(outline.all("figcaption")) == len(outline.all("figure"))
    assert [a["lang"] for a in outline.all("html")] == ["en"]
    ids = [a["id"] for _, a in outline.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert all(c.isprintable() or c == "\n" for c in page)
    assert len(page) < 200_000


def test_student_sees_no_seed_no_replay_and_no_flag():
    page = html_report.render(FAILED)
    assert "7411" not in page and "--seed" not in page and "only for staff" not in page


def test_verdict_and_place_where_it_stopped_are_said():
    assert "100 of 100 points" in html_report.render(PASSED)
    failed = html_report.render(FAILED)
    assert "Not passed" in failed and "Gate 1, future independence, is where it stopped" in failed
    assert failed.count("stopped here") == 1
    assert "Still to write: task 1." in html_report.render(BLOCKED)
    lost = PASSED | {"score": None, "passed": False, "grader_error": "ours"}
    assert "No score" in html_report.render(lost)


def test_leak_is_drawn_and_said():
    page = html_report.render(FAILED)
    assert page.count('class="leak"') == 2 and page.count('class="forbidden"') == 1
    assert "2 forbidden cells moved" in page
    assert "leaves the struck-out triangle above the diagonal at 0" in page
    assert "shows first in" in page


def test_missing_gradient_is_marked():
    norms = {"a.weight": 1.0, "b.weight": None, "c.bias": 0.0}
    page = html_report.render(
        tree([check("failed", gradient_norms=norms)] + [check("blocked")] * 3)
    )
    assert "2 of 3 parameters have none" in page


def test_padding_is_drawn_by_sublayer():
    gaps = {"encoder.blocks.0.self_attention": [0.0, 0.3], "decoder.blocks.0.self_branch": [0, 0]}
    found = check("failed", difference_by_sublayer=gaps, tolerance=1e-6)
    page = html_report.render(tree([check("passed"), found, check("blocked"), check("blocked")]))
    assert "differences in encoder.blocks.0.self_attention." in page


def test_training_is_shown_although_it_passed():
    page = html_report.render(PASSED)
    assert "Loss curve: from 2.5 to 0.1" in page
    assert "length 3: 1.00; length 7: 0.50" in page
    assert page.count('<td class="wrong">5<span class="mark"> wrong</span></td>') == 1
    assert page.count('class="picture head"') == 4


@pytest.mark.parametrize("made", [PASSED, hostile()], ids=["passed", "hostile"])
def test_report_is_small_and_written_in_no_time(tmp_path, made):
    html_report.template("report.html.j2")
    began = time.process_time()
    html_report.write(clean(made), tmp_path / "report.html")
    assert time.process_time() - began < 1.0
    assert (tmp_path / "report.html").stat().st_size < 2_000_000


def test_any_evidence_is_survived():
    odd: list[Any] = [
        None,
        "x",
        -1,
        [],
        {},
        [[]],
        [None],
        [[None]],
        {"a": None},
        1e300,
        [[1], [1, 2]],
    ]
    keys = ["influence", "difference_by_sublayer", "difference_per_position", "gradient_norms",
            "loss_curve", "accuracy_by_length", "attention", "example", "frames", "model",
            "tolerance", "steps", "source", "exact_match_wanted"]  # fmt: skip
    for value in odd:
        for key in keys:
            gate = check("failed", **({"loss_curve": [1, 2]} | {key: value}))
            Outline(html_report.render(tree([gate, *[check("blocked")] * 3])))


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt install chromium")
@pytest.mark.parametrize(
    ("made", "words"),
    [
        (PASSED, "100 of 100 points"), (FAILED, "stopped here"), (BLOCKED, "Still to write"),
        (hostile(), "&lt;script&gt;document.title='owned'&lt;/script&gt;"),
    ],
    ids=["passed", "failed", "blocked", "hostile"],
)  # fmt: skip
def test_browser_opens_it_without_errors(tmp_path, made, words):
    page = tmp_path / "report.html"
    html_report.write(json.loads(json.dumps(clean(made))), page)
    assert CHROMIUM is not None
    done = subprocess.run(
        [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
         f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0
    assert "CONSOLE" not in done.stderr
    assert words in done.stdout and "<title>owned" not in done.stdout


def test_expected_and_got_are_drawn_and_marked_by_more_than_colour():
    around = {"slice": [0, 1], "starts": [2, 0], "expected": [[0.5, 0.25]], "got": [[0.5, 0.75]]}
    (figure,) = figures({"around": around})
    assert str(figure.body).count("\u2260") == 1 and "\u2260 0.75" in figure.body
    assert '<th scope="row">2</th>' in figure.body and "0, 1" in figure.caption


@pytest.mark.parametrize("value", [
    7, {}, {"expected": [[1]], "got": [[1, 2]], "starts": [0, 0], "slice": []},
    {"expected": [[1]], "got": [[1]], "starts": ["<b>", 0], "slice": []},
    {"expected": [[1] * 99], "got": [[1] * 99], "starts": [0, 0], "slice": []},
])  # fmt: skip
def test_windows_that_do_not_fit_are_not_drawn(value):
    assert figures({"around": value}) == []
