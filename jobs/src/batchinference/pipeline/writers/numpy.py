"""Files of NumPy arrays. Nothing in them is pickled."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from batchinference.pipeline.failures import BadOutput
from batchinference.pipeline.writers.base import values_of


class NumpyWriter:
    def files(self, table: pa.Table) -> Iterator[tuple[str, bytes]]:
        arrays = {name: _array(name, table.column(name)) for name in table.column_names}
        if len(arrays) == 1:
            yield ".npy", npy(*arrays.values())
        else:
            yield ".npz", _npz(arrays)


def npy(array: np.ndarray) -> bytes:
    """The file of an array."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _npz(arrays: dict[str, np.ndarray]) -> bytes:
    # np.savez has no room for a column that is named as its own argument is
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), npy(array))
    return buffer.getvalue()


def _array(name: str, column: pa.ChunkedArray) -> np.ndarray:
    """A column whose first axis is the row. Raises BadOutput where NumPy has no plain type."""
    try:
        array = _stacked(column)
    except ValueError:  # rows of several shapes
        array = np.empty(0, dtype=object)
    if array.dtype.hasobject or array.dtype.kind == "S":
        raise BadOutput(
            f"write: column '{name}' ({column.type}) has no form as a NumPy array: that takes rows "
            "of one shape and plain type, none of them null. Choose others in write.columns"
        )
    return array


def _stacked(column: pa.ChunkedArray) -> np.ndarray:
    if pa.types.is_primitive(column.type):
        if column.null_count and not pa.types.is_floating(column.type):
            return np.empty(0, dtype=object)
        return np.asarray(column.to_numpy())
    return np.array(values_of(column))
