"""What may be handed in, and what is taken of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from made_submissions import LAB, SMALL, STRETCH, TASKS, TREE, lay, noted, tarred, zipped

from grader.base import settings
from grader.intake import staging
from grader.intake.staging import IntakeError, Staged

Stage = Callable[..., Staged]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    def run(path: Path, lab: settings.Settings = LAB) -> Staged:
        return staging.stage(path, tmp_path / "staged", lab)

    return run


@pytest.mark.parametrize("prefix", ["", "work/", "class/work/"])
@pytest.mark.parametrize("kind", ["folder", "a.zip", "a.tar", "a.tar.gz", "a.tgz"])
def test_tree_is_found_two_folders_deep_in_anything(
    kind: str, prefix: str, stage: Stage, tmp_path: Path
) -> None:
    files = {prefix + name: text for name, text in TREE.items()}
    make = {"folder": lay, "a.zip": zipped}.get(kind, tarred)
    staged = stage(make(tmp_path / kind, files))
    assert {name: content.decode() for name, content in staged.files.items()} == TREE
    assert {p.name: p.read_text() for p in staged.root.glob("transformer/*")} == {
        name.removeprefix("transformer/"): text for name, text in TREE.items()
    }
    assert (staged.notes, set(staged.missing)) == ([], STRETCH)
    assert staged.name == {"folder": "folder"}.get(kind, "a")


def test_package_folder_itself_may_be_named(stage: Stage, tmp_path: Path) -> None:
    staged = stage(lay(tmp_path / "x", TREE) / "transformer")
    assert (sorted(staged.files), staged.notes) == (sorted(TREE), [])


def test_loose_files_are_read_as_the_package(stage: Stage, tmp_path: Path) -> None:
    loose = {name.removeprefix("transformer/"): text for name, text in TREE.items()}
    staged = stage(zipped(tmp_path / "a.zip", loose | {"notes.txt": "", "sub/other.py": ""}))
    assert sorted(staged.files) == sorted(TREE)
    assert staged.notes == ["the files lay loose: they were read as the package transformer"]


def test_key_depends_on_names_and_bytes_alone(stage: Stage, tmp_path: Path) -> None:
    first = stage(lay(tmp_path / "x", TREE)).sha256
    backwards = dict(reversed(TREE.items()))
    assert (
        stage(zipped(tmp_path / "y.zip", {f"w/{n}": t for n, t in backwards.items()})).sha256
        == first
    )
    moved = TREE | {"transformer/masks.py": "", "transformer/residual.py": "# masks.py\n"}
    assert stage(lay(tmp_path / "z", moved)).sha256 != first


def test_staged_files_are_readable_by_all_and_writable_by_none(
    stage: Stage, tmp_path: Path
) -> None:
    source = lay(tmp_path / "x", TREE)
    (source / "transformer/masks.py").chmod(0o600)
    before = os.umask(0o077)
    try:
        staged = stage(source)
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(p.stat().st_mode) for p in staged.root.rglob("*.py")}
    folders = {stat.S_IMODE(p.stat().st_mode) for p in (staged.root, staged.root / "transformer")}
    assert (modes, folders) == ({0o444}, {0o755})


JUNK = {
    "__MACOSX/transformer/._masks.py": "x",
    "transformer/.DS_Store": "x",
    "transformer/._masks.py": "x",
    "transformer/__pycache__/masks.cpython-311.pyc": "x",
    "transformer/.ipynb_checkpoints/masks.py": "x",
    ".git/hooks/pre-commit": "x",
    "venv/lib/transformer/masks.py": "x",
}


@pytest.mark.parametrize("make", [lay, zipped, tarred])
def test_what_systems_leave_behind_is_passed_over(
    make: Callable[[Path, Mapping[str, str]], Path], stage: Stage, tmp_path: Path
) -> None:
    staged = stage(make(tmp_path / "x", TREE | JUNK))
    assert (sorted(staged.files), staged.notes) == (sorted(TREE), [])


def test_byte_order_mark_and_line_ends_are_kept_and_not_noted(stage: Stage, tmp_path: Path) -> None:
    content = b"\xef\xbb\xbfx = 1\r\n"
    staged = stage(lay(tmp_path / "x", TREE | {"transformer/masks.py": content}))
    assert (staged.files["transformer/masks.py"], staged.notes) == (content, [])


def test_windows_separators_are_separators(stage: Stage, tmp_path: Path) -> None:
    files = {name.replace("/", "\\"): text for name, text in TREE.items()}
    assert sorted(stage(zipped(tmp_path / "a.zip", files)).files) == sorted(TREE)


def test_own_modules_inside_the_package_are_kept(stage: Stage, tmp_path: Path) -> None:
    more = {
        "transformer/tools.py": "",
        "transformer/deep/__init__.py": "",
        "transformer/deep/x.py": "",
    }
    staged = stage(lay(tmp_path / "x", TREE | more))
    assert (sorted(staged.files), staged.notes) == (sorted(TREE | more), [])


def test_notes_say_what_was_left_out(stage: Stage, tmp_path: Path) -> None:
    more = {
        "transformer/weights.pt": "x",
        "transformer/fast.so": "x",
        "torch.py": "",
        "conftest.py": "",
        "README.md": "",
    }
    staged = stage(zipped(tmp_path / "a.zip", TREE | more))
    assert sorted(staged.files) == sorted(TREE)
    assert staged.weights == ("transformer/weights.pt",)
    assert staged.notes == [
        "only .py files are graded; left out: transformer/fast.so, transformer/weights.pt",
        "left out, because it lies beside the package, where it cannot stand in for the module "
        "of that name: torch.py",
        "outside transformer/ and not graded (move in what is needed): conftest.py",
    ]


def test_nearer_tree_is_taken(stage: Stage, tmp_path: Path) -> None:
    old = {f"old/{name}": "# old\n" for name in TREE}
    assert stage(lay(tmp_path / "x", TREE | old)).files["transformer/masks.py"] == b"# masks.py\n"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("attention(1).py", "did the browser or a program rename it?"),
        ("attention (2).py", "did the browser or a program rename it?"),
        ("attention-1.py", "did the browser or a program rename it?"),
        ("Attention.py", "did the browser or a program rename it?"),
        ("attention.py.txt", "did the browser or a program rename it?"),
        ("Copy of attention.py", "did the browser or a program rename it?"),
        ("attetnion.py", "is that it, misspelt?"),
    ],
)
def test_missing_file_names_what_was_found_instead(
    name: str, found: str, stage: Stage, tmp_path: Path
) -> None:
    files = {n: t for n, t in TREE.items() if n != "transformer/attention.py"}
    staged = stage(lay(tmp_path / "x", files | {f"transformer/{name}": ""}))
    sentence = f"attention.py is missing; found {name}: {found}"
    assert {n: s for n, s in staged.missing.items() if n in TASKS} == {"attention.py": sentence}


def test_missing_file_without_a_likeness_is_named_alone(stage: Stage, tmp_path: Path) -> None:
    staged = stage(lay(tmp_path / "x", {"transformer/masks.py": "", "transformer/config.py": ""}))
    assert sorted(staged.missing) == sorted({*TASKS, *STRETCH} - {"masks.py"})
    assert staged.missing["decoder.py"] == "decoder.py is missing"


def test_utf16_is_noted(stage: Stage, tmp_path: Path) -> None:
    files = TREE | {"transformer/masks.py": "x = 1\n".encode("utf-16")}
    expected = "saved as UTF-16, which Python cannot read; save as UTF-8: transformer/masks.py"
    assert stage(lay(tmp_path / "x", files)).notes == [expected]


# Notebooks ---------------------------------------------------------------------------------------


def test_notebook_cells_that_write_files_are_read_and_never_run(
    stage: Stage, tmp_path: Path
) -> None:
    cells = [
        "import os; os.abort()",
        "%%writefile transformer/masks.py\nfirst = 1",
        "%%writefile transformer/masks.py\nx = 2",
        "\n%%writefile -a 'transformer/masks.py'\ny = 3",
        "%%file transformer/attention.py\nz = 5",
        "%%writefile /etc/evil.py\nx",
    ]
    staged = stage(noted(tmp_path / "work.ipynb", cells))
    assert staged.files == {
        "transformer/attention.py": b"z = 5\n",
        "transformer/masks.py": b"x = 2\ny = 3\n",
    }
    assert staged.notes == ["left out, because the path leads outside the submission: /etc/evil.py"]
    assert staged.name == "work"


# Given files -------------------------------------------------------------------------------------


def test_given_files_are_replaced_and_real_changes_noted(stage: Stage, tmp_path: Path) -> None:
    given = {
        "transformer/__init__.py": "",
        "transformer/config.py": "x = 1\ny = 2\n",
        "transformer/norms.py": "n = 1\n",
        "transformer/data.py": "d = 1\n",
        "transformer/convert.py": "c = 1\n",
    }
    solved = dict.fromkeys([*TREE, "transformer/rotary.py"], "# solution\n")
    original = lay(tmp_path / "solution", given | solved)
    mine = TREE | {
        "transformer/rotary.py": "p = 1\n",
        "transformer/config.py": "\ufeffx = 1  \r\ny = 2",
        "transformer/norms.py": "n = 7\n",
        "transformer/norms/__init__.py": "n = 11\n",
        "transformer/own.py": "o = 1\n",
    }
    before = stage(lay(tmp_path / "x", mine))
    after = staging.overlay_given(before, original)
    assert after.notes == [
        "changes to given files were not used, the handout's own were graded: transformer/norms.py",
        "given files that were missing were added: transformer/__init__.py, "
        "transformer/convert.py, transformer/data.py",
        "files that would hide a given file were left out: transformer/norms/__init__.py",
    ]
    kept = {n: t for n, t in (mine | given).items() if n != "transformer/norms/__init__.py"}
    expected = {name: text.encode() for name, text in kept.items()}
    found = {p.relative_to(after.root).as_posix(): p.read_bytes() for p in after.root.rglob("*.py")}
    assert found == after.files == expected
    assert after.given == frozenset(given)
    assert after.sha256 == before.sha256


@pytest.mark.parametrize("outer", ["folder", "a.zip", "a.tar.gz"])
@pytest.mark.parametrize(
    "name", ["Lab.ZIP", "work/lab.tar.gz", "a/b/lab.zip", "lab.ipynb", "./lab.zip"]
)
def test_archive_within_is_opened_where_it_stands_alone(
    outer: str, name: str, stage: Stage, tmp_path: Path
) -> None:
    made = tmp_path / name.rsplit("/")[-1].lower()
    if made.suffix == ".ipynb":
        inner = noted(made, [f"%%writefile {path}\n{text}" for path, text in TREE.items()])
    else:
        inner = {".zip": zipped}.get(made.suffix, tarred)(made, TREE)
    files: dict[str, str | bytes] = {
        name: inner.read_bytes(), "readme.txt": "hi", "__MACOSX/._lab.zip": "", ".b.zip": "",
    }  # fmt: skip
    make = {"folder": lay, "a.zip": zipped}.get(outer, tarred)
    staged = stage(make(tmp_path / outer, files))
    assert {path: content.decode().strip() for path, content in staged.files.items()} == {
        path: text.strip() for path, text in TREE.items()
    }
    shown = name.removeprefix("./")
    assert staged.notes[0] == f"an archive within was opened: {shown}"


def test_archive_beside_code_is_left_shut(stage: Stage, tmp_path: Path) -> None:
    inner = zipped(tmp_path / "old.zip", {n: f"{t}# old" for n, t in TREE.items()}).read_bytes()
    staged = stage(zipped(tmp_path / "a.zip", {**TREE, "old.zip": inner}))
    assert {name: content.decode() for name, content in staged.files.items()} == TREE
    assert not any("opened" in note for note in staged.notes)


def test_archives_within_are_opened_one_deep_and_only_if_alone(
    stage: Stage, tmp_path: Path
) -> None:
    tree = zipped(tmp_path / "tree.zip", TREE).read_bytes()
    twice = zipped(tmp_path / "twice.zip", {"tree.zip": tree}).read_bytes()
    for files, found in (({"twice.zip": twice}, "tree.zip"), ({"a.zip": tree, "b.zip": tree}, "a")):
        with pytest.raises(IntakeError, match=f"does not look like this lab.* found {found}"):
            stage(zipped(tmp_path / "outer.zip", files))
    with pytest.raises(IntakeError, match=r"outer\.zip/lab\.zip is a RAR archive"):
        stage(zipped(tmp_path / "outer.zip", {"lab.zip": b"Rar!\x1a\x07\x00"}))
    with pytest.raises(IntakeError, match="one archive, which has no proper name"):
        stage(zipped(tmp_path / "outer.zip", {"/lab.zip": tree}))
    with pytest.raises(IntakeError, match="is larger than"):
        stage(zipped(tmp_path / "outer.zip", {"lab.zip": bytes(200_000)}), SMALL)
