"""`lab.toml` is read whole, and every value that cannot be is refused by name."""

from __future__ import annotations

from dataclasses import asdict
from fractions import Fraction
from pathlib import Path

import pytest

from grader.base import settings
from transformer import config

LAB = settings.load()
TEXT = settings.LAB_FILE.read_text(encoding="utf-8")


def changed(folder: Path, old: str, new: str) -> Path:
    """Write lab.toml with one text replaced."""
    assert TEXT.count(old) == 1, old
    path = folder / "lab.toml"
    path.write_text(TEXT.replace(old, new), encoding="utf-8")
    return path


def test_recipe_is_the_packages() -> None:
    assert asdict(settings.load().recipe) == asdict(config.LAB_RECIPE)


def test_sizes_are_the_packages() -> None:
    sizes = asdict(settings.load().model)
    assert sizes == {name: getattr(config.LAB, name) for name in sizes}


def test_points_of_each_task_are_the_design() -> None:
    tasks: dict[str, Fraction] = {}
    for stub in settings.load().points.stubs:
        tasks[stub.task] = tasks.get(stub.task, Fraction(0)) + stub.points
    assert tasks == {"1": 6, "2": 8, "3": 4, "4": 7, "5": 7, "6": 8}


def test_points_add_up_to_the_maximum() -> None:
    points = settings.load().points
    parts = sum((stub.points for stub in points.stubs), Fraction(0))
    assert (parts, points.gate * 4, points.maximum) == (40, 60, 100)


def test_points_are_exact(tmp_path: Path) -> None:
    path = changed(tmp_path, '["padding_mask"], gate = 2, points = 2',
                   '["padding_mask"], gate = 2, points = 1.7')  # fmt: skip
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('sk"], gate = 1, points = 2', 'sk"], gate = 1, points = 2.3'))
    stubs = settings.load(path).points.stubs
    assert [stub.points for stub in stubs[:2]] == [Fraction(17, 10), Fraction(23, 10)]


def test_salt_comes_from_the_environment_first() -> None:
    assert settings.load(environment={"GRADER_SALT": " pepper "}).salt == "pepper"
    assert settings.load(environment={"GRADER_SALT": " "}).salt == "transformer-lab"
    assert settings.load(environment={}).salt == "transformer-lab"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('task = "reverse"', 'task = "sort"',
         "lab.toml.data.task: expected one of copy, reverse, got 'sort'"),
        ("\nsteps = 300", "\nsteps = 0",
         "lab.toml.recipe.steps: expected an integer >= 1, got 0"),
        ("\nsteps = 300", "\nsteps = 3e2",
         "lab.toml.recipe.steps: expected an integer, got 300.0"),
        ("\nsteps = 300", "\nsteps = true",
         "lab.toml.recipe.steps: expected an integer, got True"),
        ("\nsteps = 300", "",
         "lab.toml.recipe: missing required field `steps`"),
        ("\nsteps = 300", "\nsteps = 300\npace = 2",
         "lab.toml.recipe: expected only the keys steps, batch_size, learning_rate, "
         "warmup_fraction, decay_power, weight_decay, clip_norm, betas, got 'pace'"),
        ("maximum = 100", 'maximum = "all"',
         "lab.toml.points.maximum: expected a number > 0, got 'all'"),
        ("maximum = 100", "maximum = 0",
         "lab.toml.points.maximum: expected a number > 0, got 0"),
        ('gate = 2, points = 2 },\n    { id = "1.2"', 'points = 2 },\n    { id = "1.2"',
         "lab.toml.points.stubs[0]: missing required field `gate`"),
        ("points = 5 },\n]", "points = 5, gate = 1 },\n]",
         "lab.toml.points.stretch[3]: expected only the keys id, file, functions, points, "
         "got 'gate'"),
        ("learning_rate = 2e-2", "learning_rate = nan",
         "lab.toml.recipe.learning_rate: expected a number > 0.0, got nan"),
        ("learning_rate = 2e-2", "learning_rate = inf",
         "lab.toml.recipe.learning_rate: expected a number <= 1.7976931348623157e+308, got inf"),
        ("betas = [0.8, 0.99]", "betas = [0.8]",
         "lab.toml.recipe.betas: expected a list of length 2, got [0.8]"),
        ("betas = [0.8, 0.99]", "betas = [0.8, 1.5]",
         "lab.toml.recipe.betas[1]: expected a number <= 1.0, got 1.5"),
        (f"\nexact_match = {LAB.accuracy.exact_match}", '\nexact_match = "most"',
         'lab.toml.accuracy.exact_match: expected a number, got \'most\''),
        ("num_layers = [1, 2]", "num_layers = []",
         "lab.toml.invariance.num_layers: expected a list of length >= 1, got []"),
        ("max_length = 7", "max_length = 2",
         "lab.toml.data.max_length: expected at least min_length = 3, got 2"),
        ("d_model = 32", "d_model = 30",
         "lab.toml.model.d_model: expected a multiple of num_heads = 4, got 30"),
        ("maximum = 100", "maximum = 101",
         'lab.toml.points.maximum: expected the sum of stubs and gates, 100, got 101'),
        ('id = "1.2"', 'id = "1.1"', 'lab.toml.points: expected every id once, got \'1.1\''),
        ('id = "1.2"', 'id = "1.0"',
         'lab.toml.points.stubs[1].id: expected a text matching regex '
         '\'^[1-9]\\d*\\.[1-9]\\d*$\', got \'1.0\''),
        ('id = "6.4", file = "training.py", functions = ["train"], gate = 4',
         'id = "6.4", file = "training.py", functions = ["train"], gate = 5',
         'lab.toml.points.stubs 6.4: expected the number of a gate, at most 4, got 5'),
        ('id = "1.2", file = "masks.py"', 'id = "1.2", file = "mask.py"',
         'lab.toml.points.stubs 1.2: expected masks.py, the file of task 1, got \'mask.py\''),
        ('"scale_reverse", ', '"scale_copy", ',
         "lab.toml.scale.gates: expected names that no other gate has, got "
         "['scale_copy', 'scale_copy']"),
    ],
)  # fmt: skip
def test_impossible_value_is_refused_by_name(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    with pytest.raises(settings.SettingsError) as caught:
        settings.load(changed(tmp_path, old, new))
    assert str(caught.value) == message


def test_table_that_is_no_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text('name = "x"\nsalt = "y"\nmodel = 5\n')
    with pytest.raises(settings.SettingsError, match="lab.toml.model: expected a table, got 5"):
        settings.load(path)


def test_file_that_is_no_toml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text("steps: 300\n")
    with pytest.raises(settings.SettingsError, match="lab.toml: expected a TOML file, got: "):
        settings.load(path)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(settings.SettingsError, match="absent.toml: expected a TOML file, got: "):
        settings.load(tmp_path / "absent.toml")
