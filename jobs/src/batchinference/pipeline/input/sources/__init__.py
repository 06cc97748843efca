"""Inputs that are not files or lakehouse tables: SQL, Hugging Face, Lance and items in the spec.
There is one module per format. The modules for Hugging Face and Lance use datasources of Ray.

An input consists of parts, and each read task of Ray reads one part. If the source still has the
version that the job began with, the job resumes. Without versions, each attempt starts over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from batchinference.pipeline.column_names import check_names
from batchinference.pipeline.commit.manifest import digest
from batchinference.pipeline.errors import JobFailure, describe
from batchinference.pipeline.input import NO_ENDS, JobInput, ReadNote, ReadRows, RowCount, batch_of
from batchinference.pipeline.input.ignored_files import NONE_IGNORED, IgnoredFiles
from batchinference.pipeline.input.input_snapshot import as_parquet
from batchinference.pipeline.input.readers import check_end, parts_in_gaps, size_of, with_notes
from batchinference.pipeline.ray_on_first_use import ray_data_compat
from batchinference.pipeline.row_batch import (
    MissingRows,
    RowBatch,
    RowRange,
    consecutive_ids,
    pack_id,
)
from batchinference.pipeline.storage.arrow_files import refuse_pickles
from batchinference.pipeline.storage.location import Location

ReadBlocks: TypeAlias = Callable[[], Iterable[Any]]
"""Returns the rows of a part as blocks of Ray."""
Explain: TypeAlias = Callable[[Exception], str]
"""Returns the message of an error of a library, without secrets."""


@dataclass(frozen=True)
class TableInput(JobInput):
    """An input that consists of parts. Each of `tasks` reads one part."""

    name: str
    tasks: list[ReadBlocks]
    known_columns: list[str] | None = None
    known_count: RowCount | None = None
    size: int = 0
    directory: Location | None = None
    """The directory of a Lance or saved Hugging Face dataset; None for other sources."""
    repeatable: bool = False
    version: str | None = None
    """Identifies the current content of the source; None if it has no versions."""
    rows_each: None = None
    ignored: IgnoredFiles = NONE_IGNORED
    explain: Explain = describe
    origin: Callable[[], tuple[int, list[np.ndarray]]] | None = None
    """For a Lance dataset, returns its version and the row IDs of each part. Otherwise None."""

    def __len__(self) -> int:
        return len(self.tasks)

    def columns(self) -> list[str] | None:
        return self.known_columns

    def count(self, ends: Mapping[int, int] = NO_ENDS) -> RowCount | None:
        return self.known_count

    @property
    def labels(self) -> list[str]:
        """The name of each part in messages."""
        return [f"{self.name}:{number}" for number in range(len(self))]

    def divisible(self, tasks: float) -> bool:
        return False

    def share(self, gaps: MissingRows | None) -> float:
        return 1.0

    def first_rows(self, count: int, ends: Mapping[int, int]) -> MissingRows:
        ranges: MissingRows = {}
        for part in range(len(self)):
            ranges[part] = [(0, min(count, ends.get(part, count)))]
            count -= ends.get(part, count)
            if count <= 0:
                break
        return ranges

    def serialized(self) -> bytes:
        columns = {"path": self.labels}
        if self.version is not None:
            columns["version"] = [self.version] * len(self)
        return as_parquet(pa.table(columns, pa.schema(dict.fromkeys(columns, pa.string()))))

    def has_ids_of(self, before: str) -> bool:
        return self.version is not None and digest(self.serialized()) == before

    def path_inside(self, outer: Location) -> str | None:
        if self.directory is None or not outer.in_store_of(self.directory):
            return None
        inside = f"{self.directory.path}/".startswith(outer.path.rstrip("/") + "/")
        return self.directory.path if inside else None

    def read_tasks(
        self, tasks: int, gaps: MissingRows | None = None, note: ReadNote = nullcontext
    ) -> list[ReadRows]:
        return [
            ReadPart(number, label, task, self.explain, tuple(gaps[number]) if gaps else (), note)
            for number, (label, task) in enumerate(zip(self.labels, self.tasks, strict=True))
            if gaps is None or number in gaps
        ]


@dataclass(frozen=True)
class ReadPart:
    """Reads part `number` of the input, or only the row ranges `gaps` of this part (empty for all
    rows). `label` is the name of the part in messages."""

    number: int
    label: str
    task: ReadBlocks
    explain: Explain
    gaps: tuple[RowRange, ...] = ()
    note: ReadNote = nullcontext

    def __call__(self) -> Iterator[RowBatch]:
        """Yield the rows. The last batch has no rows, and states the number of rows of the part."""
        row = 0
        first = pack_id(self.number, 0)
        for table in with_notes(self._tables(), first, self.note):
            check_names(table.column_names, self.label)
            for skipped, wanted in parts_in_gaps(table, row, self.gaps):
                rows = size_of(wanted)
                if rows or row == 0:  # a first table without rows states the columns
                    yield batch_of(wanted, consecutive_ids(self.number, row + skipped, rows))
            row += table.num_rows
        check_end(self.label, row, self.gaps[-1][0] if self.gaps else 0, None)
        yield RowBatch(ends=((self.number, row),))

    def _tables(self) -> Iterator[pa.Table]:
        try:
            for block in self.task():
                yield refuse_pickles(ray_data_compat().BlockAccessor.for_block(block).to_arrow())
        except JobFailure:
            raise
        except Exception as error:  # noqa: BLE001 - each library has its own errors
            raise JobFailure(f"{self.label} cannot be read: {self.explain(error)}") from None
