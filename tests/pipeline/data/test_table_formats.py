"""Features of single table formats: partitions, added columns, indexes, transactions."""

from __future__ import annotations

import datetime as dt
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import lance
import numpy as np
import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ForbiddenError
from pyiceberg.transforms import BucketTransform

from batchinference.pipeline.arrow import to_column
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output import tables
from batchinference.pipeline.storage.location import Location
from plugins.messages import Messages
from support.jobs.table_writes import TableJob, in_order, open_job, run_job, table_of
from support.outputs.builders import succeeded_report
from support.outputs.tables import catalog_of, table_rows, write_fields

Write = dict[str, Any]


def rows_of(**columns: Any) -> pa.Table:
    return pa.table(columns)


def iceberg(place: Path, **fields: Any) -> Write:
    return {**write_fields("iceberg", place), **fields}


def delta(place: Path, **fields: Any) -> Write:
    return {**write_fields("delta", place), **fields}


def sql(place: Path, **fields: Any) -> Write:
    write = {**write_fields("sql", place), **fields}
    return {name: value for name, value in write.items() if name != "url" or "urlEnv" not in write}


CLASSES = rows_of(id=[0, 1, 2], kind=["cat", "a/b %", None], day=[dt.date(2026, 1, 2)] * 3)


@pytest.mark.parametrize("format_", ["delta", "iceberg"])
def test_missing_columns_are_added(tmp_path: Path, format_: str) -> None:
    write = {"delta": delta, "iceberg": iceberg}[format_](tmp_path)
    run_job(tmp_path / "in", write, [rows_of(id=[0])])
    run_job(tmp_path / "more", {**write, "mode": "append"}, [rows_of(id=[1], new=["x"])])
    assert in_order(table_rows(format_, tmp_path)) == [
        {"id": 0, "new": None},
        {"id": 1, "new": "x"},
    ]


@pytest.mark.parametrize("format_", ["delta", "iceberg", "sql"])
def test_new_columns_that_differ_only_in_case_are_refused(
    tmp_path: Path, format_: str, messages: Messages
) -> None:
    write = {"delta": delta, "iceberg": iceberg, "sql": sql}[format_](tmp_path)
    job = open_job(tmp_path / "in", write)
    assert job is not None
    with messages.raises(BadOutput):
        job.begin(rows_of(k=[1], K=[2]))


@pytest.mark.parametrize("format_", ["delta", "iceberg"])
def test_partition_column_with_only_nulls_is_text(tmp_path: Path, format_: str) -> None:
    write = {"delta": delta, "iceberg": iceberg}[format_](tmp_path, partitionBy=["kind"])
    rows = rows_of(id=[0, 1], kind=pa.nulls(2))
    run_job(tmp_path / "in", write, [rows])
    added = rows_of(id=[2], kind=["dog"])
    run_job(tmp_path / "more", {**write, "mode": "append"}, [added])
    assert in_order(table_rows(format_, tmp_path)) == [*rows.to_pylist(), *added.to_pylist()]


def before_commit(place: Path, write: Write, rows: pa.Table) -> Callable[[], object]:
    """Put rows where the table has its files. Return the commit that makes them visible."""
    job = open_job(place / "in", write)
    assert job is not None
    job.put(rows)
    end, files = job.place(job.check())
    report = succeeded_report(job.attempt.layout.output.uri)
    return lambda: job.attempt.register(job.spec.write, job.table, files, end, report)  # type: ignore[arg-type]


def delta_rows(place: Path, version: int | None = None) -> list[dict[str, Any]]:
    table = deltalake.DeltaTable(str(place / "out"), version=version)
    return list(table.to_pyarrow_table().to_pylist())


class TestDelta:
    def test_new_table_is_partitioned(self, tmp_path: Path) -> None:
        run_job(tmp_path / "in", delta(tmp_path, partitionBy=["kind", "day"]), [CLASSES])
        table = deltalake.DeltaTable(str(tmp_path / "out"))
        assert table.metadata().partition_columns == ["kind", "day"]
        assert in_order(delta_rows(tmp_path)) == CLASSES.to_pylist()

    def test_long_partition_value_is_kept_in_the_table(self, tmp_path: Path) -> None:
        """The name of its directory has only a part of the value."""
        rows = rows_of(kind=["\u4e2d" * 60, None, "b"], id=[1, 2, 3])
        run_job(tmp_path / "in", delta(tmp_path, partitionBy=["kind"]), [rows])
        assert in_order(delta_rows(tmp_path)) == in_order(rows.to_pylist())

    def test_existing_table_keeps_its_partitions(self, tmp_path: Path) -> None:
        run_job(tmp_path / "in", delta(tmp_path, partitionBy=["kind"]), [CLASSES])
        added = rows_of(id=[3], kind=["dog"], day=[None])
        run_job(tmp_path / "more", delta(tmp_path, mode="append"), [added])
        table = deltalake.DeltaTable(str(tmp_path / "out"))
        assert table.metadata().partition_columns == ["kind"]
        assert sum("/kind=dog/" in uri for uri in table.file_uris()) == 1
        other = delta(tmp_path, mode="append", partitionBy=["day"])
        with pytest.raises(BadOutput, match="is partitioned by kind"):
            run_job(tmp_path / "other", other, [added])

    def test_vacuum_keeps_the_job_state(self, tmp_path: Path) -> None:
        run_job(tmp_path / "in", delta(tmp_path), [rows_of(id=[0])])
        table = deltalake.DeltaTable(str(tmp_path / "out"))
        table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        assert (tmp_path / "out" / "_SUCCESS").exists()
        assert not run_job(tmp_path / "in", delta(tmp_path), [rows_of(id=[0])])

    def test_overwrite_keeps_the_previous_version(self, tmp_path: Path) -> None:
        run_job(tmp_path / "in", delta(tmp_path), [rows_of(id=[0])])
        run_job(tmp_path / "in", delta(tmp_path, mode="overwrite"), [rows_of(name=["x"])])
        assert delta_rows(tmp_path) == [{"name": "x"}]
        assert delta_rows(tmp_path, version=0) == [{"id": 0}]

    def test_empty_text_as_partition_value_is_rejected(
        self, tmp_path: Path, messages: Messages
    ) -> None:
        write = delta(tmp_path, partitionBy=["day", "kind"])
        empty = rows_of(id=[0], kind=[""], day=[dt.date(2026, 1, 2)])
        with messages.raises(BadOutput):
            run_job(tmp_path / "in", write, [CLASSES, empty])
        run_job(tmp_path / "in", delta(tmp_path, mode="overwrite"), [empty])
        assert delta_rows(tmp_path) == empty.to_pylist()

    def test_column_that_differs_from_one_of_the_table_only_in_case_is_refused(
        self, tmp_path: Path
    ) -> None:
        run_job(tmp_path / "in", delta(tmp_path), [rows_of(K=[0])])
        job = open_job(tmp_path / "more", delta(tmp_path, mode="append"))
        assert job is not None
        with pytest.raises(BadOutput, match=r"'K' and 'k' differ only in case.*Rename 'k'"):
            job.begin(rows_of(k=[1]))

    @pytest.mark.parametrize("filled", [False, True], ids=["new", "unpartitioned before"])
    def test_append_to_a_table_with_changed_partitions_is_refused(
        self, tmp_path: Path, filled: bool, messages: Messages
    ) -> None:
        theirs, place = rows_of(id=[7], kind=["cat"]), str(tmp_path / "out")
        if filled:
            deltalake.write_deltalake(place, theirs)
        commit = before_commit(tmp_path, delta(tmp_path, mode="append"), CLASSES)
        options: Any = {"mode": "overwrite", "schema_mode": "overwrite"}
        deltalake.write_deltalake(place, theirs, partition_by=["kind"], **options)
        with messages.raises(BadOutput):
            commit()
        assert delta_rows(tmp_path) == theirs.to_pylist()

    def test_unsupported_type_names_the_column(self, tmp_path: Path) -> None:
        with pytest.raises(
            BadOutput, match=r"column 'at' has a type that Delta does not have \(time64\[us\]\)"
        ):
            run_job(tmp_path / "in", delta(tmp_path), [rows_of(id=[0], at=[dt.time(1, 2)])])


UNFIT = {
    "nanoseconds": (pa.timestamp("ns"), 1_000_000_000_000_001_000, 1_000_000_000_000_000_001),
    "whole numbers without a sign": (pa.uint64(), 2**63 - 1, 2**63),
    "numbers in lists": (pa.list_(pa.uint64()), [2**63 - 1], [2**63]),
}
"""Types that Delta and Iceberg lack, a value that fits the replacement, and one that does not."""


@pytest.mark.parametrize(("kind", "fits", "does_not"), UNFIT.values(), ids=UNFIT)
@pytest.mark.parametrize("format_", ["delta", "iceberg"])
def test_value_out_of_range_names_the_column(
    tmp_path: Path,
    format_: str,
    kind: pa.DataType,
    fits: object,
    does_not: object,
    messages: Messages,
) -> None:
    write = {"delta": delta, "iceberg": iceberg}[format_](tmp_path)

    def column(value: object) -> pa.Table:
        return rows_of(id=[0], odd=pa.array([value], kind))

    with messages.raises(BadOutput):
        run_job(tmp_path / "other", write, [column(does_not)])
    run_job(tmp_path / "in", {**write, "mode": "overwrite"}, [column(fits)])
    (row,) = table_of(write).first_rows(1)
    assert pa.array([row["odd"]]).cast(kind).equals(pa.array([fits], kind))


class TestIceberg:
    @pytest.fixture
    def load(self, tmp_path: Path) -> Callable[[], Any]:
        """Return a function that loads the table with pyiceberg."""
        return lambda: catalog_of(tmp_path).load_table("ns.rows")

    def test_new_table_is_partitioned(self, tmp_path: Path, load: Callable[[], Any]) -> None:
        run_job(tmp_path / "in", iceberg(tmp_path, partitionBy=["kind"]), [CLASSES])
        table = load()
        assert [field.name for field in table.spec().fields] == ["kind"]
        assert in_order(table.scan().to_arrow().to_pylist()) == CLASSES.to_pylist()
        assert table.scan("kind = 'cat'").to_arrow().num_rows == 1

    def test_existing_table_keeps_its_partitions(
        self, tmp_path: Path, load: Callable[[], Any]
    ) -> None:
        empty = rows_of(id=[5], kind=[""], day=[None])
        run_job(tmp_path / "in", iceberg(tmp_path, partitionBy=["kind"]), [CLASSES, empty])
        added = rows_of(id=[3, 4], kind=["dog", "cat"], day=[None, None])
        run_job(tmp_path / "more", iceberg(tmp_path, mode="append"), [added])
        for kind, ids in {"cat": [0, 4], "": [5]}.items():
            found = load().scan(f"kind = '{kind}'").to_arrow().column("id").to_pylist()
            assert sorted(found) == ids, kind

    def test_partition_transforms_are_rejected(self, tmp_path: Path, messages: Messages) -> None:
        catalog = catalog_of(tmp_path)
        catalog.create_namespace("ns")
        table = catalog.create_table("ns.rows", pa.schema([("id", pa.int64())]))
        with table.update_spec() as update:
            update.add_field("id", BucketTransform(4))
        with messages.raises(BadOutput):
            run_job(tmp_path / "in", iceberg(tmp_path), [rows_of(id=[0])])

    def test_unsupported_type_names_the_column(self, tmp_path: Path, messages: Messages) -> None:
        long = rows_of(id=[0], long=pa.array([1], pa.duration("s")))
        with messages.raises(BadOutput):
            run_job(tmp_path / "in", iceberg(tmp_path), [long])

    def test_catalog_without_a_place_for_tables_is_refused_at_open(
        self, tmp_path: Path, messages: Messages
    ) -> None:
        write = iceberg(tmp_path)
        del write["catalog"]["properties"]["warehouse"]
        with messages.raises(BadOutput):
            open_job(tmp_path / "in", write)

    def test_error_of_the_catalog_at_the_end_is_converted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> None:
            raise ForbiddenError("no right to create")

        job = open_job(tmp_path / "in", iceberg(tmp_path))
        assert job is not None
        job.put(rows_of(id=[0]))
        monkeypatch.setattr(SqlCatalog, "create_namespace", refuse)
        with pytest.raises(BadOutput, match=r"cannot be used \(ForbiddenError: no right"):
            job.place(job.check())

    def test_open_leaves_no_namespace(self, tmp_path: Path) -> None:
        open_job(tmp_path / "in", iceberg(tmp_path))
        assert catalog_of(tmp_path).list_namespaces() == []
        catalog_of(tmp_path).create_namespace("ns")
        open_job(tmp_path / "in", iceberg(tmp_path))
        assert catalog_of(tmp_path).list_namespaces() == [("ns",)]

    def test_table_can_be_pickled(self, tmp_path: Path) -> None:
        table = table_of(iceberg(tmp_path))
        table.find_place()
        copy = pickle.loads(pickle.dumps(table))
        ((_, content),) = copy.files(rows_of(id=[0]))
        place = Path(copy.put(Location("/nowhere"), bytes(content)).removeprefix("file://"))
        assert place.read_bytes() == bytes(content)


class TestLance:
    @pytest.fixture
    def write(self, tmp_path: Path) -> Write:
        return {"format": "lance", "path": str(tmp_path / "out")}

    def test_added_columns_are_refused_at_the_first_rows(
        self, tmp_path: Path, write: Write
    ) -> None:
        run_job(tmp_path / "in", write, [rows_of(id=[0])])
        job = open_job(tmp_path / "more", {**write, "mode": "append"})
        assert job is not None
        with pytest.raises(BadOutput, match=r"has no column 'new', only id\. Choose"):
            job.put(rows_of(id=[1], new=["x"]))

    def test_elements_of_lists_keep_the_name_that_the_dataset_has(
        self, tmp_path: Path, write: Write
    ) -> None:
        """Lance appends no lists whose elements have another name."""
        named = pa.list_(pa.field("of_theirs", pa.float16()), 2)
        theirs = rows_of(v=pa.array([[1.0, 2.0]], named))
        lance.write_dataset(theirs, write["path"])
        ours = rows_of(v=to_column(np.array([[3, 4]], np.float16)))
        run_job(tmp_path / "in", {**write, "mode": "append"}, [ours])
        found = lance.dataset(write["path"]).to_table()
        assert (found.schema, found.column("v").to_pylist()) == (theirs.schema, [[1, 2], [3, 4]])

    @pytest.mark.parametrize(
        "column",
        [
            *(pa.array([1, None], pa.timestamp("s")), pa.array([1, None], pa.time32("s"))),
            pa.array([86_400_000, None], pa.date64()),
            *(pa.array(values).dictionary_encode() for values in (["a", None], [5, None])),
        ],
        ids=lambda column: str(column.type),
    )
    def test_types_that_parquet_changes_are_appended(
        self, tmp_path: Path, write: Write, column: pa.Array
    ) -> None:
        table = rows_of(v=column)
        lance.write_dataset(table, write["path"])
        run_job(tmp_path / "in", {**write, "mode": "append"}, [table])
        found = lance.dataset(write["path"]).to_table()
        assert (found.schema, found.to_pylist()) == (table.schema, table.to_pylist() * 2)

    @pytest.mark.parametrize("filled", [False, True], ids=["new", "with rows before"])
    def test_append_to_a_dataset_with_changed_columns_fits_them(
        self, tmp_path: Path, write: Write, filled: bool
    ) -> None:
        """Lance finds the columns of appended rows by their numbers, and would swap them."""
        if filled:
            lance.write_dataset(rows_of(id=[0], n=[1]), write["path"])
        write, rows = {**write, "mode": "append"}, rows_of(id=[5], n=[6])
        commit = before_commit(tmp_path, write, rows)
        theirs = rows_of(n=[2], id=[3])
        lance.write_dataset(theirs, write["path"], mode="overwrite")
        commit()
        found = lance.dataset(write["path"]).to_table().to_pylist()
        assert in_order(found) == [*theirs.to_pylist(), *rows.to_pylist()]

    def test_vectors_can_be_searched(self, tmp_path: Path, write: Write) -> None:
        vectors = np.eye(3, dtype=np.float32)
        run_job(tmp_path / "in", write, [rows_of(id=[0, 1, 2], vector=to_column(vectors))])
        nearest = {"column": "vector", "q": vectors[1], "k": 1}
        (row,) = lance.dataset(write["path"]).to_table(nearest=nearest).to_pylist()
        assert row["id"] == 1

    def test_columns_may_be_left_out_and_overwritten(self, tmp_path: Path, write: Write) -> None:
        run_job(tmp_path / "in", write, [rows_of(id=[0], text=["a"])])
        run_job(tmp_path / "more", {**write, "mode": "append"}, [rows_of(id=[1])])
        found = lance.dataset(write["path"]).to_table().to_pylist()
        assert in_order(found) == [{"id": 0, "text": "a"}, {"id": 1, "text": None}]
        other = rows_of(name=["x"], size=[1.5])
        run_job(tmp_path / "other", {**write, "mode": "overwrite"}, [other])
        assert lance.dataset(write["path"]).to_table().equals(other)


def create(engine: sa.Engine, columns: str) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text(f"create table rows ({columns})"))


def selected(engine: sa.Engine) -> list[Any]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(sa.text("select * from rows"))]


class TestSql:
    @pytest.fixture
    def engine(self, tmp_path: Path) -> sa.Engine:
        return sa.create_engine(f"sqlite:///{tmp_path}/data.db")

    def open(self, place: Path, **fields: Any) -> TableJob:
        job = open_job(place / "in", sql(place, **fields))
        assert job is not None
        return job

    def test_existing_table_keeps_its_types(self, tmp_path: Path, engine: sa.Engine) -> None:
        create(engine, "id integer primary key, v numeric(8,2), made text default 'here'")
        run_job(tmp_path / "in", sql(tmp_path), [rows_of(id=[1], v=[2.5])])
        assert selected(engine) == [(1, 2.5, "here")]

    def test_failed_commit_rolls_back(
        self, tmp_path: Path, engine: sa.Engine, messages: Messages
    ) -> None:
        create(engine, "id integer primary key")
        job = self.open(tmp_path)
        job.put(rows_of(id=[1, 2]))
        job.put(rows_of(id=[3, 1]))
        with messages.raises(BadOutput):
            job.commit()
        assert selected(engine) == []

    def test_failed_commit_leaves_no_new_table(
        self, tmp_path: Path, engine: sa.Engine, messages: Messages
    ) -> None:
        job = self.open(tmp_path)
        job.put(rows_of(id=pa.array([2**64 - 1], pa.uint64())))
        with messages.raises(BadOutput):
            job.commit()
        assert not sa.inspect(engine).has_table("rows")

    def test_missing_column_is_rejected_at_the_first_rows(self, tmp_path: Path) -> None:
        run_job(tmp_path / "before", sql(tmp_path), [rows_of(id=[0])])
        with pytest.raises(BadOutput, match=r"has no column 'new', only id\. Choose"):
            self.open(tmp_path, mode="append").begin(rows_of(id=[1], new=["x"]))

    def test_nan_in_lists_and_many_rows_are_written(self, tmp_path: Path) -> None:
        rows = rows_of(id=range(2500), v=[[1.5, math.nan]] * 2500)
        run_job(tmp_path / "in", sql(tmp_path), [rows])
        found = table_of(sql(tmp_path)).first_rows(5000)
        assert in_order(found) == [{"id": number, "v": [1.5, None]} for number in range(2500)]

    def test_url_comes_from_the_environment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(BadOutput, match="the variable MY_DATABASE is not set"):
            self.open(tmp_path, urlEnv="MY_DATABASE")
        monkeypatch.setenv("MY_DATABASE", f"sqlite:///{tmp_path}/data.db")
        assert run_job(tmp_path / "in", sql(tmp_path, urlEnv="MY_DATABASE"), [rows_of(id=[0])])

    def test_unusable_database_is_rejected_at_open(self, tmp_path: Path) -> None:
        for url, message in (
            ("nosuch://db/x", "not a valid URL of SQLAlchemy"),
            ("sqlite:////no/such/directory/x.db", r"the database cannot be used \(unable to open"),
            ("oracle+cx_oracle://db/x", r"write\.url: the driver is not installed \(cx_Oracle\)"),
        ):
            with pytest.raises(BadOutput, match=message):
                self.open(tmp_path, url=url)


def test_missing_library_error_has_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tables.TABLES, "delta", ("DeltaLakeTable", "no_such_module"))
    with pytest.raises(BadOutput, match=r"pip install '\./jobs\[formats\]'"):
        open_job(tmp_path / "in", delta(tmp_path))


def test_iceberg_table_that_names_a_class_is_refused(tmp_path: Path, messages: Messages) -> None:
    catalog = catalog_of(tmp_path)
    catalog.create_namespace("ns")
    name = "pyiceberg.table.locations.ObjectStoreLocationProvider"
    catalog.create_table(
        "ns.rows", rows_of(id=[1]).schema, properties={"write.py-location-provider.impl": name}
    )
    with messages.raises(BadOutput):
        run_job(tmp_path / "in", iceberg(tmp_path, mode="append"), [rows_of(id=[1])])
