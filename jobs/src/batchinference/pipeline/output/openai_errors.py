"""Writes the error file of the OpenAI batch API, from the error records of an output."""

from __future__ import annotations

import json
import mmap
import re
import tempfile
from collections.abc import Iterable
from typing import Any

from batchinference.json_text import to_json
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.manifest import ManifestEntry
from batchinference.pipeline.output.error_records import read_error_records
from batchinference.pipeline.output.writers.openai_batch import request_id
from batchinference.pipeline.row_batch import NUMBERS_PER_FILE, READ_STEP

_STATUS = re.compile(r"answered (\d{3}): ")
"""The status of a response in the error of its row."""


def write_error_file(
    layout: Layout, id_column: str, entries: Iterable[ManifestEntry], first_file: int
) -> None:
    """Write a line for each failed row of an output, with the value of the column `id_column`: in
    the order of the input, as far as its parts are. `first_file` is the number of the first input
    file, for the ids. A job may have many failed rows, so the lines are not kept in memory."""
    with tempfile.TemporaryFile() as file:
        for entry in sorted(entries, key=_first_row):
            tables = read_error_records(layout, [entry])
            records = (record for table in tables for record in table.to_pylist())
            # their ids come first
            file.writelines(sorted(_line(each, id_column, first_file) for each in records))
        file.flush()
        if not file.tell():
            layout.error_file.write(b"")
            return
        lines = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        layout.error_file.write(memoryview(lines))


def _first_row(entry: ManifestEntry) -> tuple[int, int]:
    held = [*entry.row_ranges, *entry.shares]
    return min(((file, row) for file, row, _ in held), default=(0, 0))


def _line(record: dict[str, Any], id_column: str, first_file: int) -> bytes:
    file, row = map(int, record["id"].split(":"))
    line = request_id((file + first_file) * NUMBERS_PER_FILE + row)
    values = json.loads(record["values"] or "{}")
    code = "invalid_line" if record["step"] == READ_STEP else "request_failed"
    error = {"code": code, "message": record["error"]}
    response = None
    if status := _STATUS.search(record["error"]):
        body = {"error": {**error, "type": "invalid_request_error", "param": None}}
        response = {"status_code": int(status[1]), "request_id": line, "body": body}
    custom_id = values.get(id_column, values.get("custom_id"))
    about = {"id": line, "custom_id": custom_id, "response": response, "error": error}
    return f"{to_json(about)}\n".encode()
