"""The error file of an OpenAI batch: a line for each failed row, without all of them in memory."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa

from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.manifest import ManifestEntry
from batchinference.pipeline.output import openai_errors
from batchinference.pipeline.output.error_records import ERRORS_SCHEMA
from batchinference.pipeline.storage.location import Location
from support.outputs.builders import entry

ROWS, BYTES = 50, 4000


def _records(_layout: Layout, entries: list[ManifestEntry]) -> Iterator[pa.Table]:
    """Yield the error records of entries, in no order."""
    for each in entries:
        ((file, first, after),) = each.row_ranges
        rows = range(first, after)[::-1]
        records = [
            {"id": f"{file}:{row}", "step": "ask", "error": "x" * BYTES, "values": "{}"}
            for row in rows
        ]
        yield pa.Table.from_pylist(records, ERRORS_SCHEMA)


def test_lines_are_in_the_order_of_the_rows_and_not_kept_in_memory(tmp_path: Path) -> None:
    place = Location(str(tmp_path))
    layout = Layout("key", place, place / "state", place / "errors")
    entries = [entry([(0, at, at + ROWS)]) for at in range(0, 20 * ROWS, ROWS)][::-1]
    with patch.object(openai_errors, "read_error_records", _records):
        openai_errors.write_error_file(layout, "custom_id", entries[:1], 0)
        tracemalloc.start()
        openai_errors.write_error_file(layout, "custom_id", entries, 0)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    content = Path(layout.error_file.path).read_bytes()
    ids = [json.loads(line)["id"] for line in content.splitlines()]
    assert (ids, len(ids)) == (sorted(ids), 20 * ROWS)
    assert peak < len(content) / 3


def test_output_without_failed_rows_has_an_empty_error_file(tmp_path: Path) -> None:
    place = Location(str(tmp_path))
    layout = Layout("key", place, place / "state", place / "errors")
    openai_errors.write_error_file(layout, "custom_id", [], 0)
    assert Path(layout.error_file.path).read_bytes() == b""
