"""What only some tables have: partitions, new columns, indexes, transactions of a database."""

from __future__ import annotations

import datetime as dt
import math
import pickle
import re
from pathlib import Path
from typing import Any

import deltalake
import lance
import numpy as np
import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.transforms import BucketTransform

from batchinference.pipeline import tables
from batchinference.pipeline.blocks import to_column
from batchinference.pipeline.failures import BadOutput
from support.tables import in_order, open_job, run_job, table_of

Write = dict[str, Any]


def rows_in(**columns: Any) -> pa.Table:
    return pa.table(columns)


def properties(place: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}/w"}


def iceberg(place: Path, **fields: Any) -> Write:
    catalog = {"properties": properties(place)}
    path = str(place / "out")
    return {"format": "iceberg", "path": path, "table": "ns.rows", "catalog": catalog, **fields}


def catalog_of(place: Path) -> Catalog:
    return load_catalog("default", **properties(place))


def delta(place: Path, **fields: Any) -> Write:
    return {"format": "delta", "path": str(place / "out"), **fields}


def sql(place: Path, **fields: Any) -> Write:
    address = {} if "urlEnv" in fields else {"url": f"sqlite:///{place}/data.db"}
    return {"format": "sql", "path": str(place / "out"), "table": "rows", **address, **fields}


CLASSES = rows_in(id=[0, 1, 2], kind=["cat", "a/b %", None], day=[dt.date(2026, 1, 2)] * 3)


class TestDelta:
    def test_a_new_table_is_partitioned(self, tmp_path: Path) -> None:
        run_job(tmp_path / "in", delta(tmp_path, partitionBy=["kind", "day"]), [CLASSES])
        table = deltalake.DeltaTable(str(tmp_path / "out"))
        assert table.metadata().partition_columns == ["kind", "day"]
        assert in_order(table.to_pyarrow_table().to_pylist()) == CLASSES.to_pylist()

    def test_an_existing_table_keeps_its_partitions(self, tmp_path: Path) -> None:
        run_job(tmp_path / "in", delta(tmp_path, partitionBy=["kind"]), [CLASSES])
        added = rows_in(id=[3], kind=["dog"], day=[None])
        run_job(tmp_path / "more", delta(tmp_path, mode="append"), [added])
        table = deltalake.DeltaTable(str(tmp_path / "out"))
        assert table.metadata().partition_columns == ["kind"]
        assert sum("/kind=dog/" in uri for uri in table.file_uris()) == 1
        other = delta(tmp_path, mode="append", partitionBy=["day"])
        with pytest.raises(BadOutput, match="is partitioned by kind"):
            run_job(tmp_path / "other", other, [added])

    def test_columns_that_a_table_lacks_are_added(self, tmp_path: Path) -> None:
        run_job(tmp_path / "in", delta(tmp_path), [rows_in(id=[0])])
        run_job(tmp_path / "more", delta(tmp_path, mode="append"), [rows_in(id=[1], new=["x"])])
        found = deltalake.DeltaTable(str(tmp_path / "out")).to_pyarrow_table().to_pylist()
        assert in_order(found) == [{"id": 0, "new": None}, {"id": 1, "new": "x"}]

    def test_the_state_of_the_job_outlives_a_vacuum(self, tmp_path: Path) -> None:
        run_job(tmp_path / "in", delta(tmp_path), [rows_in(id=[0])])
        table = deltalake.DeltaTable(str(tmp_path / "out"))
        table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        assert (tmp_path / "out" / "_SUCCESS").exists()
        assert not run_job(tmp_path / "in", delta(tmp_path), [rows_in(id=[0])])

    def test_what_overwrite_replaced_is_there_in_the_version_before(self, tmp_path: Path) -> None:
        run_job(tmp_path / "in", delta(tmp_path), [rows_in(id=[0])])
        run_job(tmp_path / "in", delta(tmp_path, mode="overwrite"), [rows_in(name=["x"])])
        uri = str(tmp_path / "out")
        assert deltalake.DeltaTable(uri).to_pyarrow_table().to_pylist() == [{"name": "x"}]
        assert deltalake.DeltaTable(uri, version=0).to_pyarrow_table().to_pylist() == [{"id": 0}]

    def test_an_empty_text_among_the_values_of_a_partition_is_refused(self, tmp_path: Path) -> None:
        write = delta(tmp_path, partitionBy=["day", "kind"])
        empty = rows_in(id=[0], kind=[""], day=[dt.date(2026, 1, 2)])
        with pytest.raises(BadOutput, match="'kind' has an empty text, which Delta reads as null"):
            run_job(tmp_path / "in", write, [CLASSES, empty])
        run_job(tmp_path / "in", delta(tmp_path, mode="overwrite"), [empty])
        assert deltalake.DeltaTable(write["path"]).to_pyarrow_table().to_pylist() == (
            empty.to_pylist()
        )

    def test_a_type_that_it_lacks_is_told_by_its_column(self, tmp_path: Path) -> None:
        write = delta(tmp_path)
        with pytest.raises(BadOutput, match=r"column 'at' is time64\[us\], which Delta does not"):
            run_job(tmp_path / "in", write, [rows_in(id=[0], at=[dt.time(1, 2)])])


UNFIT = {
    "nanoseconds": (pa.timestamp("ns"), 1_000_000_000_000_001_000, 1_000_000_000_000_000_001),
    "whole numbers without a sign": (pa.uint64(), 2**63 - 1, 2**63),
    "numbers in lists": (pa.list_(pa.uint64()), [2**63 - 1], [2**63]),
}
"""Types that Delta and Iceberg lack, a value that comes back all the same, and one that cannot."""


@pytest.mark.parametrize(("kind", "fits", "does_not"), UNFIT.values(), ids=UNFIT)
@pytest.mark.parametrize("format_", ["delta", "iceberg"])
def test_values_that_a_table_cannot_hold_are_told_by_their_column(
    tmp_path: Path, format_: str, kind: pa.DataType, fits: object, does_not: object
) -> None:
    write = {"delta": delta, "iceberg": iceberg}[format_](tmp_path)

    def column(value: object) -> pa.Table:
        return rows_in(id=[0], odd=pa.array([value], kind))

    with pytest.raises(
        BadOutput, match=f"column 'odd' is {re.escape(str(kind))}.*a value does not fit"
    ):
        run_job(tmp_path / "other", write, [column(does_not)])
    run_job(tmp_path / "in", {**write, "mode": "overwrite"}, [column(fits)])
    (row,) = table_of(write).first_rows(1)
    assert pa.array([row["odd"]]).cast(kind).equals(pa.array([fits], kind))


class TestIceberg:
    def test_a_new_table_is_partitioned(self, tmp_path: Path) -> None:
        run_job(tmp_path / "in", iceberg(tmp_path, partitionBy=["kind"]), [CLASSES])
        table = catalog_of(tmp_path).load_table("ns.rows")
        assert [field.name for field in table.spec().fields] == ["kind"]
        assert in_order(table.scan().to_arrow().to_pylist()) == CLASSES.to_pylist()
        assert table.scan("kind = 'cat'").to_arrow().num_rows == 1

    def test_an_empty_text_is_a_partition_of_its_own(self, tmp_path: Path) -> None:
        empty = rows_in(id=[3], kind=[""], day=[None])
        run_job(tmp_path / "in", iceberg(tmp_path, partitionBy=["kind"]), [CLASSES, empty])
        table = catalog_of(tmp_path).load_table("ns.rows")
        assert table.scan("kind = ''").to_arrow().column("id").to_pylist() == [3]

    def test_an_existing_table_keeps_its_partitions(self, tmp_path: Path) -> None:
        run_job(tmp_path / "in", iceberg(tmp_path, partitionBy=["kind"]), [CLASSES])
        added = rows_in(id=[3, 4], kind=["dog", "cat"], day=[None, None])
        run_job(tmp_path / "more", iceberg(tmp_path, mode="append"), [added])
        table = catalog_of(tmp_path).load_table("ns.rows")
        assert in_order(table.scan("kind = 'cat'").to_arrow().select(["id"]).to_pylist()) == [
            {"id": 0},
            {"id": 4},
        ]

    def test_partitions_by_a_part_of_a_value_are_refused(self, tmp_path: Path) -> None:
        catalog = catalog_of(tmp_path)
        catalog.create_namespace("ns")
        table = catalog.create_table("ns.rows", pa.schema([("id", pa.int64())]))
        with table.update_spec() as update:
            update.add_field("id", BucketTransform(4))
        with pytest.raises(BadOutput, match="only partitions by whole values"):
            run_job(tmp_path / "in", iceberg(tmp_path), [rows_in(id=[0])])

    def test_columns_that_a_table_lacks_are_added(self, tmp_path: Path) -> None:
        run_job(tmp_path / "in", iceberg(tmp_path), [rows_in(id=[0])])
        run_job(tmp_path / "more", iceberg(tmp_path, mode="append"), [rows_in(id=[1], new=["x"])])
        found = catalog_of(tmp_path).load_table("ns.rows").scan().to_arrow().to_pylist()
        assert in_order(found) == [{"id": 0, "new": None}, {"id": 1, "new": "x"}]

    def test_a_table_travels_into_write_tasks(self, tmp_path: Path) -> None:
        table = table_of(iceberg(tmp_path))
        table.begin(pa.schema([("id", pa.int64())]))
        copy = pickle.loads(pickle.dumps(table))
        assert len(list(copy.files(rows_in(id=[0])))) == 1


class TestLance:
    def test_vectors_can_be_searched(self, tmp_path: Path) -> None:
        vectors = np.eye(3, dtype=np.float32)
        table = rows_in(id=[0, 1, 2], vector=to_column(vectors))
        run_job(tmp_path / "in", {"format": "lance", "path": str(tmp_path / "out")}, [table])
        nearest = {"column": "vector", "q": vectors[1], "k": 1}
        (row,) = lance.dataset(str(tmp_path / "out")).to_table(nearest=nearest).to_pylist()
        assert row["id"] == 1

    def test_a_subset_of_the_columns_can_be_added(self, tmp_path: Path) -> None:
        write = {"format": "lance", "path": str(tmp_path / "out")}
        run_job(tmp_path / "in", write, [rows_in(id=[0], text=["a"])])
        run_job(tmp_path / "more", {**write, "mode": "append"}, [rows_in(id=[1])])
        found = lance.dataset(write["path"]).to_table().to_pylist()
        assert in_order(found) == [{"id": 0, "text": "a"}, {"id": 1, "text": None}]

    def test_overwrite_may_change_the_columns(self, tmp_path: Path) -> None:
        write = {"format": "lance", "path": str(tmp_path / "out")}
        run_job(tmp_path / "in", write, [rows_in(id=[0], text=["a"])])
        other = rows_in(name=["x"], size=[1.5])
        run_job(tmp_path / "in", {**write, "mode": "overwrite"}, [other])
        assert lance.dataset(write["path"]).to_table().equals(other)

    def test_columns_that_only_some_rows_have_are_refused(self, tmp_path: Path) -> None:
        write = {"format": "lance", "path": str(tmp_path / "out")}
        with pytest.raises(BadOutput, match="do not all have the columns id, more"):
            run_job(tmp_path / "in", write, [rows_in(id=[0]), rows_in(id=[1], more=["x"])])


class TestSql:
    def test_an_existing_table_takes_rows_into_its_own_types(self, tmp_path: Path) -> None:
        engine = sa.create_engine(f"sqlite:///{tmp_path}/data.db")
        with engine.begin() as connection:
            connection.execute(sa.text("create table rows (id integer primary key, v numeric(8,2), "
                                       "made text default 'here')"))  # fmt: skip
        run_job(tmp_path / "in", sql(tmp_path), [rows_in(id=[1], v=[2.5])])
        with engine.connect() as connection:
            assert connection.execute(sa.text("select * from rows")).all() == [(1, 2.5, "here")]

    def test_a_failure_in_the_middle_leaves_the_table_as_it_was(self, tmp_path: Path) -> None:
        engine = sa.create_engine(f"sqlite:///{tmp_path}/data.db")
        with engine.begin() as connection:
            connection.execute(sa.text("create table rows (id integer primary key)"))
        job = open_job(tmp_path / "in", sql(tmp_path))
        assert job is not None
        job.put(rows_in(id=[1, 2]))
        job.put(rows_in(id=[3, 1]))
        with pytest.raises(BadOutput, match="did not take the rows: UNIQUE constraint failed"):
            job.commit()
        with engine.connect() as connection:
            assert connection.execute(sa.text("select * from rows")).all() == []

    def test_a_table_that_could_not_be_filled_is_not_left(self, tmp_path: Path) -> None:
        job = open_job(tmp_path / "in", sql(tmp_path))
        assert job is not None
        job.put(rows_in(id=pa.array([2**64 - 1], pa.uint64())))
        with pytest.raises(BadOutput, match="did not take the rows: Python int too large"):
            job.commit()
        engine = sa.create_engine(f"sqlite:///{tmp_path}/data.db")
        assert not sa.inspect(engine).has_table("rows")

    def test_a_column_that_the_table_lacks_is_told_at_the_first_rows(self, tmp_path: Path) -> None:
        run_job(tmp_path / "in", sql(tmp_path), [rows_in(id=[0])])
        job = open_job(tmp_path / "more", sql(tmp_path, mode="append"))
        assert job is not None
        with pytest.raises(BadOutput, match="has no column 'new', only id: choose"):
            job.begin(rows_in(id=[1], new=["x"]))

    def test_lists_with_numbers_that_json_lacks_are_written(self, tmp_path: Path) -> None:
        values = [[1.5, math.nan]]
        run_job(tmp_path / "in", sql(tmp_path), [rows_in(id=[0], v=values)])
        assert table_of(sql(tmp_path)).first_rows(1) == [{"id": 0, "v": [1.5, None]}]

    def test_more_rows_than_an_insert_takes_are_all_there(self, tmp_path: Path) -> None:
        run_job(tmp_path / "in", sql(tmp_path), [rows_in(id=range(2500))])
        assert len(table_of(sql(tmp_path)).first_rows(5000)) == 2500

    def test_the_address_comes_from_the_environment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(BadOutput, match="the variable MY_DATABASE is not set"):
            open_job(tmp_path / "in", sql(tmp_path, urlEnv="MY_DATABASE"))
        monkeypatch.setenv("MY_DATABASE", f"sqlite:///{tmp_path}/data.db")
        assert run_job(tmp_path / "in", sql(tmp_path, urlEnv="MY_DATABASE"), [rows_in(id=[0])])

    @pytest.mark.parametrize(
        ("url", "message"),
        [
            ("nosuch://db/x", "none for SQLAlchemy"),
            ("sqlite:////no/such/directory/x.db", "the database cannot be used: unable to open"),
            ("oracle+cx_oracle://db/x", "the database needs cx_Oracle: install it"),
        ],
        ids=["dialect", "place", "driver"],
    )
    def test_a_database_that_cannot_be_used_is_told_before_anything_runs(
        self, tmp_path: Path, url: str, message: str
    ) -> None:
        with pytest.raises(BadOutput, match=message):
            open_job(tmp_path / "in", {**sql(tmp_path), "url": url})


def test_a_missing_library_is_told_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_LIBRARIES", {"delta": "no_such_module"})
    with pytest.raises(BadOutput, match=r"pip install 'batchinference\[formats\]'"):
        open_job(tmp_path / "in", delta(tmp_path))
