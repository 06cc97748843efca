"""Reads the rows of a written output: the first ones, or all of them as one Arrow table."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs

from batchinference.pipeline.arrow import tensors_to_lists
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output.python_rows import Row
from batchinference.pipeline.output.tables import table_for
from batchinference.pipeline.output.writers import rows_of_file, writer_for
from batchinference.pipeline.output.writers.csv import CsvWriter
from batchinference.pipeline.storage.arrow_files import checked, schema_in
from batchinference.pipeline.storage.location import Location, base_name
from batchinference.pipeline.storage.partitions import partition_values
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.write import Write, WriteCsv, WriteParquet, WriteTable


def first_rows(write: Write, count: int) -> list[Row]:
    """Return the first rows of an output. Files are read in the order of their names. For a
    table, any rows are returned."""
    if isinstance(write, WriteTable):
        return table_for(write).first_rows(count)
    output = Location(write.path, write.storage)
    writer, parts = writer_for(write), (output.at(info.path) for info in parts_of(write))
    rows = itertools.chain.from_iterable(rows_of_file(part, writer) for part in parts)
    return list(itertools.islice(rows, count))


def parts_of(write: Write) -> list[pafs.FileInfo]:
    """Return the files of an output, in the order of their names."""
    output = Location(write.path, write.storage)
    files = output.without_links(output.data_files())
    seen = [info for info in files if not base_name(info.path).startswith(("_", "."))]
    return sorted(seen, key=lambda info: str(info.path))


def table_of(write: Write) -> pa.Table:
    """Return all rows of an output, with the columns of all its files and its partition columns.
    Raises BadOutput if values of a column have no type in common."""
    if isinstance(write, WriteTable):
        return _of_rows(table_for(write).first_rows(sys.maxsize))
    if isinstance(write, WriteParquet):
        return _parquet(write)
    if isinstance(write, WriteCsv):
        return _csv(write)
    writer, files = writer_for(write), _parts(write)
    return _of_rows([row | values for part, values in files for row in rows_of_file(part, writer)])


def columns_of(spec: BatchInferenceSpec) -> pa.Table:
    """Return the columns of a complete output without rows; no columns if they are unknown."""
    layout = Layout.of(spec)
    with suppress(BadOutput):
        for text in Snapshot.read(layout.end, layout.key).empty_schemas:
            return tensors_to_lists(schema_in(text).empty_table())
    return pa.table({})


def _parts(write: Write) -> Iterator[tuple[Location, dict[str, str | None]]]:
    """Yield the location of each file, with the values of its partition columns as texts."""
    output = Location(write.path, write.storage)
    for info in parts_of(write):
        yield output.at(info.path), partition_values(output.below(info.path))


def _of_rows(rows: list[Row]) -> pa.Table:
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: _column(name, [row.get(name) for row in rows]) for name in names})


def _column(name: str, values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise BadOutput(
            f"output: column '{name}' has values without a common type ({error}). Convert them in "
            "a step, or read the files with another library"
        ) from None


def _csv(write: WriteCsv) -> pa.Table:
    """Return the rows of files of separated values. A column is text if its files have no other
    type in common."""
    parts = list(_parts(write))
    writer = CsvWriter(write.compression, write.delimiter)
    tables = [writer.table(part) for part, _ in parts]
    if texts := [*_without_common_type(tables)]:
        tables = [writer.table(part, texts) for part, _ in parts]
    for index, (_, values) in enumerate(parts):
        for name, value in values.items():
            column = pa.array([value] * tables[index].num_rows, pa.string())
            tables[index] = tables[index].append_column(name, column)
    return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})


def _without_common_type(tables: Iterable[pa.Table]) -> Iterator[str]:
    fields: dict[str, list[pa.Field]] = {}
    for field in (field for table in tables for field in table.schema):
        fields.setdefault(field.name, []).append(field)
    for name, found in fields.items():
        try:
            pa.unify_schemas([pa.schema([one]) for one in found], promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            yield name


def _parquet(write: WriteParquet) -> pa.Table:
    """Return the rows of Parquet files, with the columns of all files and partition columns. Others
    may have written these files. Raises UnsafeColumn."""
    output = Location(write.path, write.storage)
    files = output.without_links(output.visible_files())
    if not files:
        return pa.table({})
    partitioning = pads.HivePartitioning.discover()
    factory = pads.FileSystemDatasetFactory(
        output.filesystem,
        sorted(str(info.path) for info in files),
        pads.ParquetFileFormat(),
        pads.FileSystemFactoryOptions(partition_base_dir=output.path, partitioning=partitioning),
    )
    try:
        schema = factory.inspect(promote_options="permissive", fragments=None)
        return factory.finish(checked(schema)).to_table()
    except pa.ArrowTypeError as error:
        raise BadOutput(
            f"output: a column has types without a common type ({error}). Read the files with "
            "another library"
        ) from None
