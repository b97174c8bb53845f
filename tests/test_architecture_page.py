"""docs/architecture.md and its picture agree with the rooms, the files and a traced run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from test_architecture import GRADER, ROOMS, ours, room_of

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "docs/architecture.md", ROOT / "CONTRIBUTING.md", ROOT / "README.md"]
PAGE = PAGES[0].read_text(encoding="utf-8")
SVG = "{http://www.w3.org/2000/svg}"
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}")[1].split("\n## ")[0]


def drawn() -> dict[str, tuple[float, float]]:
    """Return where each room of the picture is drawn: (y, x)."""
    picture = ElementTree.parse(ROOT / "docs/rooms.svg").getroot()
    boxes = {g.attrib["id"]: g.find(f"{SVG}rect") for g in picture.iter(f"{SVG}g")}
    return {
        name: (float(box.attrib["y"]), float(box.attrib["x"]))
        for name, box in boxes.items()
        if box is not None
    }


def test_page_describes_every_room_from_the_top_down() -> None:
    rows = re.findall(r"^\| \[`(\w+)`\]", section("The rooms"), re.MULTILINE)
    assert rows == list(ROOMS)


def test_picture_shows_every_room_above_those_it_imports() -> None:
    place = drawn()
    assert set(place) == set(ROOMS)
    edges = {(room_of(p), name.split(".")[1]) for p in GRADER for name in ours(p)}
    known = {(a, b) for a, b in edges if a != b and a in place}
    assert [(a, b) for a, b in sorted(known) if place[a] >= place[b]] == []


def test_picture_numbers_the_steps_of_the_page() -> None:
    text = (ROOT / "docs/rooms.svg").read_text(encoding="utf-8")
    numbers = {int(n) for n in re.findall(r">(\d+)</text>", text)}
    steps = re.findall(r"^(\d+)\. ", section("The way of one submission"), re.MULTILINE)
    assert numbers == {int(step) for step in steps}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_to_files(page: Path) -> None:
    links = [x for x in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in x]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_way_of_a_task_is_found_by_the_texts_that_the_page_names() -> None:
    rows = re.findall(
        r"^\| [^|]+ \| \[([^\]]+)\]\([^)]+\) \| `([^|]+)` \|$",
        section("The way of one task"),
        re.MULTILINE,
    )
    assert len(rows) >= 9
    missed = [
        (file, text) for file, text in rows if text not in (ROOT / file).read_text(encoding="utf-8")
    ]
    assert missed == []


@pytest.mark.slow
def test_rooms_call_upwards_only_where_the_page_says() -> None:
    command = [sys.executable, str(ROOT / "tests/trace_rooms.py"), str(ROOT / "solution")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    walk = json.loads(done.stderr.strip().splitlines()[-1])
    up = {
        (caller, called)
        for caller, called, _ in walk["calls"]
        if ROOMS.index(called) < ROOMS.index(caller)
    }
    told = section("The way of one submission")
    assert up == set(re.findall(r"^\| (\w+) \| (\w+) \| \d+ \|", told, re.MULTILINE))
