"""Writes files of NumPy arrays without pickling."""

from __future__ import annotations

import io
import re
import reprlib
import zipfile
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.arrow import values_of
from batchinference.pipeline.errors import BadOutput, UnwritableValue
from batchinference.pipeline.output.stored_rows import Row
from batchinference.pipeline.schema import is_list, is_tensor
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.memory_limit import rows_limit
from batchinference.pipeline.storage.numpy_files import COLUMN, ZIP, array_headers, load_arrays

_NEEDS_PICKLE = np.empty(0, dtype=object)
"""Placeholder for a column that could only be stored with pickle."""

_UNSAFE = re.compile(r"(^|[/\\])\.{0,2}[/\\]|^[A-Za-z]:[/\\]|[\x00-\x1f]")
"""Matches names with an empty part, `.` or `..` before a slash, a drive, or control characters."""


class NumpyWriter:
    def files(self, table: pa.Table) -> Iterator[tuple[str, bytes]]:
        arrays = {name: _array(name, table.column(name)) for name in table.column_names}
        if len(arrays) == 1:
            yield ".npy", npy(*arrays.values())
        else:
            yield ".npz", _npz(arrays)

    def rows(self, part: Location) -> Iterator[Row]:
        content = part.read()
        source: io.BufferedReader = io.BufferedReader(io.BytesIO(content))
        headers = array_headers(source, rows_limit(len(content)), "the limit")
        arrays = load_arrays(source, headers)
        if not content.startswith(ZIP):
            arrays = {"array": arrays[COLUMN]}
        for values in zip(*arrays.values(), strict=True):
            yield {name: value.tolist() for name, value in zip(arrays, values, strict=True)}

    def unwritable(self, table: pa.Table) -> dict[int, UnwritableValue]:
        """Return the rows with a value that NumPy cannot hold, or that has another shape than most
        rows. Raises BadOutput if NumPy has no plain type for a column."""
        errors: dict[int, UnwritableValue] = {}
        for name in table.column_names:
            column = table.column(name)
            if _plain(column) is not None:
                continue
            _check_type(name, column.type)
            shapes = [_shape(column.slice(row, 1)) for row in range(len(column))]
            known = Counter(shape for shape in shapes if shape is not None)
            common = max(known, key=lambda shape: known[shape], default=())
            for row, shape in enumerate(shapes):
                if shape != common:
                    errors.setdefault(row, _misfit(name, column.slice(row, 1), common))
        return errors


def npy(array: np.ndarray) -> bytes:
    """Return an array as the bytes of an .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _npz(arrays: dict[str, np.ndarray]) -> bytes:
    # np.savez cannot store a column that has the same name as one of its own arguments
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            if _UNSAFE.search(name):
                raise BadOutput(
                    f"write: a column name cannot be the name of an array ({name!r}): a program "
                    "that unpacks the .npz file could write outside of its directory. Rename it "
                    "with renameColumns, or choose others in write.columns"
                )
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), npy(array))
    return buffer.getvalue()


def _array(name: str, column: pa.ChunkedArray) -> np.ndarray:
    """Return a column as an array whose first axis is the row.

    Raises UnwritableValue if some rows do not fit, and BadOutput if NumPy has no plain type for
    any row."""
    array = _plain(column)
    if array is None:
        _check_type(name, column.type)
        raise UnwritableValue(
            f"write: column '{name}' has values that do not fit into one NumPy array "
            f"({column.type}). Replace them in a step"
        )
    return array


def _check_type(name: str, kind: pa.DataType) -> None:
    """Raise BadOutput if no value of this type can be stored."""
    if not _is_storable(kind):
        raise BadOutput(
            f"write: column '{name}' cannot be a NumPy array ({kind}): its type must be "
            "primitive. Choose other columns in write.columns"
        )


def _misfit(name: str, row: pa.ChunkedArray, common: tuple[int, ...]) -> UnwritableValue:
    return UnwritableValue(
        f"write: a NumPy array whose rows have the shape {common} cannot hold the value of column "
        f"'{name}' ({_described(row)}). Remove nulls, texts that end in NUL and other shapes in a "
        "step"
    )


def _described(row: pa.ChunkedArray) -> str:
    try:
        value = values_of(row)[0]
    except pa.ArrowInvalid as error:  # a time zone that Python does not know
        return str(error)
    return "null" if value is None else reprlib.repr(value)


def _plain(column: pa.ChunkedArray) -> np.ndarray | None:
    """Return a column as an array, or None if it could only be stored with pickle."""
    try:
        array = _stacked(column)
    except ValueError:  # rows differ in shape
        return None
    return None if array.dtype.hasobject or array.dtype.kind == "S" else array


def _shape(row: pa.ChunkedArray) -> tuple[int, ...] | None:
    array = _plain(row)
    return None if array is None else array.shape[1:]


def _is_storable(kind: pa.DataType) -> bool:
    """Return whether some values of this type can be stored."""
    while is_list(kind):
        kind = kind.value_type
    plain = pa.types.is_primitive(kind) or pa.types.is_null(kind)
    return bool(plain or _is_text(kind) or is_tensor(kind))


def _stacked(column: pa.ChunkedArray) -> np.ndarray:
    if not len(column):
        return _empty(column.type)
    if pa.types.is_primitive(column.type):
        if column.null_count and not pa.types.is_floating(column.type):
            return _NEEDS_PICKLE
        return np.asarray(column.to_numpy())
    nulls, elements = column.null_count, column
    while is_list(elements.type):
        elements = pc.list_flatten(elements)
        nulls += elements.null_count
    if nulls and is_list(column.type):
        return _NEEDS_PICKLE
    kind = elements.type
    if _is_text(kind) and pc.any(pc.ends_with(elements, pattern="\0")).as_py():
        return _NEEDS_PICKLE
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return np.array(values_of(column), dtype=kind.to_pandas_dtype() if number else None)


def _empty(kind: pa.DataType) -> np.ndarray:
    """Return an array without rows, in the shape of tensors if it is known."""
    shape = getattr(kind, "shape", None) or ()
    while is_list(kind) or hasattr(kind, "value_type"):
        kind = kind.value_type
    primitive = pa.types.is_primitive(kind)
    return np.empty((0, *shape), kind.to_pandas_dtype() if primitive else "U1")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
