"""Reads the rows of an output: the first ones as Python values, or all rows as an Arrow table."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs

from batchinference.json_text import to_json
from batchinference.pipeline.arrow import NO_VALUES, empty_table, tensors_to_lists, unchanged
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.declared_types import INT64_TEXT
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output.python_rows import Row
from batchinference.pipeline.output.tables.kinds import table_for
from batchinference.pipeline.output.writers import rows_of_file
from batchinference.pipeline.output.writers.csv import CsvWriter, with_types
from batchinference.pipeline.output.writers.kinds import writer_for
from batchinference.pipeline.storage.arrow_files import refuse_pickles, schema_in
from batchinference.pipeline.storage.location import Location, base_name
from batchinference.pipeline.storage.partitions import partition_values
from batchinference.pipeline.type_widening import (
    TypeMismatch,
    is_text,
    map_types,
    with_equal_types,
)
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.write import Write, WriteCsv, WriteParquet, WriteTable


def first_rows(write: Write, count: int) -> list[Row]:
    """Return up to `count` rows: rows of the first files by name, or any rows of a table."""
    if isinstance(write, WriteTable):
        return table_for(write).first_rows(count)
    output, writer = Location(write.path, write.storage), writer_for(write)
    parts = (output.at(info.path) for info in files_of(write))
    rows = (row for part in parts for row in rows_of_file(part, writer))
    return list(itertools.islice(rows, count))


def files_of(write: Write) -> list[pafs.FileInfo]:
    """Return the data files of an output, in the order of their names."""
    output = Location(write.path, write.storage)
    files = output.without_links(output.data_files())
    visible = [info for info in files if not base_name(info.path).startswith(("_", "."))]
    return sorted(visible, key=lambda info: str(info.path))


def type_as_read(write: Write, kind: pa.DataType) -> pa.DataType:
    """Return the type with which `first_rows` reads written values; null if it is unknown."""

    def of_json(leaf: pa.DataType) -> pa.DataType:
        of_kind = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, is_text)
        return leaf if any(is_of_kind(leaf) for is_of_kind in of_kind) else pa.null()

    if write.format == "csv":  # the texts of a column may be numbers
        return pa.null() if is_text(kind) else of_json(kind)
    return map_types(kind, of_json) if write.format == "json" else kind


def all_rows(write: Write) -> pa.Table:
    """Return all rows of an output. The table has the columns of all files and the partition
    columns. Raises BadOutput if a file is damaged, or if no type holds all values of a column."""
    if isinstance(write, WriteTable):
        rows = table_for(write).rows(sys.maxsize)
        return _table_of(rows) if isinstance(rows, list) else rows
    if isinstance(write, WriteParquet):
        return _parquet(write)
    if isinstance(write, WriteCsv):
        return _csv(write)
    writer, files = writer_for(write), _files_with_partition_values(write)
    return _table_of([row | values for part, values in files for row in rows_of_file(part, writer)])


def table_without_rows(spec: BatchInferenceSpec) -> pa.Table:
    """Return a table without rows. It has the columns of a complete output if they are known."""
    layout = Layout.of(spec)
    with suppress(BadOutput):
        for text in Snapshot.read(layout.final_snapshot, layout.key).empty_schemas:
            return tensors_to_lists(empty_table(schema_in(text)))
    return pa.table({})


def _files_with_partition_values(write: Write) -> Iterator[tuple[Location, dict[str, str | None]]]:
    """Yield the location of each data file, and the values of its partition columns as texts."""
    output = Location(write.path, write.storage)
    for info in files_of(write):
        yield output.at(info.path), partition_values(output.relative(info.path))


def _table_of(rows: list[Row]) -> pa.Table:
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: _column(name, [row.get(name) for row in rows]) for name in names})


def _column(name: str, values: list[Any]) -> pa.Array | pa.ChunkedArray:
    """Return values in a type that holds all of them. Without such a type, return JSON texts, or
    raise BadOutput if a value is a text already."""
    kinds = {type(value) for value in values if value is not None}
    try:
        return unchanged(pa.chunked_array([pa.array(values)]), values)
    except NO_VALUES as error:
        if kinds == {int}:
            with suppress(OverflowError):
                return pa.array(values, pa.uint64())
        if str not in kinds:
            return pa.array([None if value is None else to_json(value) for value in values])
        raise BadOutput(
            f"output: column '{name}' has values without a common type ({error}). Convert them in "
            "a step, or read the files with another library"
        ) from None


def _csv(write: WriteCsv) -> pa.Table:
    """Return the rows of CSV files. A column whose values have no common type becomes text."""
    writer = CsvWriter(write.compression, write.delimiter)
    parts = [(writer.fields(part), values) for part, values in _files_with_partition_values(write)]
    if not parts:
        return pa.table({})
    rows = with_types(pa.concat_tables([fields for fields, _ in parts], promote_options="default"))
    for name in dict.fromkeys(name for _, values in parts for name in values):
        texts = [[values.get(name)] * fields.num_rows for fields, values in parts]
        rows = rows.append_column(name, pa.chunked_array(texts, pa.string()))
    return rows


def _partitioning(paths: Iterable[str]) -> pads.HivePartitioning:
    """Return the partition columns of files. A column has integers if all of its values are
    integers, and otherwise texts. `007` is a text here; Arrow would read it as 7."""
    kinds: dict[str, pa.DataType] = {}
    for name, text in (pair for path in paths for pair in partition_values(path).items()):
        is_integer = text is None or INT64_TEXT.fullmatch(text)
        kinds[name] = kinds.get(name, pa.int64()) if is_integer else pa.string()
    return pads.HivePartitioning(pa.schema(list(kinds.items())))


def _parquet(write: WriteParquet) -> pa.Table:
    """Return the rows of Parquet files, with the columns of all files and the partition columns.
    The files are untrusted. Raises BadOutput for pickles."""
    output = Location(write.path, write.storage)
    files = output.without_links(output.visible_files())
    if not files:
        return pa.table({})
    partitioning = _partitioning(output.relative(info.path) for info in files)
    factory = pads.FileSystemDatasetFactory(
        output.filesystem,
        sorted(str(info.path) for info in files),
        pads.ParquetFileFormat(),
        pads.FileSystemFactoryOptions(partition_base_dir=output.path, partitioning=partitioning),
    )
    with suppress(pa.ArrowInvalid, pa.ArrowTypeError):  # files may have different types
        schema = factory.inspect(promote_options="default", fragments=None)
        return factory.finish(refuse_pickles(schema)).to_table()
    try:  # Arrow itself would cast the decimal 99.99 to the float 99.99000000000001
        tables = [
            file.to_table(pa.schema([*refuse_pickles(file.physical_schema), *partitioning.schema]))
            for file in factory.finish(factory.inspect(fragments=1)).get_fragments()
        ]
        return pa.concat_tables(with_equal_types(tables), promote_options="default")
    except (pa.ArrowInvalid, TypeMismatch) as error:
        raise BadOutput(
            f"output: the files cannot be read as one table ({error}). Read them with another "
            "library"
        ) from None
