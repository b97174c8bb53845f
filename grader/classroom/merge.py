"""`--shard I/N` and `--merge`: one class graded by machines that need not know each other.

A shard grades its share into the store and records by what it graded. Merging looks every
submission up in the stores, by the inputs that the shards recorded, and grades nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from grader.base.files import replace_file
from grader.classroom.keys import Inputs, causes
from grader.classroom.store import BatchError, Output, check_mark, compact, read_object


def name_of(shard: tuple[int, int]) -> str:
    """Return a shard as part of a file's name."""
    return f"{shard[0]}-of-{shard[1]}"


def record(output: Output, shard: tuple[int, int], shared: Inputs) -> None:
    """Note by what a shard graded."""
    replace_file(output.folder / f"shard-{name_of(shard)}.json", compact(vars(shared)))


def recorded(output: Output, folders: Sequence[Path], own: Inputs) -> Inputs:
    """Return what the shards graded by, and let `output` look into their stores, too.

    Args:
        output: into which is merged.
        folders: further output folders of shards; none where they all wrote into `output`.
        own: what this process would grade by.

    Raises:
        BatchError: there is no shard, or they differ in more than the submissions.
    """
    found: dict[Path, Inputs] = {}
    for folder in (output.folder, *folders):
        check_mark(folder)
        for path in sorted(folder.glob("shard-*.json")):
            text = read_object(path)
            if text is None or text.keys() != vars(own).keys():
                raise BatchError(f"{path} cannot be read: run that shard again")
            found[path] = Inputs(**text)
    if not found:
        names = ", ".join(map(str, (output.folder, *folders)))
        raise BatchError(f"--merge found no shard in {names}: expected a run with --shard I/N")
    first, shared = next(iter(found.items()))
    for path, other in found.items():
        if other != shared:
            names = " and ".join(causes(vars(shared), vars(other)))
            raise BatchError(
                f"{first} and {path} were graded by different {names}: run one of them again"
            )
    output.others += [folder for folder in folders if folder != output.folder]
    return shared
