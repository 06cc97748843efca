"""Tar archives of samples, one a row.

Types of JSON members are learned from the first samples of a few archives and hold for all of them.
"""

from __future__ import annotations

import json
import lzma
import sys
import tarfile
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from batchinference.pipeline.failures import BadInput
from batchinference.pipeline.isolation import is_about_the_row
from batchinference.pipeline.readers import pixels
from batchinference.pipeline.readers.base import BadRow, Chunk
from batchinference.pipeline.readers.images import ImageReader
from batchinference.pipeline.readers.json import NO_SCHEMA, agreed_schema, parse, sample_rows
from batchinference.pipeline.readers.streams import beginning, estimate, opened, up_to_damage
from batchinference.pipeline.readers.tar import Sample, samples_of
from batchinference.pipeline.storage import Address
from batchinference.spec.read import WebdatasetOptions

KEY = "__key__"
SAMPLE_ROWS = 100
CHUNK_BYTES = 8 << 20
_KINDS = {
    **dict.fromkeys((*ImageReader.extensions, "ppm", "pgm", "pbm", "pnm"), "picture"),
    **dict.fromkeys(("txt", "text"), "text"),
    **dict.fromkeys(("cls", "cls2", "index"), "number"),
    "json": "json",
}
"""What a member is by its last extension; anything else is bytes."""
_TYPES = {"text": pa.string(), "number": pa.int64(), "bytes": pa.large_binary()}
_DAMAGE = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError)
Row = dict[str, Any]
"""The members of a sample, decoded; one of JSON as a line of the object {its name: its value}."""


class WebdatasetReader:
    extensions = ("tar", "tar.gz", "tgz")
    rows_exact = False

    def __init__(self, options: WebdatasetOptions) -> None:
        self._options = options
        self._names: list[str] = []
        self._json = NO_SCHEMA

    def prepare(self, samples: list[Address]) -> None:
        first = [sample for file in samples for sample in self._beginning(file)]
        self._check_suffixes(set().union(*(sample.suffixes for sample in first)))
        self._names = list(dict.fromkeys(name for sample in first for name in sample.members))
        members = (item for sample in first for item in sample.members.items())
        lines = (_line_or_none(*item) for item in members if self._kind(item[0]) == "json")
        self._json = agreed_schema(part for line in lines for part in sample_rows(line))

    def _check_suffixes(self, there: set[str]) -> None:
        missing = [name for name in self._options.suffixes or [] if name not in there]
        if missing and there:
            raise BadInput(
                f"read.options.suffixes: '{missing[0]}': no sample that was looked at has it, only "
                f"{', '.join(sorted(there))}"
            )

    def _samples(self, source: BinaryIO) -> Iterator[Sample | Exception]:
        return up_to_damage(samples_of(source, self._options.suffixes), _DAMAGE)

    def _beginning(self, file: Address) -> Iterator[Sample]:
        with opened(file) as source:
            for sample in beginning(self._samples(source), source, SAMPLE_ROWS):
                if isinstance(sample, Sample):
                    yield sample

    def read(self, file: Address) -> Iterator[Chunk]:
        with opened(file) as source:
            yield from self._tables(self._samples(source))

    def _tables(self, samples: Iterator[Sample | Exception]) -> Iterator[Chunk]:
        rows: list[Row] = []
        size = 0
        for sample in samples:
            try:
                row = self._row(sample)
            except Exception as error:
                if not is_about_the_row(error):
                    raise
                # whatever a decoder raises, the row is bad
                yield from [*self._run(rows), BadRow(error)]
                rows, size = [], 0
                continue
            if rows and (row.keys() != rows[0].keys() or size > CHUNK_BYTES):
                yield from self._run(rows)
                rows, size = [], 0
            rows.append(row)
            size += sum(map(_bytes, row.values()))
        yield from self._run(rows)

    def _row(self, sample: Sample | Exception) -> Row:
        if isinstance(sample, Exception):
            raise sample
        if sample.repeated is not None:
            raise ValueError(f"sample '{sample.key}' has two members '{sample.repeated}'")
        members = sample.members.items()
        return {KEY: sample.key} | {name: self._decode(name, value) for name, value in members}

    def _decode(self, name: str, content: bytes) -> Any:
        kind = self._kind(name)
        if kind == "picture":
            return pixels.decode(content, self._options.mode, self._options.size)
        if kind == "json":
            return _line(name, content)
        if kind == "text":
            return content.decode()
        return int(content) if kind == "number" else content

    def _kind(self, name: str) -> str:
        return _KINDS.get(name.rpartition(".")[2], "bytes") if self._options.decoder else "bytes"

    def _run(self, rows: list[Row]) -> Iterator[Chunk]:
        """Rows with the same members as a table, with each that does not fit set aside alone."""
        if not rows:
            return
        try:
            yield pa.table(
                {name: self._array(name, [row[name] for row in rows]) for name in rows[0]}
            )
        except (pa.ArrowInvalid, OverflowError) as error:
            if len(rows) == 1:
                yield BadRow(error)
                return
            for row in rows:
                yield from self._run([row])

    def _array(self, name: str, values: list[Any]) -> pa.Array | pa.ChunkedArray:
        kind = "text" if name == KEY else self._kind(name)
        if kind == "picture":
            return pixels.to_arrow(values, self._options.size)
        if kind == "json":
            known = pa.schema([field for field in self._json if field.name == name])
            return parse(b"".join(values), known).column(name)
        return pa.array(values, _TYPES[kind])

    def rows_in(self, file: Address, size: int) -> int | None:
        with opened(file) as source:
            return estimate(up_to_damage(samples_of(source, []), _DAMAGE), source, size)

    def columns(self) -> list[str] | None:
        return [KEY, *self._names] if self._names else None


def _bytes(value: Any) -> int:
    return value.nbytes if isinstance(value, np.ndarray) else sys.getsizeof(value)


def _line(name: str, content: bytes) -> bytes:
    return json.dumps({name: json.loads(content)}).encode() + b"\n"


def _line_or_none(name: str, content: bytes) -> bytes:
    """A member as a line; nothing where it is no JSON, which becomes a bad row."""
    try:
        return _line(name, content)
    except (ValueError, RecursionError):
        return b""
