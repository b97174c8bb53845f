"""`lab.toml` as frozen dataclasses: read once, every value checked, nothing guessed.

The annotations below are the whole schema; msgspec applies it.
"""

from __future__ import annotations

import datetime
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from grader.base.places import LAB_FILE
from grader.base.sequence_tasks import TASKS

FINITE = sys.float_info.max

Count = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[float, Meta(ge=0, le=FINITE)]
Positive = Annotated[float, Meta(gt=0, le=FINITE)]
Share = Annotated[float, Meta(ge=0, le=1)]
Text = Annotated[str, Meta(pattern=r"^\S(.*\S)?$")]
GateName = Annotated[str, Meta(pattern=r"^[a-z][a-z_]*$")]
FileName = Annotated[str, Meta(pattern=r"^[a-z][a-z_]*\.py$")]
Function = Annotated[str, Meta(pattern=r"^([A-Za-z]\w*\.)?[a-z_]\w*$")]
# Python's words for the types of a TOML file, in its own.
TOML_WORDS = {
    "`object`": "a table", "`array`": "a list", "`str`": "a text", "`int`": "an integer",
    "`float`": "a number", "`bool`": "true or false",
}  # fmt: skip


class SettingsError(ValueError):
    """A lab.toml that cannot be used; the message names key, what was expected and what came."""


@dataclass(frozen=True)
class Model:
    """The lab's sizes: fields of `transformer.config.ModelConfig`."""

    vocab_size: Annotated[int, Meta(ge=4)]
    d_model: Count
    num_heads: Count
    num_layers: Count
    d_ff: Count


@dataclass(frozen=True)
class Data:
    """What the lab's model learns, on sequences of `min_length` to `max_length` ids."""

    task: Text
    min_length: Count
    max_length: Count


@dataclass(frozen=True)
class Recipe:
    """Budget and optimiser: fields of `transformer.config.TrainingRecipe`."""

    steps: Count
    batch_size: Count
    learning_rate: Positive
    warmup_fraction: Share
    decay_power: NotNegative
    weight_decay: NotNegative
    clip_norm: Positive
    betas: tuple[Share, Share]


@dataclass(frozen=True)
class Parts:
    """How near a part must come to the oracle, absolutely and relatively alike."""

    tolerance: Positive
    tolerance_float32: Positive


@dataclass(frozen=True)
class Invariance:
    """Gates 1 and 2: how little a logit may move, and what is tried."""

    tolerance: Positive
    tolerance_float32: Positive
    weight_draws: Count
    sharpened_score: Positive
    num_layers: Annotated[tuple[Count, ...], Meta(min_length=1)]


@dataclass(frozen=True)
class Gradients:
    """Gate 3: the finite difference, and when an all-zero gradient counts."""

    step: Positive
    relative_tolerance: Positive
    absolute_tolerance: Positive
    steps_until_zero_counts: Count


@dataclass(frozen=True)
class Accuracy:
    """Gate 4: the free-running exact match wanted, and what the controls may reach.

    An exact match from `near_miss` up to the one wanted is trained again from another seed, until
    there were `attempts`; the best one counts. From step `look_from` on, every `look_every` steps,
    a training ends if the model answers `look_exact_match` of `look_rows` other rows.
    """

    exact_match: Share
    near_miss: Share
    attempts: Count
    held_out_rows: Count
    control_exact_match: Share
    time_factor_flag: Positive
    look_from: Count
    look_every: Count
    look_rows: Count
    look_exact_match: Share


@dataclass(frozen=True)
class Scale:
    """The larger size, the exact match wanted there on every task, and the gates that train it."""

    gates: tuple[GateName, ...]
    d_model: Count
    num_layers: Count
    d_ff: Count
    min_length: Count
    max_length: Count
    steps: Count
    learning_rate: Positive
    exact_match: Share


@dataclass(frozen=True)
class Limits:
    """What a worker may use before it is ended: seconds (`_s`) and MiB (`_mib`)."""

    import_s: Positive
    question_s: Positive
    step_s: Positive
    training_s: Positive
    check_s: Positive
    memory_mib: Count
    address_space_mib: Count
    reply_mib: Count
    written_file_mib: Count


@dataclass(frozen=True)
class Staging:
    """What a submission may hold, counted while it is read."""

    max_files: Count
    max_file_kib: Count
    max_total_kib: Count
    max_archive_entries: Count
    max_path_bytes: Count


@dataclass(frozen=True)
class Stub:
    """One piece of required work: task id, place, the first gate that judges it, points."""

    id: Annotated[str, Meta(pattern=r"^[1-9]\d*\.[1-9]\d*$")]
    file: FileName
    functions: Annotated[tuple[Function, ...], Meta(min_length=1)]
    gate: Count
    points: Fraction

    @property
    def task(self) -> str:
        """Return the task it belongs to: "2" of "2.1"."""
        return self.id.split(".")[0]


@dataclass(frozen=True)
class StretchStub:
    """One piece of optional work, scored apart."""

    id: Annotated[str, Meta(pattern=r"^S[1-9]\d*$")]
    file: FileName
    functions: Annotated[tuple[Function, ...], Meta(min_length=1)]
    points: Fraction


@dataclass(frozen=True)
class PointsTable:
    """Who earns what; required stubs and gates add up to `maximum`.

    The order of the file is the order of the tasks and of the gates.
    """

    maximum: Fraction
    gate: Fraction
    gates: tuple[GateName, ...]
    stubs: tuple[Stub, ...]
    stretch: tuple[StretchStub, ...]

    @cached_property
    def files(self) -> dict[str, str]:
        """The file of every required task: "attention.py" of "2"."""
        return {stub.task: stub.file for stub in self.stubs}

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The id of every stub, those of stretch tasks last."""
        return (*(stub.id for stub in self.stubs), *(stub.id for stub in self.stretch))


@dataclass(frozen=True)
class Late:
    """What lateness costs; times of the platform without a zone are taken as the deadline's.

    Attributes:
        deadline: a date and time.
        grace_minutes: after it that cost nothing.
        penalty_per_day: share of the score for each day that has begun.
        most: share of the score that is taken off at most.
        extensions: days more, by student: an id, login, address or folder's name.
    """

    deadline: datetime.datetime
    grace_minutes: NotNegative = 0.0
    penalty_per_day: Share = 0.1
    most: Share = 1.0
    extensions: dict[str, NotNegative] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """All of lab.toml."""

    name: Text
    salt: Text
    model: Model
    data: Data
    recipe: Recipe
    parts: Parts
    invariance: Invariance
    gradients: Gradients
    accuracy: Accuracy
    scale: Scale
    limits: Limits
    staging: Staging
    points: PointsTable
    late: Late | None = None


def enlarged(lab: Settings, task: str) -> Settings:
    """Return the settings of the larger size, on one task."""
    larger = lab.scale
    sizes = {name: getattr(larger, name) for name in ("d_model", "num_layers", "d_ff")}
    return replace(
        lab,
        model=replace(lab.model, **sizes),
        data=Data(task, larger.min_length, larger.max_length),
        recipe=replace(lab.recipe, steps=larger.steps, learning_rate=larger.learning_rate),
        # So many rows are wanted there that a look has to see no mistake.
        accuracy=replace(lab.accuracy, exact_match=larger.exact_match, look_exact_match=1.0),
    )


@cache
def shipped() -> Settings:
    """Return the settings of the lab.toml beside this grader, for who is handed no settings."""
    return load()


def task_files() -> dict[str, str]:
    """Return the task of every file that holds required work, by its name without `.py`."""
    return {file.removesuffix(".py"): task for task, file in shipped().points.files.items()}


def load(path: Path = LAB_FILE, environment: Mapping[str, str] = os.environ) -> Settings:
    """Read `path` and check every value in it.

    Args:
        path: The settings file.
        environment: Where GRADER_SALT, if set and not blank, replaces the file's salt.

    Raises:
        SettingsError: The file cannot be read or is no TOML, a key is missing, unknown or out of
            bounds, or values contradict one another.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path}: expected a TOML file, got: {error}") from None
    try:
        settings = msgspec.convert(table, Settings, dec_hook=_exact)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{path.name}{_explained(error, table)}") from None
    _refuse_unknown(table, msgspec.to_builtins(settings, enc_hook=str), path.name)
    _refuse_contradiction(settings, path.name)
    salt = environment.get("GRADER_SALT", "").strip()
    return replace(settings, salt=salt) if salt else settings


def _exact(kind: type, value: Any) -> Fraction:
    """Return points as the exact number that the file shows: 1.7 is 17/10."""
    if type(value) not in (int, float) or not 0 < value <= FINITE:
        raise ValueError("Expected a number > 0")
    return Fraction(str(value))


def _explained(error: msgspec.ValidationError, table: Any) -> str:
    """Return the key, what was expected and what came, as the file would write them."""
    said, _, place = str(error).partition(" - at `$")
    key = place.removesuffix("`")
    if said.startswith("Object"):
        return f"{key}: {said.removeprefix('Object ')}"
    for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", key):
        table = table[name] if name else table[int(index)]
    expected = said.split(", got ")[0].removeprefix("Expected ").replace("\\\\", "\\")
    for ours, word in TOML_WORDS.items():
        expected = expected.replace(ours, word)
    return f"{key}: expected {expected}, got {table!r}"


def _refuse_unknown(came: Any, read: Any, key: str) -> None:
    """Refuse a key that nothing has read."""
    if isinstance(came, dict):
        for name, value in came.items():
            if name not in read:
                words = f"only the keys {', '.join(read)}"
                raise SettingsError(f"{key}: expected {words}, got {name!r}")
            _refuse_unknown(value, read[name], f"{key}.{name}")
    elif isinstance(came, list):
        for i, (value, own) in enumerate(zip(came, read, strict=True)):
            _refuse_unknown(value, own, f"{key}[{i}]")


def _refuse_contradiction(lab: Settings, file: str) -> None:
    """Refuse what no single value shows."""
    data, model, points, accuracy = lab.data, lab.model, lab.points, lab.accuracy
    gates, ids = [*points.gates, *lab.scale.gates], points.ids
    twice = sorted({name for name in ids if ids.count(name) > 1})
    total = sum((stub.points for stub in points.stubs), points.gate * len(points.gates))
    rules: list[tuple[bool, str, str, object]] = [
        (data.max_length >= data.min_length,
         "data.max_length", f"at least min_length = {data.min_length}", data.max_length),
        (accuracy.near_miss <= accuracy.exact_match,
         "accuracy.near_miss", f"at most exact_match = {accuracy.exact_match:g}",
         accuracy.near_miss),
        (accuracy.look_exact_match >= accuracy.exact_match,
         "accuracy.look_exact_match", f"at least exact_match = {accuracy.exact_match:g}",
         accuracy.look_exact_match),
        (model.d_model % model.num_heads == 0,
         "model.d_model", f"a multiple of num_heads = {model.num_heads}", model.d_model),
        (data.task in TASKS, "data.task", f"one of {', '.join(TASKS)}", repr(data.task)),
        (len(points.gates) == len(set(points.gates)) > 0,
         "points.gates", "different names, at least one", list(points.gates)),
        (len(gates) == len(set(gates)),
         "scale.gates", "names that no other gate has", list(lab.scale.gates)),
        (not twice, "points", "every id once", "".join(map(repr, twice[:1]))),
        (total == points.maximum,
         "points.maximum", f"the sum of stubs and gates, {total}", points.maximum),
    ]  # fmt: skip
    files: dict[str, str] = {}
    for stub in points.stubs:
        own = files.setdefault(stub.task, stub.file)
        words = f"{own}, the file of task {stub.task}"
        rules.append((own == stub.file, f"points.stubs {stub.id}", words, repr(stub.file)))
        words = f"the number of a gate, at most {len(points.gates)}"
        rules.append((stub.gate <= len(points.gates), f"points.stubs {stub.id}", words, stub.gate))
    for holds, key, expected, got in rules:
        if not holds:
            raise SettingsError(f"{file}.{key}: expected {expected}, got {got}")
