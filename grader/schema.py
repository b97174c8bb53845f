"""Plain tables to frozen dataclasses: the annotations are the schema, and every value is checked.

A field's annotation may be `int`, `float`, `bool`, `str`, `Fraction`, a `Literal` of texts, a
dataclass, a tuple of one of these or a `dict` from texts to them, `Annotated` with a `Range` or a
`Pattern`, and `| None`. A field with a default may be left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from decimal import Decimal
from fractions import Fraction
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class SchemaError(ValueError):
    """A table that does not fit; the message names key, what was expected and what came."""

    def __init__(self, key: str, expected: str, got: Any) -> None:
        """Say what `key` should have been."""
        super().__init__(f"{key}: expected {expected}, got {_shown(got)}")


@dataclass(frozen=True)
class Range:
    """Bounds of a number; `high` is included, `low` is unless `open_below`."""

    low: float
    high: float = float("inf")
    open_below: bool = False

    def holds(self, value: Any) -> bool:
        """Tell whether `value` lies within."""
        above = value > self.low if self.open_below else value >= self.low
        return bool(above and value <= self.high)

    def __str__(self) -> str:
        lower = f"{'>' if self.open_below else '>='} {self.low:g}"
        return lower if self.high == float("inf") else f"{lower} and <= {self.high:g}"


@dataclass(frozen=True)
class Pattern:
    """The form of a text, and the words for it."""

    expression: str
    words: str

    def holds(self, value: Any) -> bool:
        """Tell whether the whole of `value` has this form."""
        return re.fullmatch(self.expression, value) is not None

    def __str__(self) -> str:
        return self.words


def build(kind: type[T], table: Any, key: str) -> T:
    """Build the dataclass `kind` from `table`.

    Args:
        kind: A dataclass whose annotations are the schema.
        table: Its fields by name, numbers as int or Decimal.
        key: What messages call the table.

    Raises:
        SchemaError: A field is missing, unknown, of another type or out of bounds.
    """
    if not isinstance(table, Mapping):
        raise SchemaError(key, "a table", table)
    hints = get_type_hints(kind, include_extras=True)
    defaults = {field.name: field.default for field in fields(kind)}  # type: ignore[arg-type]
    names = list(defaults)
    unknown = sorted(set(table) - set(names))
    if unknown:
        raise SchemaError(key, f"only the keys {', '.join(names)}", unknown[0])
    values = {}
    for name in names:
        if name in table:
            values[name] = _value(hints[name], table[name], f"{key}.{name}")
        elif defaults[name] is MISSING:
            raise SchemaError(f"{key}.{name}", _words(hints[name]), MISSING)
    return kind(**values)


def _value(kind: Any, value: Any, key: str) -> Any:
    """Return `value` as `kind`."""
    expected = _words(kind)
    bound: Range | Pattern | None = None
    if get_origin(kind) in (Union, UnionType):
        kind, _ = get_args(kind)
    if get_origin(kind) is Annotated:
        kind, bound = get_args(kind)
    arguments = get_args(kind)
    if get_origin(kind) is tuple:
        length = len(arguments) if arguments[-1] is not Ellipsis else None
        if not isinstance(value, list) or not value or length not in (None, len(value)):
            raise SchemaError(key, expected, value)
        return tuple(_value(arguments[0], item, f"{key}[{i}]") for i, item in enumerate(value))
    if get_origin(kind) is dict:
        if not isinstance(value, dict):
            raise SchemaError(key, expected, value)
        return {name: _value(arguments[1], item, f"{key}.{name}") for name, item in value.items()}
    if is_dataclass(kind):
        return build(kind, value, key)  # type: ignore[arg-type]
    if not _fits(kind, value):
        raise SchemaError(key, expected, value)
    made = kind(value) if kind in (float, Fraction) else value
    if bound is not None and not bound.holds(made):
        raise SchemaError(key, expected, value)
    return made


def _fits(kind: Any, value: Any) -> bool:
    """Tell whether a single value is of a kind, bounds aside."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if kind in (float, Fraction):
        return isinstance(value, (int, Decimal)) and Decimal(value).is_finite()
    return isinstance(value, kind)


def _words(kind: Any) -> str:
    """Describe a schema in words."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _words(arguments[0])
    if origin is Annotated:
        return f"{_words(arguments[0])} {arguments[1]}"
    if origin is tuple:
        length = "1 or more" if arguments[-1] is Ellipsis else str(len(arguments))
        return f"a list of {length}, each {_words(arguments[0])}"
    if origin is Literal:
        return " or ".join(f'"{choice}"' for choice in arguments)
    words = {int: "an integer", float: "a number", Fraction: "a number", str: "a text"}
    words[bool] = "true or false"
    return words.get(kind, "a table")


def _shown(value: Any) -> str:
    """Write what came instead, briefly and as the file would."""
    if value is MISSING:
        return "nothing"
    if isinstance(value, list):
        text = f"[{', '.join(map(_shown, value))}]"
    else:
        text = str(value) if isinstance(value, Decimal | Fraction) else repr(value)
    return text if len(text) <= 80 else text[:76] + " ..."
