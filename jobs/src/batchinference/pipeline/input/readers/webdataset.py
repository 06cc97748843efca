"""Reads WebDataset tar archives, one row per sample.

The types of JSON members are inferred from the first samples of a few archives and apply to all
archives.
"""

from __future__ import annotations

import io
import json
import lzma
import re
import struct
import sys
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
import pyarrow as pa

from batchinference.pipeline.error_attribution import is_about_the_file
from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.file_kinds import EXTENSIONS
from batchinference.pipeline.input.json_rows import MAX_FIELDS, Fields, JsonRows, sampled_rows
from batchinference.pipeline.input.readers import MAX_COLUMNS, BadRow, Chunk, Reader, inspected
from batchinference.pipeline.input.readers.json import row_slices
from batchinference.pipeline.input.readers.records import (
    archive_in,
    beginning,
    estimate,
    opened,
    up_to_damage,
)
from batchinference.pipeline.json_texts import lines_of
from batchinference.pipeline.media import images
from batchinference.pipeline.storage.json import check_depth, check_size
from batchinference.pipeline.storage.location import Location

if TYPE_CHECKING:
    from batchinference.spec.read import WebdatasetOptions

MAX_HEADER_BYTES = 1 << 20
"""Maximum bytes of a header that holds a name or attributes. tarfile reads it at once."""
_HEADERS = {
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
}
MAX_EMPTY_READS = 100
"""Maximum number of reads past the end of an archive. tarfile keeps reading until it has skipped
the size that a member claims, which may take years."""
_NAME = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")


@dataclass
class Sample:
    """Consecutive members that share a name up to its first dot. `members` maps the rest of the
    name (the suffix) to the content."""

    key: str
    members: dict[str, bytes] = field(default_factory=dict)
    suffixes: set[str] = field(default_factory=set)
    """The suffixes of all members, including skipped members."""
    repeated: str | None = None
    """The suffix of a member that occurs twice."""
    too_large: str | None = None
    """The suffix of the member that exceeded the byte or member limit. `members` is empty then."""
    size: int = 0
    """Total bytes of the members."""


class _TarInfo(tarfile.TarInfo):
    """A TarInfo that raises ReadError for a damaged header. tarfile treats such a header as the end
    of the archive, which would lose rows."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> _TarInfo:
        try:
            return super().fromtarfile(archive)
        except (
            tarfile.InvalidHeaderError,  # type: ignore[attr-defined]
            tarfile.TruncatedHeaderError,  # type: ignore[attr-defined]
        ) as error:
            raise tarfile.ReadError(f"a header is damaged: {error}") from error

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _HEADERS and self.size > MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header has {self.size} bytes")
        return super()._proc_member(archive)  # type: ignore[misc, no-any-return]


class _LimitedArchive:
    """An archive that allows only MAX_EMPTY_READS reads past its end."""

    def __init__(self, source: BinaryIO) -> None:
        self._source, self._empty = source, 0

    def read(self, size: int) -> bytes:
        content = self._source.read(size)
        self._empty = 0 if content else self._empty + 1
        if self._empty > MAX_EMPTY_READS:
            raise tarfile.ReadError("the archive ends within a member")
        return content


def samples_of(source: BinaryIO, suffixes: list[str] | None, most: int) -> Iterator[Sample]:
    """Yield the samples of a decompressed archive, with the members that have one of these suffixes
    (all members if None). At most `most` bytes of a sample are read.

    Raises tarfile.TarError, or an error of the decompressor, if the archive is damaged.
    """
    sample: Sample | None = None
    limited = cast(BinaryIO, _LimitedArchive(source))
    with tarfile.open(fileobj=limited, mode="r|", tarinfo=_TarInfo) as archive:
        for member in archive:
            # tarfile would keep all members in memory
            archive.members = []  # type: ignore[attr-defined]
            match = _NAME.match(member.name)
            if not member.isreg() or match is None:
                continue
            key, suffix = match[1], match[2].lower()
            if sample is None or key != sample.key:
                if sample is not None:
                    yield sample
                sample = Sample(key)
            sample.suffixes.add(suffix)
            if suffixes is None or suffix in suffixes:
                _add(sample, suffix, archive, member, most)
    if sample is not None:
        yield sample


def _add(
    sample: Sample, suffix: str, archive: tarfile.TarFile, member: tarfile.TarInfo, most: int
) -> None:
    if suffix in sample.members:
        sample.repeated = suffix
        return
    if sample.size + member.size > most or len(sample.members) >= MAX_COLUMNS:
        sample.too_large = suffix
        sample.members.clear()
        sample.size = 0
    content = archive.extractfile(member)
    if content is not None and sample.too_large is None:
        sample.members[suffix] = content.read()
        sample.size += len(sample.members[suffix])


KEY = "__key__"
SAMPLE_ROWS = 100
CHUNK_SAMPLES, CHUNK_BYTES = 4096, 8 << 20
_KINDS = {
    **dict.fromkeys(EXTENSIONS["images"], "picture"),
    **dict.fromkeys(("txt", "text"), "text"),
    **dict.fromkeys(("cls", "cls2", "index"), "number"),
    "json": "json",
}
"""The kind of a member by its last extension. Any other member is bytes."""
_TYPES = {"text": pa.string(), "number": pa.int64(), "bytes": pa.large_binary()}
_DAMAGE = (
    *(tarfile.TarError, EOFError, zlib.error, lzma.LZMAError),
    *(ValueError, OverflowError, RecursionError, MemoryError, struct.error),
)
Row = dict[str, Any]
"""The decoded members of a sample. A JSON member is a line with an object {name: value}."""


class WebdatasetReader(Reader):
    def __init__(self, options: WebdatasetOptions) -> None:
        self._options = options
        self._names: list[str] = []
        self._json = JsonRows({}, {})

    def prepare(self, samples: list[Location]) -> None:
        found = inspected(samples, lambda file: list(self._beginning(file)))
        first = [sample for _, samples_of_file in found for sample in samples_of_file]
        self._check_suffixes(set().union(*(sample.suffixes for sample in first)))
        names = list(dict.fromkeys(name for sample in first for name in sample.members))
        self._names = names[:MAX_FIELDS]  # any other member becomes a column where it occurs
        members = (item for sample in first for item in sample.members.items())
        lines = (_line_or_none(*item) for item in members if self._kind(item[0]) == "json")
        self._json = sampled_rows({}, lines)

    def _check_suffixes(self, found: set[str]) -> None:
        missing = [name for name in self._options.suffixes or [] if name not in found]
        if missing and found:
            raise BadInput(
                f"read.options.suffixes: '{missing[0]}': no inspected sample has it, only "
                f"{', '.join(sorted(found))}"
            )

    def _samples(self, source: io.BufferedReader) -> Iterator[Sample | Exception]:
        samples = samples_of(archive_in(source), self._options.suffixes, self._options.row_bytes)
        return up_to_damage(samples, _DAMAGE)

    def _beginning(self, file: Location) -> Iterator[Sample]:
        with opened(file) as source:
            samples = self._samples(source)
            for sample in beginning(samples, source, SAMPLE_ROWS, _size):
                if isinstance(sample, Sample):
                    yield sample

    def read(self, file: Location) -> Iterator[Chunk]:
        with opened(file) as source:
            fields = Fields(self._json.schema, [KEY, *self._names])
            yield from self._tables(self._samples(source), fields)

    def _tables(self, samples: Iterator[Sample | Exception], fields: Fields) -> Iterator[Chunk]:
        rows: list[Row] = []
        size = 0
        for sample in samples:
            try:
                row = self._row(sample)
            except Exception as error:
                if not is_about_the_file(error):
                    raise
                # a decoder may raise any error: the row has failed
                yield from [*self._run(rows, fields), BadRow(error)]
                rows, size = [], 0
                continue
            full = size > CHUNK_BYTES or len(rows) == CHUNK_SAMPLES
            if rows and (full or row.keys() != rows[0].keys()):
                yield from self._run(rows, fields)
                rows, size = [], 0
            rows.append(row)
            size += sum(map(_bytes, row.values()))
        yield from self._run(rows, fields)

    def _row(self, sample: Sample | Exception) -> Row:
        if isinstance(sample, Exception):
            raise sample
        if sample.repeated is not None:
            raise ValueError(f"sample '{sample.key}' has two members '{sample.repeated}'")
        if sample.too_large is not None:
            limit = f"max_row_bytes ({self._options.row_bytes})"
            raise ValueError(
                f"sample '{sample.key}' has more bytes than {limit} with '{sample.too_large}'"
            )
        row: Row = {KEY: sample.key}
        size = 0
        for name, content in sample.members.items():
            row[name] = self._decode(name, content)
            size += _bytes(row[name])
            if size > self._options.row_bytes:
                limit = f"max_row_bytes ({self._options.row_bytes})"
                raise ValueError(f"sample '{sample.key}' has more bytes than {limit} once decoded")
        return row

    def _decode(self, name: str, content: bytes) -> Any:
        kind = self._kind(name)
        if kind == "picture":
            return images.decode(content, self._options)
        if kind == "json":
            return _line(name, content)
        if kind == "text":
            return content.decode()
        return int(content) if kind == "number" else content

    def _kind(self, name: str) -> str:
        return _KINDS.get(name.rpartition(".")[2], "bytes") if self._options.decoder else "bytes"

    def _run(self, rows: list[Row], fields: Fields) -> Iterator[Chunk]:
        """Yield rows with the same members as a table. A row that does not fit becomes a BadRow."""
        if not rows:
            return
        try:
            fields.add_columns(rows[0])
            yield pa.table(
                {name: self._array(name, [row[name] for row in rows], fields) for name in rows[0]}
            )
        except (ValueError, TypeError, OverflowError, MemoryError) as error:
            if len(rows) == 1:
                yield BadRow(error)
                return
            for row in rows:
                yield from self._run([row], fields)

    def _array(self, name: str, values: list[Any], fields: Fields) -> pa.Array | pa.ChunkedArray:
        kind = "text" if name == KEY else self._kind(name)
        if kind == "picture":
            return images.to_arrow(values, self._options.size)
        if kind == "json":
            known = self._json.of_column(name)
            return _parsed(b"".join(values), known, fields).column(name)
        return pa.array(values, _TYPES[kind])

    def rows_in(self, file: Location, size: int) -> int | None:
        with opened(file) as source:
            return estimate(
                up_to_damage(samples_of(archive_in(source), [], 0), _DAMAGE), source, size
            )

    def columns(self) -> list[str] | None:
        return [KEY, *self._names] if self._names else None


def _size(sample: Sample | Exception) -> int:
    return sample.size if isinstance(sample, Sample) else 0


def _bytes(value: Any) -> int:
    return value.nbytes if isinstance(value, np.ndarray) else sys.getsizeof(value)


def _line(name: str, content: bytes) -> bytes:
    check_depth(content)
    check_size(content)
    (value,) = lines_of(content, elements=False)
    return f"{{{json.dumps(name)}: {value}}}\n".encode()


def _parsed(lines: bytes, known: JsonRows, fields: Fields) -> pa.Table:
    """Return JSON members as a table. Raises ValueError or TypeError if types do not unify."""
    parts = [known.parse(rows) for rows in row_slices(lines)]
    for part in parts:
        fields.add(part.schema)
    return pa.concat_tables(parts, promote_options="permissive")


def _line_or_none(name: str, content: bytes) -> bytes:
    """Return a member as a line, or empty bytes if it is invalid JSON. Its sample becomes a failed
    row when it is read."""
    try:
        return _line(name, content)
    except (ValueError, RecursionError):
        return b""
