"""Reads the first rows of an output, and converts their values to short texts and thumbnails."""

import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchinference.credentials import MASK, is_credential
from batchinference.pipeline.commit.manifest import ManifestEntry
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.errors import redact
from batchinference.pipeline.output.tables.kinds import table_for
from batchinference.pipeline.output.writers import rows_of_file
from batchinference.pipeline.output.writers.kinds import writer_for
from batchinference.spec.write import Write, WriteFiles, WriteTable

SAMPLE_ROWS, SAMPLE_COLUMNS = 8, 12
"""Maximum numbers of rows and columns of the sample."""
MAX_TEXT, MAX_ITEMS = 160, 4
"""Maximum characters of a value, and maximum items of a list in a value."""
MAX_FILE = 64 * 1024**2
"""Files above this size are skipped if they can only be read completely."""


@dataclass(frozen=True)
class Cell:
    """A value as text. If the value is an image, `image` is the data URI of its thumbnail."""

    text: str
    image: str = ""


SampleRow = dict[str, Cell]


def sample_rows_of(
    write: Write, layout: Layout, entries: Iterable[ManifestEntry]
) -> list[SampleRow]:
    """Return the first rows in the data files of manifest entries, or any rows of a table. Only the
    first SAMPLE_COLUMNS columns are included."""
    if isinstance(write, WriteTable):
        rows: Iterable[dict[str, Any]] = table_for(write).first_rows(SAMPLE_ROWS)
    else:
        rows = itertools.islice(_rows_of_files(write, layout, entries), SAMPLE_ROWS)
    return [
        {name: cell(name, value) for name, value in itertools.islice(row.items(), SAMPLE_COLUMNS)}
        for row in rows
    ]


def _rows_of_files(
    write: WriteFiles, layout: Layout, entries: Iterable[ManifestEntry]
) -> Iterator[dict[str, Any]]:
    for file in (file for entry in entries for file in entry.data):
        if file.bytes > MAX_FILE and not write.READ_IN_PARTS:
            continue
        yield from rows_of_file(layout.output / file.name, writer_for(write))


def cell(name: str, value: Any) -> Cell:
    """Return a value as a cell. Values in columns of credentials are masked."""
    if isinstance(value, bytes | np.ndarray | dict) and not is_credential(name):
        # imported here, because most outputs have no images, and Pillow takes long to import
        from batchinference.pipeline.html_report.thumbnails import image_of, thumbnail

        if (image := image_of(value)) is not None:
            return Cell(f"{image.width} x {image.height} pixels", thumbnail(image))
    return Cell(redact(_text_of(name, value), MAX_TEXT))


def _text_of(name: str, value: Any) -> str:
    """Return the value of a column or struct field as text. Credentials are masked."""
    return MASK if value is not None and is_credential(name) else _text(value)


def _text(value: Any) -> str:
    match value:
        case np.ndarray():
            return f"{'x'.join(map(str, value.shape))} {value.dtype}"
        case bytes():
            return f"{len(value)} bytes"
        case bool() | None:
            return json.dumps(value)
        case float():
            return f"{value:.6g}"
        case list():
            more = f", … ({len(value)} values)" if len(value) > MAX_ITEMS else ""
            return f"[{', '.join(map(_text, value[:MAX_ITEMS]))}{more}]"
        case dict():
            return ", ".join(f"{name}: {_text_of(name, child)}" for name, child in value.items())
    return str(value)
