"""Manifests, each of which describes one commit of a task.

Files that no manifest names do not count. The name of a manifest contains the task, the number of
the commit in the task, and the counts, so that a listing is enough to determine progress. It ends
in a random suffix, so that no manifest overwrites another.
"""

from __future__ import annotations

import hashlib
import re
import uuid
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, TypeAlias

import numpy as np
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter

from batchinference.pipeline.commit.layout import part_prefix
from batchinference.pipeline.row_batch import FULL_SHARE, MAX_FILES, ROW_MASK, unpack_ids
from batchinference.pipeline.storage.location import base_name, is_inside
from batchinference.pipeline.storage.state_json import (
    CHECKSUM_FIELD,
    dump_checksummed,
    load_json,
    verify_checksum,
)
from batchinference.spec.progress import Counts, TokenKind
from batchinference.spec.warnings import WarningCount, WarningName, sum_warnings

STRICT = ConfigDict(extra="forbid")
Natural = Annotated[int, Field(strict=True, ge=0, lt=1 << 63)]
Checksum = Annotated[int, Field(strict=True, ge=0, lt=1 << 32)]
WorkHash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Digest = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
"""Empty if there is no digest."""
RunId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


def digest(content: bytes) -> str:
    """Return the digest of an input snapshot."""
    return hashlib.sha256(content).hexdigest()


def _checked_name(name: str) -> str:
    if not is_inside(name):
        raise ValueError("the name of a file leads out of the output")
    return name


FileName = Annotated[str, Field(strict=True, max_length=4096), AfterValidator(_checked_name)]
"""A path relative to the output or the errors directory."""


def all_of_work(names: Iterable[str], key: str) -> bool:
    """Return whether all names have the prefix that the work with this key gives its files."""
    return all(base_name(name).startswith(part_prefix(key)) for name in names)


_File = Annotated[int, Field(strict=True, ge=0, lt=MAX_FILES)]
_Row = Annotated[int, Field(strict=True, ge=0, le=ROW_MASK + 1)]


def _checked_range(rows: tuple[int, int, int]) -> tuple[int, int, int]:
    if rows[1] >= rows[2]:
        raise ValueError("a range of rows ends before it begins")
    return rows


Range = Annotated[tuple[_File, _Row, _Row], AfterValidator(_checked_range)]
"""File, first row, row after the last, of the input."""
Content: TypeAlias = bytes | memoryview
Share = tuple[_File, _Row, Annotated[int, Field(strict=True, ge=0, le=FULL_SHARE)]]
"""File, row, and the share of the row (see `row_batch`)."""
End = tuple[_File, _Row]
"""File and its number of rows, for a file whose end was seen."""


@dataclass(frozen=True)
class DataFile:
    """A file that a task has written: its path relative to the output or the errors directory, its
    size in bytes, and its checksum (CRC-32)."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: FileName
    bytes: Natural
    crc32: Checksum

    @classmethod
    def of(cls, name: str, content: Content) -> DataFile:
        return cls(name, len(content), zlib.crc32(content))


def _of_any_commit(stored: Any) -> Any:
    """Return a stored warning in the current format: earlier code wrote other fields."""
    if not isinstance(stored, dict) or "rows" not in stored:
        return stored
    name, example = WarningName.named(stored["name"]), "{}:{}".format(*stored["example"])
    return WarningCount.of_rows(name, stored["step"], stored["rows"], stored["amount"], example)


@dataclass(frozen=True)
class Origin:
    """The part of a manifest entry that comes from one input file. `rows` are pairs: the index of a
    data file, and how many of its rows come from the input file. They are adjacent, in the order of
    the origins. `counts` has all counts except `read`. The rows of a `removed` origin do not count:
    they leave the data files when the output is completed."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    file: _File
    rows: list[tuple[Natural, Natural]]
    counts: Counts
    warnings: list[WarningCount] = field(default_factory=list)
    removed: bool = False

    def as_json(self) -> dict[str, Any]:
        counts = self.counts.model_dump(by_alias=True, exclude_defaults=True)
        warnings = [warning.model_dump() for warning in self.warnings]
        optional = {"warnings": warnings, "removed": self.removed}
        stored = {"file": self.file, "rows": self.rows, "counts": counts}
        return stored | {name: value for name, value in optional.items() if value}


@dataclass(frozen=True)
class ManifestEntry:
    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    counts: Counts
    """If other entries hold a part of an input row, `read` does not count it."""
    row_ranges: list[Range]
    """Ranges of whole rows."""
    shares: list[Share]
    """Rows of which the entry holds a part. An entry with shares has no row ranges."""
    data: list[DataFile]
    columns: list[tuple[str, str]]
    """Names and types of the columns of the data."""
    errors: DataFile | None
    warnings: list[Annotated[WarningCount, BeforeValidator(_of_any_commit)]] = field(
        default_factory=list
    )
    """The examples are the ids of rows, as in error records."""
    origins: list[Origin] = field(default_factory=list)
    """The parts of the input files. Empty if they are unknown."""

    @property
    def removed(self) -> list[Origin]:
        """The parts that do not count."""
        return [origin for origin in self.origins if origin.removed]

    @property
    def files(self) -> list[DataFile]:
        """All data and error files."""
        return [*self.data, self.errors] if self.errors else self.data

    def as_json(self) -> dict[str, Any]:
        # asdict(self) would copy every range
        errors = asdict(self.errors) if self.errors else None
        files = {"data": [asdict(file) for file in self.data], "errors": errors}
        warnings = [warning.model_dump() for warning in self.warnings]
        counts = self.counts.model_dump(by_alias=True, exclude_none=True)
        stored = {**vars(self), **files, "counts": counts, "warnings": warnings}
        origins = {"origins": [origin.as_json() for origin in stored.pop("origins")]}
        return stored | (origins if self.origins else {})


def rows_in(row_ranges: Iterable[Range]) -> int:
    """Return the number of rows in ranges."""
    return sum(after - first for _, first, after in row_ranges)


def warnings_of(entries: Iterable[ManifestEntry]) -> list[WarningCount]:
    """Return the sums of the warnings of several entries."""
    return sum_warnings(warning for entry in entries for warning in entry.warnings)


def counts_of(entries: Iterable[ManifestEntry]) -> Counts:
    """Return the total counts of several entries. In `read`, shares of rows count as the number of
    whole rows that they add up to."""
    entries = list(entries)
    parts = sum(share for entry in entries for _, _, share in entry.shares) // FULL_SHARE
    return Counts.sum([*(entry.counts for entry in entries), Counts(read=parts)])


_COUNTED = [field.alias or "" for field in Counts.model_fields.values()]
"""The fields of counts in the name of a manifest. Those of tokens, the last ones, may be absent."""
_NAME = re.compile(
    r"^(\d{8,})-(\d{4,})((?:\.\d{1,15}){5}(?:(?:\.\d{1,15}){3})?)\.[0-9a-f]{8}\.json$"
)
_Amount = Annotated[float, Field(strict=True, ge=-1e15, le=1e15)]


@dataclass(frozen=True)
class _NoteFields:
    """What the report reads of a note."""

    peak_bytes: Natural = 0
    retries: Natural = 0
    task: Natural = 0
    batch_size: Natural = 0
    out_of_memory_at: Natural = 0
    rows_per_second: _Amount = 0
    rows: Natural = 0
    seconds: _Amount = 0
    compute_seconds: _Amount = 0
    wait_seconds: _Amount = 0
    blocked_seconds: _Amount = 0
    load_seconds: _Amount = 0
    reused: Natural = 0
    cached: Natural = 0
    cache_errors: Natural = 0


_NOTE = TypeAdapter(_NoteFields)


def _checked_note(note: str) -> str:
    _NOTE.validate_json(note)
    return note


Note = Annotated[str, AfterValidator(_checked_note)]


@dataclass(frozen=True)
class Manifest:
    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    task: Natural
    number: Natural
    """The number of commits that the task made before this one."""
    entries: list[ManifestEntry]
    ends: list[End]
    """File and its number of rows, for each file whose end the task has seen."""
    notes: list[tuple[str, Note]]
    """Step and a note on it, as JSON."""
    schema: str = ""
    """The columns of the rows, if the commit has none: an Arrow schema as text."""

    def is_of(self, key: str) -> bool:
        """Return whether all files of the manifest belong to the work with this key."""
        return all_of_work((file.name for entry in self.entries for file in entry.files), key)

    def new_name(self) -> str:
        """Return a unique name."""
        counts = counts_of(self.entries).model_dump(by_alias=True, exclude_none=True)
        names = _COUNTED if counts.keys() & {*TokenKind} else _COUNTED[: -len(TokenKind)]
        counted = ".".join(str(counts.get(name, 0)) for name in names)
        return f"{self.task:08d}-{self.number:04d}.{counted}.{uuid.uuid4().hex[:8]}.json"

    def serialized(self) -> bytes:
        entries = [entry.as_json() for entry in self.entries]
        return dump_checksummed({**vars(self), "entries": entries})

    @classmethod
    def parse(cls, content: bytes) -> Manifest:
        """Return the manifest in `content`. Raises ValueError if it is not a manifest."""
        try:
            raw = load_json(content)
            verify_checksum(content)
            raw.pop(CHECKSUM_FIELD)
            return _MANIFEST.validate_python(raw)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no manifest: {error}") from error


_MANIFEST = TypeAdapter(Manifest)


def parse_manifest_name(name: str) -> tuple[tuple[int, int], Counts] | None:
    """Return the task, the number of the commit in the task, and its counts from the name of a
    manifest; None for any other name."""
    match = _NAME.match(name)
    if match is None:
        return None
    task, number, counts = match.groups()
    numbers = map(int, counts[1:].split("."))
    return (int(task), int(number)), Counts(**dict(zip(_COUNTED, numbers)))  # noqa: B905


def ranges_of(ids: np.ndarray) -> list[Range]:
    """Return row ids (int64, any order, no duplicates) as ranges: file, first row, row after the
    last."""
    if len(ids) == 0:
        return []
    steps = np.diff(ids)
    ordered = ids if (steps > 0).all() else np.sort(ids)
    breaks = np.flatnonzero(np.diff(ordered) != 1) + 1
    starts = ordered[np.concatenate(([0], breaks))]
    lasts = ordered[np.concatenate((breaks - 1, [len(ordered) - 1]))]
    files, first = unpack_ids(starts)
    _, last = unpack_ids(lasts)
    return list(zip(files.tolist(), first.tolist(), (last + 1).tolist(), strict=True))
