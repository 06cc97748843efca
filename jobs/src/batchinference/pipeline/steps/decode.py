"""The decode step: decodes a column of bytes as images, audio, text or JSON.

The number of different fields of JSON documents is limited. Every row of a column has a cell for
every field of all other rows. So documents with fields of their own would take memory that grows
with the square of their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import require_columns
from batchinference.pipeline.error_attribution import is_about_the_file
from batchinference.pipeline.errors import FORMATS_EXTRA, ModelLoad, require_package
from batchinference.pipeline.media import images
from batchinference.pipeline.steps import TransformResult, of_first_rows
from batchinference.pipeline.steps.result_columns import ResultColumns
from batchinference.pipeline.storage.json import load_limited_json
from batchinference.spec.decode import (
    SAMPLE_RATE,
    Decode,
    DecodeAudio,
    DecodeImage,
    DecodeJson,
    DecodeText,
)
from batchinference.spec.json_types import JsonType, parse_json_type
from batchinference.spec.read import AudioOptions, PictureOptions

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
        value = load_limited_json(content)
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
        value = load_limited_json(content)
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
    if isinstance(declared, dict):
        return pa.struct([(name, arrow_type(kind)) for name, kind in declared.items()])
    if isinstance(declared, list):
        return pa.list_(arrow_type(declared[0]))
    return _SCALARS[declared]


RESULT_BYTES = 64 << 20
"""Approximate maximum bytes of the values that are decoded at a time."""
JSON_GROWTH, CELL_BYTES = 16, 8
"""The memory of a JSON document: a multiple of its length, and a number of bytes per field."""


class DecodeColumn:
    """Decodes each value of a column. Rows whose value cannot be decoded are failed rows.

    The result is of the first rows of a batch if the values of the others would take too much
    memory together with theirs."""

    def __init__(self, step: str, decode: Decode) -> None:
        self._step, self._spec = step, decode
        self._decode = decoder_of(step, decode)
        self._made = ResultColumns(step)

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult:
        require_columns(self._step, [self._spec.column], batch)
        decoded: list[Any] = []
        failed: dict[int, Exception] = {}
        size = rows = 0
        for row, value in enumerate(batch.column(self._spec.column)):
            try:
                content = self._content(value.as_py())
                found = None if content is None else self._decode(content)
            except Exception as error:
                if not is_about_the_file(error):
                    raise
                failed[row] = error
            else:
                if row * self._cell_bytes() > RESULT_BYTES:
                    break  # the next call decodes this row again
                decoded.append(found)
                size += 0 if content is None else self._size_of(content, found)
            rows += 1
            if size >= RESULT_BYTES:
                break
        result = self._made.added(batch.slice(0, rows), self._columns(decoded), failed)
        return result if rows == batch.num_rows else of_first_rows(result, rows)

    def _content(self, value: Any) -> Any:
        content = value.get("bytes") if isinstance(value, dict) else value
        if content is None and isinstance(value, dict):
            raise ValueError(f"column '{self._spec.column}' has a struct without 'bytes'")
        return content

    def _cell_bytes(self) -> int:
        """Return the bytes that a row takes for the fields of all rows."""
        return CELL_BYTES * self._decode.fields if isinstance(self._decode, JsonDecoder) else 0

    def _size_of(self, content: Any, value: Any) -> int:
        """Return the approximate memory of a decoded value."""
        array = value[0] if isinstance(value, tuple) else value
        if isinstance(array, np.ndarray):
            return int(array.nbytes)
        cells = self._decode.cells if isinstance(self._decode, TypedJsonDecoder) else 0
        return JSON_GROWTH * len(content) + CELL_BYTES * cells

    def _columns(self, decoded: list[Any]) -> dict[str, Any]:
        name, *rate = self._spec.columns_added
        if rate:
            amplitudes, rates = ([pair and pair[at] for pair in decoded] for at in (0, 1))
            return {name: amplitudes, SAMPLE_RATE: pa.array(rates, pa.int64())}
        complete = decoded and all(value is not None for value in decoded)
        if isinstance(self._decode, TypedJsonDecoder):
            return {name: pa.array(decoded, self._decode.type)}
        if isinstance(self._spec, DecodeImage) and complete:
            return {name: images.to_arrow(decoded, self._spec.size)}
        return {name: decoded}


def decoder_of(step: str, decode: Decode) -> Callable[[Any], Any]:
    """Return the function that decodes one value. Raises ModelLoad if its library is missing."""
    match decode:
        case DecodeImage(mode=mode, size=size, max_pixels=max_pixels):
            picture = PictureOptions(mode=mode, size=size, max_pixels=max_pixels)
            return lambda content: images.decode(_bytes(content), picture)
        case DecodeAudio():
            require_package(f"step '{step}'", "soundfile", FORMATS_EXTRA, ModelLoad)
            from batchinference.pipeline.media.recordings import (
                decode_audio,  # needs libraries of an extra
            )

            options = AudioOptions(sample_rate=decode.sample_rate, mono=decode.mono)
            return lambda content: decode_audio(_bytes(content), options)
        case DecodeText(encoding=encoding):
            return lambda content: _bytes(content).decode(encoding)
        case DecodeJson(fields=fields):
            declared = {name: parse_json_type(kind) for name, kind in (fields or {}).items()}
            return TypedJsonDecoder(declared) if declared else JsonDecoder()


def _bytes(content: Any) -> bytes:
    if not isinstance(content, bytes):
        raise TypeError(f"expected bytes, got {type(content).__name__}")
    return content
