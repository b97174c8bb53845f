"""`lab.toml` as frozen dataclasses: read once, every value checked, nothing guessed.

The annotations below are the whole schema (`schema.py` applies it).
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal

from grader.schema import Pattern, Range, SchemaError, build

LAB_FILE = Path(__file__).resolve().parent.parent / "lab.toml"

Count = Annotated[int, Range(1)]
Positive = Annotated[float, Range(0, open_below=True)]
Share = Annotated[float, Range(0, 1)]
Points = Annotated[Fraction, Range(0, open_below=True)]
Text = Annotated[str, Pattern(r"\S(.*\S)?", "that is not blank")]
GateName = Annotated[str, Pattern(r"[a-z][a-z_]*", "such as future_independence")]
FileName = Annotated[str, Pattern(r"[a-z][a-z_]*\.py", "such as masks.py")]
Function = Annotated[str, Pattern(r"([A-Za-z]\w*\.)?[a-z_]\w*", "naming a function or method")]


class SettingsError(ValueError):
    """A lab.toml that cannot be used; the message names key, what was expected and what came."""


@dataclass(frozen=True)
class Model:
    """The lab's sizes: fields of `transformer.config.ModelConfig`."""

    vocab_size: Annotated[int, Range(4)]
    d_model: Count
    num_heads: Count
    num_layers: Count
    d_ff: Count


@dataclass(frozen=True)
class Data:
    """What the lab's model learns, on sequences of `min_length` to `max_length` ids."""

    task: Literal["reverse", "copy"]
    min_length: Count
    max_length: Count


@dataclass(frozen=True)
class Recipe:
    """Budget and optimiser: fields of `transformer.config.TrainingRecipe`."""

    steps: Count
    batch_size: Count
    learning_rate: Positive
    warmup_fraction: Share
    decay_power: Annotated[float, Range(0)]
    weight_decay: Annotated[float, Range(0)]
    clip_norm: Positive
    betas: tuple[Share, Share]


@dataclass(frozen=True)
class Parts:
    """How near a part must come to the oracle, in float64."""

    absolute_tolerance: Positive
    relative_tolerance: Positive


@dataclass(frozen=True)
class Invariance:
    """Gates 1 and 2: how little a logit may move, and what is tried."""

    tolerance: Positive
    tolerance_float32: Positive
    weight_draws: Count
    sharpened_score: Positive
    num_layers: tuple[Count, ...]


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
    """The larger size, and the free-running exact match wanted there on every task."""

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

    id: Annotated[str, Pattern(r"[1-6]\.[1-9]", "such as 2.1")]
    file: FileName
    functions: tuple[Function, ...]
    gate: Annotated[int, Range(1, 4)]
    points: Points

    @property
    def task(self) -> str:
        """Return the task it belongs to: "2" of "2.1"."""
        return self.id.split(".")[0]


@dataclass(frozen=True)
class StretchStub:
    """One piece of optional work, scored apart."""

    id: Annotated[str, Pattern(r"S[1-9]", "such as S1")]
    file: FileName
    functions: tuple[Function, ...]
    points: Points


@dataclass(frozen=True)
class GivenCode:
    """One piece of given code, checked where given files are graded as submitted."""

    id: Annotated[str, Pattern(r"G[1-9]", "such as G1")]
    file: FileName
    functions: tuple[Function, ...]


@dataclass(frozen=True)
class PointsTable:
    """Who earns what; required stubs and gates add up to `maximum`."""

    maximum: Points
    gate: Points
    gates: tuple[GateName, ...]
    stubs: tuple[Stub, ...]
    stretch: tuple[StretchStub, ...]
    given: tuple[GivenCode, ...]


@dataclass(frozen=True)
class Settings:
    """All of lab.toml."""

    name: Text
    given: Literal["original", "submitted"]
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


def checked_given(lab: Settings) -> list[GivenCode]:
    """Return the given code that is graded as it was sent.

    A file with a stretch task in it is the student's, whatever is done with the others.
    """
    theirs = {stub.file for stub in lab.points.stretch}
    return [c for c in lab.points.given if lab.given == "submitted" or c.file in theirs]


def enlarged(lab: Settings, task: Literal["reverse", "copy"]) -> Settings:
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
        table = tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
        settings = build(Settings, table, path.name)
        _check(settings, path.name)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path}: expected a TOML file, got: {error}") from None
    except SchemaError as error:
        raise SettingsError(str(error)) from None
    salt = environment.get("GRADER_SALT", "").strip()
    return replace(settings, salt=salt) if salt else settings


def _check(settings: Settings, file: str) -> None:
    """Check what no single value shows."""
    data, model, points = settings.data, settings.model, settings.points
    if data.max_length < data.min_length:
        words = f"at least min_length = {data.min_length}"
        raise SchemaError(f"{file}.data.max_length", words, data.max_length)
    accuracy = settings.accuracy
    if accuracy.near_miss > accuracy.exact_match:
        words = f"at most exact_match = {accuracy.exact_match:g}"
        raise SchemaError(f"{file}.accuracy.near_miss", words, accuracy.near_miss)
    if accuracy.look_exact_match < accuracy.exact_match:
        words = f"at least exact_match = {accuracy.exact_match:g}"
        raise SchemaError(f"{file}.accuracy.look_exact_match", words, accuracy.look_exact_match)
    if model.d_model % model.num_heads:
        words = f"a multiple of num_heads = {model.num_heads}"
        raise SchemaError(f"{file}.model.d_model", words, model.d_model)
    if len(set(points.gates)) != 4 or len(points.gates) != 4:
        words = "four different names"
        raise SchemaError(f"{file}.points.gates", words, list(points.gates))
    ids = [stub.id for stub in points.stubs] + [stub.id for stub in points.stretch]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise SchemaError(f"{file}.points", "every id once", twice[0])
    files: dict[str, str] = {}
    for stub in points.stubs:
        if files.setdefault(stub.task, stub.file) != stub.file:
            words = f"{files[stub.task]}, the file of task {stub.task}"
            raise SchemaError(f"{file}.points.stubs {stub.id}", words, stub.file)
    total = sum((stub.points for stub in points.stubs), points.gate * len(points.gates))
    if total != points.maximum:
        words = f"the sum of stubs and gates, {total}"
        raise SchemaError(f"{file}.points.maximum", words, points.maximum)
