"""Files of separated values, by pyarrow.

Every field is read as text and then cast, so that a value of the wrong type costs its own row and
not the file. Column types are learned from the beginning of a few files and hold for all of them.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pac

from batchinference.pipeline.readers.base import BadRow, Chunk
from batchinference.pipeline.readers.lines import estimated_rows, sample_of
from batchinference.pipeline.readers.schemas import agreed_schema
from batchinference.pipeline.storage import Address
from batchinference.spec.read import CsvOptions

_BLOCK = 1 << 20
_MISSING = pa.array(pac.ConvertOptions().null_values, pa.string())
"""What stands for a missing value where no text is expected."""


class CsvReader:
    extensions = ("csv", "tsv")
    row_per_file = False
    rows_exact = False
    row_per_file = False

    def __init__(self, options: CsvOptions) -> None:
        self._delimiter = options.delimiter
        self._names = options.column_names
        self._schema = pa.schema([])

    def prepare(self, samples: list[Address]) -> None:
        self._schema = agreed_schema([sample_of(sample) for sample in samples], self._infer)

    def _infer(self, sample: bytes, _: pa.Schema) -> pa.Table:
        return pac.read_csv(io.BytesIO(sample), self._reading(), self._parsing([]))

    def read(self, file: Address) -> Iterator[Chunk]:
        rejected: list[pac.InvalidRow] = []
        with file.filesystem.open_input_stream(file.path) as source:
            try:
                reader = pac.open_csv(
                    source, self._reading(), self._parsing(rejected), self._as_text()
                )
                for batch in reader:
                    yield from self._cast(pa.table(batch))
                    yield from self._rejected(rejected)
            except pa.ArrowInvalid as error:
                if "Empty CSV file" not in str(error):
                    yield BadRow(error)
            yield from self._rejected(rejected)

    def _reading(self) -> pac.ReadOptions:
        return pac.ReadOptions(column_names=self._names, use_threads=False, block_size=_BLOCK)

    def _parsing(self, rejected: list[pac.InvalidRow]) -> pac.ParseOptions:
        def reject(row: pac.InvalidRow) -> str:
            rejected.append(row)
            return "skip"

        return pac.ParseOptions(
            delimiter=self._delimiter, newlines_in_values=True, invalid_row_handler=reject
        )

    def _as_text(self) -> pac.ConvertOptions:
        types = {field.name: pa.string() for field in self._schema}
        return pac.ConvertOptions(column_types=types)

    def _rejected(self, rejected: list[pac.InvalidRow]) -> Iterator[BadRow]:
        for row in rejected:
            text = f"line has {row.actual_columns} fields instead of {row.expected_columns}"
            yield BadRow(ValueError(f"{text}: {row.text[:200]}"))
        rejected.clear()

    def _cast(self, table: pa.Table) -> Iterator[Chunk]:
        try:
            yield self._typed(table)
        except pa.ArrowInvalid:
            yield from self._one_by_one(table)

    def _one_by_one(self, table: pa.Table) -> Iterator[Chunk]:
        start = 0
        for row in range(table.num_rows):
            try:
                self._typed(table.slice(row, 1))
            except pa.ArrowInvalid as error:
                yield self._typed(table.slice(start, row - start))
                yield BadRow(error)
                start = row + 1
        yield self._typed(table.slice(start))

    def _typed(self, table: pa.Table) -> pa.Table:
        """The table with the agreed types; columns of another file's own stay as they are."""
        for index, name in enumerate(table.column_names):
            known = self._schema.get_field_index(name)
            if known >= 0 and not pa.types.is_string(self._schema.types[known]):
                column = table.column(index)
                missing = pc.is_in(column, _MISSING)
                values = pc.if_else(missing, None, column).cast(self._schema.types[known])
                table = table.set_column(index, name, values)
        return table

    def rows_in(self, file: Address, size: int) -> int | None:
        return estimated_rows(sample_of(file), size)

    def columns(self) -> list[str] | None:
        return self._schema.names or None
