"""JUnit XML, for any CI: one suite of tasks, one of gates, one of stretch pieces.

JUnit alone knows skipped: a blocked check is skipped, wrong work is a failure, work that raised,
hung or crashed is an error, and so is a fault of the grader. Stretch work that does not pass is
skipped too: a CI goes red where there is a failure, and only where the lab is not passed.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

from grader.base.result import Status, number
from grader.report.platforms.common import OUR_FAULT, UNFINISHED, Case, Result, Row

_WRONG = ("failure", "error")
_TAGS = {
    Status.FAILED: "failure",
    Status.NOT_IMPLEMENTED: "failure",
    Status.BLOCKED: "skipped",
    Status.ERROR: "error",
    Status.TIMEOUT: "error",
    Status.OUT_OF_MEMORY: "error",
    Status.CRASHED: "error",
    Status.PROTOCOL: "error",
    Status.GRADER_ERROR: "error",
}


def report(result: Result) -> str:
    """Return JUnit XML of a result."""
    root = ET.Element("testsuites", name=result.name)
    for name, kind in (("tasks", "task"), ("gates", "gate"), ("stretch", "stretch")):
        rows = [row for row in (*result.rows, *result.stretch) if row.kind == kind]
        if rows:
            suite = ET.SubElement(root, "testsuite", name=name)
            for row in rows:
                _add_row(suite, row)
    ours = OUR_FAULT if result.score is None else "" if result.complete else UNFINISHED
    if ours or not (result.passed or _tells(root)):
        suite = ET.SubElement(root, "testsuite", name="grader")
        status = Status.GRADER_ERROR if ours else Status.FAILED
        _add_case(suite, "grader", Case("grading", status, ours or result.headline, 0.0))
    for element in (*root, root):
        _count(element)
    del root.attrib["skipped"]  # junit-10.xsd allows it of a suite only
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, "unicode") + "\n"


def _tells(root: ET.Element) -> bool:
    """Tell whether some case is a failure or an error: what is skipped alone leaves a CI green."""
    return any(case.find(t) is not None for case in root.iter("testcase") for t in _WRONG)


def _add_row(suite: ET.Element, row: Row) -> None:
    """Add the checks of a row, and what it earned, which JUnit has no field for."""
    before = len(suite)
    cases = row.cases or (Case(row.name, row.status, row.text, 0.0),)
    for case in cases:
        if row.kind == "stretch" and case.status is not Status.PASSED:
            case = replace(case, status=Status.BLOCKED, text=f"optional: {case.text}")
        element = _add_case(suite, f"{suite.get('name')}.{row.name}", case)
        if len(suite) == before + 1:
            out = ET.SubElement(element, "system-out")
            out.text = f"{row.title}: {number(row.score)} of {number(row.max_score)} points"


def _add_case(suite: ET.Element, group: str, case: Case) -> ET.Element:
    element = ET.SubElement(
        suite, "testcase", classname=group, name=case.name, time=f"{case.seconds:.3f}"
    )
    tag = _TAGS.get(case.status)
    if tag:
        message = case.text.split("\n", 1)[0]
        end = ET.SubElement(element, tag, message=message, type=str(case.status))
        end.text = case.text
    return element


def _count(suite: ET.Element) -> None:
    cases = list(suite.iter("testcase"))
    suite.set("tests", str(len(cases)))
    for plural, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(plural, str(sum(case.find(tag) is not None for case in cases)))
    suite.set("time", f"{sum(float(case.get('time', '0')) for case in cases):.3f}")
