"""Writes the error file of an output of the OpenAI batch API from its error records."""

from __future__ import annotations

import json
import mmap
import re
from array import array
from collections.abc import Iterable
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np

from batchinference.json_text import to_json
from batchinference.pipeline.commit.manifest import ManifestEntry
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.output.error_records import read_error_records
from batchinference.pipeline.output.writers.openai_batch import as_line, request_id
from batchinference.pipeline.row_batch import NUMBERS_PER_FILE, READ_STEP
from batchinference.pipeline.storage.location import Guard

_STATUS = re.compile(r"answered (\d{3}): ")
"""The HTTP status in the error of a row whose request was refused."""


def write_error_file(
    layout: Layout,
    id_column: str,
    entries: Iterable[ManifestEntry],
    first_file: int,
    others: Iterable[tuple[int, bytes]] = (),
    guard: Guard | None = None,
) -> None:
    """Write the error file: a line for each failed row, and `others`, in the order of the input.

    - `id_column`: the column with custom ids
    - `first_file`: the number of the first input file in request ids
    - `others`: pairs of a row number in the first input file, and a line"""
    with TemporaryFile() as spool, TemporaryFile() as ordered:  # the lines may not fit into memory
        starts, numbers = array("Q"), array("Q")
        for table in read_error_records(layout, entries):
            for record in table.to_pylist():
                file, row = map(int, record["id"].split(":"))
                numbers.append((file + first_file) * NUMBERS_PER_FILE + row)
                starts.append(spool.tell())
                spool.write(_line(record, id_column, numbers[-1]))
        for number, line in others:
            numbers.append(first_file * NUMBERS_PER_FILE + number)
            starts.append(spool.tell())
            spool.write(line)
        lines = _mapped(spool)
        for index in np.argsort(np.frombuffer(numbers, dtype=np.uint64), kind="stable"):
            lines.seek(starts[index])
            ordered.write(lines.readline())
        content = memoryview(_mapped(ordered))[: ordered.tell()]
        if guard is None:
            layout.errors_jsonl.write(content)
        else:
            layout.errors_jsonl.write_if(guard, content)


def _mapped(file: IO[bytes]) -> mmap.mmap:
    """Return a file as a memory map. Adds a byte to an empty file, which cannot be mapped."""
    size = file.tell()
    file.flush()
    if not size:
        file.truncate(1)
    return mmap.mmap(file.fileno(), 0)


def _line(record: dict[str, Any], id_column: str, number: int) -> bytes:
    line = request_id(number)
    values = json.loads(record["values"] or "{}")
    is_sent = record["step"] != READ_STEP
    code = "request_failed" if is_sent else "invalid_line"
    error = {"code": code, "message": record["error"]}
    response = None
    if is_sent and (status := _STATUS.search(record["error"])):
        body = {"error": {**error, "type": "invalid_request_error", "param": None}}
        response = {"status_code": int(status[1]), "request_id": line, "body": body}
    custom_id = values.get(id_column, values.get("custom_id"))
    about = {"id": line, "custom_id": custom_id, "response": response, "error": error}
    return as_line(to_json(about)).encode()
