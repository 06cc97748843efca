"""What a job reads, whatever that is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Protocol, TypeAlias

import pyarrow as pa

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.planning import RowCount
from batchinference.pipeline.row_ids import MissingRows
from batchinference.pipeline.storage.location import Location
from batchinference.plan.columns import OWN_PREFIX

NOTHING: Mapping[int, int] = MappingProxyType({})
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

    def count(self, ends: Mapping[int, int] = NOTHING) -> RowCount | None:
        """The number of rows, counted or estimated; None where nothing tells. `ends` are the rows
        of parts where that is known."""

    def share(self, gaps: MissingRows | None) -> float:
        """How much there is to read for these rows, compared to all."""

    def serialized(self) -> bytes:
        """A parquet file whose column `path` says what each part is."""

    def below(self, place: Location) -> str | None:
        """Something that is read and lies below this place."""

    def continues(self, before: str) -> bool:
        """Whether rows have the numbers that they had in the input of this digest."""

    def read_tasks(self, tasks: int, gaps: MissingRows | None = None) -> list[ReadRows]:
        """The work of reading, cut into about so many tasks where it can be cut. `gaps` are the
        rows to read of an input that is repeatable; None for all."""


def check_names(names: list[str], place: str) -> None:
    """Raise BadInput where columns cannot be told apart, or are named as the product's own."""
    for name, times in Counter(names).items():
        if name.startswith(OWN_PREFIX):
            raise BadInput(
                f"{place} has a column '{name}': names that begin with {OWN_PREFIX} are reserved"
            )
        if times > 1:
            raise BadInput(f"{place} has two columns '{name}'")
