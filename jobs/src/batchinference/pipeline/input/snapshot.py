"""The input that was frozen when a job began, and what has become of it since."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass

import pyarrow as pa

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.listing import InputSnapshot
from batchinference.pipeline.storage.checksummed_json import damaged_state
from batchinference.pipeline.storage.location import Location
from batchinference.spec.storage import Storage

WAY_OUT = "begin anew with resume: false"


@dataclass(frozen=True)
class ResumedInput:
    """A frozen input. `unfinished` returns the files of which the output lacks rows; it takes the
    rows of each file, where these are known beforehand."""

    frozen: InputSnapshot
    unfinished: Callable[[int | None], Collection[int]]

    def check(self, now: InputSnapshot, rows_each: int | None) -> set[int]:
        """Raise BadInput that names a file which has changed, or is gone before it was read. Files
        that have come since are none of this job's. `rows_each` is how many rows a file has, where
        that is known of all beforehand. The numbers of files come back that are gone and were read
        to their end."""
        gone = set()
        unfinished = self.unfinished(rows_each)
        found = dict(zip(now.uris, _versions(now), strict=True))
        versions = _versions(self.frozen)
        for number, (uri, version) in enumerate(zip(self.frozen.uris, versions, strict=True)):
            if uri not in found:
                if number in unfinished:
                    raise BadInput(f"'{uri}' is gone, and the output lacks rows of it: {WAY_OUT}")
                gone.add(number)
            elif found[uri] != version:
                raise _changed(uri, version, found[uri], WAY_OUT)
        return gone


class NoNewFiles(Exception):
    """All files of the input are known."""


@dataclass(frozen=True)
class ProcessedFiles:
    """Files whose rows are in the output already."""

    lists: list[InputSnapshot]

    def without(self, now: InputSnapshot) -> InputSnapshot:
        """The files that are new. Raises BadInput that names one which has changed, and NothingNew
        when there are none."""
        known: dict[str, tuple[int, int | None]] = {}
        for frozen in self.lists:
            known.update(zip(frozen.uris, _versions(frozen), strict=True))
        new = [known.get(uri) is None for uri in now.uris]
        for uri, version in zip(now.uris, _versions(now), strict=True):
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
        f"output holds rows of it as it was: {way_out}"
    )


def _versions(frozen: InputSnapshot) -> list[tuple[int, int | None]]:
    """Size and time of change of each file."""
    columns = (frozen.table.column(name).to_pylist() for name in ("size", "modified"))
    return list(zip(*columns, strict=True))


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_snapshot(place: Location, storage: Storage) -> InputSnapshot:
    """The input of a complete output. Raises BadOutput when it is damaged."""
    try:
        return InputSnapshot.parse(place.read(), storage)
    except (FileNotFoundError, KeyError, pa.ArrowInvalid):
        raise damaged_state(place) from None


def read_snapshot_with_digest(place: Location, wanted: str, storage: Storage) -> InputSnapshot:
    """The input that has this digest. Raises BadOutput when it is damaged or another's."""
    try:
        if digest(place.read()) != wanted:
            raise damaged_state(place)
    except FileNotFoundError:
        raise damaged_state(place) from None
    return read_snapshot(place, storage)
