"""Encodes the rows of a commit as files: data files in the output's format, and error files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from batchinference.pipeline.arrow import tensors_to_lists
from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.committer import Committer
from batchinference.pipeline.commit.manifest import Content
from batchinference.pipeline.input.listing import paths_of
from batchinference.pipeline.output.error_records import error_records
from batchinference.pipeline.output.file_layout import FileLayout
from batchinference.pipeline.output.writers import Writer
from batchinference.pipeline.output.writers.parquet import ParquetWriter, without_halves
from batchinference.pipeline.storage.location import Location

if TYPE_CHECKING:
    from batchinference.spec.write import Write


def committer_for(write: Write, attempt: Attempt, writer: Writer) -> Committer:
    """Return what commits the rows of an attempt with this writer."""
    return Committer(attempt, OutputFiles(writer, FileLayout.of(write), attempt.layout.input))


@dataclass(frozen=True)
class OutputFiles:
    """The files of an output. `input` is the location of the input snapshot, which error records
    name files of."""

    writer: Writer
    layout: FileLayout
    input: Location

    def data(self, table: pa.Table) -> Iterator[tuple[str, str, Content]]:
        for directory, rows in self.layout.split(table):
            for ending, content in self.writer.files(rows):
                yield directory, ending, content

    def columns(self, table: pa.Table) -> list[tuple[str, str]]:
        names = self.layout.written(table.column_names)
        table = tensors_to_lists(table.slice(0, 0).select(names))
        if isinstance(self.writer, ParquetWriter):
            table = without_halves(table)
        return [(field.name, str(field.type)) for field in table.schema]

    def errors(self, failed: pa.Table) -> tuple[str, Content]:
        records = error_records(failed, paths_of(self.input))
        ((ending, content),) = ParquetWriter("snappy").files(records)
        return ending, content
