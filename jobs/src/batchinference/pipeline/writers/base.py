"""What a writer is, and plain columns instead of tensors."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa
from ray.data.extensions import get_arrow_extension_tensor_types


class Writer(Protocol):
    extension: str
    """Ending of the files, with the dot."""

    def encode(self, table: pa.Table) -> memoryview:
        """A whole file that holds the table."""


def plain(table: pa.Table) -> pa.Table:
    """The table with tensors as (nested) lists, which every other tool can read."""
    tensors = get_arrow_extension_tensor_types()
    for index, field in enumerate(table.schema):
        if isinstance(field.type, tensors):
            chunks = [_lists(chunk) for chunk in table.column(index).chunks]
            table = table.set_column(index, field.name, pa.chunked_array(chunks))
    return table


def _lists(tensors: pa.ExtensionArray) -> pa.Array:
    """rows x shape as lists of lists, one level a dimension."""
    values = tensors.to_numpy(zero_copy_only=False)
    if values.dtype == object:  # rows of different shapes
        return pa.array([value.tolist() for value in values])
    array = pa.array(np.ascontiguousarray(values).reshape(-1))
    for length in reversed(values.shape[1:]):
        offsets = np.arange(0, len(array) + 1, length, dtype=np.int32)
        array = pa.ListArray.from_arrays(pa.array(offsets), array)
    return array
