"""What is there of what was committed: a file may be gone, or not be as it was written.

When a job ends, its files are made to agree on their columns (see `one_schema`), one after the
other, each in its place. A record of what a file becomes is put before it, so that a run that goes
on with such an output does not take it for damaged.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType

from pydantic import TypeAdapter

from batchinference.pipeline.commit.attempt import FETCH_THREADS, Attempt
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.manifest_entry import DataFile, ManifestEntry
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.storage.checksummed_json import load_json
from batchinference.pipeline.storage.location import Location, base_name


@dataclass(frozen=True)
class Retyped:
    """A file as it is put anew, and the columns that it has then, with their types."""

    file: DataFile
    columns: list[tuple[str, str]]

    def put(self, attempt: Attempt) -> None:
        name = f"{uuid.uuid4().hex}.json"
        (attempt.retyped / name).write(json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, place: Location) -> Retyped | None:
        """None for a record that is damaged."""
        try:
            return _RETYPED.validate_python(load_json(place.read()))
        except (ValueError, FileNotFoundError):
            return None


_RETYPED = TypeAdapter(Retyped)


def retyped_by(attempt: Attempt) -> dict[str, Retyped]:
    """What files have become, or were about to, by their names."""
    places = [attempt.retyped / base_name(info.path) for info in attempt.retyped.files()]
    with ThreadPoolExecutor(FETCH_THREADS) as pool:
        found = list(pool.map(Retyped.read, places))
    return {one.file.name: one for one in found if one is not None}


def without_missing_files(
    layout: Layout, snapshot: Snapshot, retyped: Mapping[str, Retyped] = MappingProxyType({})
) -> Snapshot:
    """Without the pieces of which a file is gone or damaged, the others as they are now."""
    data, errors = _sizes(layout.data), _sizes(layout.errors)
    whole = (
        piece
        for piece in snapshot.pieces
        if piece.errors is None or errors.get(piece.errors.name) == piece.errors.bytes
    )
    pieces = (_as_it_is(piece, data, retyped) for piece in whole)
    return snapshot.only([piece for piece in pieces if piece is not None])


def _sizes(place: Location) -> dict[str, int]:
    return {place.below(info.path): info.size for info in place.data_files()}


def _as_it_is(
    piece: ManifestEntry, sizes: Mapping[str, int], retyped: Mapping[str, Retyped]
) -> ManifestEntry | None:
    """None where a file of it is neither as its task has put it nor as it was put anew."""
    new = [retyped.get(file.name) for file in piece.data]
    there = [_version(sizes, *both) for both in zip(piece.data, new, strict=True)]
    data = [file for file in there if file is not None]
    if len(data) < len(there):
        return None
    columns = [one.columns for one, file in zip(new, data, strict=True) if one and one.file == file]
    all_new = len(columns) == len(data) > 0
    return replace(piece, data=data, columns=columns[0] if all_new else piece.columns)


def _version(sizes: Mapping[str, int], old: DataFile, new: Retyped | None) -> DataFile | None:
    """What a file is; None where that is neither, or could be both."""
    versions = {old, new.file} if new else {old}
    found = [version for version in versions if version.bytes == sizes.get(old.name)]
    return found[0] if len(found) == 1 else None
