"""A look into a written output."""

from __future__ import annotations

import gzip
import itertools
import json
from typing import Any

import pyarrow.parquet as pq

from batchinference.pipeline.storage import Address, base_name
from batchinference.spec.write import Write, WriteParquet


def first_rows(write: Write, count: int) -> list[dict[str, Any]]:
    """The first rows of an output, file by file in the order of their names."""
    output = Address(write.path, write.storage)
    paths = sorted(info.path for info in output.data_files())
    parts = [path for path in paths if not base_name(path).startswith(("_", "."))]
    rows = itertools.chain.from_iterable(_rows(output.at(part), write) for part in parts)
    return list(itertools.islice(rows, count))


def _rows(part: Address, write: Write) -> list[dict[str, Any]]:
    if isinstance(write, WriteParquet):
        with part.filesystem.open_input_file(part.path) as source:
            rows: list[dict[str, Any]] = pq.ParquetFile(source).read().to_pylist()
            return rows
    content = part.read()
    text = gzip.decompress(content) if part.path.endswith(".gz") else content
    return [json.loads(line) for line in text.splitlines()]
