"""`grader.upkeep.release` turns a solution into a starter, or says by file and line why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from grader.upkeep import release

WHOLE = '''\
"""Given."""

LIMIT = 7


class Pair:
    """Two numbers."""

    def total(self, scale: int) -> int:
        """Add.

        Task 2.3.
        """
        # BEGIN SOLUTION 2.3
        first = scale * LIMIT

        return first + 11
        # END SOLUTION

    def given(self) -> int:
        """Stay."""
        return 13
'''
STRIPPED = '''\
"""Given."""

LIMIT = 7


class Pair:
    """Two numbers."""

    def total(self, scale: int) -> int:
        """Add.

        Task 2.3.
        """
        raise NotImplementedError("task 2.3: write Pair.total in pair.py")

    def given(self) -> int:
        """Stay."""
        return 13
'''


def lines(*body: str) -> str:
    return "\n".join(["def five() -> int:", '    """Answer."""', *body, ""])


def tree(folder: Path, **files: str) -> Path:
    package = folder / "transformer"
    package.mkdir(parents=True)
    for name, text in files.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


def test_strip_replaces_a_body_by_one_raise() -> None:
    assert release.strip(WHOLE, "pair.py") == STRIPPED


def test_strip_leaves_other_text_alone() -> None:
    assert release.strip(STRIPPED, "pair.py") == STRIPPED


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (["    # BEGIN SOLUTION 1.1", "    return 5"], "five.py:3: region 1.1 is never closed"),
        (["    return 5", "    # END SOLUTION"], "five.py:4: END SOLUTION closes no region"),
        (
            ["    # BEGIN SOLUTION 1.1", "    # BEGIN SOLUTION 1.2", "    return 5"],
            "five.py:4: region 1.2 begins inside region 1.1",
        ),
        (
            ["    # BEGIN SOLUTION", "    return 5", "    # END SOLUTION"],
            "five.py:3: this is no marker: # BEGIN SOLUTION",
        ),
        (
            ["    # BEGIN SOLUTION 1.1", "    return 5  # END SOLUTION"],
            "five.py:4: this is no marker: return 5  # END SOLUTION",
        ),
        (
            ["    x = 2", "    # BEGIN SOLUTION 1.1", "    return x", "    # END SOLUTION"],
            "five.py:4: region 1.1 must hold the whole body of five",
        ),
        (
            ["    # BEGIN SOLUTION 1.1", "    return 5", "X = 2", "# END SOLUTION"],
            "five.py: a region holds more than the body of its function",
        ),
        (
            [
                *["    # BEGIN SOLUTION 1.1", "    x = 5", "    # END SOLUTION"],
                *["    # BEGIN SOLUTION 1.1", "    return x", "    # END SOLUTION"],
            ],
            "five.py:6: five already has a region, at line 3",
        ),
        (
            ["    return 5", "# BEGIN SOLUTION 1.1", "X = 2", "# END SOLUTION"],
            "five.py:4: region 1.1 lies in no function",
        ),
        (["    # BEGIN SOLUTION 1.1", "    return ("], "five.py:3: region 1.1 is never closed"),
        (
            ["    # BEGIN SOLUTION 1.1", "    return (", "    # END SOLUTION"],
            "five.py:4: '(' was never closed",
        ),
    ],
)
def test_strip_refuses_by_file_and_line(body: list[str], message: str) -> None:
    with pytest.raises(release.ReleaseError) as caught:
        release.strip(lines(*body), "five.py")
    assert str(caught.value) == message


def test_starter_copies_other_files_byte_for_byte(tmp_path: Path) -> None:
    solution = tree(tmp_path / "solution", pair=WHOLE, given=STRIPPED)
    (solution / "transformer/table.bin").write_bytes(b"\x00\r\n\xff")
    (solution / "transformer/__pycache__").mkdir()
    (solution / "transformer/__pycache__/x.pyc").write_bytes(b"\x00")
    release.build_starter(solution, tmp_path / "starter")
    found = {p.name: p.read_bytes() for p in (tmp_path / "starter").rglob("*") if p.is_file()}
    stripped = STRIPPED.encode()
    assert found == {"pair.py": stripped, "given.py": stripped, "table.bin": b"\x00\r\n\xff"}


def test_starter_drops_what_the_solution_no_longer_holds(tmp_path: Path) -> None:
    solution = tree(tmp_path / "solution", pair=WHOLE)
    starter = tree(tmp_path / "starter", old="X = 2\n")
    assert release.drift(solution, starter) == [
        "missing: transformer/pair.py",
        "not in the solution: transformer/old.py",
    ]
    release.build_starter(solution, starter)
    assert release.drift(solution, starter) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["solution", "starter"]


def test_starter_names_a_file_that_differs(tmp_path: Path) -> None:
    solution = tree(tmp_path / "solution", pair=WHOLE)
    starter = tree(tmp_path / "starter", pair=WHOLE)
    assert release.drift(solution, starter) == ["differs: transformer/pair.py"]


def test_refused_solution_leaves_the_starter_alone(tmp_path: Path) -> None:
    solution = tree(tmp_path / "solution", pair=WHOLE, twice=WHOLE)
    starter = tree(tmp_path / "starter", old="X = 2\n")
    with pytest.raises(release.ReleaseError, match=r"twice.py:14: task 2.3 is in .*pair.py"):
        release.build_starter(solution, starter)
    assert [p.name for p in starter.rglob("*.py")] == ["old.py"]


def test_starter_never_replaces_an_unrelated_folder(tmp_path: Path) -> None:
    solution = tree(tmp_path / "solution", pair=WHOLE)
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("years of work")
    with pytest.raises(release.ReleaseError, match="will not replace a folder"):
        release.build_starter(solution, home)
    assert (home / "thesis.txt").read_text() == "years of work"


def test_solution_without_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(release.ReleaseError, match="expected a folder holding transformer/"):
        release.starter_files(tmp_path)


def test_solution_with_a_link_is_refused(tmp_path: Path) -> None:
    solution = tree(tmp_path / "solution", pair=WHOLE)
    (solution / "transformer/link.py").symlink_to("pair.py")
    with pytest.raises(release.ReleaseError, match="link.py: expected a regular file"):
        release.starter_files(solution)
