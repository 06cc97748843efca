"""Detects committed files that are missing, or differ from what was committed.

When a job ends, the schemas of its files are unified (see `schema_rewrite`). The files are
rewritten in place, one after the other. A record of the new version of a file is written before the
file itself, so that a run that resumes from this output does not consider the file damaged.
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
    """A rewritten file, and the names and types of its new columns."""

    file: DataFile
    columns: list[tuple[str, str]]

    def put(self, attempt: Attempt) -> None:
        name = f"{uuid.uuid4().hex}.json"
        (attempt.retyped / name).write(json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, place: Location) -> Retyped | None:
        """Return the record; None if it is missing or damaged."""
        try:
            return _RETYPED.validate_python(load_json(place.read()))
        except (ValueError, FileNotFoundError):
            return None


_RETYPED = TypeAdapter(Retyped)


def retyped_by(attempt: Attempt) -> dict[str, Retyped]:
    """Return the records of files that were rewritten or were about to be, by file name."""
    places = [attempt.retyped / base_name(info.path) for info in attempt.retyped.files()]
    with ThreadPoolExecutor(FETCH_THREADS) as pool:
        found = list(pool.map(Retyped.read, places))
    return {one.file.name: one for one in found if one is not None}


def without_missing_files(
    layout: Layout, snapshot: Snapshot, retyped: Mapping[str, Retyped] = MappingProxyType({})
) -> Snapshot:
    """Return the snapshot without manifest entries that have a missing or damaged file. The other
    entries describe their files as they are now."""
    data, errors = _sizes(layout.data), _sizes(layout.errors)
    whole = (
        entry
        for entry in snapshot.entries
        if entry.errors is None or errors.get(entry.errors.name) == entry.errors.bytes
    )
    entries = (_as_it_is(entry, data, retyped) for entry in whole)
    return snapshot.only([entry for entry in entries if entry is not None])


def _sizes(place: Location) -> dict[str, int]:
    return {place.below(info.path): info.size for info in place.data_files()}


def _as_it_is(
    entry: ManifestEntry, sizes: Mapping[str, int], retyped: Mapping[str, Retyped]
) -> ManifestEntry | None:
    """Return the entry with the current version of its files. Return None if a file is neither the
    version that its task has written nor the rewritten one."""
    new = [retyped.get(file.name) for file in entry.data]
    there = [_version(sizes, *both) for both in zip(entry.data, new, strict=True)]
    data = [file for file in there if file is not None]
    if len(data) < len(there):
        return None
    columns = [one.columns for one, file in zip(new, data, strict=True) if one and one.file == file]
    all_new = len(columns) == len(data) > 0
    return replace(entry, data=data, columns=columns[0] if all_new else entry.columns)


def _version(sizes: Mapping[str, int], old: DataFile, new: Retyped | None) -> DataFile | None:
    """Return the version of a file that has the stored size; None if neither or both versions have
    it."""
    versions = {old, new.file} if new else {old}
    found = [version for version in versions if version.bytes == sizes.get(old.name)]
    return found[0] if len(found) == 1 else None
