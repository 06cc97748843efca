"""Reads the deletion vectors in the log of a Delta table."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from typing import Any

from pyroaring import BitMap64

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.storage.location import Location, is_inside

_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_B85 = bytes.maketrans(_Z85, _B85)
_ID_LENGTH = 20
"""Characters of the id of a file."""
_MAGIC_BYTES = _LENGTH_BYTES = 4


def deleted_by(action: Mapping[str, Any] | None, table: Location) -> BitMap64:
    """Return the positions that the deletion vector of an action deletes; none without a vector.

    Raises BadInput if its file is outside of the table, or not readable."""
    vector = (action or {}).get("deletionVector")
    if not vector:
        return BitMap64()
    try:
        return BitMap64.deserialize(_content(vector, table)[_MAGIC_BYTES:])
    except (ValueError, FileNotFoundError) as error:
        raise BadInput(
            f"read.path: a deletion vector of '{table.uri}' cannot be read: {error}"
        ) from None


def _content(vector: Mapping[str, Any], table: Location) -> bytes:
    where, size = vector["pathOrInlineDv"], int(vector["sizeInBytes"])
    if vector["storageType"] == "i":
        return _decoded(where)[:size]
    if vector["storageType"] != "u":
        raise ValueError("it is outside of the directory of the table")
    prefix, name = where[:-_ID_LENGTH], uuid.UUID(bytes=_decoded(where[-_ID_LENGTH:]))
    path = f"{prefix}/deletion_vector_{name}.bin".lstrip("/")
    if not is_inside(path):
        raise ValueError("it is outside of the directory of the table")
    with (table / path).open_input_file() as file:
        return bytes(file.read_at(size, int(vector["offset"]) + _LENGTH_BYTES))


def _decoded(text: str) -> bytes:
    return base64.b85decode(text.encode().translate(_TO_B85))
