"""Sorts texts by length, so that the texts of each batch need little padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.arrow import decoded
from batchinference.pipeline.input.planning import FILE_BYTES
from batchinference.pipeline.row_batch import RowBatch
from batchinference.spec.reserved import PREPARED_PREFIX

if TYPE_CHECKING:
    from batchinference.spec.steps import Step

WINDOW_ROWS = 4096
"""Maximum rows of a window. Texts are sorted within a window."""
WINDOW_BYTES = 128 << 20
"""Maximum bytes of a window that is sorted, because sorting copies its rows."""
WINDOW_BATCHES = 16
"""Maximum batches of a window in an actor pool. A lost actor loses its window, and earlier steps
may make rows much larger than the input rows."""
MIN_WINDOWS = 3
"""Minimum number of windows for each replica of a model."""
_TEXT = (pa.string(), pa.large_string())


@dataclass(frozen=True)
class WindowLimits:
    """Limits windows by the expected number of input rows and the expected bytes of a row."""

    rows: int
    row_bytes: int

    def window_rows(self, batch_size: int, replicas: int) -> int:
        """Return the number of rows of a window in an actor pool, at least one batch."""
        share = self.rows // (MIN_WINDOWS * replicas)
        batches = WINDOW_BATCHES * batch_size
        return max(batch_size, min(WINDOW_ROWS, batches, share, FILE_BYTES // self.row_bytes))


def longest_first(
    batch: RowBatch, columns: tuple[str, ...], max_bytes: int = WINDOW_BYTES
) -> RowBatch:
    """Return a window with the rows of its longest texts first; unchanged without texts or above
    `max_bytes`. Rows made from the same input row stay together and in order."""
    lengths = text_lengths(batch.table, columns)
    if lengths is None or batch.nbytes > max_bytes:
        return batch
    unique, inputs = np.unique(batch.ids, return_inverse=True)
    longest = np.zeros(len(unique), dtype=np.int64)
    np.maximum.at(longest, inputs, lengths)
    return batch.reordered(np.lexsort((inputs, -longest[inputs])))


def columns_of_first_model(steps: list[Step]) -> tuple[str, ...]:
    """Return the columns that the first model reads; empty without a model."""
    models = (step.model for step in steps if step.model is not None)
    return next((tuple(model.inputs.values()) for model in models), ())


def text_lengths(table: pa.Table, columns: tuple[str, ...]) -> np.ndarray | None:
    """Return the length of each row (int64); None if the columns have no texts. The length is the
    number of tokens if a prepared column lists them, or else the bytes of texts."""
    texts = text_columns(table, columns)
    if not texts:
        return None
    tokens = [name for name in table.column_names if name.startswith(PREPARED_PREFIX)]
    if tokens:
        counts = [pc.list_value_length(table.column(tokens[0]))]
    else:
        counts = [pc.binary_length(text) for text in texts]
    lengths = np.zeros(table.num_rows, dtype=np.int64)
    for column in counts:
        lengths += pc.fill_null(column, 0).to_numpy()
    return lengths


def text_columns(table: pa.Table, columns: tuple[str, ...]) -> list[pa.ChunkedArray]:
    """Return those of the `columns` that have texts, as plain arrays without dictionaries."""
    known = [decoded(table.column(name)) for name in columns if name in table.column_names]
    return [column for column in known if column.type in _TEXT]
