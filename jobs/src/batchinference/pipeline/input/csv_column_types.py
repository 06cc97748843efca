"""Infers the types of CSV columns, and converts their values to these types.

A column is text unless all its values are numbers, dates, timestamps or booleans that the type
keeps as they are written. For example, `007`, `+49301`, `0x1F` and `12345678901234567.89` are text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.declared_types import (
    EXACT_INTEGERS,
    arrow_type,
    cast_texts,
    has_hexadecimal,
    is_time,
    json_problem,
    misfit,
)
from batchinference.pipeline.input.csv_dialect import NULL
from batchinference.spec.column_types import INTEGERS, ColumnType

_MISSING = pa.array(
    [*("", "NA", "<NA>", "NULL", "null", "NaN", "nan", "-NaN", "-nan"),
     *("1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN")],
    pa.string(),
)  # fmt: skip
"""Texts that mean null in columns that are not text."""
_LOSSY = ("bool", "int64", "uint64", "float64")
"""Types that accept texts but would print them differently, such as `007` and `1e400`."""
_TIMES = ("date", "timestamp<us>", "timestamp<ns>", "timestamp<us,UTC>", "timestamp<ns,UTC>")
_NO_FRACTION = "^[+-]?[0-9]+([eE][0-9]+)?$"
"""Matches integers, and texts such as `12E3`, which are no floats: programs write a float with a
decimal point or with a sign in the exponent."""
SAFE_DIGITS = 15
"""A number with at most so many digits keeps them when it is printed as float64."""
MAX_DIGITS = 800
"""No float64 has more significant digits."""
FIRST_VALUES = 64
"""Number of values of a sample that are cast first, because a cast that fails takes long."""
CHECKED_NUMBERS = 10_000
"""Maximum number of long numbers in a sample whose printed digits are compared."""


@dataclass(frozen=True)
class CsvTypes:
    """Converts columns of CSV files from bytes to their types. A column without a type is text.

    `nulls` are texts that mean null in all columns."""

    declared: Mapping[str, ColumnType] = field(default_factory=dict)
    sampled: Mapping[str, str] = field(default_factory=dict)
    nulls: tuple[str, ...] = ()
    decimal: str = "."
    encoding: str = "utf-8"
    fix: str = ""
    """The advice if a text is invalid in the encoding."""
    escaped: bool = False
    """Whether the files have an escape character, so that a value may be NULL of csv_dialect."""
    _slow: set[str] = field(default_factory=set, compare=False)
    """The columns for which the quick conversion has failed. It is not tried again."""

    def infer(self, columns: Mapping[str, pa.ChunkedArray]) -> dict[str, str]:
        """Infer and return the types of sampled columns of bytes."""
        texts = {
            name: _without_missing(self._texts(column)[0]).drop_null()
            for name, column in columns.items()
        }
        return {name: _inferred(values, self.decimal) for name, values in texts.items()}

    def cast(self, table: pa.Table) -> tuple[pa.Table, dict[int, Exception]]:
        """Return a table of bytes converted to the types of its columns, and the errors of rows
        with a value that does not fit, by row index. Such a value is null in the table."""
        columns: list[pa.ChunkedArray] = []
        errors: dict[int, Exception] = {}
        for name, column in zip(table.column_names, table.columns, strict=True):
            values, misfits = self._cast(name, column)
            columns.append(values)
            for row, error in misfits.items():
                errors.setdefault(row, error)
        return pa.table(columns, table.column_names), errors

    def _texts(self, column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, np.ndarray]:
        """Return a column of bytes as text, and a mask (bool) of the values that are no text."""
        if self.escaped:
            column = pc.if_else(pc.equal(column, NULL), None, column)
        texts, invalid = cast_texts(column, "string")
        if self.nulls:
            is_null = pc.is_in(texts, pa.array(self.nulls, pa.string()))
            texts = pc.if_else(is_null, None, texts)
        return texts, invalid

    def _cast(
        self, name: str, column: pa.ChunkedArray
    ) -> tuple[pa.ChunkedArray, dict[int, Exception]]:
        sampled = None if name in self.declared else self.sampled.get(name, "string")
        kind = sampled or self.declared[name]
        if name not in self._slow:
            values = self._quickly_converted(column, kind, sampled)
            if values is not None:
                return values, {}
            self._slow.add(name)
        texts, invalid = self._texts(column)
        not_text = (
            f"column '{name}': its text is not valid in the encoding {self.encoding}. "
            f"{self.fix}, or correct the text"
        )
        errors: dict[int, Exception] = {
            row: ValueError(not_text) for row in np.flatnonzero(invalid).tolist()
        }
        if kind == "string":
            return texts, errors
        numbers = _with_points(_without_missing(texts), kind, self.decimal)
        values, misfits = cast_texts(numbers, kind)
        misfits |= _altered(numbers, values, sampled)
        for row in np.flatnonzero(misfits).tolist():
            value = texts[row].as_py()
            problem = json_problem(value, kind)
            errors[row] = misfit(name, value, kind, sampled=sampled is not None, problem=problem)
        return values, errors

    def _quickly_converted(
        self, column: pa.ChunkedArray, kind: ColumnType, sampled: str | None
    ) -> pa.ChunkedArray | None:
        """Return the converted column; None if a value may not fit, so `_cast` must check."""
        is_quick = kind in ("bool", *INTEGERS, *EXACT_INTEGERS) or is_time(kind)
        if self.nulls or not is_quick or (self.decimal != "." and kind in EXACT_INTEGERS):
            return None
        column = _with_nulls(column.combine_chunks())
        if kind in INTEGERS and not sampled and has_hexadecimal(column):
            return None
        try:
            values = column.cast(arrow_type(kind))
        except pa.ArrowInvalid:
            return None
        if kind in EXACT_INTEGERS:
            limits = pc.min_max(values).as_py()
            if max(abs(limits["min"] or 0), abs(limits["max"] or 0)) >= EXACT_INTEGERS[kind]:
                return None
        return None if _altered(column, values, sampled).any() else values


def _with_nulls(column: pa.BinaryArray) -> pa.ChunkedArray:
    """Return bytes as text in which empty values are null. UTF-8 is not validated, because invalid
    text does not fit any of the quick types."""
    _, limits = _buffers(column)
    present = np.diff(limits) > 0
    validity = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    buffers = [validity, pa.py_buffer(limits), column.buffers()[2]]
    return pa.chunked_array([pa.Array.from_buffers(pa.string(), len(present), buffers)])


def _without_missing(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    trimmed = pc.utf8_trim_whitespace(texts)
    return pc.if_else(pc.is_in(trimmed, _MISSING), None, trimmed)


def _with_points(texts: pa.ChunkedArray, kind: ColumnType, decimal: str) -> pa.ChunkedArray:
    """Return numbers with a decimal point for the comma. A text with a point becomes invalid."""
    if decimal == "." or not str(kind).startswith(("float", "decimal")):
        return texts
    return pc.replace_substring(pc.replace_substring(texts, ".", "?"), ",", ".")


def _inferred(texts: pa.ChunkedArray, decimal: str) -> str:
    """Return the type that fits these values of a column; `string` if there are none."""
    if not len(texts):
        return "string"
    numbers = _with_points(texts, "float64", decimal)
    if _fits(numbers, "float64"):
        return _number_type(numbers)
    if pc.all(pc.is_in(pc.utf8_lower(texts), pa.array(["true", "false"]))).as_py():
        return "bool"
    return next((kind for kind in _TIMES if _fits(texts, kind)), "string")


def _number_type(texts: pa.ChunkedArray) -> str:
    """Return the type for texts that can be cast to float64: an integer type, float64 or string."""
    if _have_leading_zeros(*_buffers(texts.combine_chunks())).any():
        return "string"
    if not pc.all(pc.match_substring_regex(texts, _NO_FRACTION)).as_py():
        return "float64" if _are_exact(texts) else "string"
    # not integers: telephone numbers such as +49301, and part numbers such as 12E3
    return next((kind for kind in ("int64", "uint64") if _fits(texts, kind)), "string")


def _fits(texts: pa.ChunkedArray, kind: str) -> bool:
    try:
        for part in (texts.slice(0, FIRST_VALUES), texts):
            part.cast(arrow_type(kind))
    except pa.ArrowInvalid:
        return False
    return True


def _altered(texts: pa.ChunkedArray, values: pa.ChunkedArray, sampled: str | None) -> np.ndarray:
    """Return a mask (bool) of the texts that an inferred type would print differently."""
    if sampled not in _LOSSY:
        return np.zeros(len(texts), bool)
    array = texts.combine_chunks()
    characters, limits = _buffers(array)
    lengths = np.diff(limits)
    if sampled == "bool":
        mask = lengths < len("true")  # 0 and 1
    else:
        mask = _have_leading_zeros(characters, limits)
    if sampled == "float64":
        doubtful = (lengths > SAFE_DIGITS) | _have_exponents(characters, limits)
        if doubtful.any():
            rows = pa.array(doubtful)
            mask[doubtful] |= _rounded(texts.filter(rows), values.filter(rows))
    return mask & array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else mask


def _buffers(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes (uint8) of all texts, and the offsets (int32) between the texts."""
    _, offsets, data = texts.buffers()
    limits = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(data or b"\0", np.uint8), limits


def _have_leading_zeros(characters: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Return a mask (bool) of texts that begin, after a sign, with a zero and a digit or `x`."""
    starts = limits[:-1]
    first = characters.take(starts, mode="clip")
    zero = starts + ((first == ord("-")) | (first == ord("+")))
    second = characters.take(zero + 1, mode="clip")
    digit = (second - ord("0") < 10) | (second == ord("x"))  # uint8 wraps around below 0
    is_zero = characters.take(zero, mode="clip") == ord("0")
    return np.asarray(is_zero & digit & (zero + 1 < limits[1:]))


def _have_exponents(characters: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Return a mask (bool) of the texts that contain `e` or `E`."""
    mask = np.zeros(len(limits) - 1, bool)
    text = characters[limits[0] : limits[-1]].tobytes().lower()
    if b"e" in text:  # searching bytes is fast
        positions = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("e")) + limits[0]
        mask[np.searchsorted(limits, positions, side="right") - 1] = True
    return mask


def _rounded(texts: pa.ChunkedArray, numbers: pa.ChunkedArray) -> np.ndarray:
    """Return a mask (bool) of the numbers whose digits change when printed as float64."""
    differ = pc.not_equal(numbers.cast(pa.string()), texts).fill_null(False)
    mask: np.ndarray = differ.to_numpy()
    mask[mask] = [not _is_exact(text) for text in texts.filter(differ).to_pylist()]
    return mask


def _are_exact(texts: pa.ChunkedArray) -> bool:
    """Return whether these numbers keep their digits when printed as float64."""
    long = pc.greater(pc.binary_length(texts), SAFE_DIGITS)
    texts = texts.filter(pc.or_(long, pc.match_substring_regex(texts, "[eE]")))
    printed = texts.cast(pa.float64()).cast(pa.string())
    others = texts.filter(pc.not_equal(printed, texts)).slice(0, CHECKED_NUMBERS)
    return all(map(_is_exact, others.to_pylist()))


def _is_exact(text: str) -> bool:
    written = Decimal(text)
    digits = len(written.as_tuple().digits)
    if not written.is_finite() or digits > MAX_DIGITS:
        return not written.is_finite()
    return Decimal(f"{float(text):.{digits - 1}e}") == written
