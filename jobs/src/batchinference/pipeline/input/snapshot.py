"""Compares the current files with the input snapshots of this job and of earlier ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass

import pyarrow as pa

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.listing import InputSnapshot
from batchinference.pipeline.storage.json import damaged_state
from batchinference.pipeline.storage.location import Location
from batchinference.spec.storage import Storage

WAY_OUT = "start over with resume: false"


@dataclass(frozen=True)
class ResumedInput:
    """The input snapshot of a job that resumes.

    `unfinished` returns the numbers of the files with rows missing in the output. Its argument is
    the number of rows of each file, if that is known before reading."""

    frozen: InputSnapshot
    unfinished: Callable[[int | None], Collection[int]]

    def check(self, now: InputSnapshot, rows_each: int | None) -> set[int]:
        """Return the numbers of the files that were deleted after all their rows were read.

        `now` are the current files. `rows_each` is the number of rows of every file, if it is known
        before reading. Files that were added since the job started are ignored. Raises BadInput
        with the path if a file has changed, or was deleted before all its rows were read."""
        gone = set()
        unfinished = self.unfinished(rows_each)
        found = dict(zip(now.uris, now.versions, strict=True))
        versions = self.frozen.versions
        for number, (uri, version) in enumerate(zip(self.frozen.uris, versions, strict=True)):
            if uri not in found:
                if number in unfinished:
                    raise BadInput(f"'{uri}' is gone, and the output lacks rows of it: {WAY_OUT}")
                gone.add(number)
            elif found[uri] != version:
                raise _changed(uri, version, found[uri], WAY_OUT)
        return gone


class NoNewFiles(Exception):
    """All files of the input were processed before."""


@dataclass(frozen=True)
class ProcessedFiles:
    """Files whose rows are already in the output."""

    lists: list[InputSnapshot]

    def without(self, now: InputSnapshot) -> InputSnapshot:
        """Return the files that are new.

        Raises BadInput with the path if a processed file has changed, and NoNewFiles if no file is
        new."""
        known: dict[str, tuple[int, int | None]] = {}
        for frozen in self.lists:
            known.update(zip(frozen.uris, frozen.versions, strict=True))
        new = [known.get(uri) is None for uri in now.uris]
        for uri, version in zip(now.uris, now.versions, strict=True):
            if uri in known and known[uri] != version:
                raise _changed(uri, known[uri], version, "set write.mode to overwrite")
        if not any(new):
            raise NoNewFiles
        return InputSnapshot(now.root, now.table.filter(pa.array(new)))


def _changed(
    uri: str, before: tuple[int, int | None], now: tuple[int, int | None], way_out: str
) -> BadInput:
    return BadInput(
        f"'{uri}' has changed since the job began ({before[0]} bytes then, {now[0]} now), and the "
        f"output has rows of its earlier content: {way_out}"
    )


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_snapshot(place: Location, storage: Storage) -> InputSnapshot:
    """Return the stored input snapshot. Raises BadOutput if it is missing or damaged."""
    try:
        return InputSnapshot.parse(place.read(), storage)
    except (FileNotFoundError, KeyError, pa.ArrowInvalid):
        raise damaged_state(place) from None


def read_snapshot_with_digest(place: Location, wanted: str, storage: Storage) -> InputSnapshot:
    """Return the stored input snapshot.

    Raises BadOutput if it is missing or damaged, or does not have the digest `wanted`, for example
    because it belongs to another output."""
    try:
        if digest(place.read()) != wanted:
            raise damaged_state(place)
    except FileNotFoundError:
        raise damaged_state(place) from None
    return read_snapshot(place, storage)
