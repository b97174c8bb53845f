"""Gradescope's export: one folder for each submission, and a YAML file that says whose it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from grader.classroom.collect.layouts import METADATA, Claim, Layout
from grader.classroom.collect.model import CollectError, Student
from grader.classroom.collect.source import Source

MOST_BYTES = 64 << 20
# Builds texts, lists and mappings only, whatever a tag asks for, and keeps "007" as it is written.
_LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def gradescope(tops: Mapping[str, bool], source: Source) -> Layout | None:
    """Recognise an export by its metadata; a group is one submission with several students.

    Raises:
        CollectError: the metadata cannot be read.
    """
    if tops.get(METADATA) is not False:
        return None
    table = _load(source.held(METADATA)[0].read(MOST_BYTES + 1))
    layout = Layout("Gradescope", f"{METADATA} lists {len(table)} submissions", [])
    for folder, entry in table.items():
        students = tuple(_student(s) for s in _listed(_get(entry, "submitters")))
        if tops.get(folder) is not True:
            who = ", ".join(s.who for s in students) or "nobody"
            layout.notes.append(f"{folder} ({who}) is in {METADATA} but did not come")
            continue
        when = str(_get(entry, "created_at") or "")
        group = (f"group of {len(students)}",) if len(students) > 1 else ()
        layout.claims.append(
            Claim(folder, folder, students, folder=True, notes=group, handed_in=when)
        )
    unlisted = [n for n, is_folder in tops.items() if is_folder and n not in table]
    layout.claims += [Claim(name, name, (Student(ids=(name,)),), folder=True) for name in unlisted]
    layout.notes += [f"{name} is not in {METADATA}: whose it is, is unknown" for name in unlisted]
    layout.ignored = [n for n, is_folder in tops.items() if not is_folder and n != METADATA]
    return layout


def _load(data: bytes) -> dict[str, Any]:
    if len(data) > MOST_BYTES:
        raise CollectError(f"{METADATA} is larger than {MOST_BYTES >> 20} MiB")
    try:
        table = yaml.load(data.decode("utf-8-sig"), Loader=_LOADER)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        words = str(error).split("\n")[0]
        raise CollectError(f"{METADATA} is no YAML that can be read: {words}") from None
    if not isinstance(table, dict) or not all(isinstance(key, str) for key in table):
        raise CollectError(f"{METADATA} must list submissions by folder")
    return table


def _get(entry: Any, name: str) -> Any:
    """Return a value by its Ruby symbol (":name") or plain name."""
    if not isinstance(entry, dict):
        return None
    return entry.get(f":{name}", entry.get(name))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _student(entry: Any) -> Student:
    texts = {n: _get(entry, n) for n in ("name", "sid", "email")}
    name, sid, email = (t if isinstance(t, str) and t != "~" else "" for t in texts.values())
    return Student(ids=(sid,) if sid else (), name=name, email=email)
