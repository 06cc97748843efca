"""Shows the pictures of found rows: those in columns, and those whose address a column contains."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import Any

from batchinference.pipeline.html_report.samples import MAX_FILE, Cell, cell
from batchinference.pipeline.storage.location import Location

_IMAGE = re.compile(r"\.(avif|bmp|gif|jpe?g|png|tiff?|webp)$", re.IGNORECASE)
_PATTERN = re.compile(r"[*?\[{]")
"""The beginning of a pattern in an input path."""


def cell_with_picture(name: str, value: Any, inputs: Sequence[str]) -> Cell:
    """Return a value as a cell. If it is the address of an image below one of the input paths, the
    cell has the thumbnail of this image.

    An output can contain any address, for example of a private server, so other addresses are not
    read.
    """
    shown = cell(name, value)
    if shown.image or not isinstance(value, str) or not is_image_below(value, inputs):
        return shown
    try:
        file = Location(value)
        if (file.info().size or 0) > MAX_FILE:
            return shown
        return Cell(shown.text, cell(name, file.read()).image)
    except (OSError, ValueError):
        return shown


def is_image_below(address: str, inputs: Sequence[str]) -> bool:
    """Return whether an address has the suffix of an image and is one of the input paths, or below
    one."""
    if not _IMAGE.search(address) or ".." in address.split("/"):
        return False
    return any(_is_below(address, path) for path in inputs)


def _is_below(address: str, path: str) -> bool:
    pattern = _PATTERN.search(path)
    directory = posixpath.dirname(path[: pattern.start()]) if pattern else path.rstrip("/")
    return bool(directory) and (address == directory or address.startswith(f"{directory}/"))
