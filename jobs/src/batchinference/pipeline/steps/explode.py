"""The explode step: makes a row for each element of a list or tensor."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.arrow import one_array, require_columns, to_column, values_of
from batchinference.pipeline.expression import UnsuitableTypes
from batchinference.pipeline.steps.transform import (
    RESULT_BYTES,
    Transform,
    TransformResult,
    all_failed,
    bytes_of_copy,
)
from batchinference.pipeline.type_widening import is_list, is_tensor, plain_column
from batchinference.spec.steps import Explode


class ExplodeList(Transform):
    """Repeats each row for each element of a list. Rows without elements are filtered rows. A
    result is partial if all its rows would exceed about `max_bytes`."""

    LOADS_NOTHING = True

    @classmethod
    def check_types(cls, step: str, settings: Explode, known: pa.Table) -> None:
        if settings.column in known.column_names:
            cls(step, settings)._elements(known.column(settings.column))

    def __init__(self, step: str, explode: Explode, max_bytes: int = RESULT_BYTES) -> None:
        self._step, self._column, self._max_bytes = step, explode.column, max_bytes

    def __call__(self, batch: pa.Table) -> TransformResult:
        require_columns(self._step, [self._column], batch)
        try:
            elements, parents = self._elements(batch.column(self._column))
        except UnsuitableTypes as error:  # fails these rows: other batches may have other types
            return all_failed(batch.num_rows, TypeError(error.message))
        rows = _rows_within_limit(batch, self._column, parents, self._max_bytes)
        if rows < batch.num_rows:
            elements, parents = self._elements(batch.column(self._column).slice(0, rows))
        columns = {
            name: elements if name == self._column else batch.column(name).take(pa.array(parents))
            for name in batch.column_names
        }
        covered = rows if rows < batch.num_rows else None
        return TransformResult(pa.table(columns), parents, rows=covered)

    def _elements(self, column: pa.ChunkedArray) -> tuple[pa.Array | pa.ChunkedArray, np.ndarray]:
        """Return all elements, and the row index (int64) of each. Raises UnsuitableTypes."""
        column = plain_column(column)
        if is_tensor(column.type):
            return _of_tensors(column)
        if pa.types.is_null(column.type):  # only nulls in this block; other blocks may have lists
            return column.slice(0, 0), np.zeros(0, dtype=np.int64)
        if not is_list(column.type):
            raise UnsuitableTypes(
                f"step '{self._step}': column '{self._column}' holds {column.type}, and explode "
                "needs lists. Name a column of lists"
            )
        array = one_array(column)
        # a null list may refer to elements, but flattening skips them: its length counts as 0
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        return pc.list_flatten(array), np.repeat(np.arange(len(array)), lengths)


def _rows_within_limit(batch: pa.Table, column: str, parents: np.ndarray, max_bytes: int) -> int:
    """Return how many rows at the start of a batch give at most about `max_bytes`; at least 1."""
    copies = np.bincount(parents, minlength=batch.num_rows)
    lists, others = batch.column(column), batch.drop_columns([column])
    free_bytes, ranges = max_bytes, [(0, batch.num_rows)]  # ranges are halved until they fit
    while ranges:
        first, stop = ranges.pop()
        rows = stop - first
        max_copies = int(copies[first:stop].max(initial=0))
        size = max_copies * bytes_of_copy(others, first, rows) + lists.slice(first, rows).nbytes
        if size <= free_bytes:
            free_bytes -= size
        elif rows == 1:
            return max(1, first)
        else:
            ranges += [(first + rows // 2, stop), (first, first + rows // 2)]
    return int(batch.num_rows)


def _of_tensors(column: pa.ChunkedArray) -> tuple[pa.Array | pa.ChunkedArray, np.ndarray]:
    """Return the elements of tensors along their first axis, and the row index (int64) of each."""
    tensors = values_of(column)
    lengths = [0 if tensor is None else len(tensor) for tensor in tensors]
    parts = [part for tensor in tensors if tensor is not None for part in tensor]
    elements = to_column(np.array(parts)) if parts else pa.nulls(0)
    return elements, np.repeat(np.arange(len(tensors)), lengths)
