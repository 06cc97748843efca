"""Reads WebDataset tar archives, one row per sample.

The types of JSON members are inferred from the first samples of a few archives and apply to all
archives."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import numpy as np
import pyarrow as pa

from batchinference.pipeline.declared_types import INT64_TEXT
from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.exact_json import lines_of
from batchinference.pipeline.input.json_rows import JsonRows, sampled_rows
from batchinference.pipeline.input.readers import BadRow, Chunk, Reader, grouped, inspected, or_bad
from batchinference.pipeline.input.readers.json import row_slices
from batchinference.pipeline.input.readers.text_lines import (
    TOO_LARGE,
    archive_in,
    beginning,
    estimate,
    open_raw,
    up_to_damage,
)
from batchinference.pipeline.input.signatures import is_tar
from batchinference.pipeline.input.tar_samples import (
    DAMAGE,
    Sample,
    adjacent_samples,
    in_memory,
    samples_of,
)
from batchinference.pipeline.media import images
from batchinference.pipeline.row_warnings import (
    WARNING_COLUMN,
    RowWarning,
    collect_warnings,
    with_warnings,
)
from batchinference.pipeline.storage.location import Location
from batchinference.spec.column_types import parse_types
from batchinference.spec.file_extensions import HEIF, PICTURES
from batchinference.spec.warnings import WarningName

if TYPE_CHECKING:
    from batchinference.spec.read import WebdatasetOptions

KEY = "__key__"
SAMPLE_ROWS, MAX_SAMPLES = 100, 1 << 14
"""Maximum number of samples per archive that are inspected: for JSON members, and for labels."""
CHUNK_SAMPLES, CHUNK_BYTES = 4096, 8 << 20
_KINDS = {
    **dict.fromkeys((*PICTURES, *HEIF), "picture"),
    **dict.fromkeys(("txt", "text"), "text"),
    **dict.fromkeys(("cls", "cls2", "index"), "label"),
    "json": "json",
}
"""The kind of a member by its last extension. Other members are bytes."""
_TYPES = {"text": pa.string(), "label": pa.string(), "bytes": pa.large_binary()}
_NOT_DECODED = ValueError("the sample is only counted")
ReadSamples: TypeAlias = Callable[[BinaryIO, list[str] | None, int], Iterator[Sample]]
Row = dict[str, Any]
"""The decoded members of a sample by name, with its key (KEY) and its warnings (WARNING_COLUMN).
The value of a JSON member is a line with the object {name: value}."""


class WebdatasetReader(Reader):
    recognizes = staticmethod(is_tar)

    def __init__(self, options: WebdatasetOptions) -> None:
        self._options = options
        self._suffixes = options.suffixes and [suffix.lower() for suffix in options.suffixes]
        self._names: list[str] = []
        self._declared = parse_types(options.types)
        self._json = JsonRows(self._declared, {})
        self._integers: set[str] = set()
        """The names of the labels that are integers. Other labels are text."""

    def prepare(self, samples: list[Location]) -> None:
        by_file = [first for _, first in inspected(samples, self._beginning)]
        first = [sample for samples_of_file in by_file for sample in samples_of_file]
        self._check_types()
        self._check_suffixes(set().union(*(sample.suffixes for sample in first)))
        names = list(dict.fromkeys(name for sample in first for name in sample.members))
        self._names = [name for name in names if name != KEY]
        few = (sample for samples_of_file in by_file for sample in samples_of_file[:SAMPLE_ROWS])
        members = (item for sample in few for item in sample.members.items())
        lines = (_line_or_none(*item) for item in members if self._kind(item[0]) == "json")
        self._json = sampled_rows(self._declared, lines)
        self._integers = {name for name in names if self._are_integers(name, first)}

    def _are_integers(self, name: str, samples: list[Sample]) -> bool:
        """Return whether labels with this name are integers: by declaration, or by the samples."""
        if name in self._declared:
            return self._declared[name] == "int64"
        labels = (sample.members[name] for sample in samples if name in sample.members)
        texts = (label.decode("utf-8-sig", "replace").strip() for label in labels)
        return self._kind(name) == "label" and all(map(INT64_TEXT.fullmatch, filter(None, texts)))

    def _check_types(self) -> None:
        """Raise BadInput if a type is declared for a member whose extension defines its type."""
        for name, kind in self._declared.items():
            is_label = self._kind(name) == "label" and kind in ("int64", "string")
            if self._kind(name) != "json" and not is_label:
                raise BadInput(
                    f"read.options.types.{name}: '{kind}' cannot be declared for this member. "
                    "Members that end in .json have any type, and labels (.cls, .index) are int64 "
                    "or string. Remove it"
                )

    def _check_suffixes(self, present: set[str]) -> None:
        missing = [name for name in self._suffixes or [] if name not in present]
        if missing and present:
            raise BadInput(
                f"read.options.suffixes: '{missing[0]}': no inspected sample has it, only "
                f"{', '.join(sorted(present))}"
            )

    def _beginning(self, file: Location) -> list[Sample]:
        """Return the first samples of an archive. If members of these samples may be further back
        in the archive, the headers of all members are read."""
        with open_raw(file) as source:
            first = self._first(adjacent_samples, source)
            unique = len({sample.key for sample in first}) == len(first)
            if unique and any(len(sample.suffixes) > 1 for sample in first):
                return first
            first = []  # frees memory
            source.seek(0)
            return self._first(samples_of, source)

    def _first(self, read: ReadSamples, source: io.BufferedReader) -> list[Sample]:
        first = beginning(self._samples(read, source), source, MAX_SAMPLES, _size)
        return [sample for sample in first if isinstance(sample, Sample)]

    def _samples(self, read: ReadSamples, file: io.BufferedReader) -> Iterator[Sample | Exception]:
        archive, max_bytes = archive_in(file), self._options.row_bytes
        if read is samples_of and archive is not file:
            archive = in_memory(archive, max_bytes)
        return up_to_damage(read(archive, self._suffixes, max_bytes), DAMAGE)

    def read(self, file: Location) -> Iterator[Chunk]:
        with open_raw(file) as source:
            yield from self._tables(self._samples(samples_of, source))

    def counter(self) -> Reader:
        return _SampleCounter(self._options)

    def _tables(self, samples: Iterator[Sample | Exception]) -> Iterator[Chunk]:
        rows = map(self._row_or_bad, samples)
        for group in grouped(rows, _size_of, CHUNK_BYTES, CHUNK_SAMPLES, key=dict.keys):
            yield from [group] if isinstance(group, BadRow) else self._table_or_bad(group)

    def _row_or_bad(self, sample: Sample | Exception) -> Row | BadRow:
        row = or_bad(partial(self._row, sample))
        return replace(row, warnings=_member_warnings(sample)) if isinstance(row, BadRow) else row

    def _row(self, sample: Sample | Exception) -> Row:
        if isinstance(sample, Exception):
            raise sample
        if sample.repeated is not None:
            raise ValueError(
                f"sample '{sample.key}' has two members '{sample.repeated}'. If archives with the "
                "same names were joined, read them as separate files"
            )
        if KEY in sample.members:
            raise ValueError(
                f"sample '{sample.key}' has a member '{KEY}', which is the name of the column with "
                "the keys. Rename the member"
            )
        if sample.too_large is not None:
            what = f"sample '{sample.key}' with '{sample.too_large}'"
            raise ValueError(TOO_LARGE.format(what, self._options.row_bytes))
        row: Row = {KEY: sample.key}
        size = 0
        with collect_warnings() as warnings:
            for name, content in sample.members.items():
                row[name] = self._decode(name, content)
                size += _bytes(row[name])
                if size > self._options.row_bytes:
                    what = f"decoded sample '{sample.key}'"
                    raise ValueError(TOO_LARGE.format(what, self._options.row_bytes))
        return {**row, WARNING_COLUMN: [*_member_warnings(sample), *warnings]}

    def _decode(self, name: str, content: bytes) -> Any:
        kind = self._kind(name)
        if kind == "picture":
            return images.decode(content, self._options)
        if kind == "json":
            return _line(name, content)
        if kind == "label":
            return self._label(name, _text(name, content).rstrip("\r\n"))
        return _text(name, content) if kind == "text" else content

    def _label(self, name: str, text: str) -> str | int:
        if name not in self._integers:
            return text
        if not INT64_TEXT.fullmatch(text.strip()):
            origin = "its declared type" if name in self._declared else "as the first samples have"
            raise ValueError(
                f"column '{name}': {text!r} is not an integer, {origin}. Set read.options.types: "
                f"{{{name}: string}}"
            )
        return int(text)

    def _kind(self, name: str) -> str:
        return _KINDS.get(name.rpartition(".")[2], "bytes") if self._options.decoder else "bytes"

    def _table_or_bad(self, rows: list[Row]) -> Iterator[Chunk]:
        """Yield rows with the same members as tables, or as BadRows if Arrow cannot hold them."""
        try:
            names = [name for name in rows[0] if name != WARNING_COLUMN]
            columns = {name: self._array(name, [row[name] for row in rows]) for name in names}
            warnings = dict(enumerate(row[WARNING_COLUMN] for row in rows))
            yield with_warnings(pa.table(columns), warnings)
        except (ValueError, TypeError, OverflowError, MemoryError) as error:
            if len(rows) == 1:
                yield BadRow(error, 1, rows[0][WARNING_COLUMN])
                return
            half = len(rows) // 2
            yield from self._table_or_bad(rows[:half])
            yield from self._table_or_bad(rows[half:])

    def _array(self, name: str, values: list[Any]) -> pa.Array | pa.ChunkedArray:
        kind = "text" if name == KEY else self._kind(name)
        if kind == "picture":
            return images.to_arrow(values, self._options.size)
        if kind == "json":
            known = self._json.of_column(name)
            parts = [known.parse(lines) for lines in row_slices(b"".join(values))]
            return pa.concat_tables(parts, promote_options="permissive").column(name)
        return pa.array(values, pa.int64() if name in self._integers else _TYPES[kind])

    def rows_in(self, file: Location, size: int) -> int | None:
        with open_raw(file) as source:
            samples = up_to_damage(adjacent_samples(archive_in(source), [], 0), DAMAGE)
            return estimate(samples, source, size)

    def columns(self) -> list[str] | None:
        return [KEY, *self._names] if self._names else None


class _SampleCounter(WebdatasetReader):
    """Yields a BadRow for each sample, without decoding it."""

    def _tables(self, samples: Iterator[Sample | Exception]) -> Iterator[Chunk]:
        yield from (BadRow(_NOT_DECODED, 1) for _ in samples)


def _member_warnings(sample: Sample | Exception) -> list[RowWarning]:
    """Return a list with the warning that members are not read; empty if all are read."""
    ignored = sample.ignored if isinstance(sample, Sample) else 0
    return [RowWarning(0, WarningName.MEMBERS_IGNORED, ignored)] if ignored else []


def _size(sample: Sample | Exception) -> int:
    return sample.size if isinstance(sample, Sample) else 0


def _size_of(row: Row) -> int:
    return sum(map(_bytes, row.values()))


def _bytes(value: Any) -> int:
    return value.nbytes if isinstance(value, np.ndarray) else sys.getsizeof(value)


def _text(name: str, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"column '{name}': the member is not UTF-8 text ({error})") from error


def _line(name: str, content: bytes) -> bytes:
    (value,) = lines_of(content, elements=False)
    return f"{{{json.dumps(name)}: {value}}}\n".encode()


def _line_or_none(name: str, content: bytes) -> bytes:
    """Return a JSON member as a line; empty if it is invalid, because its sample fails later."""
    try:
        return _line(name, content)
    except (ValueError, RecursionError):
        return b""
