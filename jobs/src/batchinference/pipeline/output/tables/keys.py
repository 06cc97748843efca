"""The keys by which a job merges its rows into a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.pipeline.commit.manifest import DataFile
from batchinference.pipeline.commit.table_commit import table_errors_as_bad_output
from batchinference.pipeline.errors import BadOutput, redact
from batchinference.pipeline.output.key_types import OF_TABLES
from batchinference.pipeline.output.tables import Table, common_types
from batchinference.pipeline.output.writers.parquet import ParquetWriter
from batchinference.pipeline.storage.arrow_files import tables_in
from batchinference.pipeline.type_widening import exact_cast, unify_types
from batchinference.spec.reserved import OWN_PREFIX
from batchinference.text import counted

_NUMBER, _ROW = f"{OWN_PREFIX}key", f"{OWN_PREFIX}row"
_EXAMPLES, _LONGEST = 3, 60


class MergingTable(Table):
    """A table in which rows can be updated by a key. Without a key, the job updates no rows."""

    key: tuple[str, ...] = ()

    def open(self, planned: pa.Schema) -> None:
        super().open(planned)
        check_key_types([field for field in planned if field.name in self.key])
        known = self.types.names if self.types is not None else self.key
        if missing := [name for name in self.key if name not in known]:
            raise BadOutput(
                f"write.key: the table has no column '{missing[0]}', only {', '.join(known)}. Name "
                "one of these"
            )

    @property
    def file_partitions(self) -> tuple[str, ...]:
        return () if self.key else self.partition_by

    def table_schema(self, names: Sequence[str]) -> pa.Schema:
        """Return the columns of the table that rows with the columns `names` must have. With a key,
        these are only columns in `names`, because a merge keeps the other columns of a row."""
        types = super().table_schema(names)
        return pa.schema([field for field in types if not self.key or field.name in names])

    def files(self, table: pa.Table) -> Iterator[tuple[str, memoryview]]:
        if self.key:  # an early check; keys of all tasks are compared at the end of the job
            Keys.of([table], self.key).check()
        return super().files(table)

    def keys_in(self, existing: Any) -> Iterator[pa.Table]:
        """Yield the key columns of all rows of an opened table."""
        raise NotImplementedError

    def find_keys(self, existing: Any, wanted: pa.Table) -> Iterator[pa.Table]:
        """Yield all keys of an opened table that are in `wanted`, and perhaps other keys."""
        return self.keys_in(existing)


_OTHER_KEY = (
    "Name other columns, or set write.mode to append and remove write.key. Rows that are stored "
    "already are not computed again"
)


@dataclass(frozen=True)
class Keys:
    """The keys of all rows of a job, in memory. `table` has the key columns. The number of a key is
    its index in `table`."""

    table: pa.Table

    @classmethod
    def of(cls, tables: Iterable[pa.Table], names: Sequence[str]) -> Keys:
        """Return the columns `names` of all tables as keys, in types that hold all values."""
        parts = [_comparable(table.select(names)) for table in tables]
        return cls(pa.concat_tables(parts, promote_options="permissive"))

    def check(self) -> None:
        """Raise BadOutput if a key has a null, or if two rows have the same key."""
        names = self.table.column_names
        check_key_types(self.table.schema)
        for name in names:
            if nulls := self.table.column(name).null_count:
                raise BadOutput(
                    f"write.key: column '{name}' is null in {counted(nulls, 'row')}, and rows "
                    f"without a key cannot be merged. {_OTHER_KEY}"
                )
        groups = self.table.group_by(names).aggregate([([], "count_all")])
        repeated = groups.filter(pc.greater(groups["count_all"], 1)).select(names)
        if repeated.num_rows:
            examples = _examples(repeated.sort_by([(name, "ascending") for name in names]))
            raise BadOutput(
                f"write.key: several rows of the job have the same {' and '.join(names)} "
                f"({counted(repeated.num_rows, 'value')}: {examples}). {_OTHER_KEY}"
            )

    def matches(self, rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
        """Find the rows of a table that have a key of the job. Return two arrays (int64): the
        numbers of the keys, and the indexes of the rows."""
        names = self.table.column_names
        others = _comparable(rows.select(names))
        types = [
            unify_types(*both)
            for both in zip(self.table.schema.types, others.schema.types, strict=True)
        ]
        if None in types:  # no value of one type can equal a value of the other
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        schema = pa.schema(list(zip(names, types, strict=True)))
        mine, others = self.table.cast(schema), others.cast(schema)
        joined = _numbered(mine, _NUMBER).join(_numbered(others, _ROW), names, join_type="inner")
        return joined[_NUMBER].to_numpy(), joined[_ROW].to_numpy()

    def matched_numbers(self, tables: Iterable[pa.Table]) -> np.ndarray:
        """Return the key number (int64) of each row in `tables` that has a key of the job."""
        return np.concatenate([np.zeros(0, np.int64), *(self.matches(t)[0] for t in tables)])

    def check_unique_in_table(self, numbers: np.ndarray) -> None:
        """Raise BadOutput if several rows of the table have the same key, because the job cannot
        know which row to update. `numbers` is the result of `matched_numbers` for the table."""
        repeated = np.bincount(numbers) > 1
        if count := int(repeated.sum()):
            raise BadOutput(
                f"write.key: several rows of the table have the same key ({counted(count, 'key')}: "
                f"{self.examples(repeated)}). Remove the rows that are too many from the table, "
                "and run the job again. No row is computed again"
            )

    def examples(self, chosen: np.ndarray) -> str:
        """Return a few of the keys that a mask selects, as text."""
        some: pa.Table = self.table.take(pa.array(np.flatnonzero(chosen)[: _EXAMPLES + 1]))
        return _examples(some)


def check_key_types(fields: Iterable[pa.Field]) -> None:
    """Raise BadOutput if values of a key column, such as floats, cannot be compared exactly."""
    for problem in OF_TABLES.problems(fields):
        raise BadOutput(f"write.key: {problem}")


def store_keys(table: Table, job_pass: JobPass, files: Sequence[DataFile]) -> Keys | None:
    """Check the keys of all rows of a job, store them in the state, and return them. Return None if
    the job has no key. Raises BadOutput if a key is repeated or has a null, or if another run has
    taken over the output."""
    layout = job_pass.layout
    if not isinstance(table, MergingTable) or not table.key:
        return None
    with table_errors_as_bad_output():
        rows = (part for each in files for part in tables_in(layout.data / each.name, table.key))
        keys = Keys.of(rows, table.key)
        keys.check()
    layout.keys.write_if(job_pass.guard, ParquetWriter("zstd").write([keys.table]))
    return keys


def _comparable(keys: pa.Table) -> pa.Table:
    """Return keys in types that all tables support. UUIDs become texts, which Arrow can join."""
    keys = common_types(keys)
    types = [pa.string() if kind == pa.uuid() else kind for kind in keys.schema.types]
    return pa.table([*map(exact_cast, keys.columns, types)], keys.column_names)


def _numbered(table: pa.Table, name: str) -> pa.Table:
    return table.append_column(name, pa.array(np.arange(table.num_rows)))


def _examples(keys: pa.Table) -> str:
    rows = keys.slice(0, _EXAMPLES).to_pylist()
    texts = [", ".join(redact(str(value), _LONGEST) for value in row.values()) for row in rows]
    return "; ".join([*texts, *["..."] * (keys.num_rows > _EXAMPLES)])
