"""The nearest step: finds the most similar rows of a finished output for each row.

Each batch scans that output once. At most a few blocks of it are in memory at a time.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.arrow import require_columns, tensors_to_lists, with_column
from batchinference.pipeline.errors import BadInput, JobFailure
from batchinference.pipeline.search.index import Index, is_embedding, is_for_machines, open_index
from batchinference.pipeline.search.search import NO_ROW, is_usable, lengths_of, matrix_of, search
from batchinference.pipeline.steps import Transform, TransformResult
from batchinference.pipeline.storage.location import Location
from batchinference.spec.nearest import SIMILARITY, Nearest


class NearestRows(Transform):
    """Adds the column of matches. Raises BadInput if there is nothing to search."""

    @classmethod
    def check(cls, step: str, settings: Nearest) -> None:
        cls(step, settings)

    def __init__(self, step: str, nearest: Nearest) -> None:
        self._step = step
        self._nearest = nearest
        try:
            output = Location(nearest.path, nearest.storage)
            self._index = open_index(output, nearest.index_column)
            self._columns = _columns_of(self._index, nearest)
            self._width = _width_of(self._index)
        except BadInput as failure:
            raise BadInput(f"step '{step}': {failure.message}") from None

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult:
        column = self._nearest.column
        require_columns(self._step, [column], batch)
        embeddings = tensors_to_lists(batch.select([column])).column(0)
        if not is_embedding(embeddings.type):
            raise JobFailure(
                f"step '{self._step}' compares embeddings, and column '{column}' is "
                f"{embeddings.type}"
            )
        lengths = pc.list_value_length(embeddings).to_numpy(zero_copy_only=False)
        fits = np.isnan(lengths) | (lengths == self._width)  # the length of null is NaN
        fitting = np.flatnonzero(fits)
        failed = {int(row): self._mismatch(int(lengths[row])) for row in np.flatnonzero(~fits)}
        if failed:
            batch, embeddings = batch.take(fitting), embeddings.take(fitting)
        table = with_column(batch, self._nearest.output, self._matches(embeddings))
        return TransformResult(table, fitting, failed) if failed else table

    def _mismatch(self, width: int) -> Exception:
        return ValueError(
            f"an embedding of {width} numbers, and those of '{self._nearest.path}' have "
            f"{self._width}"
        )

    def _matches(self, embeddings: pa.ChunkedArray) -> pa.Array:
        """Return a list of matches for each row; null if the row has no usable embedding."""
        valid = embeddings.is_valid().to_numpy()
        matrix = matrix_of(embeddings, self._width)
        usable = is_usable(lengths_of(matrix))
        valid[valid] = usable
        found = np.empty((0, self._nearest.k), dtype=np.int64)
        similarities = found.astype(np.float32)
        if usable.any():
            best = search(self._index, matrix[usable], self._nearest.k)
            found, similarities = best.rows, best.similarities
        counts = np.zeros(len(valid), dtype=np.int64)
        counts[valid] = (found != NO_ROW).sum(axis=1)
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
        rows = self._index.take(found[found != NO_ROW], self._columns)
        values = [pa.array(similarities[found != NO_ROW], pa.float32()), *rows.combine_chunks()]
        structs = pa.StructArray.from_arrays(
            [_combined(column) for column in values], [SIMILARITY, *self._columns]
        )
        return pa.ListArray.from_arrays(offsets, structs, mask=pa.array(~valid))


def _combined(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _columns_of(index: Index, nearest: Nearest) -> list[str]:
    available = index.schema.names
    if nearest.columns is not None:
        if missing := sorted(set(nearest.columns) - set(available)):
            raise BadInput(
                f"'{nearest.path}' has no column '{missing[0]}', only {', '.join(available)}"
            )
        return nearest.columns
    columns = [field.name for field in index.schema if not is_for_machines(field.type)]
    if SIMILARITY in columns:
        raise BadInput(f"'{nearest.path}' has a column '{SIMILARITY}' of its own: choose 'columns'")
    return columns


def _width_of(index: Index) -> int:
    if index.width is None:
        raise BadInput(f"no row of '{index.output.uri}' has an embedding")
    return index.width
