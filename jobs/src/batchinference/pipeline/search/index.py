"""Opens a finished output for search: its embedding column, and its rows in order.

A row is identified by its number in the output. Numbers start at 0 and follow the files in the
order of their names.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads

from batchinference.pipeline.commit.layout import STATE_DIRECTORY, Layout
from batchinference.pipeline.errors import BadInput, JobFailure
from batchinference.pipeline.schema import is_list
from batchinference.pipeline.storage.json import load_json
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.parquet_dataset import files_of, fragments_of, parquet_dataset
from batchinference.spec.job import BatchInferenceSpec

INSPECTED_FILES = 16
"""Number of files whose types are read first. If a column still has no type, all files are read."""
FOOTER_THREADS = 16
TAKEN_ROWS = 1024
"""Rows per batch when whole rows are read, which may be large."""


@dataclass(frozen=True)
class Index:
    """The rows of an output. `column` holds the embeddings."""

    output: Location
    spec: BatchInferenceSpec
    dataset: pads.FileSystemDataset
    column: str

    @property
    def schema(self) -> pa.Schema:
        return self.dataset.schema

    @cached_property
    def starts(self) -> np.ndarray:
        """The number of each file's first row, followed by the total number of rows."""
        with self._reading(), ThreadPoolExecutor(FOOTER_THREADS) as pool:
            counts = list(pool.map(lambda file: file.count_rows(), fragments_of(self.dataset)))
        return np.cumsum([0, *counts])

    @cached_property
    def width(self) -> int | None:
        """Return the number of values in the first embedding, or None if there is no embedding."""
        for _, batch in self.batches([self.column], TAKEN_ROWS):
            if embeddings := batch.column(0).drop_null():
                return len(embeddings[0])
        return None

    def batches(self, columns: list[str], rows: int) -> Iterator[tuple[int, pa.Table]]:
        """Yield all rows in order, as the number of the first row and a table of at most `rows`.

        One row group is in memory while the next one is prefetched. Arrow's own scan of a whole
        data set reads ahead without limit if its batches are consumed more slowly than they arrive.
        """
        first = 0
        for table in self._row_groups(columns):
            for start in range(0, table.num_rows, rows):
                yield first + start, table.slice(start, rows)
            first += table.num_rows

    def take(self, rows: np.ndarray, columns: list[str]) -> pa.Table:
        """Return the rows with these numbers (int64), in this order. Reads only files that contain
        one of them."""
        wanted, places = np.unique(rows, return_inverse=True)
        files = np.searchsorted(self.starts, wanted, side="right") - 1
        parts = [self.schema.empty_table().select(columns)]
        for number, file in enumerate(fragments_of(self.dataset)):
            inside = pa.array(wanted[files == number] - self.starts[number])
            if len(inside):
                with self._reading():
                    scan = {"columns": columns, "batch_size": TAKEN_ROWS, "batch_readahead": 1}
                    parts.append(file.scanner(schema=self.schema, **scan).take(inside))
        return pa.concat_tables(parts).take(pa.array(places))

    def _row_groups(self, columns: list[str]) -> Iterator[pa.Table]:
        """Yield the row groups in order. The next one is read while one is in use."""
        with ThreadPoolExecutor(1) as pool:
            coming: list[Future[pa.Table]] = []
            for file in fragments_of(self.dataset):
                with self._reading():
                    groups = file.split_by_row_group()
                for group in groups:
                    coming.append(pool.submit(self._read, columns, group))
                    if len(coming) > 1:
                        yield coming.pop(0).result()
            yield from (table.result() for table in coming)

    def _read(self, columns: list[str], group: pads.ParquetFileFragment) -> pa.Table:
        with self._reading():
            return group.to_table(schema=self.schema, columns=columns, use_threads=False)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Raise JobFailure if rows cannot be read."""
        try:
            yield
        except (OSError, pa.ArrowException, MemoryError) as error:
            raise JobFailure(f"'{self.output.uri}' cannot be read: {error}") from error


def open_index(output: Location, column: str | None = None) -> Index:
    """Return the index of a finished job's output. `column` is the column to search; the default is
    the only column of embeddings.

    Raises BadInput if there is no such output or no such column.
    """
    try:
        spec = _spec_of(output)
        dataset = _dataset(output, spec.write.format)
    except (OSError, pa.ArrowException, MemoryError) as error:
        raise BadInput(f"'{output.uri}' cannot be read: {error}") from error
    return Index(output, spec, dataset, embedding_column(output, dataset.schema, column))


def _spec_of(output: Location) -> BatchInferenceSpec:
    """Return the specification of the finished job that wrote the output. If several jobs have
    appended to it, return the specification of the first job."""
    if not output.exists():
        raise BadInput(f"'{output.uri}' does not exist")
    whole = Layout("", output, output / STATE_DIRECTORY, output)  # other fields are unused
    layouts = [layout for layout in (whole, *whole.appended()) if layout.spec.exists()]
    if not layouts:
        raise BadInput(f"'{output.uri}' is not the output of a BatchInference: it holds no "
                       f"'{STATE_DIRECTORY}/spec.json'")  # fmt: skip
    for layout in layouts:
        if not layout.success.exists():
            raise BadInput(f"'{output.uri}' is not finished: there is no '{layout.success.uri}'")
    try:
        return BatchInferenceSpec.model_validate(load_json(layouts[0].spec.read()))
    except ValueError:  # pydantic's error is a ValueError as well
        raise BadInput(
            f"'{layouts[0].spec.uri}' is damaged, or was written by another version of the program"
        ) from None


def _dataset(output: Location, file_format: str) -> pads.FileSystemDataset:
    if file_format != "parquet":
        raise BadInput(
            f"write.format: only outputs in Parquet can be searched ('{output.uri}' is "
            f"{file_format}). Write the embeddings with format: parquet"
        )
    files = files_of(output)
    if not files:
        raise BadInput(f"'{output.uri}' holds no rows")
    return parquet_dataset(output, files, INSPECTED_FILES)


def is_embedding(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds lists of floating-point numbers."""
    return is_list(kind) and pa.types.is_floating(kind.value_type)


def is_for_machines(kind: pa.DataType) -> bool:
    """Return whether a column holds embeddings or tensors, which people cannot read."""
    return is_embedding(kind) or (is_list(kind) and is_list(kind.value_type))


def embedding_column(output: Location, schema: pa.Schema, column: str | None) -> str:
    """Return the embedding column to search: `column` if given, otherwise the only one.

    Raises BadInput, which lists the available columns, if there is no such column or no single one.
    """
    candidates = [field.name for field in schema if is_embedding(field.type)]
    named = ", ".join(candidates)
    if not candidates:
        columns = ", ".join(f"{field.name} ({field.type})" for field in schema)
        raise BadInput(f"'{output.uri}' holds no embeddings, which are lists of float16, float32 "
                       f"or float64, not of whole numbers: its columns are {columns}")  # fmt: skip
    if column is not None and column not in candidates:
        kind = f"is {schema.field(column).type}" if column in schema.names else "is not there"
        raise BadInput(f"column '{column}' of '{output.uri}' {kind}; embeddings are in {named}")
    if column is None and len(candidates) > 1:
        raise BadInput(f"'{output.uri}' holds embeddings in {named}: name one of these columns")
    return column or candidates[0]
