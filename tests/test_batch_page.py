"""The class page: what it counts, that nothing foreign runs in it, that a browser sorts it."""

from __future__ import annotations

import csv
import html
import io
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlencode

import pytest
from batch_cases import run, small_class
from class_cases import LAB
from platform_cases import DIAGNOSIS, mixed
from platform_cases import tree as passed
from test_report_html import ATTACK, Outline

from grader.classroom import figures, page
from grader.classroom.rows import ABSENT, FLAGGED, INCOMPLETE, action, no_verdict, verdict

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def row(name: str, found: dict) -> dict:
    student = {"platform_id": "", "ids": [name], "name": "", "email": ""}
    return {"name": name, "students": [student], "late": None, "notes": [], **found}


def rows() -> list[dict]:
    stopped = passed(padding_invariance={"status": "failed"}, masks={"status": "failed"})
    return [
        row("anna", verdict(passed())),
        row("ben", verdict(mixed())),
        row("carl", verdict(stopped)),
        row("dora", no_verdict("ungradable", "torn.zip is damaged", 100)),
        row("emil", no_verdict("grader_error", "it ended", 100)),
    ]


def text_of(made: str) -> str:
    return html.unescape(
        re.sub(r"\s+", " ", re.sub(r"<(style|script)[\s\S]*?</\1>|<[^>]+>", " ", made))
    )


def test_page_counts_statuses_gates_diagnoses_and_scores():
    text = text_of("".join(page.render(rows(), ["5 submissions"], LAB)))
    assert "passed 1 nothing not passed 2 nothing: the score stands" in text
    assert "cannot be graded 1 ask for the files again" in text and "regrade 1 regrade:" in text
    assert "flagged 3" in text
    assert "gate 1 future independence 1 gate 2 padding invariance 1" in text
    assert "gate 3 finite gradients 0 gate 4 greedy accuracy 0 past all gates 1" in text
    assert "mask_off_by_one Position 2 moved by 0.31 when token 3 changed. 1" in text
    assert "Mean 71.0, median 79." in text
    assert "30 to <40 1" in text and "70 to <80 1" in text and "90 to 100 1" in text


def test_page_shows_each_task_its_causes_and_what_to_say_next():
    stub = {"stub": "1.2", "status": "failed", "diagnosis": DIAGNOSIS}
    wrong = [passed(masks=stub) for _ in range(3)]
    for tree in wrong:
        tree["parts"][0]["checks"][0] |= {"stub": "1.2", "diagnosis": DIAGNOSIS}
    graded = [row(f"s{i}", verdict(tree)) for i, tree in enumerate(wrong)]
    right = passed()
    right["parts"][0]["checks"][0]["stub"] = "1.2"
    graded += [row("anna", verdict(right)), row("emil", no_verdict("grader_error", "it", 100))]
    text = text_of("".join(page.render(graded, [], LAB)))
    assert "task 1.2" in text and "1 of 4 25 %" in text and "gate 1 " in text
    assert "3 \u00d7 mask_off_by_one: Position 2 moved by 0.31" in text
    assert "mask_off_by_one , 3 submissions, notebook 01_masks Position 2" in text
    (first, *_) = [i for i in figures.items(graded, LAB) if i.label == "1.2"]
    assert (first.passed, first.of, first.causes[0].count) == (1, 4, 3)
    lines = list(csv.DictReader(io.StringIO(figures.table([first]))))
    assert lines[0]["share"] == "0.250" and lines[0]["example_of"] == "s0"


def test_missing_file_is_asked_for_and_a_flag_is_still_looked_at():
    gone = DIAGNOSIS | {"code": ABSENT, "cause": "masks.py is missing; found my_masks.py."}
    found = verdict(passed(masks={"status": "not_implemented", "diagnosis": gone}))
    assert (found["status"], found["score"]) == ("not_passed", 94)
    assert action(found) == f"{FLAGGED}; {INCOMPLETE}"
    assert action(found | {"flags": []}) == INCOMPLETE
    text = text_of("".join(page.render([row("anna", found)], [], LAB)))
    assert f"incomplete 1 {INCOMPLETE}" in text


def test_nothing_of_a_submission_is_markup():
    attack = row(ATTACK, verdict(mixed()) | {"cause": ATTACK, "codes": [ATTACK], "how": ATTACK})
    attack["students"][0] |= {"name": ATTACK, "email": ATTACK}
    made = "".join(page.render([attack], [ATTACK], LAB))
    outline = Outline(made)
    assert len(outline.all("script")) == 1 and "&lt;script&gt;" in made
    assert not {tag for tag, _ in outline.tags} & {"link", "img", "iframe", "object"}
    for _, attributes in outline.tags:
        assert not [name for name in attributes if name.startswith("on")]
        assert not str(attributes.get("href") or "#").startswith(("http", "javascript"))
    assert all(c.isprintable() or c == "\n" for c in made)
    assert "default-src 'none'" in made and "script-src 'sha256-" in made


def dumped(file: Path, profile: Path, **state: object) -> str:
    assert CHROMIUM is not None
    done = subprocess.run(
        [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
         f"--user-data-dir={profile}", "--dump-dom", f"{file.as_uri()}#{urlencode(state)}"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0 and "CONSOLE" not in done.stderr
    return done.stdout


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt install chromium")
def test_browser_sorts_searches_and_follows_links(tmp_path):
    masks = {"anna": "x", "ben": "wrong", "carl": "broken", "dora <b>": "y"}
    run(small_class(tmp_path / "class", **masks), tmp_path / "out")
    file, profile = tmp_path / "out/index.html", tmp_path / "profile"

    def order(**state: object) -> list[str]:
        made = dumped(file, profile, **state).split('<table id="class">')[1]
        body = made.split("<tbody>")[1].split("</tbody>")[0]
        shown = re.findall(r'<tr class="\w+"( hidden="")?>.*?<a href="([^"]+)">', body)
        for _, link in shown:
            assert (tmp_path / "out" / link).is_file()
        return [link.split("/")[1].split("_")[0] for hidden, link in shown if not hidden]

    assert order() == ["anna", "ben", "carl", "dora"]
    assert order(sort=2, down=1, search="PASSED") == ["anna", "dora"]
    assert order(search="not passed") == order(status="not passed") == ["ben"]
    assert order(search="passed ann") == ["anna"]
    assert "2 of 4" in dumped(file, profile, search="100", sort=2)
