"""Parquet files, by pyarrow."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from batchinference.pipeline.failures import BadInput
from batchinference.pipeline.readers.base import CHUNK_ROWS, BadRow, Chunk
from batchinference.pipeline.storage import Address, is_trouble
from batchinference.spec.read import ParquetOptions


class ParquetReader:
    extensions = ("parquet",)
    rows_exact = True

    def __init__(self, options: ParquetOptions) -> None:
        self._wanted = options.columns
        self._columns: list[str] | None = None

    def prepare(self, samples: list[Address]) -> None:
        for sample in samples:
            footer = _footer(sample)
            if footer is None:
                continue
            there = footer.schema.to_arrow_schema().names
            if missing := sorted(set(self._wanted or []) - set(there)):
                raise BadInput(
                    f"read.options.columns: {sample.uri} has no column '{missing[0]}', "
                    f"only {', '.join(there)}"
                )
            self._columns = self._wanted or there
            return

    def read(self, file: Address) -> Iterator[Chunk]:
        with file.filesystem.open_input_file(file.path) as source:
            try:
                reader = pq.ParquetFile(source)
                for batch in reader.iter_batches(CHUNK_ROWS, columns=self._wanted):
                    yield pa.table(batch)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                yield BadRow(error)  # the rest of the file counts as one row

    def rows_in(self, file: Address, size: int) -> int | None:
        footer = _footer(file)
        return 1 if footer is None else int(footer.num_rows)

    def columns(self) -> list[str] | None:
        return self._columns


def _footer(file: Address) -> pq.FileMetaData | None:
    """What the end of a file says of it; None of a damaged one, which becomes a bad row when it is
    read."""
    try:
        with file.filesystem.open_input_file(file.path) as source:
            return pq.read_metadata(source)
    except pa.ArrowInvalid:
        return None
    except OSError as error:
        if is_trouble(error):
            raise
        return None
