"""Infers column types from parsed JSON rows.

An integer is `int64`, or `uint64` if it is larger. A column with fractions is `float64`, unless it
also has an integer that would be rounded. A column, or a field of a struct, whose values have
several shapes, such as texts and lists, has no type: it is read as text, like one without values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

from batchinference.spec.column_types import ColumnType

_INTEGERS = {"int64": range(-(2**63), 2**63), "uint64": range(2**64)}
_EXACT = 2**53
_SCALARS: dict[frozenset[type], ColumnType] = {
    frozenset({str}): "string",
    frozenset({bool}): "bool",
    frozenset({float}): "float64",
    frozenset({int, float}): "float64",
}


class SeveralShapes(Exception):
    """The values of a column or field have no type in common."""


@dataclass
class Shape:
    """The JSON types of the values of a column or field, without nulls."""

    kinds: set[type] = field(default_factory=set)
    lowest: int = 0
    highest: int = 0
    inexact: bool = False
    """Whether there is an integer that float64 cannot hold."""
    elements: Shape | None = None
    fields: dict[str, Shape] = field(default_factory=dict)

    def add(self, values: list[Any]) -> None:
        """Add values of this column."""
        kinds = set(map(type, values))
        self.kinds |= kinds - {NoneType}
        if int in kinds:
            self._add_integers([value for value in values if type(value) is int])
        if list in kinds:
            self.elements = self.elements or Shape()
            lists = (value for value in values if type(value) is list)
            self.elements.add([element for value in lists for element in value])
        if dict in kinds:
            for name, inner in _by_name(value for value in values if type(value) is dict).items():
                self.fields.setdefault(name, Shape()).add(inner)

    def _add_integers(self, integers: list[int]) -> None:
        self.lowest = min(self.lowest, *integers)
        self.highest = max(self.highest, *integers)
        if self.highest > _EXACT or self.lowest < -_EXACT:
            self.inexact = self.inexact or any(_is_inexact(value) for value in integers)

    def merge(self, other: Shape) -> None:
        """Add the values of another shape."""
        self.kinds |= other.kinds
        self.lowest = min(self.lowest, other.lowest)
        self.highest = max(self.highest, other.highest)
        self.inexact = self.inexact or other.inexact
        if other.elements:
            self.elements = self.elements or Shape()
            self.elements.merge(other.elements)
        for name, inner in other.fields.items():
            self.fields.setdefault(name, Shape()).merge(inner)

    def type(self, path: str, several: list[str]) -> ColumnType:
        """Return the type of the values; `string` if all of them are null. A field of a struct
        whose values have several shapes is a `string` too, and its path is added to `several`.
        Raises SeveralShapes for the values themselves."""
        kinds = frozenset(self.kinds)
        if kinds == {dict}:
            return self.struct(path, several)
        if kinds == {list}:
            return [self.elements.element_type() if self.elements else "string"]
        if kinds == {int}:
            return self._integer()
        if kinds and (kinds not in _SCALARS or (int in kinds and self.inexact)):
            raise SeveralShapes
        return _SCALARS.get(kinds, "string")

    def struct(self, path: str, several: list[str]) -> dict[str, ColumnType]:
        """Return the types of the fields of structs or rows, as `type` does."""
        types: dict[str, ColumnType] = {}
        for name, inner in self.fields.items():
            try:
                types[name] = inner.type(f"{path}.{name}", several)
            except SeveralShapes:
                types[name] = "string"
                several.append(f"{path}.{name}".removeprefix("."))
        return types

    def element_type(self) -> ColumnType:
        """Return the type of the elements of a list. Raises SeveralShapes also for their fields:
        the list is then text as a whole."""
        several: list[str] = []
        kind = self.type("", several)
        if several:
            raise SeveralShapes
        return kind

    def _integer(self) -> str:
        limits = (self.lowest, self.highest)
        for name, integers in _INTEGERS.items():
            if all(limit in integers for limit in limits):
                return name
        raise SeveralShapes


def _is_inexact(value: int) -> bool:
    try:
        return int(float(value)) != value
    except OverflowError:
        return True


def _by_name(rows: Iterable[dict[str, Any]]) -> dict[str, list[Any]]:
    values: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            values.setdefault(name, []).append(value)
    return values


def types_of(rows: Shape) -> tuple[dict[str, ColumnType], list[str]]:
    """Return the types of the columns of some rows, and the columns and fields whose values have
    several shapes: they are `string`."""
    several: list[str] = []
    return rows.struct("", several), several
