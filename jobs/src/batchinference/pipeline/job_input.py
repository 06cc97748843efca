"""What a job reads, whatever that is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias

import pyarrow as pa

from batchinference.pipeline.failures import BadInput
from batchinference.pipeline.sizing import RowCount
from batchinference.pipeline.storage import Address
from batchinference.plan.columns import OWN_PREFIX
from batchinference.spec.read import Read, ReadFiles

ReadRows: TypeAlias = Callable[[], Iterator[pa.Table]]
"""Yields tables of rows with ids, and an END row after the last of each part, unless it is known
how many rows each has."""


class JobInput(Protocol):
    """An input that is frozen: numbered parts of rows. The number of a part is half of the identity
    of its rows, and the place of a row in it the other."""

    def __len__(self) -> int:
        """How many parts there are."""

    @property
    def size(self) -> int:
        """About how many bytes are read; 0 where nothing tells."""

    @property
    def repeatable(self) -> bool:
        """Whether a part yields the same rows in the same order whenever it is read."""

    @property
    def rows_each(self) -> int | None:
        """How many rows every part has, where that is known of all beforehand: these have no END
        rows."""

    def columns(self) -> list[str] | None:
        """The columns of the rows; None when only reading tells."""

    def count(self) -> RowCount | None:
        """The number of rows, counted or estimated; None where nothing tells."""

    def serialized(self) -> bytes:
        """A parquet file whose column `path` says what each part is."""

    def below(self, place: Address) -> str | None:
        """Something that is read and lies below this place."""

    def read_tasks(self, tasks: int) -> list[ReadRows]:
        """The work of reading, cut into about so many tasks where it can be cut."""


def open_input(read: Read) -> JobInput:
    """Find and freeze what a job reads. Raises BadInput that says what is missing."""
    if isinstance(read, ReadFiles):
        from batchinference.pipeline.file_input import open_files

        return open_files(read)
    from batchinference.pipeline.table_sources import open_table

    return open_table(read)


def check_names(names: list[str], place: str) -> None:
    """Raise BadInput where columns cannot be told apart, or are named as the product's own."""
    for name in names:
        if name.startswith(OWN_PREFIX):
            raise BadInput(
                f"{place} has a column '{name}': names that begin with {OWN_PREFIX} are reserved"
            )
        if names.count(name) > 1:
            raise BadInput(f"{place} has two columns '{name}'")
