"""Writes image files, one per row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from batchinference.pipeline.arrow import values_of
from batchinference.pipeline.errors import UnwritableValue
from batchinference.pipeline.media.images import encode, open_image
from batchinference.pipeline.output.file_layout import safe
from batchinference.pipeline.output.stored_rows import Row
from batchinference.pipeline.output.writers import naming
from batchinference.pipeline.storage.location import Location

MAX_NAME = 100
"""Maximum bytes of a name. File systems allow 255, and the name of the part comes first."""
_ENDINGS = {"jpeg": ".jpg", "png": ".png", "webp": ".webp"}


class ImageWriter:
    def __init__(self, column: str, file_format: str, name_column: str | None) -> None:
        self._column, self._format, self._name_column = column, file_format, name_column

    def files(self, table: pa.Table) -> Iterator[tuple[str, bytes]]:
        images = values_of(table.column(self._column))
        names = values_of(table.column(self._name_column)) if self._name_column else None
        for row, image in enumerate(images):
            if image is not None:
                name = file_name(names[row]) if names else ""
                ending = (f"-{name}" if name else "") + _ENDINGS[self._format]
                yield ending, self._encoded(image)

    def rows(self, part: Location) -> Iterator[Row]:
        try:
            with open_image(part.read()) as image:
                size = f"{image.width} x {image.height}, {image.mode}"
        except OSError as error:  # as Pillow raises for damaged images
            raise ValueError(error) from None
        yield {"file": part.uri, "image": size}

    def unwritable(self, table: pa.Table) -> dict[int, UnwritableValue]:
        errors = {}
        for row, image in enumerate(values_of(table.column(self._column))):
            try:
                self._encoded(image)
            except UnwritableValue as error:
                errors[row] = error
        return errors

    def _encoded(self, image: Any) -> bytes:
        with naming(self._column):
            return b"" if image is None else encode(image, self._format)


def file_name(value: object) -> str:
    """Return the last part of a name or path, without its extension. It has only characters that
    are safe in any file system, including letters of any language. It may be empty."""
    if value is None:
        return ""
    last = re.split(r"[/\\]", str(value).rstrip("/\\"))[-1]
    stem = last.rsplit(".", 1)[0] or last
    return safe(stem).strip("_").encode()[:MAX_NAME].decode(errors="ignore")
