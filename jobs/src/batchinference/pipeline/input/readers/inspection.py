"""Inspects a few files before all of them are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from batchinference.pipeline.error_attribution import is_about_the_file, is_storage_error
from batchinference.pipeline.storage.location import Location

Found = TypeVar("Found")


def inspected(
    files: Iterable[Location], inspect: Callable[[Location], Found]
) -> Iterator[tuple[Location, Found]]:
    """Yield each file with the result of `inspect`.

    A damaged file is skipped here. It becomes a failed row when it is read."""
    for file in files:
        try:
            found = inspect(file)
        except Exception as error:  # noqa: BLE001 - see blamed
            blamed(error)
        else:
            yield file, found


def blamed(error: Exception) -> Exception:
    """Return the error if the file caused it. Raises any other error, such as a storage error."""
    if is_storage_error(error) or not is_about_the_file(error):
        raise error
    return error
