"""Every format says why a result is not passed, and nothing against one that is."""

from __future__ import annotations

import base64
import html
import io
import json
import random
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from grader.base import settings
from grader.base.result import Diagnosis, Outcome, Status
from grader.classroom.rows import verdict
from grader.cli import check
from grader.report import checklist, html_report, platforms, terminal
from grader.run.results import Report, Request

LAB = settings.load()
POINTS = LAB.points
SCALE = LAB.scale.gates
REQUIRED = [stub.id for stub in POINTS.stubs]
STRETCH = [stub.id for stub in POINTS.stretch]
PASSED = dict.fromkeys([*REQUIRED, *POINTS.gates], Status.PASSED)
WRONG = [s for s in Status if s is not Status.PASSED]
WITHOUT_DIAGNOSIS = (Status.PASSED, Status.NOT_IMPLEMENTED, Status.BLOCKED, Status.GRADER_ERROR)
PRAISE = re.compile(
    r"(?i)nothing is wrong|every (part|gate)|all four gates pass|passed with|Passed:"
)
BLAME = re.compile(
    r"(?i)not passed|still|stopped|failed here|what is wrong(?! in optional)|look at:"
)
REASON = re.compile(r"(?i)\b(tasks? \w|gate \d|missing|did not finish|grader failed)")


def outcome(place: str, status: Status) -> Outcome:
    """Return what a check of a stub, of a gate, or of no place found."""
    stub = place if place in (*REQUIRED, *STRETCH) else None
    part = next((s.file for s in (*POINTS.stubs, *POINTS.stretch) if s.id == stub), "masks.py")
    told = Diagnosis("code", part.removesuffix(".py"), f"{place} is at fault.", "Think again.")
    summary = "waits for task S1" if status is Status.BLOCKED else f"{place} is {status}"
    return Outcome(
        f"checks.py::test_{place}", stub, None if stub else place or None, status, summary,
        None if status in WITHOUT_DIAGNOSIS else told, {},
    )  # fmt: skip


def tree(found: dict[str, Status], *, complete: bool = True) -> dict[str, Any]:
    """Return the result of checks that ended so."""
    staged = SimpleNamespace(name="anna", sha256="0" * 64, files={}, notes=["one note"])
    isolation = SimpleNamespace(level="bwrap", contained=True, layers={})
    request = Request(Path("anna"), scale=any(name in found for name in SCALE))
    report = Report(LAB, isolation, staged, request, 7, [])  # type: ignore[arg-type]
    return report.tree([outcome(*one) for one in found.items()], complete=complete)


def without(*places: str) -> dict[str, Status]:
    return {place: status for place, status in PASSED.items() if place not in places}


def some(seed: int) -> dict[str, Status]:
    """Return a few places with any status, the rest passed."""
    rng = random.Random(seed)
    places = rng.sample([*PASSED, *STRETCH, *SCALE], rng.randrange(1, 6))
    return PASSED | {place: rng.choice([*Status]) for place in places}


RESULTS = {
    "passed": tree(PASSED),
    "not finished": tree(PASSED, complete=False),
    "nothing checked": tree({}),
    "one task not checked": tree(without("4.1", "4.2")),
    "one stub not checked": tree(without("5.3")),
    "the last gate not checked": tree(without("greedy_accuracy")),
    "failure of the whole run": tree(PASSED | {"": Status.GRADER_ERROR}),
    **{f"{place} {status}": tree(PASSED | {place: status})
       for place in ("2.1", "6.4", POINTS.gates[0], POINTS.gates[3], "S1", "S3", SCALE[0])
       for status in WRONG},
    **{f"any {seed}": tree(some(seed)) for seed in range(30)},
    **{f"any {seed}, not finished": tree(some(seed), complete=False) for seed in range(30, 36)},
}  # fmt: skip


def printed(*what: Any) -> str:
    out = io.StringIO()
    Console(file=out, width=300).print(*what)
    return out.getvalue()


def export(name: str, result: dict[str, Any]) -> str:
    return platforms.EXPORTERS[name].write(result)


@pytest.fixture(params=RESULTS.values(), ids=[*RESULTS])
def result(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


def agrees(text: str, passed: bool) -> None:
    """Compare what a text says with the verdict."""
    assert bool(PRAISE.search(text)) == passed, text
    assert bool(BLAME.search(text)) <= (not passed), text
    assert passed or REASON.search(text), text


def test_a_result_with_a_fault_of_the_grader_is_not_passed(result: dict[str, Any]) -> None:
    assert not (result["passed"] and (result["grader_error"] or result["score"] is None))
    assert result["passed"] <= (result["score"] == result["max_score"])


def test_the_terminal_gives_the_verdict_and_the_reason(result: dict[str, Any]) -> None:
    text = printed(terminal.verdict(result, Path("out")))
    agrees(text.split("\n\n")[-1].split("report:")[0], result["passed"])


def test_the_report_gives_the_verdict_and_the_reason(result: dict[str, Any]) -> None:
    page = html_report.render(result)
    head, rest = page.split("</header>")
    agrees(head.split("<header>")[1].replace("<strong>Passed", ""), result["passed"])
    section = rest.split('id="findings"')[1].split("</section>")[0]
    words = html.unescape(re.sub(r"<[^>]*>", " ", section))
    assert result["passed"] == ("Nothing is wrong" in words or "in optional work" in words)
    assert result["passed"] or "<article>" in section or REASON.search(words)


@pytest.mark.parametrize("name", ["markdown", "gradescope", "prairielearn", "autolab", "github"])
def test_the_first_words_of_an_export_give_the_verdict(result: dict[str, Any], name: str) -> None:
    text = export(name, result)
    if name == "gradescope":
        text = json.loads(text)["output"]
    elif name == "prairielearn":
        text = json.loads(text)["message"]
    elif name == "markdown":
        text = text.split("\n")[2]
    elif name == "github":
        assert not (result["passed"] and re.search("(?m)^::(error|warning)", text))
        text = text.strip().split("\n")[-1]
    agrees(text.split("\n")[0], result["passed"])


def test_classroom_and_junit_are_red_where_it_is_not_passed(result: dict[str, Any]) -> None:
    told = json.loads(base64.b64decode(export("classroom", result)))
    assert (told["status"] == "pass") == result["passed"]
    agrees(told["message"], result["passed"])
    root = ET.fromstring(export("junit", result))
    bad = [e for e in root.iter() if e.tag in ("failure", "error")]
    assert bool(bad) != result["passed"]
    assert all(e.get("message") for e in bad)


def test_the_row_of_a_class_names_what_stopped_it(result: dict[str, Any]) -> None:
    if result["grader_error"] or not result["complete"]:
        return  # its row says so, and asks for another run
    row = verdict(result)
    assert (row["status"] == "passed") == result["passed"]
    assert {bool(row[name]) for name in ("first", "how", "cause")} == {not result["passed"]}


def test_the_checklist_names_what_to_do_next(result: dict[str, Any], tmp_path: Path) -> None:
    rows = checklist.rows(checklist.checks_of(result), check.stubs_of(LAB))
    step = checklist.next_step(rows, tmp_path, complete=True, trouble=result["grader_error"])
    undone = [o for p in result["parts"] for o in p["checks"] if o["status"] != "passed"]
    if result["grader_error"]:
        ours = "the grader failed" in step
        assert ours or any(o["status"] != "grader_error" for o in undone), step
    else:
        assert ("all parts are done" in step) == (not undone), step
