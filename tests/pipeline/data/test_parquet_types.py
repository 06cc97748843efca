"""Parquet: timestamps of INT96, declared types and time zones."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.errors import BadInput
from support.inputs.read_files import open_input, read_files

YEARS = [datetime(year, 1, 1, 12) for year in (1, 1500, 2024, 9999)]  # noqa: DTZ001 - no zone
NANOSECONDS = [1_700_000_000_123_456_789, -1, 0]
INT96: dict[str, Any] = {"use_deprecated_int96_timestamps": True}


def write(path: Path, columns: Any, **options: Any) -> Path:
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), path, **options)
    return path


def in_every_shape(timestamps: pa.Array) -> dict[str, Any]:
    structs = pa.struct([("at", timestamps.type)])
    return {
        "plain": timestamps,
        "list": pa.array([[value] for value in timestamps], pa.list_(timestamps.type)),
        "struct": pa.array([{"at": value} for value in timestamps], structs),
    }


@pytest.mark.parametrize("store_schema", [True, False])
def test_int96_of_any_year_is_exact(tmp_path: Path, store_schema: bool) -> None:
    columns = in_every_shape(pa.array([*YEARS, None], pa.timestamp("us")))
    path = write(tmp_path / "a.parquet", columns, store_schema=store_schema, **INT96)
    outcome = read_files("parquet", path)
    assert outcome.good == pa.table(columns).to_pylist()
    assert outcome.schema.field("plain").type == pa.timestamp("us")


@pytest.mark.parametrize("shape", ["plain", "list", "struct"])
def test_int96_that_a_unit_cannot_hold_is_a_failed_row(tmp_path: Path, shape: str) -> None:
    nanoseconds = in_every_shape(pa.array(NANOSECONDS, pa.timestamp("ns")))[shape]
    fine = write(tmp_path / "fine.parquet", {"t": nanoseconds}, **INT96)
    outcome = read_files("parquet", fine, int96="ns")
    assert outcome.table.column("t").combine_chunks() == nanoseconds
    outcome = read_files("parquet", fine)
    assert outcome.places == [(0, 2)]
    assert all("'t'" in text and "int96: ns" in text for text in outcome.bad.values())
    years = in_every_shape(pa.array(YEARS, pa.timestamp("us")))[shape]
    long = write(tmp_path / "long.parquet", {"t": years}, **INT96)
    outcome = read_files("parquet", long, int96="ns")
    assert outcome.places == [(0, 2)]
    assert all("'t'" in text and "int96: us" in text for text in outcome.bad.values())


def test_int96_is_checked_in_every_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchinference.pipeline.storage.arrow_files.CHUNK_ROWS", 7)
    values = [n * 1000 + (n == 33) for n in range(100)]
    columns = {"id": range(100), "t": pa.array(values, pa.timestamp("ns"))}
    path = write(tmp_path / "a.parquet", columns, row_group_size=40, **INT96)
    outcome = read_files("parquet", path, columns=["t"])
    assert set(outcome.bad) == {(0, 33)}
    assert len(outcome.good) == 99


def test_value_that_does_not_fit_the_shared_type_is_the_only_failed_row(tmp_path: Path) -> None:
    decimals = [Decimal("0.5"), Decimal("12345678901234567890.5"), Decimal(1)]
    cases = [
        (pa.array([1, 2**53 + 1, 3]), pa.array([0.5])),
        (pa.array([1, -1, 3]), pa.array([1], pa.uint64())),
        (pa.array([{"a": 1}, {"a": 2**53 + 1}, {"a": 2}]), pa.array([{"a": 0.5}])),
        (pa.array(decimals), pa.array([0.5])),
        (pa.array([YEARS[2], YEARS[3], YEARS[2]], pa.timestamp("us")),
         pa.array([0], pa.timestamp("ns"))),
    ]  # fmt: skip
    for one, other in cases:
        write(tmp_path / "a.parquet", {"v": one})
        write(tmp_path / "b.parquet", {"v": other})
        outcome = read_files("parquet", tmp_path)
        ((place, message),) = outcome.bad.items()
        assert place == (0, 1)
        assert "column 'v'" in message


def test_declared_type_is_that_of_all_files(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"id": [7], "when": ["2024-02-29"], "n": [1.0]})
    write(tmp_path / "b.parquet", {"id": ["A12"], "when": [date(2024, 3, 1)], "n": [2]})
    with pytest.raises(BadInput, match=r"read\.options\.types"):
        open_input("parquet", tmp_path)
    types = {"id": "string", "when": "date", "n": "int64"}
    assert read_files("parquet", tmp_path, types=types).good == [
        {"id": "7", "when": date(2024, 2, 29), "n": 1},
        {"id": "A12", "when": date(2024, 3, 1), "n": 2},
    ]


def test_value_that_is_not_of_its_declared_type_is_a_failed_row(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"v": ["1", "x", "3"]})
    outcome = read_files("parquet", tmp_path, types={"v": "int64"})
    assert [row["v"] for row in outcome.good] == [1, 3]
    ((place, message),) = outcome.bad.items()
    assert place == (0, 1)
    assert "column 'v' is not int64" in message
    with pytest.raises(BadInput, match=r"types: .*a\.parquet: column 'v' is not"):
        open_input("parquet", write(tmp_path / "a.parquet", {"v": [[1]]}), types={"v": "int64"})


def test_declared_type_of_a_column_that_no_file_has_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"Id": [7]})
    for name in ("id", "Idd"):
        with pytest.raises(BadInput, match=rf"read\.options\.types\.{name}: .*Id"):
            read_files("parquet", tmp_path, types={name: "string"})


def mixed_zones(tmp_path: Path) -> None:
    moment = datetime(2024, 7, 1, 10)  # noqa: DTZ001 - no zone
    write(tmp_path / "a.parquet", {"t": pa.array([moment], pa.timestamp("us"))})
    write(tmp_path / "b.parquet", {"t": pa.array([moment], pa.timestamp("ms", "UTC"))})


def test_timestamps_without_a_zone_get_the_assumed_one(tmp_path: Path) -> None:
    mixed_zones(tmp_path)
    with pytest.raises(BadInput, match="assumeTimezone"):
        open_input("parquet", tmp_path)
    for zone, hour in {"UTC": 10, "Europe/Berlin": 8, "+01:00": 9}.items():
        outcome = read_files("parquet", tmp_path, assumeTimezone=zone)
        assert outcome.schema.field("t").type == pa.timestamp("us", "UTC")
        hours = [row["t"].astimezone(UTC).hour for row in outcome.good]
        assert hours == [hour, 10], zone


def test_timestamps_in_lists_and_structs_get_the_assumed_zone(tmp_path: Path) -> None:
    moment = datetime(2024, 7, 1, 10, tzinfo=UTC).replace(tzinfo=None)
    values = [[{"t": moment, "n": 1}, None], None, [], [{"t": None, "n": 2}]]
    kind = pa.list_(pa.struct({"t": pa.timestamp("us"), "n": pa.int64()}))
    write(tmp_path / "a.parquet", {"v": pa.array(values, kind)})
    outcome = read_files("parquet", tmp_path, assumeTimezone="Europe/Berlin")
    assert outcome.good[0]["v"][0]["t"].astimezone(UTC).hour == 8
    assert [row["v"] for row in outcome.good][1:] == values[1:]


def test_timestamps_in_other_lists_get_the_assumed_zone_or_are_refused(tmp_path: Path) -> None:
    moment, naive = datetime(2024, 7, 1, 10), pa.timestamp("us")  # noqa: DTZ001 - no zone
    write(tmp_path / "a.parquet", {"v": pa.array([[moment], None], pa.large_list(naive))})
    outcome = read_files("parquet", tmp_path, assumeTimezone="Europe/Berlin")
    assert outcome.good[0]["v"][0].astimezone(UTC).hour == 8
    for column in (
        pa.array([[("a", moment)]], pa.map_(pa.string(), naive)),
        pa.array([[moment]], pa.list_(naive, 1)),
    ):
        write(tmp_path / "a.parquet", {"v": column})
        with pytest.raises(BadInput, match=r"column 'v'.*assumeTimezone"):
            read_files("parquet", tmp_path, assumeTimezone="Europe/Berlin")


def test_local_time_that_does_not_exist_or_exists_twice_is_a_failed_row(tmp_path: Path) -> None:
    times = ["2024-03-31T02:30:00", "2024-07-01T10:00:00", "2024-10-27T02:30:00"]
    write(tmp_path / "a.parquet", {"t": pa.array(times).cast(pa.timestamp("us"))})
    outcome = read_files("parquet", tmp_path, assumeTimezone="Europe/Berlin")
    assert (outcome.places, set(outcome.bad)) == ([(0, 1)], {(0, 0), (0, 2)})


def test_declared_type_neither_adds_nor_drops_a_time_zone(tmp_path: Path) -> None:
    mixed_zones(tmp_path)
    for declared in ("timestamp", "timestamp<UTC>"):
        with pytest.raises(BadInput, match="zone"):
            open_input("parquet", tmp_path, types={"t": declared})
    outcome = read_files(
        "parquet", tmp_path, types={"t": "timestamp<Asia/Tokyo>"}, assumeTimezone="UTC"
    )
    assert [row["t"].hour for row in outcome.good] == [19, 19]
