"""Each exporter against its platform's schema or parser, and against what a result may contain."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import unittest
import xml.etree.ElementTree as ET
from typing import Any

import jsonschema
import pytest
from gradescope_utils.autograder_utils import decorators
from gradescope_utils.autograder_utils.json_test_runner import JSONTestRunner
from junitparser import Error, Failure, JUnitXml, Skipped
from platform_cases import (
    CLASSROOM,
    GATES,
    GRADESCOPE,
    PARTS,
    PRAIRIELEARN,
    SEED,
    broken,
    entry,
    mixed,
    tree,
)

from grader.report.platforms import EXPORTERS, ExportError
from grader.report.platforms.common import OUR_FAULT, UNFINISHED
from grader.report.platforms.markdown import escaped

ALL = pytest.mark.parametrize("name", EXPORTERS)
HOSTILE = "\x00\x1b[31mred\x1b[0m \u202e \ud800 \ufffe ]]> <b>&amp; | `x` @all\r\n::error::no\x85"


def text_of(name: str, result: dict[str, Any]) -> str:
    """Export a result; what Classroom gets is decoded."""
    text = EXPORTERS[name].write(result)
    return base64.b64decode(text).decode() if name == "classroom" else text


def classroom(result: dict[str, Any]) -> dict[str, Any]:
    value = json.loads(text_of("classroom", result))
    jsonschema.validate(value, CLASSROOM)
    return value


def gradescope(result: dict[str, Any]) -> dict[str, Any]:
    value = json.loads(text_of("gradescope", result))
    jsonschema.validate(value, GRADESCOPE)
    return value


def prairielearn(result: dict[str, Any]) -> dict[str, Any]:
    value = json.loads(text_of("prairielearn", result))
    jsonschema.validate(value, PRAIRIELEARN)
    return value


def junit(result: dict[str, Any]) -> dict[str, Any]:
    """Parse the XML with junitparser into the kinds of result by test name."""
    cases = [c for suite in JUnitXml.fromstring(text_of("junit", result)) for c in suite]
    return {case.name: [type(end) for end in case.result] for case in cases}


def test_gradescope_schema_takes_what_gradescopes_own_runner_writes() -> None:
    class Sample(unittest.TestCase):
        @decorators.weight(2)
        @decorators.number("1.1")
        @decorators.visibility("visible")
        def test_passes(self) -> None:
            """One passes."""

        @decorators.weight(3)
        def test_fails(self) -> None:
            """One fails."""
            raise AssertionError

    stream = io.StringIO()
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(Sample)
    JSONTestRunner(stream=stream, visibility="visible").run(suite)
    written = json.loads(stream.getvalue())
    jsonschema.validate(written, GRADESCOPE)
    assert (written["score"], len(written["tests"])) == (2, 2)


@pytest.mark.parametrize("result", [tree(), mixed(), broken()], ids=["right", "mixed", "broken"])
def test_gradescope_fits_its_schema(result: dict[str, Any]) -> None:
    assert len(gradescope(result)["tests"]) == 10


def test_gradescope_scores_add_up() -> None:
    out = gradescope(mixed())
    assert out["score"] == sum(t["score"] for t in out["tests"]) == 34
    assert sum(t["max_score"] for t in out["tests"]) == 100


def test_gradescope_blocked_and_late_gates_fail_with_their_reason() -> None:
    tests = {test["name"]: test for test in gradescope(mixed())["tests"]}
    late = tests["Gate 1: future_independence"]
    assert (late["status"], late["score"]) == ("failed", 0)
    assert late["output"] == "took too long\nno answer after 30 s"
    blocked = tests["Gate 2: padding_invariance"]
    assert (blocked["status"], blocked["tags"]) == ("failed", ["blocked"])
    assert "waits for gate future_independence" in blocked["output"]


def test_gradescope_gives_no_score_after_a_grader_error() -> None:
    out = gradescope(broken())
    assert "score" not in out
    assert not [test for test in out["tests"] if "score" in test]
    assert out["output"].startswith(OUR_FAULT)


def test_gradescope_hides_no_test() -> None:
    assert {test["visibility"] for test in gradescope(mixed())["tests"]} == {"visible"}


def test_tried_stretch_work_is_shown_and_not_scored() -> None:
    result = tree(convert={"status": "passed"})
    test = gradescope(result)["tests"][-1]
    assert (test["name"], test["status"], "score" in test) == (
        "Stretch S4: convert",
        "passed",
        False,
    )


def test_classroom_adds_up_as_its_reporter_does() -> None:
    out = classroom(mixed())
    assert sum(test["score"] for test in out["tests"]) == 34
    assert (out["status"], out["max_score"]) == ("fail", 100)


@pytest.mark.parametrize(
    ("result", "status"), [(tree(), "pass"), (mixed(), "fail"), (broken(), "error")]
)
def test_classroom_always_lists_tests(result: dict[str, Any], status: str) -> None:
    out = classroom(result)
    assert (out["status"], len(out["tests"])) == (status, 10)


def test_classroom_value_is_one_line_that_a_variable_holds() -> None:
    result = tree(masks={"status": "failed", "summary": "\N{SNOWMAN}" * 3900})
    for one in result["gates"]:
        one |= {"status": "failed", "score": 0, "summary": "\N{SNOWMAN}" * 3900}
    result["score"] = 34
    text = EXPORTERS["classroom"].write(result)
    assert text.count("\n") == 1 and len(text) <= 120_000


def test_annotations_are_one_command_a_line() -> None:
    summary = "50%\n::error::forged, a: b"
    result = tree(masks={"status": "failed", "summary": summary})
    lines = text_of("github", result).splitlines()
    assert lines[0].startswith(
        "::error file=transformer/masks.py,title=Task 1%3A masks%3A failed::"
    )
    assert "50%25%0A::error::forged" in lines[0]
    assert lines[-1].startswith("::notice title=Result::94 of 100 points.")
    assert len(lines) == 2


def test_annotation_carries_the_line_that_the_text_names() -> None:
    lines = text_of("github", mixed()).splitlines()
    (found,) = [line for line in lines if "transformer/residual.py" in line]
    assert found.startswith("::error file=transformer/residual.py,line=3,title=")


def test_classroom_50_gets_whole_points_and_no_score_after_a_grader_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLASSROOM", "cs")
    monkeypatch.setenv("COMMIT_URL", "https://x.org/c")
    out = json.loads(text_of("classroom50", mixed()))
    assert (out["schema"], out["classroom"]) == ("classroom50/result/v1", "cs")
    assert out["commit"] == out["review"] == "https://x.org/c"
    assert (out["score"], out["max-score"]) == (34, 100)
    assert sum(test["score"] for test in out["tests"]) == 34
    for test in out["tests"]:
        assert set(test) == {"test-name", "passed", "score", "max-score"}
    assert json.loads(text_of("classroom50", broken()))["score"] is None


def test_annotations_stay_below_what_actions_shows() -> None:
    lines = text_of("github", mixed()).splitlines()
    assert sum(line.startswith("::error") for line in lines) == 7
    assert sum(line.startswith("::warning") for line in lines) == 1


def test_prairielearn_score_is_a_share() -> None:
    assert prairielearn(tree())["score"] == 1
    assert prairielearn(mixed())["score"] == 0.34


def test_prairielearn_attempt_costs_nothing_after_a_grader_error() -> None:
    out = prairielearn(broken())
    assert (out["gradable"], "score" in out) == (False, False)


def test_autolab_last_line_holds_the_scores() -> None:
    lines = text_of("autolab", mixed()).strip().splitlines()
    scores = json.loads(lines[-1])["scores"]
    assert (scores["masks"], scores["greedy_accuracy"], sum(scores.values())) == (4, 15, 34)
    stages = json.loads(lines[-2])
    assert stages["stages"] == ["Tasks", "Gates"]
    assert stages["Gates"]["greedy_accuracy"] == {"passed": True, "hint": ""}
    assert json.loads(text_of("autolab", broken()).strip().splitlines()[-1]) == {"scores": {}}


def test_junit_tells_skipped_failure_and_error_apart() -> None:
    kinds = junit(mixed())
    assert kinds["test_masks"] == kinds["test_attention"] == [Failure]
    assert kinds["test_residual"] == kinds["test_future_independence"] == [Error]
    assert kinds["test_padding_invariance"] == [Skipped]
    assert kinds["test_greedy_accuracy"] == []


def test_junit_counts_what_junitparser_counts() -> None:
    xml = JUnitXml.fromstring(text_of("junit", mixed()))
    before = (xml.tests, xml.failures, xml.errors, xml.skipped)
    xml.update_statistics()
    assert before == (xml.tests, xml.failures, xml.errors, xml.skipped) == (10, 2, 5, 1)


NUMBER_TEXT = re.compile(r"\d+(?:\.\d+)?")
# What junit-10.xsd of Jenkins's xunit plugin allows: attributes, of which required, and children.
XSD = {
    "testsuites": ({"name", "time", "tests", "failures", "errors"}, set(), {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname", "id",
         "package", "file", "log", "url", "group"},
        {"name", "tests", "failures", "errors"},
        {"testcase", "properties", "system-out", "system-err"},
    ),
    "testcase": (
        {"name", "time", "classname", "group"}, {"name"},
        {"failure", "error", "skipped", "system-out", "system-err"},
    ),
    **dict.fromkeys(("failure", "error", "skipped"), ({"type", "message"}, set(), set())),
    "system-out": (set(), set(), set()),
}  # fmt: skip


@pytest.mark.parametrize("result", [tree(), mixed(), broken(), tree() | {"complete": False}])
def test_junit_is_valid_for_jenkins(result: dict[str, Any]) -> None:
    root = ET.fromstring(text_of("junit", result))
    assert root.tag == "testsuites"
    for element in root.iter():
        allowed, required, children = XSD[element.tag]
        assert required <= set(element.attrib) <= allowed, element.tag
        assert {child.tag for child in element} <= children
        assert NUMBER_TEXT.fullmatch(element.get("time", "0"))
        for name in ("tests", "failures", "errors", "skipped"):
            assert element.get(name, "0").isdecimal()


def test_junit_has_an_error_where_the_grader_failed_or_did_not_finish() -> None:
    assert junit(broken())["grading"] == [Error]
    assert junit(tree() | {"complete": False, "passed": False})["grading"] == [Error]


def test_markdown_escapes_what_a_submission_wrote() -> None:
    text = escaped("1. a_b <i> | http://x.y www.x.y `c`\n# @all")
    assert text == (r"1\. a\_b &lt;i&gt; \| http\://x.y www\.x.y \`c\` # \@all")


def test_nbgrader_table_reads_back() -> None:
    result = mixed()
    for name, read in (('O"Neil, Jr.', 'O"Neil, Jr.'), ("=1+1\nB", "'=1+1 B")):
        result["submission"]["name"] = name
        (row,) = csv.DictReader(io.StringIO(text_of("nbgrader", result)))
        assert (row["student_id"], row["score"], row["max_score"]) == (read, "34", "100")


def test_nbgrader_leaves_the_score_empty_after_a_grader_error() -> None:
    assert text_of("nbgrader", broken()).splitlines()[1].endswith(",,0,,100")


@ALL
def test_students_see_neither_seed_nor_evidence_nor_our_internals(name: str) -> None:
    for result in (tree(), mixed(), broken()):
        text = text_of(name, result)
        assert str(SEED) not in text and "replay" not in text and "--seed" not in text
        assert "canary-7919" not in text
        assert "oracle" not in text


@ALL
def test_hostile_text_survives(name: str) -> None:
    result = tree(masks={"status": "failed", "summary": HOSTILE})
    result["submission"] |= {"name": HOSTILE, "notes": [HOSTILE]}
    text = text_of(name, result)
    assert not [c for c in text if not (c.isprintable() or c == "\n")]
    assert "[31m" not in text
    if name == "junit":
        ET.fromstring(text)


@ALL
def test_unfinished_result_never_passes(name: str) -> None:
    text = text_of(name, tree() | {"complete": False})
    assert "Passed: every part" not in text
    assert UNFINISHED in text.replace("\\", "") or name == "nbgrader"


@ALL
def test_size_is_capped(name: str) -> None:
    said = {"code": "x", "part": "masks", "advice": "x" * 800}
    checks = [
        entry(f"c{i}", 1, "failed", diagnosis=said | {"cause": f"{i}" * 800})["checks"][0]
        for i in range(40)
    ]
    result = tree(**{n: {"status": "failed", "checks": checks} for n in (*PARTS, *GATES)})
    assert len(EXPORTERS[name].write(result).encode()) <= (5e6 if name == "junit" else 1e6)


@ALL
@pytest.mark.parametrize(
    "change",
    [
        {"score": float("nan")}, {"score": float("inf")}, {"score": -1}, {"score": "100"},
        {"score": True}, {"score": 99}, {"max_score": 101}, {"schema": 2}, {"gates": None},
        {"parts": [entry("masks", 6, "great") | {"task": "1"}]}, {"isolation": {}},
    ],
    ids=str,
)  # fmt: skip
def test_a_result_that_is_none_is_refused(name: str, change: dict[str, Any]) -> None:
    with pytest.raises(ExportError):
        EXPORTERS[name].write(tree() | change)


def test_rounded_points_add_up_exactly() -> None:
    result = tree()
    for one in result["gates"][:3]:
        one |= {"score": 13.33, "max_score": 13.33}
    result["gates"][3] |= {"score": 20.01, "max_score": 20.01}
    result |= {"score": 100.01, "max_score": 100.01}
    out = gradescope(result)
    assert round(sum(test["max_score"] for test in out["tests"]), 6) == 100.01
    assert round(sum(test["score"] for test in out["tests"]), 6) == 100.01
