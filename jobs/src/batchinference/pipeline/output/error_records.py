"""Makes and reads the error records of failed rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from batchinference.credentials import MASK, is_credential
from batchinference.json_text import to_json
from batchinference.pipeline.arrow import values_of
from batchinference.pipeline.commit.manifest import ManifestEntry
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.errors import BadOutput, redact
from batchinference.pipeline.row_batch import unpack_ids
from batchinference.pipeline.storage.arrow_files import tables_in
from batchinference.spec.reserved import OWN_PREFIX

MAX_VALUE = 1000
"""Maximum number of characters of a value in an error record."""
_TEXTS = ("step", "error", "traceback", "values")
ERRORS_SCHEMA = pa.schema(
    [("id", pa.string()), ("path", pa.string()), ("row", pa.int64())]
    + [(name, pa.string()) for name in _TEXTS]
)


def error_records(failed: pa.Table, paths: pa.ChunkedArray) -> pa.Table:
    """Return the error records of failed rows. `failed` has the columns of `row_batch.ERRORS`, and
    `paths` has the path of each input file."""
    files, positions = unpack_ids(failed.column("id").to_numpy())
    columns = [
        pa.array([f"{file}:{row}" for file, row in zip(files, positions, strict=True)]),
        paths.take(pa.array(files)),
        pa.array(positions),
        *map(failed.column, _TEXTS),
    ]
    return pa.table(columns, names=ERRORS_SCHEMA.names).cast(ERRORS_SCHEMA)


def values_as_json(row: pa.Table, key: str | None = None) -> str:
    """Return the only row of a table as a JSON object. The column `key` is unchanged. In all other
    columns, arrays and bytes are described, credentials are masked, and long values are cut."""
    return to_json(
        {
            name: row.column(name)[0].as_py() if name == key else _described(name, row.column(name))
            for name in row.column_names
            if not name.startswith(OWN_PREFIX)
        }
    )


def _described(name: str, column: pa.ChunkedArray) -> Any:
    if is_credential(name) and not column.null_count:
        return MASK
    try:
        return _short(values_of(column)[0])
    except Exception:  # noqa: BLE001 - an error here would hide the row's error
        return f"<unreadable {column.type}>"


def _short(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return f"<{value.dtype} array of shape {value.shape}>"
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    text = value if isinstance(value, str) else to_json(value)
    safe = redact(text, MAX_VALUE)
    return value if safe == text else safe


def read_error_records(layout: Layout, entries: Iterable[ManifestEntry]) -> Iterator[pa.Table]:
    """Yield the error records of manifest entries. Raises BadOutput if an error file is damaged."""
    for name in (entry.errors.name for entry in entries if entry.errors is not None):
        file = layout.errors / name
        try:
            yield from tables_in(file)
        except pa.ArrowInvalid as error:
            raise BadOutput(f"'{file.uri}' is damaged: {error}") from None


def bad_row(layout: Layout, entries: Iterable[ManifestEntry]) -> str:
    """Return a message about one failed row, or "(unknown)" if there is no error record."""
    for table in read_error_records(layout, entries):
        for row in table.slice(0, 1).to_pylist():
            where = f"row {row['row']} of {row['path']}, step '{row['step']}'"
            return f"{where}: {row['error']}"
    return "(unknown)"
