"""Features of single table formats: partitions, added columns, indexes, transactions."""

from __future__ import annotations

import datetime as dt
import math
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import deltalake
import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ForbiddenError
from pyiceberg.transforms import BucketTransform

from batchinference.pipeline.arrow import empty_table, to_column
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output.output_rows import all_rows
from batchinference.pipeline.output.tables import kinds
from batchinference.pipeline.output.tables.sql import MARKS
from batchinference.pipeline.storage.location import Location
from plugins.messages import Messages
from support.documents.minimal import document
from support.documents.parsed import spec_of
from support.jobs.table_writes import TableTarget, in_order
from support.jobs.without_ray import run_without_ray
from support.outputs.builders import succeeded_report
from support.outputs.other_writers import create_empty
from support.outputs.tables import catalog_of, write_fields


def rows_of(**columns: Any) -> pa.Table:
    return pa.table(columns)


@pytest.fixture
def target(request: pytest.FixtureRequest, tmp_path: Path) -> TableTarget:
    return TableTarget(request.param, tmp_path)


CLASSES = rows_of(id=[0, 1, 2], kind=["cat", "a/b %", None], day=[dt.date(2026, 1, 2)] * 3)


@pytest.mark.parametrize("target", ["delta", "iceberg"], indirect=True)
def test_missing_columns_are_added(target: TableTarget) -> None:
    target.run(rows_of(id=[0]))
    target.run(rows_of(id=[1], new=["x"]), name="more", mode="append")
    assert target.rows() == [{"id": 0, "new": None}, {"id": 1, "new": "x"}]


@pytest.mark.parametrize("target", ["delta", "iceberg", "lance"], indirect=True)
def test_empty_table_gets_new_columns_in_mode_error(target: TableTarget) -> None:
    create_empty(target.kind, target.folder)
    assert target.run(rows_of(id=[0], text=["a"]))
    assert target.rows() == [{"id": 0, "text": "a"}]


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("delta", "_delta_log/00000000000000000000.json#1"),
        ("lance", "_versions/18446744073709551614.manifest#1"),
    ],
    indirect=["target"],
)
def test_table_whose_creation_was_killed_is_created(target: TableTarget, name: str) -> None:
    remnant = target.folder / "out" / name
    remnant.parent.mkdir(parents=True)
    remnant.write_bytes(b"{")
    assert target.run(rows_of(id=[0]))
    assert target.rows() == [{"id": 0}]


@pytest.mark.parametrize("target", ["delta", "iceberg", "sql"], indirect=True)
def test_new_columns_that_differ_only_in_case_are_refused(
    target: TableTarget, messages: Messages
) -> None:
    job = target.open()
    with messages.raises(BadOutput):
        job.begin(rows_of(k=[1], K=[2]))


@pytest.mark.parametrize("target", ["lance", "sqlite"], indirect=True)
def test_column_that_the_table_lacks_is_refused_at_the_first_rows(target: TableTarget) -> None:
    target.run(rows_of(id=[0]))
    job = target.open(name="more", mode="append")
    with pytest.raises(BadOutput, match=r"has no column 'new', only id\. Choose"):
        job.put(rows_of(id=[1], new=["x"]))


UNSUPPORTED = {"delta": pa.time64("us"), "iceberg": pa.duration("s"), "lance": pa.decimal32(5, 2),
               "sqlite": pa.month_day_nano_interval()}  # fmt: skip


@pytest.mark.parametrize("target", UNSUPPORTED, indirect=True)
def test_unsupported_type_names_the_column(target: TableTarget, messages: Messages) -> None:
    with messages.raises(BadOutput):
        target.open(rows_of(id=[0], odd=pa.nulls(1, UNSUPPORTED[target.kind])))


@pytest.mark.parametrize("target", ["delta", "iceberg"], indirect=True)
def test_partition_column_with_only_nulls_is_text(target: TableTarget) -> None:
    rows, by = rows_of(id=[0, 1], kind=pa.nulls(2)), {"partitionBy": ["kind"]}
    target.run(rows, **by)
    added = rows_of(id=[2], kind=["dog"])
    target.run(added, name="more", mode="append", **by)
    assert target.rows() == [*rows.to_pylist(), *added.to_pylist()]


@pytest.mark.parametrize("target", ["delta", "iceberg"], indirect=True)
@pytest.mark.parametrize("types", [None, {"n": "float64"}], ids=["unknown", "declared"])
def test_column_with_only_nulls_has_its_declared_type_or_is_named_in_the_report(
    target: TableTarget, types: dict[str, str] | None, messages: Messages
) -> None:
    source = target.folder / "in.parquet"
    pq.write_table(rows_of(id=[1], n=pa.nulls(1), tags=[[None]]), source)
    read = {"format": "parquet", "paths": [str(source)], "options": {"types": types}}
    report = run_without_ray(document("nulls", read=read, steps=[], write=target.write()))
    messages.check(*report.notes)
    assert (not report.notes) == bool(types)
    assert target.rows() == [{"id": 1, "tags": [None]} | ({"n": None} if types else {})]


@pytest.mark.parametrize("target", ["delta", "iceberg"], indirect=True)
def test_rows_without_a_column_of_known_type_are_refused(
    target: TableTarget, messages: Messages
) -> None:
    """They succeeded, and the table was not created."""
    with messages.raises(BadOutput):
        target.run(rows_of(n=pa.nulls(2)))
    target.run(rows_of(id=[1]))
    overwrite = target.open(rows_of(id=pa.nulls(2)), name="more", mode="overwrite")
    with messages.raises(BadOutput) if target.kind == "delta" else nullcontext():
        overwrite.commit()  # Iceberg keeps the columns of the table
    assert len(all_rows(overwrite.spec.write)) == (1 if target.kind == "delta" else 2)


@pytest.mark.parametrize("target", ["delta", "iceberg"], indirect=True)
@pytest.mark.parametrize("is_new", [True, False], ids=["new", "existing"])
def test_partition_that_cannot_be_written_is_refused_before_the_run(
    target: TableTarget, is_new: bool, messages: Messages
) -> None:
    rows = rows_of(id=[1], at=pa.array([0], pa.timestamp("us")))
    pq.write_table(rows, target.folder / "in.parquet")
    by = {"partitionBy": ["at"]} if is_new else {}
    job = document(
        "partitions",
        read={"format": "parquet", "paths": [str(target.folder / "in.parquet")]},
        steps=[],
        write=target.write(mode="append", **by),
    )
    if not is_new:
        create_partitioned(target, rows.schema, "at")
    report = run_without_ray(job)
    messages.check(report.message)
    assert report.counts is None, "no row was read"


def create_partitioned(target: TableTarget, schema: pa.Schema, by: str) -> None:
    if target.kind == "delta":
        deltalake.write_deltalake(
            target.folder / "out", empty_table(schema), partition_by=[by], mode="append"
        )
        return
    catalog = catalog_of(target.folder)
    catalog.create_namespace("ns")
    creation = catalog.create_table_transaction("ns.rows", schema)
    with creation, creation.update_spec() as update:
        update.add_identity(by)


NAMES = [
    *(("lance", name) for name in ("", "a.b", "a`b", "_rowid", "_rowoffset")),
    *(("sqlite", ""), ("postgresql", ""), ("postgresql", "ü" * 32)),
]


@pytest.mark.parametrize(("kind", "name"), NAMES, ids=map(str, range(len(NAMES))))
def test_column_name_that_the_format_lacks_is_refused_before_the_run(
    kind: str, name: str, request: pytest.FixtureRequest, tmp_path: Path, messages: Messages
) -> None:
    """Lance could not read such a dataset, and PostgreSQL would cut the name."""
    url = {"url": request.getfixturevalue("postgres")} if kind == "postgresql" else {}
    job = TableTarget(kind, tmp_path, url).open()
    with messages.raises(BadOutput):
        job.begin(pa.table([[1], ["x"]], names=["id", name]))


@pytest.mark.parametrize("format_", ["delta", "iceberg", "parquet", "json", "csv"])
def test_column_without_a_name_is_read_back(format_: str, tmp_path: Path) -> None:
    rows = pa.table([[1], ["x"]], names=["id", ""])
    pq.write_table(rows, tmp_path / "in.parquet")
    read = {"format": "parquet", "paths": [str(tmp_path / "in.parquet")]}
    write = write_fields(format_, tmp_path)
    report = run_without_ray(document("nameless", read=read, steps=[], write=write))
    assert report.message is None
    assert all_rows(spec_of(write=write).write).to_pylist() == rows.to_pylist()


def before_commit(target: TableTarget, rows: pa.Table, **fields: Any) -> Callable[[], object]:
    """Put rows where the table has its files. Return the commit that makes them visible."""
    job = target.open(rows, **fields)
    end, files = job.place_files(job.check())
    report = succeeded_report(job.job_pass.layout.output.uri)
    return lambda: job.job_pass.commit_table(job.spec.write, job.table, files, end, report)  # type: ignore[arg-type]


class TestDelta:
    @pytest.fixture
    def target(self, tmp_path: Path) -> TableTarget:
        return TableTarget("delta", tmp_path)

    def test_new_table_is_partitioned(self, target: TableTarget) -> None:
        target.run(CLASSES, partitionBy=["kind", "day"])
        table = deltalake.DeltaTable(str(target.folder / "out"))
        assert table.metadata().partition_columns == ["kind", "day"]
        assert target.rows() == CLASSES.to_pylist()

    def test_long_partition_value_is_kept_in_the_table(self, target: TableTarget) -> None:
        """The name of its directory has only a part of the value."""
        rows = rows_of(kind=["\u4e2d" * 60, None, "b"], id=[1, 2, 3])
        target.run(rows, partitionBy=["kind"])
        assert target.rows() == in_order(rows.to_pylist())

    def test_existing_table_keeps_its_partitions(self, target: TableTarget) -> None:
        target.run(CLASSES, partitionBy=["kind"])
        added = rows_of(id=[3], kind=["dog"], day=[None])
        target.run(added, name="more", mode="append")
        table = deltalake.DeltaTable(str(target.folder / "out"))
        assert table.metadata().partition_columns == ["kind"]
        assert sum("/kind=dog/" in uri for uri in table.file_uris()) == 1
        with pytest.raises(BadOutput, match="is partitioned by kind"):
            target.run(added, name="other", mode="append", partitionBy=["day"])

    def test_vacuum_keeps_the_job_state(self, target: TableTarget) -> None:
        target.run(rows_of(id=[0]))
        table = deltalake.DeltaTable(str(target.folder / "out"))
        table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        assert (target.folder / "out" / "_SUCCESS").exists()
        assert not target.run(rows_of(id=[0]))

    def test_overwrite_keeps_the_previous_version(self, target: TableTarget) -> None:
        target.run(rows_of(id=[0]))
        target.run(rows_of(name=["x"]), mode="overwrite")
        assert target.rows("name") == [{"name": "x"}]
        before = deltalake.DeltaTable(str(target.folder / "out"), version=0)
        assert before.to_pyarrow_table().to_pylist() == [{"id": 0}]

    def test_empty_text_as_partition_value_is_rejected(
        self, target: TableTarget, messages: Messages
    ) -> None:
        empty = rows_of(id=[0], kind=[""], day=[dt.date(2026, 1, 2)])
        with messages.raises(BadOutput):
            target.run(CLASSES, empty, partitionBy=["day", "kind"])
        target.run(empty, mode="overwrite")
        assert target.rows() == empty.to_pylist()

    def test_column_that_differs_from_one_of_the_table_only_in_case_is_refused(
        self, target: TableTarget
    ) -> None:
        target.run(rows_of(K=[0]))
        job = target.open(name="more", mode="append")
        with pytest.raises(BadOutput, match=r"'K' and 'k' differ only in case.*Rename 'k'"):
            job.begin(rows_of(k=[1]))

    @pytest.mark.parametrize("filled", [False, True], ids=["new", "unpartitioned before"])
    def test_append_to_a_table_with_changed_partitions_is_refused(
        self, target: TableTarget, filled: bool, messages: Messages
    ) -> None:
        theirs, folder = rows_of(id=[7], kind=["cat"]), str(target.folder / "out")
        if filled:
            deltalake.write_deltalake(folder, theirs)
        commit = before_commit(target, CLASSES, mode="append")
        options: Any = {"mode": "overwrite", "schema_mode": "overwrite"}
        deltalake.write_deltalake(folder, theirs, partition_by=["kind"], **options)
        with messages.raises(BadOutput):
            commit()
        assert target.rows() == theirs.to_pylist()

    def test_uuids_are_written_as_bytes(self, target: TableTarget) -> None:
        target.run(rows_of(id=[0, 1], key=pa.array([b"0" * 16, None], pa.uuid())))
        assert target.rows() == [{"id": 0, "key": b"0" * 16}, {"id": 1, "key": None}]

    @pytest.mark.parametrize("fields", [{"mode": "append"}, {"mode": "merge", "key": ["id"]}])
    def test_uuids_are_texts_in_columns_of_texts(
        self, target: TableTarget, fields: dict[str, Any]
    ) -> None:
        """The bytes of a UUID can be a text."""
        ids = pa.array([b"ABCDEFGHIJKLMNOP"], pa.uuid())
        target.run(rows_of(id=[str(ids[0].as_py())], n=[1]))
        target.run(rows_of(id=ids, n=[2]), name="more", **fields)
        assert {row["id"] for row in target.rows()} == {str(ids[0].as_py())}
        assert len(target.rows()) == (1 if "key" in fields else 2)

    def test_missing_library_error_has_the_install_command(
        self, target: TableTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(kinds.TABLES, "delta", ("DeltaLakeTable", "no_such_module"))
        with pytest.raises(BadOutput, match=r"pip install '\./jobs\[formats\]'"):
            target.open()


UNFIT = {
    "nanoseconds": (pa.timestamp("ns"), 1_000_000_000_000_001_000, 1_000_000_000_000_000_001),
    "whole numbers without a sign": (pa.uint64(), 2**63 - 1, 2**63),
    "numbers in lists": (pa.list_(pa.uint64()), [2**63 - 1], [2**63]),
}
"""Types that Delta and Iceberg lack, a value that fits the replacement, and one that does not."""


@pytest.mark.parametrize(("kind", "fits", "does_not"), UNFIT.values(), ids=UNFIT)
@pytest.mark.parametrize("target", ["delta", "iceberg"], indirect=True)
def test_value_out_of_range_names_the_column(
    target: TableTarget, kind: pa.DataType, fits: object, does_not: object, messages: Messages
) -> None:
    def column(value: object) -> pa.Table:
        return rows_of(id=[0], odd=pa.array([value], kind))

    with messages.raises(BadOutput):
        target.run(column(does_not), name="other")
    target.run(column(fits), mode="overwrite")
    (row,) = target.rows("odd")
    assert pa.array([row["odd"]]).cast(kind).equals(pa.array([fits], kind))


class TestIceberg:
    @pytest.fixture
    def target(self, tmp_path: Path) -> TableTarget:
        return TableTarget("iceberg", tmp_path)

    def test_new_table_is_partitioned(self, target: TableTarget) -> None:
        target.run(CLASSES, partitionBy=["kind"])
        table = catalog_of(target.folder).load_table("ns.rows")
        assert [field.name for field in table.spec().fields] == ["kind"]
        assert target.rows() == CLASSES.to_pylist()
        assert table.scan("kind = 'cat'").to_arrow().num_rows == 1

    def test_existing_table_keeps_its_partitions(self, target: TableTarget) -> None:
        empty = rows_of(id=[5], kind=[""], day=[None])
        target.run(CLASSES, empty, partitionBy=["kind"])
        added = rows_of(id=[3, 4], kind=["dog", "cat"], day=[None, None])
        target.run(added, name="more", mode="append")
        table = catalog_of(target.folder).load_table("ns.rows")
        for kind, ids in {"cat": [0, 4], "": [5]}.items():
            values = table.scan(f"kind = '{kind}'").to_arrow().column("id").to_pylist()
            assert sorted(values) == ids, kind

    @pytest.mark.parametrize("filled", [False, True], ids=["new", "unpartitioned before"])
    def test_append_to_an_iceberg_table_with_changed_partitions_is_refused(
        self, target: TableTarget, filled: bool, messages: Messages
    ) -> None:
        """pyiceberg would put the null into the partition of the other row."""
        rows = rows_of(id=[1, 2], kind=["cat", None])
        if filled:
            target.run(rows, name="before", mode="append")
        commit = before_commit(target, rows, mode="append")
        catalog = catalog_of(target.folder)
        table = catalog.create_table_if_not_exists("ns.rows", rows.schema)
        with table.update_spec() as update:
            update.add_identity("kind")
        with messages.raises(BadOutput):
            commit()
        assert target.rows() == (rows.to_pylist() if filled else [])

    def test_partition_transforms_are_rejected(
        self, target: TableTarget, messages: Messages
    ) -> None:
        catalog = catalog_of(target.folder)
        catalog.create_namespace("ns")
        table = catalog.create_table("ns.rows", pa.schema([("id", pa.int64())]))
        with table.update_spec() as update:
            update.add_field("id", BucketTransform(4))
        with messages.raises(BadOutput):
            target.run(rows_of(id=[0]))

    def test_catalog_without_a_place_for_tables_is_refused_at_open(
        self, target: TableTarget, messages: Messages
    ) -> None:
        catalog = target.write()["catalog"]
        del catalog["properties"]["warehouse"]
        with messages.raises(BadOutput):
            target.open(catalog=catalog)

    def test_error_of_the_catalog_at_the_end_is_converted(
        self, target: TableTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> None:
            raise ForbiddenError("no right to create")

        job = target.open(rows_of(id=[0]))
        monkeypatch.setattr(SqlCatalog, "create_namespace", refuse)
        with pytest.raises(BadOutput, match=r"cannot be used \(ForbiddenError: no right"):
            job.place_files(job.check())

    def test_open_leaves_no_namespace(self, target: TableTarget) -> None:
        target.open()
        assert catalog_of(target.folder).list_namespaces() == []
        catalog_of(target.folder).create_namespace("ns")
        target.open()
        assert catalog_of(target.folder).list_namespaces() == [("ns",)]

    def test_table_can_be_pickled(self, target: TableTarget) -> None:
        table = target.table()
        table.find_data_location()
        copy = pickle.loads(pickle.dumps(table))
        ((_, content),) = copy.files(rows_of(id=[0]))
        path = Path(
            copy.stage_content(Location("/nowhere"), bytes(content)).removeprefix("file://")
        )
        assert path.read_bytes() == bytes(content)

    def test_iceberg_table_that_names_a_class_is_refused(
        self, target: TableTarget, messages: Messages
    ) -> None:
        catalog = catalog_of(target.folder)
        catalog.create_namespace("ns")
        name = "pyiceberg.table.locations.ObjectStoreLocationProvider"
        catalog.create_table(
            "ns.rows", rows_of(id=[1]).schema, properties={"write.py-location-provider.impl": name}
        )
        with messages.raises(BadOutput):
            target.run(rows_of(id=[1]), mode="append")


class TestLance:
    @pytest.fixture
    def target(self, tmp_path: Path) -> TableTarget:
        return TableTarget("lance", tmp_path)

    def test_elements_of_lists_keep_name_that_the_dataset_has(self, target: TableTarget) -> None:
        """Lance appends no lists whose elements have another name."""
        named = pa.list_(pa.field("of_theirs", pa.float16()), 2)
        theirs = rows_of(v=pa.array([[1.0, 2.0]], named))
        lance.write_dataset(theirs, target.folder / "out")
        ours = rows_of(v=to_column(np.array([[3, 4]], np.float16)))
        target.run(ours, mode="append")
        table = lance.dataset(target.folder / "out").to_table()
        assert (table.schema, table.column("v").to_pylist()) == (theirs.schema, [[1, 2], [3, 4]])

    @pytest.mark.parametrize(
        "column",
        [
            *(pa.array([1, None], pa.timestamp("s")), pa.array([1, None], pa.time32("s"))),
            pa.array([86_400_000, None], pa.date64()),
            *(pa.array(values).dictionary_encode() for values in (["a", None], [5, None])),
        ],
    )
    def test_types_that_parquet_changes_are_appended(
        self, target: TableTarget, column: pa.Array
    ) -> None:
        table = rows_of(v=column)
        lance.write_dataset(table, target.folder / "out")
        target.run(table, mode="append")
        result = lance.dataset(target.folder / "out").to_table()
        assert (result.schema, result.to_pylist()) == (table.schema, table.to_pylist() * 2)

    def test_dictionaries_of_dates_are_written(self, target: TableTarget) -> None:
        """Lance itself stores no such dictionaries."""
        days = rows_of(id=[1], day=pa.array([dt.date(2026, 1, 2)]).dictionary_encode())
        target.run(days)
        target.run(days, name="more", mode="append")
        assert target.rows() == days.to_pylist() * 2

    def test_values_that_python_would_round_are_read_back(self, target: TableTarget) -> None:
        rows = rows_of(time=pa.array([1], pa.timestamp("ns")))
        lance.write_dataset(rows, target.folder / "out")
        assert all_rows(spec_of(write=target.write()).write) == rows

    @pytest.mark.parametrize("filled", [False, True])
    def test_append_to_a_dataset_with_changed_columns_fits_them(
        self, target: TableTarget, filled: bool
    ) -> None:
        """Lance finds the columns of appended rows by their numbers, and would swap them."""
        if filled:
            lance.write_dataset(rows_of(id=[0], n=[1]), target.folder / "out")
        rows = rows_of(id=[5], n=[6])
        commit = before_commit(target, rows, mode="append")
        theirs = rows_of(n=[2], id=[3])
        lance.write_dataset(theirs, target.folder / "out", mode="overwrite")
        commit()
        assert target.rows() == [*theirs.to_pylist(), *rows.to_pylist()]

    def test_vectors_can_be_searched(self, target: TableTarget) -> None:
        vectors = np.eye(3, dtype=np.float32)
        target.run(rows_of(id=[0, 1, 2], vector=to_column(vectors)))
        nearest = {"column": "vector", "q": vectors[1], "k": 1}
        (row,) = lance.dataset(target.folder / "out").to_table(nearest=nearest).to_pylist()
        assert row["id"] == 1

    def test_columns_may_be_left_out_and_overwritten(self, target: TableTarget) -> None:
        target.run(rows_of(id=[0], text=["a"]))
        target.run(rows_of(id=[1]), name="more", mode="append")
        assert target.rows() == [{"id": 0, "text": "a"}, {"id": 1, "text": None}]
        other = rows_of(name=["x"], size=[1.5])
        target.run(other, name="other", mode="overwrite")
        assert lance.dataset(target.folder / "out").to_table().equals(other)


class TestSql:
    @pytest.fixture
    def target(self, tmp_path: Path) -> TableTarget:
        return TableTarget("sqlite", tmp_path)

    def test_existing_table_keeps_its_types(self, target: TableTarget) -> None:
        target.execute(
            "create table rows (id integer primary key, v numeric(8,2), made text default 'here')"
        )
        target.run(rows_of(id=[1], v=[2.5]))
        assert target.rows() == [{"id": 1, "v": 2.5, "made": "here"}]

    def test_failed_commit_rolls_back(self, target: TableTarget, messages: Messages) -> None:
        target.execute("create table rows (id integer primary key)")
        job = target.open(rows_of(id=[1, 2]), rows_of(id=[3, 1]))
        with messages.raises(BadOutput):
            job.commit()
        assert target.rows() == []

    def test_failed_commit_leaves_no_table(self, target: TableTarget, messages: Messages) -> None:
        job = target.open(rows_of(id=[1]))
        target.execute(f"create table {MARKS} (mark text check (mark = ''))")
        with messages.raises(BadOutput):
            job.commit()
        assert not sa.inspect(target.engine()).has_table("rows")

    @pytest.mark.parametrize("kind", [pa.uint64(), pa.time64("ns"), pa.duration("us")], ids=str)
    def test_values_that_no_column_can_hold_are_refused_before_the_commit(
        self, target: TableTarget, kind: pa.DataType, messages: Messages
    ) -> None:
        number = 2**63 if kind == pa.uint64() else 1
        with messages.raises(BadOutput):
            target.open(rows_of(id=[0], x=pa.array([number], kind)))

    def test_nan_in_lists_uuids_and_many_rows_are_written(self, target: TableTarget) -> None:
        ids = pa.array([bytes(16)] * 2500, pa.uuid())
        target.run(rows_of(id=range(2500), v=[[1.5, math.nan]] * 2500, u=ids))
        assert in_order(target.table().first_rows(5000)) == [
            {"id": number, "v": [1.5, None], "u": str(ids[0])} for number in range(2500)
        ]

    def test_url_comes_from_the_environment(
        self, target: TableTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(BadOutput, match="the variable MY_DATABASE is not set"):
            target.open(urlEnv="MY_DATABASE", url=None)
        monkeypatch.setenv("MY_DATABASE", f"sqlite:///{target.folder}/data.db")
        assert target.run(rows_of(id=[0]), urlEnv="MY_DATABASE", url=None)

    def test_unusable_database_is_rejected_at_open(self, target: TableTarget) -> None:
        for url, message in (
            ("nosuch://db/x", "not a valid URL of SQLAlchemy"),
            ("sqlite:////no/such/directory/x.db", r"the database cannot be used \(unable to open"),
            ("oracle+cx_oracle://db/x", r"write\.url: the driver is not installed \(cx_Oracle\)"),
        ):
            with pytest.raises(BadOutput, match=message):
                target.open(url=url)
