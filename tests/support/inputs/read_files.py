"""Reads files like a job, without Ray: input snapshot, sampling, decoding and row ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import TypeAdapter

from batchinference.pipeline.arrow import concat, to_batch
from batchinference.pipeline.input import file_input
from batchinference.pipeline.input.changed_files import ProcessedFiles
from batchinference.pipeline.input.file_input import FileInput, open_files
from batchinference.pipeline.input.file_rows import FileRows
from batchinference.pipeline.input.input_snapshot import InputFile, InputSnapshot
from batchinference.pipeline.input.planning import parts_of, with_row_counts
from batchinference.pipeline.input.readers import DivisibleReader
from batchinference.pipeline.row_batch import RowBatch, unpack_ids
from batchinference.spec.read import Read, ReadFiles

_READ: TypeAdapter[Read] = TypeAdapter(Read)
Position = tuple[int, int]
"""File number and row number."""


@dataclass(frozen=True)
class Outcome:
    """The batches that were read."""

    batches: list[RowBatch]

    @property
    def good(self) -> list[dict[str, Any]]:
        """The good rows; null in columns that their file lacks."""
        return list(self.table.to_pylist())

    @property
    def bad(self) -> dict[Position, str]:
        """The error of each failed row."""
        return {
            position: error
            for batch in self.batches
            for position, error in zip(
                _positions(batch.errors.column("id").to_numpy()),
                batch.errors.column("error").to_pylist(),
                strict=True,
            )
        }

    @property
    def order(self) -> list[Position]:
        """The place of each good row, in the order of reading."""
        return [position for batch in self.batches for position in _positions(batch.ids)]

    @property
    def warnings(self) -> dict[Position, dict[str, int]]:
        """The names of the warnings of each row that has some, with their amounts."""
        result: dict[Position, dict[str, int]] = {}
        for batch in self.batches:
            for position, warning in zip(
                _positions(batch.warnings.column("id").to_numpy()),
                batch.warnings.to_pylist(),
                strict=True,
            ):
                result.setdefault(position, {})[warning["name"]] = warning["amount"]
        return result

    @property
    def ends(self) -> dict[int, int]:
        """The number of rows of each file whose end was reached."""
        return dict(end for batch in self.batches for end in batch.ends)

    @property
    def tables(self) -> list[pa.Table]:
        """The good rows of each batch that has some."""
        return [batch.table for batch in self.batches if len(batch.ids)]

    @property
    def table(self) -> pa.Table:
        """The good rows as a table."""
        return concat(self.tables or [pa.table({})])

    @property
    def ids(self) -> list[Any]:
        """The values of the column `id` of the good rows, sorted."""
        return sorted(row["id"] for row in self.good)

    @property
    def filtered(self) -> int:
        """The number of rows that a filter has left out."""
        return sum(len(batch.filtered) for batch in self.batches)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the good rows."""
        return self.table.schema

    def column(self, name: str) -> np.ndarray:
        """Return a column of the good rows, as a step receives it."""
        return to_batch(self.table.select([name]))[name]


def _positions(ids: np.ndarray) -> list[Position]:
    files, rows = unpack_ids(ids)
    return list(zip(files.tolist(), rows.tolist(), strict=True))


@dataclass(frozen=True)
class Input:
    """An opened input."""

    given: FileInput

    @property
    def snapshot(self) -> InputSnapshot:
        return self.given.snapshot

    @property
    def file_rows(self) -> FileRows:
        return self.given.rows

    def read(self, first: int = 0, after: int | None = None) -> Outcome:
        """Read the files from `first` to before `after`."""
        return Outcome(list(self.file_rows.read(self.snapshot.files()[first:after])))


def cut_up(opened: Input, parts: int) -> list[InputFile]:
    """Divide the files of an input into about `parts` parts."""
    reader = opened.file_rows.reader
    assert isinstance(reader, DivisibleReader)
    files = opened.snapshot.files()
    return parts_of(files, with_row_counts(opened.snapshot, reader, files).stats, parts)


def open_input(
    format_: str,
    *paths: Path | str,
    sampled: int | None = None,
    sizes: Mapping[str, int] | None = None,
    on_change: str = "fail",
    **options: Any,
) -> Input:
    """Open an input and sample up to `sampled` of its files, by default as many as a job. `sizes`
    are attributes of the reader, such as `chunk_bytes`, and apply to reading, not to sampling."""
    fields = {"format": format_, "paths": [str(path) for path in paths], "onChange": on_change}
    read = _READ.validate_python({**fields, "options": options})
    assert isinstance(read, ReadFiles)
    opened = Input(open_files(read, sampled))
    for name, size in (sizes or {}).items():
        assert isinstance(getattr(opened.file_rows.reader, name), int)
        setattr(opened.file_rows.reader, name, size)
    return opened


def open_versioned(fields: dict[str, Any], earlier: ProcessedFiles | None = None) -> Input:
    """Open the input of a table: all rows, or those that are not in an earlier version."""
    opened = file_input.open_input(_READ.validate_python(fields), earlier)
    assert isinstance(opened, FileInput)
    return Input(opened)


def read_files(format_: str, *paths: Path | str, **options: Any) -> Outcome:
    """Read all rows of files and directories."""
    return open_input(format_, *paths, **options).read()


def read_content(format_: str, directory: Path, content: bytes, **options: Any) -> Outcome:
    """Write a file into a directory, and read it."""
    path = directory / "a.any"
    path.write_bytes(content)
    return read_files(format_, path, **options)


def read_image(directory: Path, content: bytes, **options: Any) -> Outcome:
    """Write an image file into a directory, and read it."""
    return read_content("images", directory, content, **options)


def pixels_of(outcome: Outcome) -> np.ndarray:
    """Return the pixels of the only image of an outcome."""
    (image,) = outcome.column("image")
    result: np.ndarray = image
    return result


def read_csv(directory: Path, *contents: bytes | str, **options: Any) -> Outcome:
    """Write a CSV file for each content into a directory, and read all of them."""
    for number, content in enumerate(contents):
        encoded = content if isinstance(content, bytes) else content.encode()
        (directory / f"{number:03}.csv").write_bytes(encoded)
    return read_files("csv", directory, **options)
