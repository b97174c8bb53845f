"""Two students are never merged, and nothing that was handed in is lost, in any layout."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from class_cases import LAB, as_zip, packed, tree, write
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as some

from grader.classroom.collect import Roster, Student, collect, examine, read_roster

Files = dict[str, bytes]
USERS = some.text("ab_-.1\u00e9", min_size=1, max_size=6).filter(
    lambda text: text[0] in "ab" and text[-1] in "ab1\u00e9"
)


def work(user: str) -> Files:
    """Return a submission whose content says whose it is."""
    mark = f"OF = {user!a}\n".encode()
    return {"masks.py": mark, "attention.py": mark}


def as_folders(users: list[str]) -> Files:
    return {f"{user}/transformer/{n}": text for user in users for n, text in work(user).items()}


def as_archives(users: list[str]) -> Files:
    return {f"{user}.zip": packed(work(user)) for user in users}


def as_canvas(users: list[str]) -> Files:
    plain = [(str(500 + i), "".join(filter(str.isalpha, user))) for i, user in enumerate(users)]
    return {
        f"{letters}_{number}_{9 * int(number) + k}_{name}": text
        for (number, letters), user in zip(plain, users, strict=True)
        for k, (name, text) in enumerate(work(user).items())
    }


def as_moodle(users: list[str]) -> Files:
    return {
        f"{user.replace('_', ' ')}_{i}_assignsubmission_file_{name}": text
        for i, user in enumerate(users, 31)
        for name, text in work(user).items()
    }


def as_blackboard(users: list[str]) -> Files:
    stamp = "attempt_2026-11-30-10-00-00"
    return {
        f"Lab_3_{user}_{stamp}_{name}": text for user in users for name, text in work(user).items()
    }


def as_gradescope(users: list[str]) -> Files:
    files = {f"submission_{i}/{n}": t for i, u in enumerate(users) for n, t in work(u).items()}
    lines = [f"submission_{i}:\n  :submitters:\n  - :sid: '{u}'\n" for i, u in enumerate(users)]
    return files | {"submission_metadata.yml": "".join(lines).encode()}


def as_clones(users: list[str]) -> Files:
    files = {f"cs-lab-1-{u}/transformer/{n}": t for u in users for n, t in work(u).items()}
    return files | {f"cs-lab-1-{user}/.git/HEAD": b"x" for user in users}


LAYOUTS = [as_folders, as_archives, as_canvas, as_moodle, as_blackboard, as_gradescope, as_clones]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@examples(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(users=some.lists(USERS, min_size=2, max_size=5, unique=True), listed=some.booleans())
def test_every_file_ends_up_with_the_one_student_who_handed_it_in(
    tmp_path_factory: pytest.TempPathFactory,
    layout: Callable[[list[str]], Files],
    users: list[str],
    listed: bool,
) -> None:
    folder = tmp_path_factory.mktemp("class")
    files = layout(users)
    source = write(folder / "c", files) if layout is as_clones else as_zip(folder / "c.zip", files)
    roster = Roster([Student(ids=(user,)) for user in users], []) if listed else None
    found = collect(source, LAB, roster)
    assert found.report.ignored == found.report.refused == found.report.duplicated == []
    came = [examine(one, LAB, []).files for one in found.submissions]
    wanted = [set(work(user).values()) for user in users]
    assert sorted(map(sorted, map(dict.values, came))) == sorted(  # type: ignore[arg-type]
        sorted(work(user).values()) for user in users
    )
    assert all(set(texts.values()) in wanted for texts in came)
    assert len({one.key.casefold() for one in found.submissions}) == len(users)
    if listed and layout not in (as_canvas, as_moodle):  # which name nobody's login
        matched = {
            one.students[0].ids[0]: set(examine(one, LAB, []).files.values())
            for one in found.submissions
        }
        assert matched == {user: set(work(user).values()) for user in users}
        assert found.report.missing == found.report.unknown == []


def of_blackboard(user: str, text: str | None = None) -> Files:
    stamp = f"Lab 3_{user}_attempt_2026-11-30-10-00-00"
    files = {f"{stamp}_{name}": content for name, content in work(user).items()}
    return files if text is None else files | {f"{stamp}.txt": text.encode()}


def users_of(source: Path, *roster: str) -> list[str]:
    known = Roster([Student(ids=(user,)) for user in roster], []) if roster else None
    return [one.students[0].ids[0] for one in collect(source, LAB, known).submissions]


def test_underscore_in_a_blackboard_user_is_decided_by_roster_or_text(tmp_path: Path) -> None:
    files = of_blackboard("a_smith") | of_blackboard("a_jones")
    assert users_of(as_zip(tmp_path / "1.zip", files), "a_smith", "a_jones") == [
        "a_jones",
        "a_smith",
    ]
    text = "Naam: Ann Smith ({})\nOpdracht: Lab 3"
    files = of_blackboard("a_smith", text.format("a_smith")) | of_blackboard("a_jones")
    assert users_of(as_zip(tmp_path / "2.zip", files)) == ["a_jones", "a_smith"]


@pytest.mark.parametrize("folder", [["cs-lab-1-ann-lee"], ["cs-lab-1-ann-lee", "cs-lab-1-ann-ray"]])
def test_roster_says_where_a_user_begins_in_the_name_of_a_clone(
    tmp_path: Path, folder: list[str]
) -> None:
    for name in folder:
        write(tmp_path / "c", tree(f"{name}/") | {f"{name}/.git/HEAD": b"x"})
    users = [name.removeprefix("cs-lab-1-") for name in folder]
    # A roster of GitHub users keeps their capitals, repositories do not.
    roster = Roster([Student(ids=(user.title(),)) for user in users], [])
    found = collect(tmp_path / "c", LAB, roster)
    assert found.report.missing == found.report.unknown == found.report.notes == []
    guessed = collect(tmp_path / "c", LAB).report
    assert guessed.notes == [
        "where in a repository's name the user begins was guessed: --roster decides it"
    ]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_accents_are_compared_in_one_form(tmp_path: Path, form: str) -> None:
    name = unicodedata.normalize(form, "jos\u00e9")
    other = unicodedata.normalize({"NFC": "NFD", "NFD": "NFC"}[form], "Jos\u00e9")
    found = collect(
        write(tmp_path / "c", tree(f"{name}/") | tree("bob/")),
        LAB,
        read_roster(f"username,name\n{other},J\nbob,B\n".encode()),
    )
    assert found.report.missing == found.report.unknown == []


def test_rows_of_a_canvas_gradebook_that_are_no_students_are_left_out() -> None:
    text = io.StringIO()
    csv.writer(text).writerows([
        ["Student", "ID", "SIS Login ID", "Section", "Lab (7)"],
        ["    Points Possible", "", "", "", "100"],
        ["", "", "", "", ""],
        ["Lee, Ann", "501", "alee", "A", ""],
        ["Student, Test", "999", "5f3ac0ffee", "A", ""],
    ])  # fmt: skip
    roster = read_roster(text.getvalue().encode())
    assert ([student.name for student in roster.students], roster.notes) == (["Lee, Ann"], [])


@pytest.mark.parametrize(
    "text",
    [
        "ID,Vollst\u00e4ndiger Name,E-Mail-Adresse,Z\nTeilnehmer/in 201,Ann Lee,ann@x.org,\n",
        "Identifiant,Nom complet,Adresse de courriel\nParticipant 201,Ann Lee,ann@x.org\n",
        "Identificador;Nombre completo;Direcci\u00f3n\nParticipante 201;Ann Lee;ann@x.org\n",
        "\u8bc6\u522b\u53f7,\u5168\u540d,\u90ae\u4ef6\n\u53c2\u4e0e\u8005201,Ann Lee,ann@x.org\n",
    ],
)
def test_moodle_worksheet_of_any_language_is_a_roster(text: str) -> None:
    assert read_roster(text.encode()).students == [Student("201", (), "Ann Lee", "ann@x.org")]


def test_name_may_be_split_in_other_languages() -> None:
    text = "Matriculation,Vorname,Nachname\ns7,Ann,Lee\n"
    assert read_roster(text.encode()).students == [Student("", ("s7",), "Ann Lee")]
