"""Builds the content of input files: JSON lines, Parquet files and archives."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from support.inputs.formats import tar_of
from traps.case import Content, bytes_of


def lines(*values: Any) -> str:
    """Return JSON lines. A text is a line as it is."""
    return "".join(v + "\n" if isinstance(v, str) else json.dumps(v) + "\n" for v in values)


def packed(content: Content) -> Content:
    return lambda: gzip.compress(bytes_of(content))


def compressed(codec: str, content: bytes) -> bytes:
    """Return content that is packed with a codec of Arrow, such as zstd."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(content)
    return bytes(sink.getvalue())


def parquet(columns: Any, **options: Any) -> Content:
    """Return a Parquet file of a table, or of columns."""
    return partial(_parquet, columns, options)


def _parquet(columns: Any, options: Mapping[str, Any]) -> bytes:
    out = io.BytesIO()
    given = columns() if callable(columns) else columns
    table = given if isinstance(given, pa.Table) else pa.table(given)
    pq.write_table(table, out, **options)
    return out.getvalue()


def tar(members: Iterable[tuple[str, Content]]) -> Content:
    """Return an archive with these members, in this order."""
    given = list(members)
    return lambda: tar_of((name, bytes_of(content)) for name, content in given)
