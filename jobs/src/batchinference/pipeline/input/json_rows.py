"""Infers the column types of JSON rows, and parses rows to tables. No value changes silently.

pyarrow parses the rows. Without checks, it would round integers in columns of floats, drop time
zones, and convert texts that look like timestamps."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as paj

from batchinference.pipeline.declared_types import (
    EXACT_INTEGERS,
    arrow_type,
    exact_float,
    fitting,
    is_time,
    misfit,
)
from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.exact_json import documents_in, has_json, load_exact, with_texts
from batchinference.pipeline.storage.state_json import load_json
from batchinference.pipeline.type_widening import check_fraction_digits, is_list
from batchinference.spec.column_types import ColumnType

_INTEGERS = {"int64": range(-(2**63), 2**63), "uint64": range(2**64)}
_EXACT = 2**53
_SCALARS: dict[frozenset[type], ColumnType] = {
    frozenset({str}): "string",
    frozenset({bool}): "bool",
    frozenset({float}): "float64",
    frozenset({int, float}): "float64",
}
MAX_LEVELS = 100
"""Lists and structs at deeper levels are read as text, because Python limits recursion."""
_DEEP = (b"]" * 5000, b"}" * 5000, b"]}" * 2500)
"""Ends of values that may have too many levels for pyarrow, which would crash."""


class SeveralShapes(Exception):
    """The values of a column or field have no common type."""


@dataclasses.dataclass
class Shape:
    """Collects the JSON types of the values of a column or field, without nulls, to infer its type.
    Integers are `int64`, or `uint64` if `int64` does not hold them. Numbers with fractions are
    `float64`. Values without a common type (several shapes) are read as text. Examples are texts
    and lists, or fractions and an integer that `float64` would round."""

    kinds: set[type] = dataclasses.field(default_factory=set)
    lowest: int = 0
    highest: int = 0
    inexact: bool = False
    """Whether there is an integer that float64 would round."""
    elements: Shape | None = None
    fields: dict[str, Shape] = dataclasses.field(default_factory=dict)
    levels: int = MAX_LEVELS
    """The number of nested levels of lists and structs that get a type."""

    def add(self, values: list[Any]) -> None:
        """Add more values of the column or field."""
        kinds = set(map(type, values))
        self.kinds |= kinds - {NoneType}
        if int in kinds:
            self._add_integers([value for value in values if type(value) is int])
        if not self.levels:
            return
        if list in kinds:
            self.elements = self.elements or self._inner()
            lists = (value for value in values if type(value) is list)
            self.elements.add([element for value in lists for element in value])
        if dict in kinds:
            for name, inner in _by_name(value for value in values if type(value) is dict).items():
                self.fields.setdefault(name, self._inner()).add(inner)

    def _inner(self) -> Shape:
        return Shape(levels=self.levels - 1)

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
            self.elements = self.elements or self._inner()
            self.elements.merge(other.elements)
        for name, inner in other.fields.items():
            self.fields.setdefault(name, self._inner()).merge(inner)

    def type(self, path: str, several: list[str]) -> ColumnType:
        """Return the type of the values; `string` if all are null. `path` is the name of the column
        or field. If a field of a struct has several shapes, the field is `string`, and its path is
        added to `several`. Raises SeveralShapes if the values themselves have several shapes."""
        kinds = frozenset(self.kinds)
        if self.levels and kinds == {dict}:
            return self.struct(path, several)
        if self.levels and kinds == {list}:
            return [self.elements.element_type() if self.elements else "string"]
        if kinds == {int}:
            return self._integer()
        if kinds and (kinds not in _SCALARS or (int in kinds and self.inexact)):
            raise SeveralShapes
        return _SCALARS.get(kinds, "string")

    def struct(self, path: str, several: list[str]) -> dict[str, ColumnType]:
        """Return the types of the fields of structs or rows, like `type`."""
        types: dict[str, ColumnType] = {}
        for name, inner in self.fields.items():
            try:
                types[name] = inner.type(f"{path}.{name}", several)
            except SeveralShapes:
                types[name] = "string"
                several.append(f"{path}.{name}".removeprefix("."))
        return types

    def element_type(self) -> ColumnType:
        """Return the type of the elements of a list. Raises SeveralShapes if the elements, or their
        fields, have several shapes. If so, the list is read as text."""
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


_LOGGER = logging.getLogger(__name__)
_NOT_TEXT = re.compile("changed from string to|Number too big")
"""Matches errors of pyarrow about values that must be quoted to be read as text."""
_SEVERAL_TYPES = re.compile(r"Column\(/([^)]+)\) changed from")
MAX_ATTEMPTS = 8
"""Maximum number of times that rows are parsed, each time with more fields as text."""
NULL_ROW = "a row of the line is null, and must be an object"
_NULL_FIRST = re.compile(rb"(?:\xef\xbb\xbf|\s)*null")
_MAYBE_NULL = re.compile(rb"[}\n][ \t\r]*null\b")
"""Matches a possible null row, but also some values `null` in a row, and some texts."""
_SPACE = re.compile(r"\s*")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_LONG_INTEGER = re.compile(rb"(?<![0-9.])[0-9]{16,}+(?![.eE])")
"""Matches integers that `float64` may round."""


class JsonRows:
    """Parses rows with known column types. In other columns and fields, all values become text: a
    value that is not a text becomes its JSON.

    `declared` are the types that the user has declared, `sampled` those inferred from samples.
    `several_shapes` tells whether a sampled column is text for lack of a common type."""

    def __init__(
        self,
        declared: Mapping[str, ColumnType],
        sampled: Mapping[str, ColumnType],
        *,
        several_shapes: bool = False,
    ) -> None:
        self._declared, self._types = declared, {**sampled, **declared}
        self._read_types = {name: _as_read(kind) for name, kind in self._types.items()}
        self._always_quotes = several_shapes or any(
            has_json(kind) or "decimal" in str(kind) for kind in declared.values()
        )

    @cached_property
    def schema(self) -> pa.Schema:
        """The types of the columns."""
        return _schema_of(self._types)

    @cached_property
    def _read_schema(self) -> pa.Schema:
        return _schema_of(self._read_types)

    def of_column(self, name: str) -> JsonRows:
        """Return a parser for rows that only have the column `name`."""
        types = ({k: v for k, v in t.items() if k == name} for t in (self._declared, self._types))
        return JsonRows(*types, several_shapes=self._always_quotes)

    def parse(self, chunk: bytes) -> pa.Table:
        """Return the rows in lines of JSON. Raises ValueError for invalid JSON, for a value that
        does not fit its type, and for a null row."""
        chunk.decode()  # fails for invalid UTF-8, which pyarrow would accept
        if _NULL_FIRST.match(chunk):  # pyarrow would crash
            raise ValueError(NULL_ROW)
        if any(ends in chunk for ends in _DEEP):
            for line in filter(bytes.strip, chunk.splitlines()):
                load_json(line)
        table = self._table(chunk)
        if all(column.null_count for column in table.columns) and _has_null(chunk):
            raise ValueError(NULL_ROW)
        _check_floats(chunk, table)
        for index, field in enumerate(table.schema):
            kind = self._types.get(field.name)
            if kind is not None and kind != self._read_types[field.name]:
                column = table.column(index)
                for values in column.chunks:
                    check_fraction_digits(values, arrow_type(kind))
                column = column.cast(_declared_within(field.type, kind))
                table = table.set_column(index, field.name, column)
        return table

    def _table(self, chunk: bytes) -> pa.Table:
        """Return the rows, with times and decimals as text. Values of fields without a common type
        are quoted, so pyarrow reads them as text."""
        types, quotes = self._read_types, self._always_quotes
        for _ in range(MAX_ATTEMPTS):
            content = with_texts(chunk.decode(), types).encode() if quotes else chunk
            try:
                table = _read(content, _schema_of(types) if quotes else self._read_schema)
            except ValueError as error:
                path = _SEVERAL_TYPES.search(str(error))
                extended = _with_field(types, path[1].split("/")) if path else types
                if extended == types and (quotes or not _NOT_TEXT.search(str(error))):
                    raise
            else:
                extended = _with_new_fields(types, table.schema)
                if extended == types:
                    return table
            types, quotes = extended, True
        raise ValueError("too many fields have values of several types that are not declared")

    def explain(self, line: bytes, error: Exception) -> Exception:
        """Return an error about the first column whose value does not fit; otherwise, `error`."""
        try:
            row = load_exact(line)
        except ValueError:
            return error
        for name, kind in self._types.items() if isinstance(row, dict) else ():
            try:
                fitting(row.get(name), kind, any_as_json=True)
            except (TypeError, ValueError) as problem:
                sampled = name not in self._declared
                return misfit(name, row[name], kind, sampled=sampled, problem=str(problem))
        return error


def sampled_rows(declared: Mapping[str, ColumnType], samples: Iterable[bytes]) -> JsonRows:
    """Return a parser with the common types of the rows in samples of files. Raises BadInput if a
    declared name only occurs with other upper and lower case letters."""
    common = Shape()
    for sample in samples:
        common.merge(_shape_of(sample))
    _check_cases(declared, common.fields)
    several: list[str] = []
    types = common.struct("", several)
    if several := [path for path in several if path.split(".")[0] not in declared]:
        _LOGGER.warning(
            "%s: the values have several JSON types, so they are read as text. To choose a type, "
            "set read.options.types",
            ", ".join(several),
        )
    return JsonRows(declared, types, several_shapes=bool(several))


def _check_cases(declared: Iterable[str], present: Iterable[str]) -> None:
    columns = {name.casefold(): name for name in present}
    for name in declared:
        column = columns.get(name.casefold(), name)
        if column != name and column not in declared and name not in columns.values():
            raise BadInput(f"read.options.types.{name}: the column is '{column}'. Correct the name")


def _shape_of(rows: bytes) -> Shape:
    """Return the types of sampled rows. Invalid rows are left out; they fail when they are read."""
    shape, surrogates = Shape(), _SURROGATE.search(rows)
    records = (row for row in documents_in(rows.decode(errors="replace")) if isinstance(row, dict))
    shape.add([row for row in records if not (surrogates and _has_lone_surrogate(row))])
    return shape


def _has_lone_surrogate(row: dict[str, Any]) -> bool:
    """Return whether a name or a text in a row has half of a surrogate pair."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _has_null(rows: bytes) -> bool:
    """Return whether a row is null. Also return True if one of several lines is invalid JSON."""
    if b"null" not in rows or not _MAYBE_NULL.search(rows):
        return False
    text = rows.decode().strip()
    decode, position = json.JSONDecoder(strict=False).raw_decode, 0
    try:
        while position < len(text):
            row, end = decode(text, position)
            if row is None:
                return True
            position = _SPACE.match(text, end).end()  # type: ignore[union-attr] # it always matches
    except ValueError:
        return "\n" in text
    return False


def _read(chunk: bytes, schema: pa.Schema) -> pa.Table:
    options = paj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="infer")
    # use one block, because a record must not span two blocks
    reading = paj.ReadOptions(block_size=len(chunk) + 1, use_threads=False)
    return paj.read_json(io.BytesIO(chunk), reading, options)


def _as_read(kind: ColumnType) -> ColumnType:
    """Return the type with which pyarrow reads values. Times and decimals are read as text and cast
    later. Otherwise, pyarrow would check the digits of decimals before it adds zeros."""
    if isinstance(kind, dict):
        return {name: _as_read(inner) for name, inner in kind.items()}
    if isinstance(kind, list):
        return [_as_read(kind[0])]
    return "string" if is_time(kind) or kind.startswith("decimal") else kind


def _declared_within(parsed: pa.DataType, kind: ColumnType) -> pa.DataType:
    """Return the type `parsed` after a cast to `kind`. Fields that `kind` lacks keep their type."""
    if isinstance(kind, dict):
        return pa.struct(
            field.with_type(_declared_within(field.type, kind[field.name]))
            if field.name in kind
            else field
            for field in parsed
        )
    if isinstance(kind, list):
        return pa.list_(_declared_within(parsed.value_type, kind[0]))
    return arrow_type(kind)


def _schema_of(types: Mapping[str, ColumnType]) -> pa.Schema:
    return pa.schema([(name, arrow_type(kind)) for name, kind in types.items()])


def _with_new_fields(
    types: Mapping[str, ColumnType], fields: Iterable[pa.Field]
) -> dict[str, ColumnType]:
    """Return the types with the unknown fields of a table added as text, even nested ones. Unknown
    fields are text because they may have other types in other rows and files."""
    extended = dict(types)
    for field in fields:
        extended[field.name] = _with_new_inner(types.get(field.name, "string"), field.type)
    return extended


def _with_field(types: Mapping[str, ColumnType], path: list[str]) -> dict[str, ColumnType]:
    """Return the types with the field at this path added as text."""
    return {**types, path[0]: _with_inner(types.get(path[0], "string"), path[1:])}


def _with_inner(kind: ColumnType, path: list[str]) -> ColumnType:
    if isinstance(kind, dict) and path:
        return _with_field(kind, path)
    return [_with_inner(kind[0], path[1:])] if isinstance(kind, list) else kind


def _with_new_inner(kind: ColumnType, parsed: pa.DataType) -> ColumnType:
    if isinstance(kind, dict):
        return _with_new_fields(kind, parsed)
    return [_with_new_inner(kind[0], parsed.value_type)] if isinstance(kind, list) else kind


def _check_floats(chunk: bytes, table: pa.Table) -> None:
    """Raise ValueError if a number differs from the JSON, except for a rounded fraction."""
    parts = [part for column in table.columns for part in column.chunks]
    large = [floats for part in parts for floats in _large_floats(part)]
    narrow = any(floats.dtype == np.float32 for floats in large)
    infinite = any(np.isinf(floats).any() for floats in large)
    if narrow or infinite or (large and _LONG_INTEGER.search(chunk)):
        for row in documents_in(chunk.decode(), exactly=True):
            for field in table.schema if row else ():
                _check_float(row.get(field.name), field.type)


def _large_floats(array: pa.Array) -> Iterator[np.ndarray]:
    """Yield the large floats, also nested ones: their type does not hold every integer."""
    kind = array.type
    if pa.types.is_struct(kind):
        for values in array.flatten():
            yield from _large_floats(values)
    elif is_list(kind):
        yield from _large_floats(array.flatten())
    elif pa.types.is_floating(kind) and len(array):
        stored = np.frombuffer(array.buffers()[1], f"f{kind.bit_width // 8}")  # nulls included
        numbers = stored[array.offset : array.offset + len(array)]
        large = numbers[np.abs(numbers) >= EXACT_INTEGERS[f"float{kind.bit_width}"]]
        if len(large):
            yield large


def _check_float(value: Any, kind: pa.DataType) -> None:
    if pa.types.is_struct(kind) and isinstance(value, dict):
        for field in kind:
            _check_float(value.get(field.name), field.type)
    elif is_list(kind) and isinstance(value, list):
        for element in value:
            _check_float(element, kind.value_type)
    elif pa.types.is_floating(kind) and value is not None:
        exact_float(value, f"float{kind.bit_width}")
