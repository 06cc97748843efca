"""Manifests, each of which describes one commit of a task.

A file belongs to the output only if a manifest entry names it. The name of a manifest contains the
numbers of the task and of its commit, and row counts. A listing therefore shows the progress. A
random suffix keeps manifests from overwriting each other."""

from __future__ import annotations

import hashlib
import re
import uuid
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Annotated, Any, ClassVar, TypeAlias

import numpy as np
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter

from batchinference.pipeline.commit.output_paths import part_prefix
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
"""A SHA-256 as hexadecimal digits, or empty."""
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
    """Return whether all names begin with the prefix of the work with this key."""
    return all(base_name(name).startswith(part_prefix(key)) for name in names)


_File = Annotated[int, Field(strict=True, ge=0, lt=MAX_FILES)]
_Row = Annotated[int, Field(strict=True, ge=0, le=ROW_MASK + 1)]


def _checked_range(rows: tuple[int, int, int]) -> tuple[int, int, int]:
    if rows[1] >= rows[2]:
        raise ValueError("a range of rows ends before it begins")
    return rows


Range = Annotated[tuple[_File, _Row, _Row], AfterValidator(_checked_range)]
"""Number of the input file, first row, and the row after the last one."""
Content: TypeAlias = bytes | memoryview
Share = tuple[_File, _Row, Annotated[int, Field(strict=True, ge=0, le=FULL_SHARE)]]
"""Number of the input file, number of a split row, and share of the row (see `row_batch`)."""
End = tuple[_File, _Row]
"""Number of an input file that was read to its end, and its number of rows."""


@lru_cache(maxsize=64)
def _shared(*columns: tuple[str, str]) -> list[tuple[str, str]]:
    """Return a list that all entries with these columns share, because 300 columns need 58 KB."""
    return list(columns)


_Columns = Annotated[list[tuple[str, str]], AfterValidator(lambda columns: _shared(*columns))]


@dataclass(frozen=True)
class DataFile:
    """A data or error file that a task has written."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: FileName
    bytes: Natural
    crc32: Checksum

    @classmethod
    def of(cls, name: str, content: Content) -> DataFile:
        """Return the file with this name, and with the size and the checksum of this content."""
        return cls(name, len(content), zlib.crc32(content))


def _of_any_commit(stored: Any) -> Any:
    """Return a stored warning in the current format. Earlier versions wrote other fields."""
    if not isinstance(stored, dict) or "rows" not in stored:
        return stored
    name, example = WarningName.from_name(stored["name"]), "{}:{}".format(*stored["example"])
    return WarningCount.of_rows(name, stored["step"], stored["rows"], stored["amount"], example)


_StoredWarning = Annotated[WarningCount, BeforeValidator(_of_any_commit)]


@dataclass(frozen=True)
class Origin:
    """The part of a manifest entry that comes from one input file."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    file: _File
    rows: list[tuple[Natural, Natural]]
    """Pairs: the index of a data file, and the number of its rows from the input file. In a data
    file, the rows of the first origin come first, then those of the second, and so on."""
    counts: Counts
    """All counts except `read`."""
    warnings: list[WarningCount] = field(default_factory=list)
    removed: bool = False
    """Whether the rows are invalid. At the end of a job, data files are rewritten without them."""

    def as_json(self) -> dict[str, Any]:
        """Return the fields as a manifest stores them."""
        counts = self.counts.model_dump(by_alias=True, exclude_defaults=True)
        warnings = [warning.model_dump() for warning in self.warnings]
        optional = {"warnings": warnings, "removed": self.removed}
        stored = {"file": self.file, "rows": self.rows, "counts": counts}
        return stored | {name: value for name, value in optional.items() if value}


@dataclass(frozen=True)
class ManifestEntry:
    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    counts: Counts
    """`read` does not include split input rows."""
    row_ranges: list[Range]
    """Ranges of input rows that are not split."""
    shares: list[Share]
    """The shares of split input rows. An entry with shares has no row ranges."""
    data: list[DataFile]
    columns: _Columns
    """Names and types of the columns of the data files. Most entries share one list."""
    errors: DataFile | None
    warnings: list[_StoredWarning] = field(default_factory=list)
    """The example of a warning is a row id of the form FILE:ROW, as in error records."""
    origins: list[Origin] = field(default_factory=list)
    """The part of the entry from each input file. Empty if these parts are unknown."""

    @property
    def removed(self) -> list[Origin]:
        """The origins with invalid rows."""
        return [origin for origin in self.origins if origin.removed]

    @property
    def files(self) -> list[DataFile]:
        """All data and error files."""
        return [*self.data, self.errors] if self.errors else self.data

    def as_json(self) -> dict[str, Any]:
        """Return the fields as a manifest stores them."""
        # asdict(self) is slow, because it copies every range
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
    """Return the warnings of several entries, added up by step and name."""
    return sum_warnings(warning for entry in entries for warning in entry.warnings)


def counts_of(entries: Iterable[ManifestEntry]) -> Counts:
    """Return the total counts of several entries. `read` includes split rows: the sum of all their
    shares, divided by FULL_SHARE."""
    entries = list(entries)
    split = sum(share for entry in entries for _, _, share in entry.shares) // FULL_SHARE
    return Counts.sum([*(entry.counts for entry in entries), Counts(read=split)])


_COUNTS_IN_NAME = [field.alias or "" for field in Counts.model_fields.values()]
"""The counts in the name of a manifest, in order. Token counts, at the end, may be absent."""
_NAME = re.compile(
    r"^(\d{8,})-(\d{4,})((?:\.\d{1,15}){5}(?:(?:\.\d{1,15}){3})?)\.[0-9a-f]{8}\.json$"
)
_Amount = Annotated[float, Field(strict=True, ge=-1e15, le=1e15)]


@dataclass(frozen=True)
class _NoteFields:
    """The fields of a note that the report uses."""

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
    replicas_per_device: Natural = 0
    input_tokens: Annotated[Natural, Field(alias=TokenKind.INPUT)] = 0
    cached_tokens: Annotated[Natural, Field(alias=TokenKind.CACHED)] = 0
    output_tokens: Annotated[Natural, Field(alias=TokenKind.OUTPUT)] = 0


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
    """The number of earlier commits of the task."""
    entries: list[ManifestEntry]
    ends: list[End]
    notes: list[tuple[str, Note]]
    """Pairs of a step and a note about it, as JSON."""
    schema: str = ""
    """The Arrow schema that rows would have, as text, if no rows were written."""

    def is_of(self, key: str) -> bool:
        """Return whether all files of the manifest belong to the work with this key."""
        return all_of_work((file.name for entry in self.entries for file in entry.files), key)

    def new_name(self) -> str:
        """Return a unique file name for the manifest."""
        counts = counts_of(self.entries).model_dump(by_alias=True, exclude_none=True)
        has_tokens = bool(counts.keys() & {*TokenKind})
        names = _COUNTS_IN_NAME if has_tokens else _COUNTS_IN_NAME[: -len(TokenKind)]
        counted = ".".join(str(counts.get(name, 0)) for name in names)
        return f"{self.task:08d}-{self.number:04d}.{counted}.{uuid.uuid4().hex[:8]}.json"

    def serialized(self) -> bytes:
        """Return the content of the manifest file: JSON that ends with its checksum."""
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
    """Return the numbers of the task and of its commit, and the counts in the name of a manifest.
    None for any other name."""
    match = _NAME.match(name)
    if match is None:
        return None
    task, number, counts = match.groups()
    numbers = map(int, counts[1:].split("."))
    return (int(task), int(number)), Counts(**dict(zip(_COUNTS_IN_NAME, numbers)))  # noqa: B905


def ranges_of(ids: np.ndarray) -> list[Range]:
    """Return the ranges of rows with these ids (int64, in any order). Rows occur twice if Ray
    computes a block again and splits it differently. Such a row is in two ranges, and
    `resolve_overlaps` then drops the entry."""
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
