"""Snapshots: files that list the valid manifest entries of an output at one moment.

A pass begins with a snapshot. Only commits in this snapshot and commits of the pass are valid. A
delayed task of an earlier pass cannot change this. A complete output has a final snapshot. If a
file of an entry is gone or has another size, the next pass computes the rows of the entry again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter

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
from batchinference.pipeline.commit.output_paths import Layout
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
"""The version of the format of snapshots. An output in another format cannot be resumed."""


@dataclass(frozen=True)
class Snapshot:
    """The valid manifest entries of an output, and what its passes know about the input."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    work: WorkHash
    """The key of the output definition (see `output_paths.work_key`)."""
    input: Digest
    """The digest of the input snapshot, which is the numbered list of input files."""
    entries: list[ManifestEntry] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    """The number of rows of each input file that was read to its end."""
    pass_number: Natural = 0
    """The pass that began or ended with this snapshot."""
    empty_schemas: list[str] = field(default_factory=list)
    """The distinct Arrow schemas of commits without rows. Empty if any entry has rows."""
    findings: str = ""
    """A text about the first rows, which are computed before all other rows (see `first_rows`)."""
    thresholds: dict[str, float | None] = field(default_factory=dict)
    """The score from which each step with a cascade skips rows; None if it skips no rows."""
    gate: str = ""
    """The gate (`spec.gate`) that the first rows have passed, as JSON."""
    recomputed: list[Natural] = field(default_factory=list)
    """The input files that have changed since the output was begun or last complete."""
    removed: list[Natural] = field(default_factory=list)
    """The input files that are gone since then. The output leaves out their rows."""

    def with_commits(self, manifests: Iterable[Manifest]) -> Snapshot:
        """Return the snapshot with the commits of these manifests, without invalid entries. The end
        of a file is left out if there are later rows: reading ended there with an error."""
        manifests = list(manifests)
        ends = dict(self.ends)
        for file, rows in (end for m in manifests for end in m.ends):
            ends[file] = max(rows, ends.get(file, 0))
        entries = [*self.entries, *(entry for m in manifests for entry in m.entries)]
        schemas = [*self.empty_schemas, *(m.schema for m in manifests if m.schema)]
        new = self.with_entries(entries)
        new = replace(new, ends=RowSet.of(new.entries).possible_ends(ends))
        distinct = [] if new.has_rows else [*dict.fromkeys(schemas)][:MAX_SCHEMAS]
        return replace(new, empty_schemas=distinct)

    def with_entries(self, entries: list[ManifestEntry]) -> Snapshot:
        """Return the snapshot with the valid entries among `entries` instead of its own."""
        return replace(self, entries=resolve_overlaps(entries))

    def missing_rows(self, files: int, rows_each: int | None) -> MissingRows:
        """Return the missing rows of an input of `files` files. `rows_each` is the number of rows
        of every file, if that is known in advance."""
        return RowSet.of(self.entries).missing(files, self.ends, rows_each)

    def rows(self, files: int, rows_each: int | None) -> int:
        """Return the number of input rows of a snapshot that lacks no rows."""
        return rows_in_all(files, self.ends, rows_each)

    @property
    def counts(self) -> Counts:
        """The counts of all entries."""
        return counts_of(self.entries)

    @property
    def replaced_files(self) -> ReplacedFiles | None:
        """How many files have changed or are gone; None if there are none."""
        recomputed, removed = len(self.recomputed), len(self.removed)
        files = ReplacedFiles(recomputed=recomputed, removed=removed)
        return files if recomputed or removed else None

    @property
    def has_rows(self) -> bool:
        """Whether rows were written."""
        return any(entry.counts.written for entry in self.entries)

    def serialized(self) -> bytes:
        """Return the content of the snapshot file. Equal lists of columns are stored only once."""
        schemas: dict[tuple[tuple[str, str], ...], int] = {}
        numbers = [schemas.setdefault(tuple(entry.columns), len(schemas)) for entry in self.entries]
        stored = {
            "format": FORMAT,
            "version": __version__,
            "work": self.work,
            "input": self.input,
            "attempt": self.pass_number,
            "ends": list(self.ends.items()),
            "empty_schemas": self.empty_schemas,
            "schemas": list(schemas),
            "entries": [
                {**entry.as_json(), "columns": number}
                for entry, number in zip(self.entries, numbers, strict=True)
            ],
        }
        of_first_rows = {name: getattr(self, name) for name in _OF_FIRST_ROWS}
        replaced = {"recomputed": self.recomputed, "removed": self.removed}
        stored |= {name: files for name, files in replaced.items() if files}
        return dump_checksummed(stored | (of_first_rows if self.findings else {}))

    @classmethod
    def read(cls, file: Location, work: str) -> Snapshot:
        """Return the snapshot in a file. Raises BadOutput if the file is missing or damaged, has
        another format, or belongs to work with another key than `work`."""
        try:
            content = file.read()
            raw = load_json(content)
            if raw["format"] != FORMAT:
                raise BadOutput(
                    f"'{file.uri}' was written by version {raw['version']} in another format. "
                    f"Use that version, or {START_OVER}"
                )
            verify_checksum(content)
            ends = dict(_ENDS.validate_python(raw["ends"]))
            fields = {name: raw[name] for name in ("work", "input", "empty_schemas")}
            fields |= {name: raw[name] for name in _OPTIONAL if name in raw}
            fields |= {"pass_number": raw["attempt"], "ends": ends}
            entries = [{**entry, "columns": []} for entry in raw["entries"]]
            read = _with_columns(_SNAPSHOT.validate_python({**fields, "entries": entries}), raw)
        except (ValueError, KeyError, TypeError, AttributeError, FileNotFoundError):
            raise damaged_state(file) from None
        names = (file.name for entry in read.entries for file in entry.files)
        if read.work != work or not all_of_work(names, work):
            raise damaged_state(file)
        return read


def _with_columns(snapshot: Snapshot, raw: dict[str, Any]) -> Snapshot:
    """Return the snapshot with the stored columns of its entries. Entries with equal columns share
    one list."""
    schemas = _SCHEMAS.validate_python(raw["schemas"])
    numbers = [entry["columns"] for entry in raw["entries"]]
    if not all(type(number) is int and 0 <= number < len(schemas) for number in numbers):
        raise ValueError("an entry has no schema")
    pairs = zip(snapshot.entries, numbers, strict=True)
    return replace(snapshot, entries=[replace(e, columns=schemas[number]) for e, number in pairs])


_SNAPSHOT = TypeAdapter(Snapshot)
_SCHEMAS = TypeAdapter(list[list[tuple[str, str]]])
_ENDS = TypeAdapter(list[End])


@dataclass(frozen=True)
class ListedFiles:
    """The sizes in bytes of the data files and error files in a listing, by name."""

    data: Mapping[str, int]
    errors: Mapping[str, int]

    @classmethod
    def of(cls, layout: Layout) -> ListedFiles:
        """List the files of an output, and return them."""
        return cls(_sizes(layout.data), _sizes(layout.errors))


def without_missing_files(
    layout: Layout, snapshot: Snapshot, files: ListedFiles | None = None
) -> Snapshot:
    """Return the snapshot without manifest entries that have a missing file or a file of another
    size. `files` is a listing made after the entries were read; None to list the files here."""
    files = files or ListedFiles.of(layout)
    present = [
        entry
        for entry in snapshot.entries
        if all(files.data.get(file.name) == file.bytes for file in entry.data)
        and (entry.errors is None or files.errors.get(entry.errors.name) == entry.errors.bytes)
    ]
    return snapshot.with_entries(present)


def _sizes(directory: Location) -> dict[str, int]:
    return {directory.relative(info.path): info.size for info in directory.data_files()}
