"""Parquet: rows and types equal those of pyarrow; timestamps of INT96, declared types and zones."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.readers import CHUNK_ROWS
from batchinference.pipeline.steps.schema_inference import columns_after_all
from plugins.messages import Messages
from support.inputs.read_files import Outcome, cut_up, open_input, read_files
from support.tiers import examples


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a file of all digits: 64 pixels in a list, the label, and the label as text."""
    pixels = np.random.default_rng(0).integers(0, 16, (1797, 64)).tolist()
    labels = [number % 10 for number in range(len(pixels))]
    table = pa.table(
        {
            "pixels": pa.array(pixels, pa.list_(pa.float32())),
            "label": pa.array(labels, pa.int8()),
            "word": [f"digit {label}" for label in labels],
        }
    )
    path = tmp_path_factory.mktemp("digits") / "digits.parquet"
    pq.write_table(table, path, row_group_size=500)
    return path


def test_tensors_of_arrow_are_read_from_a_file_without_rows(tmp_path: Path) -> None:
    table = pa.table({"tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((1, 2, 2)))})
    for rows in (0, 1):
        pq.write_table(table.slice(0, rows), tmp_path / "a.parquet")
        outcome = read_files("parquet", tmp_path)
        assert (outcome.bad, len(outcome.good)) == ({}, rows)
    assert columns_after_all([], table.schema) == table.schema


def test_every_type_except_views_is_preserved(tmp_path: Path) -> None:
    table = pa.table(
        {
            "view": pa.array([["ü"], None], pa.list_(pa.string_view())),
            "bool": [True, None],
            "uint8": pa.array([255, None], pa.uint8()),
            "float": [float("nan"), None],
            "text": ["ü", None],
            "binary": [b"\xff", None],
            "date": [dt.date(2020, 1, 2), None],
            "time": pa.array(
                [dt.datetime(2020, 1, 2, 3, 4, 5, 6, dt.UTC), None], pa.timestamp("us", "UTC")
            ),
            "decimal": pa.array([1, None], pa.decimal128(10, 2)),
            "struct": [{"a": 1, "b": ["x"]}, None],
            "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
            "category": pa.array(["a", None]).dictionary_encode(),
            "empty": pa.nulls(2),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    outcome = read_files("parquet", tmp_path)
    assert str(outcome.good) == str(table.to_pylist())  # as text, because nan is not equal to nan
    stored = pq.read_schema(tmp_path / "a.parquet")
    assert outcome.schema.equals(stored.set(0, pa.field("view", pa.list_(pa.string()))))


def test_large_file_is_read_in_chunks(tmp_path: Path) -> None:
    rows = 2 * CHUNK_ROWS + 10
    pq.write_table(pa.table({"a": np.arange(rows)}), tmp_path / "a.parquet")
    outcome = read_files("parquet", tmp_path)
    assert [table.num_rows for table in outcome.tables] == [CHUNK_ROWS, CHUNK_ROWS, 10]
    assert [row for _, row in outcome.order] == [row["a"] for row in outcome.good]


def test_files_with_other_columns_have_null_in_those_they_lack(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"b": ["y"], "c": [2.5]}), tmp_path / "b.parquet")
    first, second = {"a": 1, "b": "x", "c": None}, {"a": None, "b": "y", "c": 2.5}
    assert read_files("parquet", tmp_path).good == [first, second]


def test_selected_column_may_be_in_any_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": [2], "b": [3], "c": [4]}), tmp_path / "2.parquet")
    rows = read_files("parquet", tmp_path, columns=["a", "b"]).good
    assert rows == [{"a": 1, "b": None}, {"a": 2, "b": 3}]
    with pytest.raises(BadInput, match=r"read\.options\.columns: .*'d', only a, b, c"):
        read_files("parquet", tmp_path, columns=["a", "d"])


def test_types_of_a_file_without_rows_do_not_matter(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": ["x"]}), tmp_path / "2.parquet")
    outcome = read_files("parquet", tmp_path)
    assert (outcome.good, outcome.bad) == ([{"a": "x"}], {})
    assert open_input("parquet", tmp_path / "1.parquet").read().bad == {}


def test_damaged_file_is_one_failed_row(digits: Path, tmp_path: Path) -> None:
    half = digits.read_bytes()[: digits.stat().st_size // 2]
    for number, content in enumerate((b"", b"no parquet", b"PAR1 but no more", half)):
        (tmp_path / f"{number}.parquet").write_bytes(content)
    pq.write_table(pa.table({"label": [1, 2]}), tmp_path / "9.parquet")
    outcome = read_files("parquet", tmp_path, columns=["label"])
    assert outcome.good == [{"label": 1}, {"label": 2}]
    assert set(outcome.bad) == {(number, 0) for number in range(4)}
    assert all("ArrowInvalid" in error for error in outcome.bad.values())
    assert outcome.ends == {0: 1, 1: 1, 2: 1, 3: 1, 4: 2}


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(parts=st.integers(1, 40), sizes=st.lists(st.integers(0, 30), min_size=1, max_size=5),
       group=st.integers(1, 12))  # fmt: skip
def test_parts_are_row_groups_and_hold_every_row_once(
    tmp_path: Path, parts: int, sizes: list[int], group: int
) -> None:
    for file in tmp_path.iterdir():
        file.unlink()
    for number, size in enumerate(sizes):
        table = pa.table({"a": pa.array(range(size), pa.int64())})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=group)
    opened = open_input("parquet", tmp_path)
    cut = cut_up(opened, parts)
    assert all(part.start % group == 0 for part in cut)
    outcome = Outcome(list(opened.file_rows.read(cut)))
    assert outcome.order == [(file, row) for file, size in enumerate(sizes) for row in range(size)]
    assert [row["a"] for row in outcome.good] == [row for _, row in outcome.order]
    assert outcome.ends == dict(enumerate(sizes))


def test_any_range_of_rows_can_be_read(digits: Path) -> None:
    opened = open_input("parquet", digits)
    (file,) = opened.snapshot.files()
    part = Outcome(list(opened.file_rows.read([replace(file, start=499, stop=1203)])))
    assert part.order == [(0, row) for row in range(499, 1203)]
    assert part.good == pq.read_table(digits).slice(499, 704).to_pylist()


def test_reserved_column_names_are_rejected(tmp_path: Path, messages: Messages) -> None:
    for name in ("_bi_id", "_bi_anything"):
        pq.write_table(pa.table({name: ["x"]}), tmp_path / "a.parquet")
        with messages.raises(BadInput):
            read_files("parquet", tmp_path)


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
    assert outcome.order == [(0, 2)]
    assert all("'t'" in text and "int96: ns" in text for text in outcome.bad.values())
    years = in_every_shape(pa.array(YEARS, pa.timestamp("us")))[shape]
    long = write(tmp_path / "long.parquet", {"t": years}, **INT96)
    outcome = read_files("parquet", long, int96="ns")
    assert outcome.order == [(0, 2)]
    assert all("'t'" in text and "int96: us" in text for text in outcome.bad.values())


def test_int96_is_checked_in_every_chunk(tmp_path: Path) -> None:
    """The wrong value is in the second chunk of the second row group."""
    rows, wrong = 4 * CHUNK_ROWS, 3 * CHUNK_ROWS + 1
    values = [n * 1000 + (n == wrong) for n in range(rows)]
    columns = {"id": range(rows), "t": pa.array(values, pa.timestamp("ns"))}
    path = write(tmp_path / "a.parquet", columns, row_group_size=2 * CHUNK_ROWS, **INT96)
    outcome = read_files("parquet", path, columns=["t"])
    assert set(outcome.bad) == {(0, wrong)}
    assert len(outcome.good) == rows - 1


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
        ((item, message),) = outcome.bad.items()
        assert item == (0, 1)
        assert "column 'v'" in message


def test_declared_type_is_that_of_all_files(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"id": [7], "when": ["2024-02-29"], "n": [1.0]})
    ids = pa.array([bytes(16)], pa.uuid())
    write(tmp_path / "b.parquet", {"id": ids, "when": [date(2024, 3, 1)], "n": [2]})
    with pytest.raises(BadInput, match=r"read\.options\.types"):
        open_input("parquet", tmp_path)
    types = {"id": "string", "when": "date", "n": "int64"}
    assert read_files("parquet", tmp_path, types=types).good == [
        {"id": "7", "when": date(2024, 2, 29), "n": 1},
        {"id": str(ids[0]), "when": date(2024, 3, 1), "n": 2},
    ]


def test_value_that_is_not_of_its_declared_type_is_a_failed_row(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"v": ["1", "x", "3"]})
    outcome = read_files("parquet", tmp_path, types={"v": "int64"})
    assert [row["v"] for row in outcome.good] == [1, 3]
    ((item, message),) = outcome.bad.items()
    assert item == (0, 1)
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
    assert (outcome.order, set(outcome.bad)) == ([(0, 1)], {(0, 0), (0, 2)})


def test_declared_type_neither_adds_nor_drops_a_time_zone(tmp_path: Path) -> None:
    mixed_zones(tmp_path)
    for declared in ("timestamp", "timestamp<UTC>"):
        with pytest.raises(BadInput, match="zone"):
            open_input("parquet", tmp_path, types={"t": declared})
    outcome = read_files(
        "parquet", tmp_path, types={"t": "timestamp<Asia/Tokyo>"}, assumeTimezone="UTC"
    )
    assert [row["t"].hour for row in outcome.good] == [19, 19]
