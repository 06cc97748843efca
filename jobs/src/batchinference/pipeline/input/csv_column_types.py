"""Infers the types of CSV columns, and converts their values to these types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.declared_types import (
    EXACT_INTEGERS,
    arrow_type,
    cast_texts,
    is_time,
    json_problem,
    misfit,
)
from batchinference.pipeline.input.csv_dialect import NULL
from batchinference.pipeline.text_types import buffers_of, inferred_type, loss_mask
from batchinference.pipeline.type_widening import may_be_hexadecimal
from batchinference.spec.column_types import INTEGERS, ColumnType

_MISSING = pa.array(
    [*("", "NA", "<NA>", "NULL", "null", "NaN", "nan", "-NaN", "-nan"),
     *("1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN")],
    pa.string(),
)  # fmt: skip
"""Texts that mean null, except in columns of text."""


@dataclass(frozen=True)
class CsvTypes:
    """Converts columns of CSV files from bytes to their types. The type of a column is the one in
    `declared` (by the user), or else in `sampled`, or else text. `nulls` are texts for null."""

    declared: Mapping[str, ColumnType] = field(default_factory=dict)
    sampled: Mapping[str, str] = field(default_factory=dict)
    nulls: tuple[str, ...] = ()
    decimal: str = "."
    encoding: str = "utf-8"
    fix: str = ""
    """The advice if a text is invalid in the encoding."""
    escaped: bool = False
    """Whether the files have an escape character. If so, `csv_dialect.NULL` means null."""
    _slow: set[str] = field(default_factory=set, compare=False)
    """The columns for which the quick conversion has failed, and is not tried again."""

    def infer(self, columns: Mapping[str, pa.ChunkedArray]) -> dict[str, str]:
        """Return the inferred types of sampled columns of bytes."""
        texts = {
            name: _without_missing(self._texts(column)[0]).drop_null()
            for name, column in columns.items()
        }
        return {
            name: inferred_type(values, _with_points(values, "float64", self.decimal))
            for name, values in texts.items()
        }

    def cast(self, table: pa.Table) -> tuple[pa.Table, dict[int, Exception]]:
        """Return a table of bytes converted to the types of its columns, and errors by row index. A
        value that does not fit its type becomes null, and its row gets an error."""
        columns: list[pa.ChunkedArray] = []
        errors: dict[int, Exception] = {}
        for name, column in zip(table.column_names, table.columns, strict=True):
            values, misfits = self._cast(name, column)
            columns.append(values)
            for row, error in misfits.items():
                errors.setdefault(row, error)
        return pa.table(columns, table.column_names), errors

    def _texts(self, column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, np.ndarray]:
        """Return a column of bytes as text, and a mask (bool) of the values that are not text."""
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
        misfits |= loss_mask(numbers, values, sampled)
        for row in np.flatnonzero(misfits).tolist():
            value = texts[row].as_py()
            problem = json_problem(value, kind)
            errors[row] = misfit(name, value, kind, sampled=sampled is not None, problem=problem)
        return values, errors

    def _quickly_converted(
        self, column: pa.ChunkedArray, kind: ColumnType, sampled: str | None
    ) -> pa.ChunkedArray | None:
        """Return the converted column; None if each value must be checked for a fit."""
        is_quick = kind in ("bool", *INTEGERS, *EXACT_INTEGERS) or is_time(kind)
        if self.nulls or not is_quick or (self.decimal != "." and kind in EXACT_INTEGERS):
            return None
        column = _with_nulls(column.combine_chunks())
        if kind in INTEGERS and not sampled and may_be_hexadecimal(column.chunk(0)).true_count:
            return None
        try:
            values = column.cast(arrow_type(kind))
        except pa.ArrowInvalid:
            return None
        if kind in EXACT_INTEGERS:
            limits = pc.min_max(values).as_py()
            if max(abs(limits["min"] or 0), abs(limits["max"] or 0)) >= EXACT_INTEGERS[kind]:
                return None
        return None if loss_mask(column, values, sampled).any() else values


def _with_nulls(column: pa.BinaryArray) -> pa.ChunkedArray:
    """Return bytes as text in which empty values are null. UTF-8 is not validated, because invalid
    text does not fit any of the quick types."""
    _, limits = buffers_of(column)
    present = np.diff(limits) > 0
    validity = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    buffers = [validity, pa.py_buffer(limits), column.buffers()[2]]
    return pa.chunked_array([pa.Array.from_buffers(pa.string(), len(present), buffers)])


def _without_missing(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    trimmed = pc.utf8_trim_whitespace(texts)
    return pc.if_else(pc.is_in(trimmed, _MISSING), None, trimmed)


def _with_points(texts: pa.ChunkedArray, kind: ColumnType, decimal: str) -> pa.ChunkedArray:
    """Return numbers with a point instead of a comma. A text with a point becomes invalid."""
    if decimal == "." or not str(kind).startswith(("float", "decimal")):
        return texts
    return pc.replace_substring(pc.replace_substring(texts, ".", "?"), ",", ".")
