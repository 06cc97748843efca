"""Snapshots: files that list the commits of an output that count at one moment.

An attempt begins with a snapshot, which acts as its fence: commits that are neither in it nor made
by the attempt do not count, even if they arrive later. A complete output has a final snapshot,
which names its files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter

from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.manifest import (
    STRICT,
    Digest,
    End,
    Manifest,
    ManifestEntry,
    Natural,
    WorkHash,
    all_of_work,
    counts_of,
)
from batchinference.pipeline.commit.row_coverage import RowSet, resolve_overlaps, rows_in_all
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.row_batch import MissingRows
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.state_json import (
    START_OVER,
    damaged_state,
    dump_checksummed,
    load_json,
    verify_checksum,
)
from batchinference.spec.progress import Counts, ReplacedFiles
from batchinference.version import __version__

MAX_SCHEMAS = 100
_OF_FIRST_ROWS = ("findings", "thresholds", "gate")
_OPTIONAL = (*_OF_FIRST_ROWS, "recomputed", "removed")
FORMAT = 6
"""The version of the format of state files. An output in another format cannot be resumed."""


@dataclass(frozen=True)
class Snapshot:
    """The manifest entries that count, and the number of rows of files whose end was seen."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    work: WorkHash
    """The key of the work whose rows these are."""
    input: Digest
    """The digest of the input snapshot to which the file numbers in row ids refer."""
    entries: list[ManifestEntry] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    attempt: Natural = 0
    """The attempt that began or ended with this snapshot."""
    empty_schemas: list[str] = field(default_factory=list)
    """The different columns of commits without rows, as Arrow schemas, until an entry has rows."""
    findings: str = ""
    """What was found in the rows that the job must compute first, once its gate has passed."""
    thresholds: dict[str, float | None] = field(default_factory=dict)
    """The scores from which on cascades skip rows, by step."""
    gate: str = ""
    """The gate that has passed, as JSON."""
    recomputed: list[Natural] = field(default_factory=list)
    """The input files that have changed since the output was last complete, or began."""
    removed: list[Natural] = field(default_factory=list)
    """The input files that are gone since then, and whose rows are removed."""

    def with_commits(self, manifests: Iterable[Manifest]) -> Snapshot:
        """Return the snapshot with further commits. Entries that do not count are left out, and
        ends before rows that are held: there, an error ended the reading of the file."""
        manifests = list(manifests)
        ends = dict(self.ends)
        for file, rows in (end for m in manifests for end in m.ends):
            ends[file] = max(rows, ends.get(file, 0))
        entries = [*self.entries, *(entry for m in manifests for entry in m.entries)]
        schemas = [*self.empty_schemas, *(m.schema for m in manifests if m.schema)]
        end = self.only(entries)
        end = replace(end, ends=RowSet.of(end.entries).possible_ends(ends))
        different = [] if end.has_rows else [*dict.fromkeys(schemas)][:MAX_SCHEMAS]
        return replace(end, empty_schemas=different)

    def only(self, entries: list[ManifestEntry]) -> Snapshot:
        """Return the snapshot with the manifest entries in `entries` that count as its entries."""
        return replace(self, entries=resolve_overlaps(entries))

    def missing_rows(self, files: int, rows_each: int | None) -> MissingRows:
        """Return the missing rows of an input of `files` files. `rows_each` is the number of rows
        of every file, if that is known in advance."""
        return RowSet.of(self.entries).missing(files, self.ends, rows_each)

    def rows(self, files: int, rows_each: int | None) -> int:
        """Return the number of input rows, provided that no rows are missing."""
        return rows_in_all(files, self.ends, rows_each)

    @property
    def counts(self) -> Counts:
        return counts_of(self.entries)

    @property
    def replaced_files(self) -> ReplacedFiles | None:
        """How many files have changed or are gone; None if there are none."""
        recomputed, removed = len(self.recomputed), len(self.removed)
        found = ReplacedFiles(recomputed=recomputed, removed=removed)
        return found if recomputed or removed else None

    @property
    def has_rows(self) -> bool:
        """Whether rows were written."""
        return any(entry.counts.written for entry in self.entries)

    def serialized(self) -> bytes:
        schemas: dict[tuple[tuple[str, str], ...], int] = {}
        numbers = [schemas.setdefault(tuple(entry.columns), len(schemas)) for entry in self.entries]
        stored = {
            "format": FORMAT,
            "version": __version__,
            "work": self.work,
            "input": self.input,
            "attempt": self.attempt,
            "ends": list(self.ends.items()),
            "empty_schemas": self.empty_schemas,
            "schemas": list(schemas),
            "entries": [
                {**entry.as_json(), "columns": number}
                for entry, number in zip(self.entries, numbers, strict=True)
            ],
        }
        found = {name: getattr(self, name) for name in _OF_FIRST_ROWS}
        replaced = {"recomputed": self.recomputed, "removed": self.removed}
        stored |= {name: files for name, files in replaced.items() if files}
        return dump_checksummed(stored | (found if self.findings else {}))

    @classmethod
    def read(cls, place: Location, work: str) -> Snapshot:
        """Return the stored snapshot. Raises BadOutput if it is missing or damaged, belongs to
        other work, or was written in another format."""
        try:
            content = place.read()
            raw = load_json(content)
            if raw["format"] != FORMAT:
                raise BadOutput(
                    f"'{place.uri}' was written by version {raw['version']} in another format. "
                    f"Use that version, or {START_OVER}"
                )
            verify_checksum(content)
            ends = dict(_ENDS.validate_python(raw["ends"]))
            fields = {name: raw[name] for name in ("work", "input", "attempt", "empty_schemas")}
            fields |= {name: raw[name] for name in _OPTIONAL if name in raw}
            read = _SNAPSHOT.validate_python({**fields, "ends": ends, "entries": _entries(raw)})
        except (ValueError, KeyError, TypeError, AttributeError, FileNotFoundError):
            raise damaged_state(place) from None
        names = (file.name for entry in read.entries for file in entry.files)
        if read.work != work or not all_of_work(names, work):
            raise damaged_state(place)
        return read


def _entries(raw: dict[str, Any]) -> list[ManifestEntry]:
    """Return the stored entries. Entries with the same schema share it."""
    schemas = _SCHEMAS.validate_python(raw["schemas"])
    numbers = [entry["columns"] for entry in raw["entries"]]
    if not all(type(number) is int and 0 <= number < len(schemas) for number in numbers):
        raise ValueError("an entry has no schema")
    entries = _ENTRIES.validate_python([{**entry, "columns": []} for entry in raw["entries"]])
    found = zip(entries, numbers, strict=True)
    return [replace(entry, columns=schemas[number]) for entry, number in found]


_SNAPSHOT = TypeAdapter(Snapshot)
_ENTRIES = TypeAdapter(list[ManifestEntry])
_SCHEMAS = TypeAdapter(list[list[tuple[str, str]]])
_ENDS = TypeAdapter(list[End])


@dataclass(frozen=True)
class StoredFiles:
    """The sizes in bytes of the data files and of the error files of an output, by their names, at
    the moment when they were listed."""

    data: Mapping[str, int]
    errors: Mapping[str, int]

    @classmethod
    def of(cls, layout: Layout) -> StoredFiles:
        return cls(_sizes(layout.data), _sizes(layout.errors))


def without_missing_files(
    layout: Layout, snapshot: Snapshot, files: StoredFiles | None = None
) -> Snapshot:
    """Return the snapshot without manifest entries that have a missing or damaged file. `files` are
    those of the output, if they were listed after the entries were read."""
    files = files or StoredFiles.of(layout)
    return snapshot.only(
        [
            entry
            for entry in snapshot.entries
            if all(files.data.get(file.name) == file.bytes for file in entry.data)
            and (entry.errors is None or files.errors.get(entry.errors.name) == entry.errors.bytes)
        ]
    )


def _sizes(place: Location) -> dict[str, int]:
    return {place.below(info.path): info.size for info in place.data_files()}
