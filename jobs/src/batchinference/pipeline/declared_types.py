"""Converts texts and JSON values to declared column types, in the notation of `spec.column_types`.

A value is a misfit if the type of its column cannot represent it exactly, and its row fails. This
does not apply to fractions: few have an exact `float64`, so the nearest number is stored."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from batchinference.pipeline.exact_json import as_text, has_json, load_exact, with_texts
from batchinference.pipeline.type_widening import (
    check_fraction_digits,
    exact_cast,
    may_be_hexadecimal,
    plain_type,
)
from batchinference.spec.column_types import INTEGERS, ColumnType
from batchinference.text import cut

EXACT_INTEGERS = {"float32": 2**24, "float64": 2**53}
"""The number up to which each floating-point type has all integers."""
MAX_SHOWN = 60
"""Maximum number of characters of a value in a message."""
_RANGES = {
    name: range(0 if name[0] == "u" else -(2 ** (bits - 1)), 2 ** (bits - (name[0] != "u")))
    for name, bits in ((name, int(name.lstrip("uint"))) for name in INTEGERS)
}
_INFINITE = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)
_INTEGER = re.compile(r"[+-]?[0-9]+")
INT64_TEXT = re.compile("0|-?[1-9][0-9]{0,17}")
"""Matches texts of integers that stay the same if converted to int64 and back."""


def arrow_type(declared: ColumnType) -> pa.DataType:
    """Return the Arrow type of a declared type; for `json`, the type of texts."""
    if isinstance(declared, dict):
        return pa.struct([(name, arrow_type(kind)) for name, kind in declared.items()])
    if isinstance(declared, list):
        return pa.list_(arrow_type(declared[0]))
    name, *parameters = re.split("[<,]", declared.removesuffix(">"))
    match name:
        case "decimal":
            digits, scale = map(int, parameters)
            return (pa.decimal128 if digits <= 38 else pa.decimal256)(digits, scale)
        case "timestamp":
            return pa.timestamp(*parameters)
        case "date":
            return pa.date32()
        case "json":
            return pa.string()
    return pa.type_for_alias(name)


def name_of(declared: ColumnType) -> str:
    """Return a declared type as text for messages, without the fields of a struct."""
    if isinstance(declared, dict):
        return "struct"
    if isinstance(declared, list):
        return f"list<{name_of(declared[0])}>"
    return declared.replace("<us>", "").replace("<us,", "<")


def is_time(declared: ColumnType) -> bool:
    """Return whether a type is a date or a timestamp, which are texts in JSON."""
    return isinstance(declared, str) and declared.startswith(("date", "timestamp"))


def misfit(
    column: str, value: object, kind: ColumnType, *, sampled: bool, problem: str = ""
) -> ValueError:
    """Return the error of a row with a value that the type of its column cannot hold. `sampled`
    says whether this type comes from the first rows of the input, and was not declared."""
    problem = problem or f"{json_excerpt(value)} is not {name_of(kind)}"
    nested = isinstance(value, list | dict) or not isinstance(kind, str)
    origin = "the type of the first rows of the input" if sampled else "its declared type"
    return ValueError(
        f"column '{column}': {problem}, {origin}. Set read.options.types: "
        f"{{{column}: {'json' if nested else 'string'}}}"
    )


def json_excerpt(value: object) -> str:
    """Return a value as JSON of limited length, for messages."""
    is_fraction = isinstance(value, Decimal)
    text = str(value) if is_fraction else json.dumps(value, ensure_ascii=False, default=float)
    return cut(text, MAX_SHOWN)


def cast_texts(texts: pa.ChunkedArray, declared: ColumnType) -> tuple[pa.ChunkedArray, np.ndarray]:
    """Return a column of texts converted to a declared type, and a mask (bool) of the misfits,
    which become null. Texts for lists, structs and `json` must be JSON."""
    kind = arrow_type(declared)
    if declared == "json" or not isinstance(declared, str):
        return _parsed(texts, declared, kind)
    convert = partial(_exact_floats if declared in EXACT_INTEGERS else _cast, kind=kind)
    parts = [part for chunk in texts.chunks for part in _halved(chunk, convert)]
    arrays = [pa.nulls(rows, kind) if array is None else array for rows, array in parts]
    column = pa.chunked_array(arrays, kind)
    if len(arrays) > texts.num_chunks:
        column = pa.chunked_array([column.combine_chunks()], kind)
    misfits = [np.full(rows, array is None) for rows, array in parts]
    return column, np.concatenate([*misfits, np.zeros(0, bool)])


def cast_column(column: pa.ChunkedArray, declared: ColumnType) -> pa.ChunkedArray:
    """Return a column of any type converted to a declared type. Raises ValueError for a value that
    does not fit, and NotImplementedError if there is no conversion between the two types."""
    if plain_type(column.type) in (pa.string(), pa.large_string()):
        texts = column.cast(pa.string())
        cast, misfits = cast_texts(texts, declared)
        if misfits.any():
            text = texts.filter(pa.array(misfits))[0].as_py()
            raise ValueError(json_problem(text, declared) or json_excerpt(text))
        return cast
    return exact_cast(column, arrow_type(declared))


def _halved(
    texts: pa.Array, convert: Callable[[pa.Array], pa.Array]
) -> Iterator[tuple[int, pa.Array | None]]:
    """Yield consecutive parts of an array: the length of each, and its converted values. A part
    that cannot be converted is halved. If it is a single value, its converted values are None."""
    try:
        yield len(texts), convert(texts)
    except ValueError:
        half = len(texts) // 2
        if half:
            yield from _halved(texts.slice(0, half), convert)
            yield from _halved(texts.slice(half), convert)
        else:
            yield 1, None


def _cast(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return texts as values of a type. Raises ValueError for a text that is no such value."""
    if pa.types.is_integer(kind) and may_be_hexadecimal(texts).true_count:
        raise ValueError("a text has hexadecimal digits")
    check_fraction_digits(texts, kind)
    return texts.cast(kind)


def _exact_floats(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return texts as numbers. Raises ValueError if a text is not a number, an integer would be
    rounded, or a finite number would become infinite."""
    import pyarrow.compute as pc  # here, to save memory in commands such as `status`

    numbers = texts.cast(kind)
    large = pc.greater_equal(pc.abs(numbers), EXACT_INTEGERS[f"float{kind.bit_width}"])
    pairs = (texts.filter(large).to_pylist(), numbers.filter(large).to_pylist())
    for text, number in zip(*pairs, strict=True):
        rounded = bool(_INTEGER.fullmatch(text)) and int(text) != number
        if rounded or (math.isinf(number) and not _INFINITE.fullmatch(text)):
            raise ValueError(f"{text} would be changed")
    return numbers


def _parsed(
    texts: pa.ChunkedArray, declared: ColumnType, kind: pa.DataType
) -> tuple[pa.ChunkedArray, np.ndarray]:
    values: list[Any] = []
    misfits = np.zeros(len(texts), bool)
    for row, text in enumerate(texts.to_pylist()):
        try:
            value = None if text is None else _value_in(text, declared)
        except (ValueError, TypeError):
            value, misfits[row] = None, True
        values.append(value if value is None or declared != "json" else text)
    return pa.chunked_array([pa.array(values, kind)]), misfits


def _value_in(text: str, declared: ColumnType) -> Any:
    """Return the value of a JSON text. Raises TypeError or ValueError if it does not fit."""
    value = parse_declared(text, declared)
    _check_fields(value, declared)
    return fitting(value, declared)


def _check_fields(value: Any, kind: ColumnType, path: str = "") -> None:
    """Raise ValueError if a value has a field that is not declared."""
    if isinstance(kind, dict) and isinstance(value, dict):
        for name, inner in value.items():
            if name not in kind:
                raise ValueError(f"a value with a field '{path}{name}' is not struct")
            _check_fields(inner, kind[name], f"{path}{name}.")
    elif isinstance(kind, list) and isinstance(value, list):
        for element in value:
            _check_fields(element, kind[0], path)


def json_problem(text: str, declared: ColumnType) -> str:
    """Return why a JSON text does not fit a list or struct; empty if it fits or is no JSON."""
    try:
        if not isinstance(declared, str):
            _value_in(text, declared)
    except json.JSONDecodeError:
        return ""
    except (ValueError, TypeError) as error:
        return str(error)
    return ""


def parse_declared(document: bytes | str, kind: ColumnType, *, any_as_json: bool = False) -> Any:
    """Return a parsed JSON document, prepared for `fitting`. Raises ValueError for invalid JSON.
    With `any_as_json`, values of type `string` become their JSON text, except texts."""
    if any_as_json or has_json(kind):
        document = with_texts(as_text(document), kind, any_as_json=any_as_json)
    return load_exact(document)


def fitting(value: Any, kind: ColumnType, path: str = "", *, any_as_json: bool = False) -> Any:
    """Return a value from `load_exact` as Arrow accepts it for a declared type, without undeclared
    fields. With `any_as_json`, values for `string` and `json` are not checked. Raises TypeError for
    a value of another type, and ValueError if the value would change."""
    if value is None or (any_as_json and kind in ("string", "json")):
        return value
    if isinstance(kind, dict) and isinstance(value, dict):
        present = (name for name in kind if name in value)
        return {
            name: fitting(value[name], kind[name], f"{path}.{name}", any_as_json=any_as_json)
            for name in present
        }
    if isinstance(kind, list) and isinstance(value, list):
        return [
            fitting(element, kind[0], f"{path}[]", any_as_json=any_as_json) for element in value
        ]
    if not isinstance(kind, str) or type(value) not in _python_types(kind):
        where = f" in {path.removeprefix('.')}" if path else ""
        raise TypeError(f"{json_excerpt(value)}{where} is not {name_of(kind)}")
    return _scalar(value, kind)


def _python_types(kind: str) -> tuple[type, ...]:
    """Return the Python types of JSON values that a scalar type accepts."""
    if kind in ("string", "json") or is_time(kind):
        return (str,)
    if kind in ("bool", *_RANGES):
        return (bool,) if kind == "bool" else (int,)
    return (int, float, Decimal) if kind in EXACT_INTEGERS else (int, Decimal, str)


def _scalar(value: Any, kind: str) -> Any:
    if kind in ("string", "json"):
        value.encode()  # raises for a lone surrogate
    elif kind in _RANGES and value not in _RANGES[kind]:
        raise ValueError(f"{value} is out of the range of {kind}")
    elif kind in EXACT_INTEGERS:
        return exact_float(value, kind)
    elif kind != "bool" and kind not in _RANGES:
        return _cast(pa.array([str(value)]), arrow_type(kind))[0].as_py()
    return value


def exact_float(value: Any, kind: str) -> float:
    """Return a number from `load_exact` as `float32` or `float64`. Raises ValueError if an integer
    would be rounded, or a number would become infinite."""
    with np.errstate(over="ignore"):
        try:
            number = float(value) if kind == "float64" else float(np.float32(value))
        except OverflowError:  # raised for a huge integer
            number = math.inf
    if type(value) is int and number != value:
        raise ValueError(f"{value} would be rounded as {kind}")
    if type(value) is not float and math.isinf(number):
        raise ValueError(f"{value} is too large for {kind}")
    return number
