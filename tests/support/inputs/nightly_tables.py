"""Tables with versions, the jobs that read them each night, and the changes of the days between."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import StringType

from support.documents.minimal import Document
from support.inputs import iceberg
from support.inputs.delta_vectors import delete_positions, enable_vectors, live_adds
from support.jobs.on_ray import job_document, without_order
from support.outputs.rows import Row

FEED = {"delta.enableChangeDataFeed": "true"}
Change = Callable[[], object]


class _Nightly:
    read: Document
    """The fields of `read`, without options."""
    columns: ClassVar[tuple[str, ...]]
    changed: ClassVar[tuple[str, str]]
    """The columns that tell a change and its version."""

    def job(self, output: Path, mode: str = "append", **options: Any) -> Document:
        job = job_document("nightly", "unused", output, write={"mode": mode})
        job["spec"]["read"] = {**self.read, "options": options}
        return job

    def plain(self, rows: Iterable[Row], changes: str) -> list[str]:
        """Return the values of rows and of their changes, in any order."""
        names = (*self.columns, *(self.changed if changes == "include" else ()))
        one_name = ({**row, "text": row.get("words") or row.get("text")} for row in rows)
        return without_order([{name: row.get(name) for name in names} for row in one_name])


class NightlyDelta(_Nightly):
    columns, changed = ("id", "day", "note"), ("_change_type", "_commit_version")

    def __init__(self, path: Path, **options: Any) -> None:
        """`options` are those of the new table, which has a change data feed by default."""
        self.path = path / "table"
        self.read = {"format": "delta", "path": str(self.path)}
        self._options = {"configuration": FEED, **options}
        self._known = -1

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.path)

    @property
    def version(self) -> dict[str, int]:
        return {"version": self.table.version()}

    @property
    def days(self) -> list[Change]:
        """The changes between the nights."""
        return [
            *(self.insert, self.update, self.compact, self.delete, self.clean),
            *(self.delete_day, self.merge, self.change_several_times),
            *(self.clean, self.add_column, self.compact),
        ]

    @staticmethod
    def rows(*ids: int, day: str = "monday") -> pa.Table:
        return pa.table({"id": pa.array(ids, pa.int64()), "day": [day] * len(ids)})

    def append(self, *ids: int, day: str = "monday") -> None:
        options = {} if DeltaTable.is_deltatable(str(self.path)) else self._options
        write_deltalake(self.path, self.rows(*ids, day=day), mode="append", **options)

    def insert(self) -> None:
        self.append(100, 101)

    def update(self, rows: str = "id IN (2, 100)", day: str = "sunday") -> None:
        self.table.update(predicate=rows, new_values={"day": day})

    def delete(self, *ids: int) -> None:
        self.table.delete(f"id IN ({', '.join(map(str, ids or [3]))})")

    def delete_day(self) -> None:
        self.table.delete("day = 'tuesday'")

    def merge(self) -> None:
        source = self.rows(1, 200, day="merged")
        merger = self.table.merge(source, "t.id = s.id", source_alias="s", target_alias="t")
        merger.when_matched_update_all().when_not_matched_insert_all().execute()

    def compact(self) -> None:
        self.table.optimize.compact()

    def clean(self) -> None:
        """Remove the files that the latest version does not need."""
        self.table.vacuum(0, dry_run=False, enforce_retention_duration=False)

    def add_column(self) -> None:
        new = self.rows(300).append_column("note", pa.array(["new"]))
        write_deltalake(self.path, new, mode="append", schema_mode="merge")

    def change_several_times(self) -> None:
        for change in (self.insert, self.delete, self.compact, self.insert, self.update):
            change()

    def merge_on_read(self) -> list[int]:
        """Mark a row as deleted, and return the ids of the rows that the same commit adds."""
        enable_vectors(self.path)
        delete_positions(self.path, [*live_adds(self.path)][-1], [0])
        return []

    def new_changes(self) -> list[Row]:
        """Return the changes since the last call, as the library reads them."""
        since, self._known = self._known, self.table.version()
        if since == self._known:
            return []
        reader = self.table.load_cdf(starting_version=since + 1)
        changes: list[Row] = pa.table(reader.read_all()).to_pylist()
        return changes


class NightlyIceberg(_Nightly):
    columns, changed = ("id", "text", "note"), ("_change_type", "_commit_snapshot_id")

    def __init__(self, path: Path, schema: Any = iceberg.IDS) -> None:
        self._table = iceberg.new_table(path, schema)
        self.read = iceberg.read_fields(path)
        self._known: int | None = None

    @property
    def table(self) -> Table:
        return self._table.refresh()

    @property
    def version(self) -> dict[str, int]:
        return {"snapshot": iceberg.snapshot_of(self.table)}

    @property
    def days(self) -> list[Change]:
        return [
            *(self.insert, self.update, self.compact, self.delete, self.clean),
            *(self.merge_on_read, self.insert, self.vectors, self.vectors, self.delete_files),
            *(self.clean, self.insert, self.change_several_times, self.compact),
            *(self.add_column, self.merge_on_read, self.clean),
        ]

    def append(self, *ids: int) -> None:
        self.table.append(iceberg.rows_of(ids))

    def insert(self) -> None:
        self.append(100, 101)
        self.append(100)

    def update(self) -> None:
        """Copies the other rows of files: 1 and 3 are in the old and in the new file."""
        self.table.overwrite(iceberg.rows_of([2, 200], "new "), "id == 2")

    def delete(self, *ids: int) -> None:
        self.table.delete(f"id IN ({', '.join(map(str, ids or [3]))})")

    def delete_files(self) -> None:
        self.table.delete("id >= 100")

    def compact(self) -> None:
        iceberg.compact(self.table)

    def clean(self) -> None:
        iceberg.expire_but_latest(self.table)

    def merge_on_read(self) -> list[int]:
        table = self.table
        first, *_ = sorted(iceberg.data_files(table), key=lambda file: file.file_path)
        added = iceberg.rows_of([300], "merged ").rename_columns(table.schema().column_names[:2])
        iceberg.delete_rows(table, {first.file_path: [0]}, added=added)
        return [300]

    def vectors(self) -> None:
        last = max(iceberg.data_files(self.table), key=lambda file: file.record_count)
        iceberg.delete_rows(self.table, {last.file_path: [last.record_count - 1]}, vectors=True)

    def add_column(self) -> None:
        table = self.table
        with table.update_schema() as update:
            update.add_column("note", StringType())
            update.rename_column("text", "words")
        new = [{"id": 400, "words": "new", "note": "note"}]
        table.append(pa.Table.from_pylist(new, schema=table.refresh().schema().as_arrow()))

    def change_several_times(self) -> None:
        for change in (self.insert, self.delete, self.compact, self.insert, self.merge_on_read):
            change()
        self.update()

    def new_changes(self) -> Iterator[Row]:
        """Yield the differences between what the library reads in two snapshots."""
        since, self._known = self._known, iceberg.snapshot_of(self.table)
        known = {snapshot.snapshot_id: snapshot for snapshot in self.table.snapshots()}
        commits, now = [], self._known
        while now != since:
            commits.append(known[now])
            now = known[now].parent_snapshot_id
        for commit in reversed(commits):
            if commit.summary and commit.summary.operation is Operation.REPLACE:
                continue
            before, after = map(self._rows, (commit.parent_snapshot_id, commit.snapshot_id))
            for kind, rows in (("delete", before - after), ("insert", after - before)):
                for row in rows.elements():
                    change = (kind, commit.snapshot_id)
                    yield {**json.loads(row), **dict(zip(self.changed, change, strict=True))}

    def _rows(self, snapshot: int | None) -> Counter[str]:
        if snapshot is None:
            return Counter()
        table = self.table
        rows = table.scan(snapshot_id=snapshot).to_arrow()
        names = {"text": "words"} if "words" in table.schema().column_names else {}
        rows = rows.rename_columns([names.get(name, name) for name in rows.column_names])
        values = (
            {name: row[name] for name in row if row[name] is not None} for row in rows.to_pylist()
        )
        return Counter(json.dumps(row, sort_keys=True) for row in values)


NightlyTable = NightlyDelta | NightlyIceberg
