"""JUnit XML, for any CI: one suite of tasks, one of gates, one of stretch pieces.

JUnit alone knows skipped: a blocked check is skipped, wrong work is a failure, work that raised,
hung or crashed is an error, and so is a fault of the grader.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET

from grader.platforms.common import OUR_FAULT, UNFINISHED, Case, Result, Row
from grader.result import Status, number

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
    if result.score is None or not result.complete:
        suite = ET.SubElement(root, "testsuite", name="grader")
        text = OUR_FAULT if result.score is None else UNFINISHED
        _add_case(suite, "grader", Case("grading", Status.GRADER_ERROR, text, 0.0))
    for suite in root:
        _count(suite)
    _count(root)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, "unicode") + "\n"


def _add_row(suite: ET.Element, row: Row) -> None:
    """Add the checks of a row, and what it earned, which JUnit has no field for."""
    cases = row.cases or (Case(row.name, row.status, row.text, 0.0),)
    for case in cases:
        element = _add_case(suite, f"{suite.get('name')}.{row.name}", case)
        if case is cases[0]:
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
