"""Checks whether a directory can be written, with the credentials of this process."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from batchinference.pipeline.errors import BadOutput, shown
from batchinference.pipeline.storage.location import Location


def check_access(place: Location) -> None:
    """Write, list, read and delete a small file in a directory. No file is left.

    Raises BadOutput, which names the operation that failed. An object store may keep an object that
    marks the directory, as after any deletion.
    """
    name = f"_batchinference-check-{uuid.uuid4().hex}"
    file = place / name
    with _named(f"'{place.uri}': no file can be written"):
        file.write(b"check")
    try:
        with _named(f"'{place.uri}': its files cannot be listed"):
            (place / f"{name}-list").files()  # a list of the whole directory may be long
        with _named(f"'{place.uri}': its files cannot be read"):
            file.read()
    finally:
        with _named(f"'{file.uri}': it cannot be deleted, so delete this file yourself"):
            file.delete()


@contextmanager
def _named(problem: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadOutput(f"{problem} ({shown(str(error))})") from None
