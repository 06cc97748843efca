"""Gives an output without rows its columns, because many readers fail without a file.

The columns are those that rows would have had: they come from the commits of tasks whose rows were
all filtered or failed, and else from the job file. A format of files gets one file without rows.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

import pyarrow as pa

from batchinference.pipeline.commit.attempt import Attempt, is_part
from batchinference.pipeline.commit.manifest import ManifestEntry
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.output.file_layout import FileLayout
from batchinference.pipeline.output.file_rewrites import put_rewritten
from batchinference.pipeline.output.writers import writer_for
from batchinference.pipeline.storage.arrow_files import schema_in, schema_text
from batchinference.pipeline.type_widening import agreed_types, is_complete, map_nulls
from batchinference.spec.progress import Counts
from batchinference.spec.write import Write, WriteFiles, WriteTable


def with_columns(
    attempt: Attempt, end: Snapshot, write: Write, planned: pa.Schema, guessed: pa.Schema
) -> Snapshot:
    """Return the snapshot of a finished output without rows, with its columns, and with a file
    without rows if readers need one. `planned` are the columns as far as they are known without
    rows. If none are known, they are `guessed`, unless rows may be appended."""
    known = planned.names or end.empty_schemas or write.adds
    schema = _schema(end, FileLayout.of(write), planned if known else guessed)
    end = replace(end, empty_schemas=[schema_text(schema)] if schema.names else [])
    if isinstance(write, WriteTable) or not _may_have_file(attempt, end, write, schema):
        return end
    # readers such as Spark have no columns of type null
    table = pa.schema([field.with_type(map_nulls(field.type)) for field in schema]).empty_table()
    name = attempt.layout.part_name(attempt.number, 0, uuid.uuid4().hex[:8])
    data = [
        put_rewritten(attempt, attempt.layout.data, f"{name}-{number:04d}{ending}", content)
        for number, (ending, content) in enumerate(writer_for(write).files(table))
    ]
    columns = [(field.name, str(field.type)) for field in table.schema]
    entries = [ManifestEntry(Counts(), [], [], data, columns, None)] if data else []
    return replace(end, entries=[*end.entries, *entries])


def without_empty_files(end: Snapshot) -> Snapshot:
    """Return the snapshot of an output that has rows, without the file of an earlier attempt that
    wrote none. The file could have other types than the rows."""
    entries = [entry for entry in end.entries if entry.counts.written or not entry.data]
    return replace(end, entries=entries)


def _schema(end: Snapshot, layout: FileLayout, planned: pa.Schema) -> pa.Schema:
    """Return the columns of the output, including partition columns. Unknown types are null."""
    schemas = [planned, *map(schema_in, end.empty_schemas)]
    types = agreed_types(schemas, lambda known, _: known)
    numbers = {layout.row_number: pa.int64()} if layout.row_number else {}
    names = dict.fromkeys([*numbers, *(layout.columns or types), *layout.partition_by])
    types |= numbers
    return pa.schema([(name, types.get(name, pa.null())) for name in names])


def _may_have_file(attempt: Attempt, end: Snapshot, write: WriteFiles, schema: pa.Schema) -> bool:
    """Return whether the output gets a file without rows. If rows may be appended later, the file
    must not contradict theirs."""
    if any(entry.data for entry in end.entries):
        return False
    if not write.STORES_COLUMNS:
        return not write.adds or not _has_files(attempt)
    if not write.adds:
        return bool(schema.names)
    suits = (
        bool(schema.names) and is_complete(schema) and not write.column_fields.get("partitionBy")
    )
    return suits and not _has_files(attempt)


def _has_files(attempt: Attempt) -> bool:
    layout = attempt.layout
    return not all(is_part(info.path, layout.key) for info in layout.data.visible_files())
