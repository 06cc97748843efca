"""Snapshots of Iceberg tables as an input: columns, filters, pruning, deleted rows and refusals."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions.literals import literal
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, DayTransform
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
)

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input import RowCount
from batchinference.pipeline.input.readers.table_data_file import positions_in
from batchinference.pipeline.input.tables.kinds import open_table
from batchinference.spec.read import ReadIceberg
from plugins.messages import Messages
from support.inputs.iceberg import (
    add_file,
    compact,
    data_files,
    delete_rows,
    new_table,
    read_fields,
    rows_of,
    snapshot_of,
)
from support.inputs.read_files import Input, Outcome, open_versioned
from support.outputs.rows import Row


def opened(path: Path, **options: Any) -> Input:
    return open_versioned(read_fields(path, **options))


def read(path: Path, **options: Any) -> Outcome:
    return opened(path, **options).read()


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(BadInput) as error:
        read(path, **options)
    return str(error.value).replace(str(path), "PLACE")


def append(table: Table, rows: list[Row]) -> None:
    table.append(pa.Table.from_pylist(rows, schema=schema_to_pyarrow(table.refresh().schema())))


def test_snapshot_is_read_with_its_columns_and_rows(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    assert read(tmp_path).good == []
    table.append(rows_of([1, 2]))
    first = snapshot_of(table)
    table.append(rows_of([3]))
    with table.update_schema() as update:
        update.rename_column("text", "words")
        update.add_column("more", LongType())
    assert read(tmp_path).ids == [1, 2, 3]
    old, now = opened(tmp_path, snapshot=first), opened(tmp_path)
    assert (old.given.columns(), now.given.columns()) == (["id", "text"], ["id", "words", "more"])
    assert old.given.count() == RowCount(2, estimated=False)
    assert old.read().good == rows_of([1, 2]).to_pylist()
    assert read(tmp_path, columns=["more"]).good == [{"more": None}] * 3


@pytest.mark.parametrize(
    ("transform", "column", "condition", "files", "kept"),
    [
        (BucketTransform(1 << 20), "id", "id == 3", 1, [3]),
        (BucketTransform(1 << 20), "id", "id == 3 or id == 0", 2, [0, 3]),
        (DayTransform(), "moment", "moment == '2026-01-03T05:00:00'", 1, [2]),
        (DayTransform(), "moment", "moment > '2026-01-02T06:00:00' and id > 0", 3, [2, 3]),
    ],
)
def test_partition_transforms_leave_out_files_without_statistics(
    tmp_path: Path, transform: Any, column: str, condition: str, files: int, kept: list[int]
) -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "moment", TimestampType()))
    table = new_table(tmp_path, schema)
    with table.update_spec() as update:
        update.add_field(column, transform)
    first = dt.datetime(2026, 1, 1, 5)  # noqa: DTZ001 - the column has no zone
    for number in range(4):
        row = {"id": number, "moment": first + dt.timedelta(days=number)}
        value = literal(row[column]).to(schema.find_type(column)).value
        part = transform.transform(schema.find_type(column))(value)
        add_file(table, pa.Table.from_pylist([row]), part)
    source = opened(tmp_path, filter=condition)
    assert len(source.snapshot) == files
    assert source.read().ids == kept


@pytest.mark.parametrize("vectors", [False, True])
def test_deleted_rows_are_no_rows(tmp_path: Path, vectors: bool) -> None:
    table = new_table(tmp_path)
    table.append(rows_of(range(5)))
    table.append(rows_of(range(10, 15)))
    low, high = sorted(data_files(table), key=lambda file: file.lower_bounds[1])
    delete_rows(table, {low.file_path: [0, 3], high.file_path: [4]}, vectors=vectors)
    before = snapshot_of(table)
    delete_rows(table, {low.file_path: [1]}, added=rows_of([20]), vectors=vectors)
    assert read(tmp_path, snapshot=before).ids == [1, 2, 4, 10, 11, 12, 13]
    source = opened(tmp_path)
    assert source.given.count() == RowCount(7, estimated=False)
    content = source.read()
    assert content.ids == [2, 4, 10, 11, 12, 13, 20]
    assert sorted(row for _, row in content.order) == [0, 0, 0, 1, 1, 2, 3]
    assert read(tmp_path, filter="id > 12").ids == [13, 20]


def test_columns_are_found_by_their_ids(tmp_path: Path) -> None:
    names = ListType(
        5, StructType(NestedField(6, "x", IntegerType()), NestedField(7, "y", StringType()))
    )
    schema = Schema(
        NestedField(1, "id", IntegerType()),
        NestedField(2, "real", FloatType()),
        NestedField(3, "price", DecimalType(5, 2)),
        NestedField(4, "list", names),
        NestedField(8, "gone", StringType()),
        NestedField(9, "swapped", StringType()),
    )
    table = new_table(tmp_path, schema)
    row = {"id": 1, "real": 0.5, "price": Decimal("1.25"), "list": [{"x": 2, "y": "y"}]}
    append(table, [{**row, "gone": "old", "swapped": "z"}])
    with table.update_schema() as update:
        update.update_column("id", LongType())
        update.update_column("real", DoubleType())
        update.update_column("price", DecimalType(9, 2))
        update.rename_column("list.element.y", "why")
        update.delete_column("gone")
        update.rename_column("swapped", "other")
    with table.update_schema() as update:
        update.add_column("gone", LongType())
        update.add_column("swapped", StringType())
    row = {"id": 2**40, "gone": 7, "swapped": "new", "real": 1e300}  # not written by pyiceberg
    add_file(table, pa.Table.from_pylist([row], schema_to_pyarrow(table.refresh().schema())))
    old, new = sorted(read(tmp_path).good, key=lambda row: row["id"])
    assert old == {
        **{"id": 1, "real": 0.5, "price": Decimal("1.25"), "list": [{"x": 2, "why": "y"}]},
        **{"other": "z", "gone": None, "swapped": None},
    }
    assert (new["id"], new["gone"], new["swapped"], new["real"]) == (2**40, 7, "new", 1e300)
    assert new["list"] is None
    assert read(tmp_path, columns=["swapped"], filter="swapped == 'new'").good == [
        {"swapped": "new"}
    ]
    assert read(tmp_path, columns=["other"], filter="other == 'z'").good == [{"other": "z"}]


def test_files_without_ids_and_without_partition_columns_are_read(tmp_path: Path) -> None:
    """Such files come from Hive tables. pyiceberg needs the partition column to add them."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "part", StringType()))
    table = new_table(tmp_path, schema)
    with table.update_spec() as update:
        update.add_identity("part")
    file = Path(table.location().removeprefix("file://"), "data", "hive.parquet")
    file.parent.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1, 2], "part": ["p", "p"]}), file)
    table.add_files([f"file://{file}"])
    pq.write_table(pa.table({"id": [1, 2]}), file)
    assert read(tmp_path).good == [{"id": 1, "part": "p"}, {"id": 2, "part": "p"}]
    assert read(tmp_path, filter="part=='p' and id==2", columns=["part"]).good == [{"part": "p"}]


def changes(path: Path, since: int, **options: Any) -> Counter[tuple[str, int]]:
    """Return how often the changes after a snapshot have each kind and id."""
    fields = read_fields(path, changes="include", **options)
    table = open_table(ReadIceberg.model_validate(fields))
    counts: Counter[tuple[str, int]] = Counter()
    for file in table.between(since, table.current()).files:
        rows = pq.read_table(file.path).column("id").to_pylist()
        deleted = set(positions_in(file.deleted).tolist())
        kept = [row for position, row in enumerate(rows) if position not in deleted]
        counts.update((file.constants["_change_type"], row) for row in kept)
    return counts


def test_copied_rows_are_no_changes_however_often_they_occur(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(rows_of([1, 1, 1, 2, 3]))
    since = snapshot_of(table)
    with table.transaction() as transaction:
        transaction.overwrite(rows_of([1, 1, 3, 4]))
    result = changes(tmp_path, since)
    assert result == {("delete", 1): 3, ("delete", 2): 1, ("delete", 3): 1} | {
        ("insert", 1): 2,
        ("insert", 3): 1,
        ("insert", 4): 1,
    }, "pyiceberg overwrites with two commits"
    since = snapshot_of(table)
    table.delete("id == 4")
    assert changes(tmp_path, since) == {("delete", 4): 1}
    compact(table)
    assert changes(tmp_path, since) == {("delete", 4): 1}
    (file,) = data_files(table)
    delete_rows(table, {file.file_path: [0]}, added=rows_of([1, 5]))
    assert changes(tmp_path, since) == {("delete", 4): 1, ("insert", 5): 1}, "1 was only moved"
    assert changes(tmp_path, since, filter="id == 5")["insert", 5] == 1


def test_expired_and_rolled_back_snapshots_are_refused(tmp_path: Path, messages: Messages) -> None:
    table = new_table(tmp_path)
    seen = []
    for number in range(4):
        table.append(rows_of([number]))
        seen.append(snapshot_of(table))
    table.manage_snapshots().rollback_to_snapshot(seen[1]).commit()
    versions = open_table(ReadIceberg.model_validate(read_fields(tmp_path)))
    with pytest.raises(BadInput) as error:
        versions.between(seen[3], seen[1])
    messages.check(str(error.value).replace(str(seen[3]), "SINCE"))
    table.refresh().manage_snapshots().set_current_snapshot(seen[3]).commit()
    table.refresh().maintenance.expire_snapshots().by_ids(seen[:2]).commit()
    versions = open_table(ReadIceberg.model_validate(read_fields(tmp_path)))
    with pytest.raises(BadInput) as error:
        versions.between(seen[0], seen[3])
    messages.check(str(error.value).replace(str(seen[0]), "SINCE"))
    message = refusal(tmp_path, snapshot=seen[0])
    for name, number in zip(("GONE", "A", "B"), (seen[0], seen[2], seen[3]), strict=True):
        message = message.replace(str(number), name)
    messages.check(message)


def test_what_is_not_supported_is_refused(tmp_path: Path, messages: Messages) -> None:
    table = new_table(tmp_path / "a")
    table.append(rows_of([1]))
    messages.check(refusal(tmp_path / "a", filter="missing > 1"))
    (file,) = data_files(table)
    delete_rows(table, {file.file_path: [0]}, content=DataFileContent.EQUALITY_DELETES)
    messages.check(refusal(tmp_path / "a"))
    table = new_table(tmp_path / "b", pa.schema([("_change_type", pa.string())]))
    append(table, [{"_change_type": "x"}])
    assert read(tmp_path / "b").good == [{"_change_type": "x"}]
    messages.check(refusal(tmp_path / "b", changes="include"))
    fields = read_fields(tmp_path / "b") | {"table": "ns.none"}
    with pytest.raises(BadInput) as error:
        open_table(ReadIceberg.model_validate(fields))
    messages.check(str(error.value))


def test_data_files_of_other_formats_and_places_are_refused(
    tmp_path: Path, messages: Messages
) -> None:
    table = new_table(tmp_path / "a")
    pq.write_table(rows_of([1]), tmp_path / "elsewhere.parquet")
    table.add_files([f"file://{tmp_path}/elsewhere.parquet"])
    messages.check(refusal(tmp_path / "a").replace(str(tmp_path), "TMP"))
    table = new_table(tmp_path / "b")
    table.append(rows_of([1]))
    (file,) = data_files(table)
    file._data[2] = FileFormat.ORC
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append_:
        append_.append_data_file(file)
    messages.check(refusal(tmp_path / "b").replace(Path(file.file_path).name, "FILE"))


def test_table_that_names_a_class_is_refused(tmp_path: Path, messages: Messages) -> None:
    table = new_table(tmp_path)
    with table.transaction() as transaction:
        transaction.set_properties({"other-impl": "os.system"})
    messages.check(refusal(tmp_path))


def test_unknown_catalog_is_an_error_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__CREDENTIAL", "user:hunter2")
    catalog = {"properties": {"type": "rest", "uri": "http://127.0.0.1:9"}}
    fields = read_fields(tmp_path) | {"catalog": catalog}
    with pytest.raises(BadInput, match=r"read\.catalog: ") as error:
        open_table(ReadIceberg.model_validate(fields))
    assert "hunter2" not in str(error.value)


def test_row_group_on_which_a_filter_fails_has_one_failed_row_for_each_row(tmp_path: Path) -> None:
    table = new_table(tmp_path, properties={"write.parquet.row-group-limit": "2"})
    texts = ["bad", "bad", "7", "8", "9", "0"]
    table.append(pa.table({"id": pa.array(range(6), pa.int64()), "text": texts}))
    content = read(tmp_path, filter="int(text) > 1")
    assert (content.ids, set(content.bad)) == ([2, 3, 4], {(0, 0), (0, 1)})
