"""Stores the columns of an output without rows. If the output consists of files, also writes a file
without rows, because many readers fail if there is no file.

The columns are those known from the input and the steps, then those of the commits of tasks whose
rows were all filtered or failed. The first known type of a column is used."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pyarrow as pa

from batchinference.pipeline.arrow import empty_table
from batchinference.pipeline.commit.job_pass import JobPass, is_work_file
from batchinference.pipeline.commit.manifest import ManifestEntry
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.output.file_rewrites import put_rewritten
from batchinference.pipeline.output.file_split import FileSplit
from batchinference.pipeline.output.writers.kinds import writer_for
from batchinference.pipeline.storage.arrow_files import schema_in, schema_text
from batchinference.pipeline.type_widening import agreed_types, is_complete, map_nulls
from batchinference.spec.progress import Counts
from batchinference.spec.write import Write, WriteFiles, WriteTable


def with_columns(
    job_pass: JobPass, end: Snapshot, write: Write, planned: pa.Schema, guessed: pa.Schema
) -> Snapshot:
    """Return the final snapshot of an output without rows. It has the columns of the output, and
    a file without rows if readers need one. `planned` are the columns that are certain before any
    row is computed. `guessed` replaces them if they are empty and no task has committed columns,
    but only if the mode of `write` is `error` or `overwrite`."""
    is_certain = planned.names or end.empty_schemas or write.adds
    schema = _schema(end, FileSplit.of(write), planned if is_certain else guessed)
    end = replace(end, empty_schemas=[schema_text(schema)] if schema.names else [])
    if isinstance(write, WriteTable) or not _may_have_file(job_pass, end, write, schema):
        return end
    # Spark and other readers do not support the type null
    fields = [field.with_type(map_nulls(field.type)) for field in schema]
    table = empty_table(pa.schema(fields))
    name = job_pass.layout.file_prefix(job_pass.number, 0, uuid.uuid4().hex[:8])
    data = [
        put_rewritten(job_pass, job_pass.layout.data, f"{name}-{number:04d}{ending}", content)
        for number, (ending, content) in enumerate(writer_for(write).files(table))
    ]
    columns = [(field.name, str(field.type)) for field in table.schema]
    entries = [ManifestEntry(Counts(), [], [], data, columns, None)] if data else []
    return replace(end, entries=[*end.entries, *entries])


def without_empty_files(end: Snapshot) -> Snapshot:
    """Return the snapshot without the entries of files that have no rows. Call this if the output
    now has rows, because the rows may have other types than the files without rows."""
    entries = [entry for entry in end.entries if entry.counts.written or not entry.data]
    return replace(end, entries=entries)


def _schema(end: Snapshot, split: FileSplit, planned: pa.Schema) -> pa.Schema:
    """Return the columns of the output and its partitions. An unknown type is null."""
    schemas = [planned, *map(schema_in, end.empty_schemas)]
    types = agreed_types(schemas, lambda known, _: known)
    numbers = {split.row_number: pa.int64()} if split.row_number else {}
    names = dict.fromkeys([*numbers, *(split.columns or types), *split.partition_by])
    types |= numbers
    return pa.schema([(name, types.get(name, pa.null())) for name in names])


def _may_have_file(job_pass: JobPass, end: Snapshot, write: WriteFiles, schema: pa.Schema) -> bool:
    """Return whether to write a file without rows: never if there are data files. If the format
    stores columns, at least one must be known. If the mode adds to existing rows, the output must
    also have no files yet. Then a format that stores columns also needs complete types and no
    `partitionBy`."""
    if any(entry.data for entry in end.entries):
        return False
    if not write.STORES_COLUMNS:
        return not write.adds or not _has_files(job_pass)
    if not write.adds:
        return bool(schema.names)
    if not schema.names or not is_complete(schema) or write.column_fields.get("partitionBy"):
        return False
    return not _has_files(job_pass)


def _has_files(job_pass: JobPass) -> bool:
    layout = job_pass.layout
    return any(not is_work_file(info.path, layout.key) for info in layout.data.visible_files())
