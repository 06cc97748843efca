"""Opens a finished output for search: its embedding column, and its rows in order.

A row is identified by its number in the output. Numbers start at 0 and follow the files in the
order of their names.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs

from batchinference.pipeline.commit.layout import STATE_DIRECTORY, Layout
from batchinference.pipeline.errors import BadInput, JobFailure
from batchinference.pipeline.schema import is_list
from batchinference.pipeline.storage.arrow_files import checked
from batchinference.pipeline.storage.json import check_depth, load_json
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.memory_limit import memory_limit
from batchinference.spec.job import BatchInferenceSpec

FORMATS = ("parquet", "json")
INSPECTED_FILES = 16
"""Number of files whose types are read first. If a column still has no type, all files are read."""
FOOTER_THREADS = 16
TAKEN_ROWS = 1024
"""Rows per batch when whole rows are read, which may be large."""
CHUNK_BYTES, MAX_LINE_BYTES = 4 << 20, 64 << 20
MAX_BYTES, MAX_GROWTH = 1 << 30, 16
"""Limit for the memory to decode rows: a constant plus a multiple of the file's size."""
Piece = TypeVar("Piece")


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
        """Return the number of each file's first row, followed by the total number of rows."""
        with self._reading(), ThreadPoolExecutor(FOOTER_THREADS) as pool:
            counts = list(pool.map(pads.FileFragment.count_rows, self._files()))
        return np.cumsum([0, *counts])

    @cached_property
    def width(self) -> int | None:
        """Return the number of values in the first embedding, or None if there is no embedding."""
        for _, batch in self.batches([self.column], TAKEN_ROWS):
            if there := batch.column(0).drop_null():
                return len(there[0])
        return None

    def batches(self, columns: list[str], rows: int) -> Iterator[tuple[int, pa.Table]]:
        """Yield all rows in order, as the number of the first row and a table of at most `rows`.

        One row group is in memory while the next one is prefetched. Arrow's own scan of a whole
        data set reads ahead without limit if its batches are consumed more slowly than they arrive.
        """
        first = 0
        for table in _one_ahead(partial(self._read, columns), self._pieces()):
            for start in range(0, table.num_rows, rows):
                yield first + start, table.slice(start, rows)
            first += table.num_rows

    def take(self, rows: np.ndarray, columns: list[str]) -> pa.Table:
        """Return the rows with these numbers (int64), in this order. Reads only files that contain
        one of them."""
        wanted, places = np.unique(rows, return_inverse=True)
        files = np.searchsorted(self.starts, wanted, side="right") - 1
        parts = [self.schema.empty_table().select(columns)]
        for number, file in enumerate(self._files()):
            inside = pa.array(wanted[files == number] - self.starts[number])
            if len(inside):
                with self._reading(), self._limited(file):
                    scan = {"columns": columns, "batch_size": TAKEN_ROWS, "batch_readahead": 1}
                    scan["use_threads"] = False  # the limit includes the stacks of threads
                    parts.append(self._alone(file).take(inside, **scan))
        return pa.concat_tables(parts).take(pa.array(places))

    def _files(self) -> Iterator[pads.FileFragment]:
        """Yield new fragments on each call, because a fragment keeps the footer that it has
        read."""
        data = self.dataset
        for file in data.get_fragments():
            yield data.format.make_fragment(file.path, data.filesystem, file.partition_expression)

    def _pieces(self) -> Iterator[pads.FileFragment]:
        """Yield the row groups of Parquet files, and files of other formats as a whole."""
        for file in self._files():
            with self._reading():
                whole = not isinstance(file, pads.ParquetFileFragment)
                pieces = [file] if whole else file.split_by_row_group()
            yield from pieces

    def _read(self, columns: list[str], piece: pads.FileFragment) -> pa.Table:
        with self._reading(), self._limited(piece):
            return self._alone(piece).to_table(columns=columns, use_threads=False)

    def _limited(self, piece: pads.FileFragment) -> AbstractContextManager[None]:
        """Limit the memory to decode rows of a file, which may expand to much more than it has."""
        return memory_limit(MAX_BYTES + MAX_GROWTH * self.output.at(piece.path).info().size)

    def _alone(self, piece: pads.FileFragment) -> pads.FileSystemDataset:
        """Return a dataset of one fragment, with the unified schema of all files."""
        data = self.dataset
        return pads.FileSystemDataset([piece], data.schema, data.format, data.filesystem)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException, MemoryError) as error:
            raise JobFailure(f"'{self.output.uri}' cannot be read: {error}") from error


def _one_ahead(read: Callable[[Piece], pa.Table], pieces: Iterator[Piece]) -> Iterator[pa.Table]:
    """Yield the table that `read` returns for each piece, while the next piece is prefetched."""
    with ThreadPoolExecutor(1) as pool:
        coming = [pool.submit(read, piece) for piece in itertools.islice(pieces, 1)]
        while coming:
            table = coming.pop().result()
            coming += [pool.submit(read, piece) for piece in itertools.islice(pieces, 1)]
            yield table


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
    if not dataset.files:
        raise BadInput(f"'{output.uri}' holds no rows")
    return Index(output, spec, dataset, embedding_column(output, dataset.schema, column))


def _spec_of(output: Location) -> BatchInferenceSpec:
    """Return the specification of the finished job that wrote the output. If several jobs have
    appended to it, return that of the first."""
    if not output.exists():
        raise BadInput(f"'{output.uri}' does not exist")
    whole = Layout("", output, output / STATE_DIRECTORY, output)  # other fields are unused
    layouts = [layout for layout in (whole, *whole.appended()) if layout.spec.exists()]
    if not layouts:
        raise BadInput(f"'{output.uri}' is no output of a BatchInference: it holds no "
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
    if file_format not in FORMATS:
        raise BadInput(
            f"'{output.uri}' is written as {file_format}: only {' and '.join(FORMATS)} can be "
            "searched"
        )
    is_parquet = file_format == "parquet"
    if not is_parquet:  # Arrow's parser would crash
        for info in output.visible_files():
            _check_lines(output.at(info.path))
    factory = pads.FileSystemDatasetFactory(
        output.filesystem,
        pafs.FileSelector(output.path, recursive=True),
        pads.ParquetFileFormat() if is_parquet else pads.JsonFileFormat(),
        pads.FileSystemFactoryOptions(
            partition_base_dir=output.path, partitioning=pads.HivePartitioning.discover()
        ),
    )
    with memory_limit(MAX_BYTES):
        schema = factory.inspect(promote_options="permissive", fragments=INSPECTED_FILES)
        if any(pa.types.is_null(field.type) for field in schema):  # empty in some files
            schema = factory.inspect(promote_options="permissive", fragments=None)
    return factory.finish(checked(schema))


def _check_lines(file: Location) -> None:
    """Raise ArrowInvalid if a JSON file has a line that is nested too deeply or too long."""
    with file.filesystem.open_input_stream(file.path) as stream:
        rest = b""
        while chunk := stream.read(CHUNK_BYTES):
            lines, end, rest_of_chunk = (rest + chunk).rpartition(b"\n")
            rest = rest_of_chunk
            _check_line(file, lines + end)
            if len(rest) > MAX_LINE_BYTES:
                raise pa.ArrowInvalid(f"{file.uri}: a line has more than {MAX_LINE_BYTES} bytes")
        _check_line(file, rest)


def _check_line(file: Location, lines: bytes) -> None:
    try:
        check_depth(lines)
    except ValueError as error:
        raise pa.ArrowInvalid(f"{file.uri}: {error}") from None


def is_embedding(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds lists of floating-point numbers."""
    return is_list(kind) and pa.types.is_floating(kind.value_type)


def is_for_machines(kind: pa.DataType) -> bool:
    """Return whether a column holds embeddings or tensors, which are not readable for people."""
    return is_embedding(kind) or (is_list(kind) and is_list(kind.value_type))


def embedding_column(output: Location, schema: pa.Schema, column: str | None) -> str:
    """Return the embedding column to search: `column` if given, otherwise the only one.

    Raises BadInput, which lists the available columns, if there is no such column or no single one.
    """
    there = [field.name for field in schema if is_embedding(field.type)]
    named = ", ".join(there)
    if not there:
        columns = ", ".join(f"{field.name} ({field.type})" for field in schema)
        raise BadInput(f"'{output.uri}' holds no embeddings, which are lists of float16, float32 "
                       f"or float64, not of whole numbers: its columns are {columns}")  # fmt: skip
    if column is not None and column not in there:
        kind = f"is {schema.field(column).type}" if column in schema.names else "is not there"
        raise BadInput(f"column '{column}' of '{output.uri}' {kind}; embeddings are in {named}")
    if column is None and len(there) > 1:
        raise BadInput(f"'{output.uri}' holds embeddings in {named}: name one of these columns")
    return column or there[0]
