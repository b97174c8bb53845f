"""What the package offers to whoever imports it."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import transformer

FOLDER = Path(transformer.__file__).resolve().parent


@pytest.mark.parametrize("name", transformer.__all__)
def test_every_public_name_is_that_of_its_file(name):
    home = importlib.import_module(f"transformer.{transformer._HOMES[name]}")
    assert getattr(transformer, name) is getattr(home, name)


def test_public_names_agree_with_what_type_checkers_are_told():
    tree = ast.parse((FOLDER / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    told = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert told == transformer._HOMES and set(told) == set(transformer.__all__)
    assert set(transformer.__all__) <= set(dir(transformer))
    assert (FOLDER / "py.typed").exists()


def test_unknown_name_is_named():
    with pytest.raises(AttributeError, match="no attribute 'Transfomer'"):
        _ = transformer.Transfomer


def test_a_file_is_imported_without_the_others():
    code = "import sys, transformer.masks; print([n for n in sys.modules if 'transformer.' in n])"
    words = [sys.executable, "-c", code]
    shown = subprocess.run(words, cwd=FOLDER.parent, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "['transformer.masks']"
