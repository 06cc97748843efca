"""Writes and reads the error records of failed rows."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from batchinference.pipeline import row_ids
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.manifest import ManifestEntry
from batchinference.pipeline.storage.arrow_files import read_table

ERRORS_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("path", pa.string()),
        ("row", pa.int64()),
        ("step", pa.string()),
        ("error", pa.string()),
        ("traceback", pa.string()),
    ]
)


def error_records(failed: pa.Table, paths: pa.ChunkedArray) -> pa.Table:
    """Return the error records of failed rows (see `row_batch.ERRORS`). `paths` are the paths of
    the input files."""
    files, positions = row_ids.unpack(failed.column("id").to_numpy())
    columns = [
        pa.array([f"{file}:{row}" for file, row in zip(files, positions, strict=True)]),
        paths.take(pa.array(files)),
        pa.array(positions),
        *(failed.column(name) for name in ("step", "error", "traceback")),
    ]
    return pa.table(columns, names=ERRORS_SCHEMA.names).cast(ERRORS_SCHEMA)


def bad_row(layout: Layout, entries: Iterable[ManifestEntry]) -> str:
    """Return a message that describes one failed row, or "(unknown)" if there is none."""
    for entry in entries:
        if entry.errors is not None:
            place = layout.errors / entry.errors.name
            with place.filesystem.open_input_file(place.path) as source:
                row = read_table(source).slice(0, 1).to_pylist()[0]
            return f"row {row['row']} of {row['path']}, step '{row['step']}': {row['error']}"
    return "(unknown)"
