"""The files of a table format are not read as Parquet files: some of their rows were deleted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.listing import snapshot_input
from batchinference.spec.read import ReadParquet
from support.inputs.read_files import open_input

TABLE = pa.table({"n": [1, 2, 3], "day": [1, 1, 2]})


def delta(path: Path) -> None:
    deltalake.write_deltalake(path, TABLE)
    deltalake.DeltaTable(path).delete("n = 2")


def delta_of_partitions(path: Path) -> None:
    deltalake.write_deltalake(path, TABLE, partition_by=["day"])


def iceberg(path: Path) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("c", uri="sqlite://", warehouse=f"file://{path.parent}")
    catalog.create_namespace("n")
    made: Any = catalog.create_table("n.t", schema=TABLE.schema, location=f"file://{path}")
    made.append(TABLE)


def hudi(path: Path) -> None:
    (path / ".hoodie").mkdir(parents=True)
    (path / ".hoodie" / "hoodie.properties").write_text("hoodie.table.name=t\n")
    pq.write_table(TABLE, path / "a_0_1.parquet")


DELTA = r"Set read\.format to delta, and read\.path"
FIXES = {"Delta": DELTA, "Delta Lake": DELTA}
TABLES = {"Delta": delta, "Iceberg": iceberg, "Hudi": hudi, "Delta Lake": delta_of_partitions}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(
    ("make_in", "path"),
    [
        *(("t", "t"), ("t", "t/"), ("db/t", "db"), ("db/t", "."), ("t", "*"), ("db/t", "d*")),
        *(("t", "**"), ("t", "t/**/*.parquet"), ("db/t", "db/*/**"), ("db/t", "*/*")),
    ],
)
def test_directory_of_table_is_refused(tmp_path: Path, name: str, make_in: str, path: str) -> None:
    (tmp_path / make_in).parent.mkdir(exist_ok=True)
    TABLES[name](tmp_path / make_in)
    fix = FIXES.get(name, "Export")
    with pytest.raises(BadInput, match=rf"read\.paths\[0\].*/{make_in}' .*{name}.*\. {fix}"):
        open_input("parquet", f"{tmp_path}/{path}")


@pytest.mark.parametrize(
    ("make", "path"),
    [
        *((delta, "t/*.parquet"), (delta_of_partitions, "t/day=1"), (hudi, "t/*.parquet")),
        *((delta_of_partitions, "t/day=*"), (delta_of_partitions, "t/day=1/*.parquet")),
        *((iceberg, "t/data"), (iceberg, "t/data/*.parquet"), (iceberg, "t/d*/*.parquet")),
    ],
)
def test_part_of_table_is_refused(tmp_path: Path, make: Callable[[Path], None], path: str) -> None:
    make(tmp_path / "t")
    with pytest.raises(BadInput, match="/t' is a"):
        open_input("parquet", f"{tmp_path}/{path}")
    with pytest.raises(BadInput, match="/t' is a"):
        open_input("parquet", f"{tmp_path}/{path}", fileExtensions=["parquet"])
    with pytest.raises(BadInput, match="/t' is a"):
        open_input("manifest", f"{tmp_path}/{path}", column="day")


def test_files_that_are_named_are_read(tmp_path: Path) -> None:
    delta(tmp_path / "t")
    files = sorted((tmp_path / "t").glob("*.parquet"))
    assert len(files) == 2
    assert len(open_input("parquet", *files).read().good) == 5


def test_lance_is_read_with_its_format(tmp_path: Path) -> None:
    lance.write_dataset(TABLE, tmp_path / "in" / "t.lance")
    for path in ("in/t.lance", "in", "in/*"):
        with pytest.raises(BadInput, match=r"/t.lance' .*Lance.*read\.format to lance"):
            open_input("parquet", f"{tmp_path}/{path}")
    pq.write_table(TABLE, tmp_path / "in" / "a.parquet")
    opened = open_input("parquet", tmp_path / "in")
    assert len(opened.read().good) == 3
    ignored = opened.snapshot.ignored.text
    assert ignored == "3 files ignored: .lance 1, .manifest 1 (hidden), .txn 1 (hidden)"


@pytest.mark.parametrize(
    "others",
    [
        ["_delta_log/note.txt", "_delta_log/sub/1.json"],
        ["metadata/a.json", "metadata/readme", "x.metadata.json"],
        [
            "_SUCCESS",
            "._SUCCESS.crc",
            "_temporary/0/a.parquet",
            "data/b.parquet",
            "day=3/c.parquet",
        ],
    ],
)
def test_other_directories_are_read(tmp_path: Path, others: list[str]) -> None:
    for name in ("a.parquet", *others):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(TABLE, tmp_path / name)
    for path in ("", "*", "**/*.parquet"):
        assert snapshot_input([f"{tmp_path}/{path}"], None, kind=ReadParquet).files()


def test_tables_next_to_the_files_of_a_path_are_no_reason(tmp_path: Path) -> None:
    delta(tmp_path / "t")
    pq.write_table(TABLE, tmp_path / "a.parquet")
    assert len(open_input("parquet", tmp_path / "*.parquet").read().good) == 3
    (tmp_path / "t" / "a.csv").write_text("n\n1\n")
    assert len(open_input("csv", tmp_path / "t").read().good) == 1
    assert len(open_input("binary", tmp_path / "t").snapshot) == 3
