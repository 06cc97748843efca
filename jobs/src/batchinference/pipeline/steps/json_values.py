"""Decodes JSON documents that are stored in a column.

Every row of a column has a cell for every field of all other rows. So documents with fields of
their own would take memory that grows with the square of their number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from batchinference.spec.json_types import JsonType

MAX_DEPTH = 100
MAX_FIELDS = 4000
"""Maximum number of different fields of a column, including nested fields."""
FIRST_DOCUMENTS, MAX_LATER_FIELDS = 1000, 100
"""After this number of documents, the others may add only this number of fields: each of them adds
a cell to every row before."""
MAX_CELLS = 1 << 23
"""Maximum number of values of a document of a declared type, with those that it lacks. An empty
object has a null for each declared field."""
_SCALARS = {"bool": pa.bool_(), "int64": pa.int64(), "float64": pa.float64(), "string": pa.string()}
_Fields = dict[tuple[int, str], int]


class JsonDecoder:
    """Decodes the documents of a column. Remembers their fields to limit the number of them."""

    def __init__(self) -> None:
        self._fields: _Fields = {}
        """The number of each field, by the number of the field that it is nested in and its name.
        Paths would repeat the names."""
        self._documents, self._limit = 0, MAX_FIELDS

    @property
    def fields(self) -> int:
        """The number of different fields so far."""
        return len(self._fields)

    def __call__(self, content: bytes | str) -> Any:
        """Return the value of a document. Raises ValueError if it is invalid or too deep, or if the
        column would have too many fields with it."""
        value = json.loads(content)
        self._fields |= self._fields_added_by(value)
        self._documents += 1
        if self._documents == FIRST_DOCUMENTS:
            self._limit = min(MAX_FIELDS, self.fields + MAX_LATER_FIELDS)
        return value

    def _fields_added_by(self, value: Any) -> _Fields:
        added: _Fields = {}
        level = [(0, value)]
        for _ in range(MAX_DEPTH):
            inner: list[tuple[int, Any]] = []
            for above, one in level:
                for name, child in _children(one):
                    number = self._number((above, name), added)
                    if isinstance(child, dict | list):
                        inner.append((number, child))
            if not inner:
                return added
            level = inner
        raise ValueError(f"the JSON is nested deeper than {MAX_DEPTH} levels")

    def _number(self, field: tuple[int, str], added: _Fields) -> int:
        number = self._fields.get(field) or added.get(field)
        if number is None:
            number = added[field] = len(self._fields) + len(added) + 1
            if number > self._limit:
                raise ValueError(
                    f"the column would have more than {self._limit} different fields with it: list "
                    "the needed ones in decode.fields"
                )
        return number


def _children(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict):
        return value.items()
    return (("", child) for child in value) if isinstance(value, list) else ()


class TypedJsonDecoder:
    """Decodes documents that are objects of a declared type. Other fields are dropped."""

    def __init__(self, schema: dict[str, JsonType]) -> None:
        self._schema, self.type = schema, arrow_type(schema)
        self.cells = 0
        """The number of values of the last document, with those that it lacks."""
        self._widths: dict[int, int] = {}

    def __call__(self, content: bytes | str) -> Any:
        """Return the declared fields that a document has. Raises ValueError if it is invalid or
        would take too much memory, and TypeError if it has another type."""
        value = json.loads(content)
        self.cells = self._width_of(self._schema)
        self._count(value, self._schema)
        return _fitting(value, self._schema, "")

    def _count(self, value: Any, kind: JsonType) -> None:
        """Count the values in the lists of a value. Raises ValueError above MAX_CELLS."""
        if isinstance(kind, dict) and isinstance(value, dict):
            for name in kind.keys() & value.keys():
                self._count(value[name], kind[name])
        if isinstance(kind, list) and isinstance(value, list):
            self.cells += len(value) * self._width_of(kind[0])
            if self.cells > MAX_CELLS:
                raise ValueError(
                    f"the document would have more than {MAX_CELLS} values: declare fewer fields "
                    "in decode.fields"
                )
            for one in value if isinstance(kind[0], dict | list) else ():
                self._count(one, kind[0])

    def _width_of(self, kind: JsonType) -> int:
        """Return the number of values that Arrow stores for a value without list elements."""
        width = self._widths.get(id(kind))
        if width is None:
            fields = kind.values() if isinstance(kind, dict) else ()
            width = self._widths[id(kind)] = 1 + sum(map(self._width_of, fields))
        return width


def _fitting(value: Any, kind: JsonType, path: str) -> Any:
    """Return a value without fields that are not declared. Raises TypeError if its type is not
    `kind`."""
    if value is None:
        return None
    if isinstance(kind, dict) and isinstance(value, dict):
        there = (name for name in kind if name in value)
        return {name: _fitting(value[name], kind[name], f"{path}.{name}") for name in there}
    if isinstance(kind, list) and isinstance(value, list):
        return [_fitting(one, kind[0], f"{path}[]") for one in value]
    if kind == "float64" and type(value) in (int, float):
        return float(value)
    if kind == "int64" and type(value) is int and -(2**63) <= value < 2**63:
        return value
    if kind == "string" and isinstance(value, str):
        value.encode()  # raises for a lone surrogate
        return value
    if kind == "bool" and isinstance(value, bool):
        return value
    wanted = kind if isinstance(kind, str) else "struct" if isinstance(kind, dict) else "list"
    raise TypeError(f"{path[1:] or 'the document'} is {type(value).__name__}, not {wanted}")


def arrow_type(declared: JsonType) -> pa.DataType:
    """Return the Arrow type of a declared type."""
    if isinstance(declared, dict):
        return pa.struct([(name, arrow_type(kind)) for name, kind in declared.items()])
    if isinstance(declared, list):
        return pa.list_(arrow_type(declared[0]))
    return _SCALARS[declared]
