"""Checks the number of columns of CSV files that others may have written."""

from __future__ import annotations

import re

import pyarrow as pa

from batchinference.pipeline.storage.arrow_files import MAX_COLUMNS


def check_columns(beginning: bytes, delimiter: bytes, quote: bytes = b'"') -> None:
    """Raise ArrowInvalid if the first line has more than MAX_COLUMNS fields.

    The parser would allocate memory for all of them, which can kill the process."""
    if beginning.count(delimiter) < MAX_COLUMNS:
        return
    quoted = rb"%b[^%b]*(?:%b|$)" % ((re.escape(quote),) * 3)
    unquoted = re.sub(quoted, b"", beginning) if quote else beginning
    line = re.split(rb"[\r\n]", unquoted.lstrip(b"\r\n"), maxsplit=1)[0]
    if (fields := 1 + line.count(delimiter)) > MAX_COLUMNS:
        raise pa.ArrowInvalid(f"the first line has {fields} fields, more than {MAX_COLUMNS}")
