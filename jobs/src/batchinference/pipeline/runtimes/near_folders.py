"""Finds the folder that a user may have meant with a model source that names no folder."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

MAX_COMPARED = 200
"""Folders of a directory that are compared."""


def near_folder(source: str) -> str | None:
    """Return the path of a folder that has the name of a source nearby, or a similar name, relative
    to the directory of the job, such as `./models/bert`; None if there is none."""
    base = Path(sys.path[0] or ".")  # see add_import_path
    if not source or Path(source).is_absolute() or ".." in Path(source).parts:
        return None
    places = [f"./{name}/{source}" for name in _folders(base)]
    exact = (place for place in [f"../{source}", *places] if (base / place).is_dir())
    return next(exact, None) or _similar(base, source)


def _similar(base: Path, source: str) -> str | None:
    """Return the folder below the base whose path is most similar to a source, part by part."""
    place = base
    for part in Path(source).parts:
        near = difflib.get_close_matches(part, _folders(place), n=1)
        if not near:
            return None
        place /= near[0]
    return f"./{place.relative_to(base)}"


def _folders(directory: Path) -> list[str]:
    return sorted(islice(_names(directory), MAX_COMPARED))


def _names(directory: Path) -> Iterator[str]:
    try:
        yield from (entry.name for entry in directory.iterdir() if entry.is_dir())
    except OSError:
        return
