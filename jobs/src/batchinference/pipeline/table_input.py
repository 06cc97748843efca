"""Sources that are not files, read by Ray's own datasources.

Each of Ray's read tasks is a part of the input, so that its rows get ids by their position, and
counts, errors and coverage are those of files. Few sources yield the same rows a second time, so a
job over one is all or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import pyarrow as pa
from ray.data.block import Block, BlockAccessor

from batchinference.pipeline import rows
from batchinference.pipeline.failures import JobFailure
from batchinference.pipeline.inputs import as_parquet
from batchinference.pipeline.job_input import ReadRows, check_names
from batchinference.pipeline.sizing import RowCount
from batchinference.pipeline.storage import Address

ReadBlocks: TypeAlias = Callable[[], Iterable[Block]]
Explain: TypeAlias = Callable[[Exception], str]
"""An error of a library in words that hold no secret."""


@dataclass(frozen=True)
class TableInput:
    """A source with a name, its tasks in an order that does not change, and what is known of it."""

    name: str
    tasks: list[ReadBlocks]
    known_columns: list[str] | None = None
    known_count: RowCount | None = None
    size: int = 0
    place: Address | None = None
    """Where it lies, if that is a directory."""
    repeatable: bool = False
    rows_each: None = None
    explain: Explain = rows.describe

    def __len__(self) -> int:
        return len(self.tasks)

    def columns(self) -> list[str] | None:
        return self.known_columns

    def count(self) -> RowCount | None:
        return self.known_count

    @property
    def labels(self) -> list[str]:
        return [f"{self.name}:{number}" for number in range(len(self))]

    def serialized(self) -> bytes:
        return as_parquet(pa.table({"path": pa.array(self.labels, pa.string())}))

    def below(self, place: Address) -> str | None:
        if self.place is None or not place.in_store_of(self.place):
            return None
        inside = f"{self.place.path}/".startswith(place.path.rstrip("/") + "/")
        return self.place.path if inside else None

    def read_tasks(self, tasks: int) -> list[ReadRows]:
        return [
            partial(_rows, number, label, task, self.explain)
            for number, (label, task) in enumerate(zip(self.labels, self.tasks, strict=True))
        ]


def _rows(number: int, label: str, task: ReadBlocks, explain: Explain) -> Iterator[pa.Table]:
    """The rows of a task with their ids, and the END row that closes it."""
    row = 0
    for table in _tables(label, task, explain):
        check_names(table.column_names, label)
        if table.num_rows:
            yield rows.with_ids(table, number, row)
        row += table.num_rows
    yield rows.end_of_file(number, row)


def _tables(label: str, task: ReadBlocks, explain: Explain) -> Iterator[pa.Table]:
    try:
        for block in task():
            yield BlockAccessor.for_block(block).to_arrow()
    except JobFailure:
        raise
    except Exception as error:  # noqa: BLE001 - each library has errors of its own
        raise JobFailure(f"{label} cannot be read: {explain(error)}") from None
