"""Parquet: the rows and types that pyarrow gives."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from batchinference.pipeline.failures import BadInput
from batchinference.pipeline.readers.base import CHUNK_ROWS
from support.reading import Outcome, cut_up, open_input, read_files


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All digits: 64 pixels in a list, the label, and the label as a word."""
    data = load_digits()
    table = pa.table(
        {
            "pixels": pa.array(data.data.tolist(), pa.list_(pa.float32())),
            "label": pa.array(data.target, pa.int8()),
            "word": [f"digit {label}" for label in data.target],
        }
    )
    path = tmp_path_factory.mktemp("digits") / "digits.parquet"
    pq.write_table(table, path, row_group_size=500)
    return path


def test_rows_and_types_are_those_of_pyarrow(digits: Path) -> None:
    expected = pq.read_table(digits)
    outcome = read_files("parquet", digits)
    assert outcome.good == expected.to_pylist()
    assert outcome.schema.equals(expected.schema)
    assert outcome.places == [(0, number) for number in range(len(expected))]
    assert outcome.ends == {0: len(expected)}


def test_chosen_columns_alone_are_read(digits: Path) -> None:
    outcome = read_files("parquet", digits, columns=["word", "label"])
    assert outcome.good == pq.read_table(digits, columns=["word", "label"]).to_pylist()


def test_a_column_that_is_not_there_is_refused_before_reading(digits: Path) -> None:
    with pytest.raises(BadInput, match=r"no column 'labels', only pixels, label, word"):
        open_input("parquet", digits, columns=["labels"])


def test_every_type_comes_through(tmp_path: Path) -> None:
    table = pa.table(
        {
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
    assert outcome.schema.equals(pq.read_schema(tmp_path / "a.parquet"))


def test_a_file_without_rows_has_an_end_alone(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "b.parquet")
    outcome = read_files("parquet", tmp_path)
    assert outcome.places == [(1, 0)]
    assert outcome.ends == {0: 0, 1: 1}


def test_a_large_file_comes_in_several_tables(tmp_path: Path) -> None:
    rows = 2 * CHUNK_ROWS + 10
    pq.write_table(pa.table({"a": np.arange(rows)}), tmp_path / "a.parquet")
    outcome = read_files("parquet", tmp_path)
    assert [table.num_rows for table in outcome.tables] == [CHUNK_ROWS, CHUNK_ROWS, 10, 1]
    assert [row for _, row in outcome.places] == [row["a"] for row in outcome.good]


def test_files_with_other_columns_have_null_in_those_they_lack(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"b": ["y"], "c": [2.5]}), tmp_path / "b.parquet")
    first, second = {"a": 1, "b": "x", "c": None}, {"a": None, "b": "y", "c": 2.5}
    assert read_files("parquet", tmp_path).good == [first, second]


def test_the_wider_of_two_types_holds_where_files_come_together(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([1], pa.int32())}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"a": [1.5]}), tmp_path / "b.parquet")
    assert read_files("parquet", tmp_path).good == [{"a": 1.0}, {"a": 1.5}]


@pytest.mark.parametrize(
    "content", [b"", b"no parquet", b"PAR1 but no more"], ids=["empty", "other", "cut off"]
)
def test_a_file_that_is_no_parquet_is_one_bad_row(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.parquet").write_bytes(content)
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "b.parquet")
    outcome = read_files("parquet", tmp_path, columns=["a"])
    assert outcome.good == [{"a": 1}, {"a": 2}]
    assert set(outcome.bad) == {(0, 0)}
    assert "ArrowInvalid" in outcome.bad[0, 0]
    assert outcome.ends == {0: 1, 1: 2}


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(parts=st.integers(1, 40), sizes=st.lists(st.integers(0, 30), min_size=1, max_size=5),
       group=st.integers(1, 12))  # fmt: skip
def test_parts_of_files_are_row_groups_and_hold_every_row_once(
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
    assert outcome.places == [(file, row) for file, size in enumerate(sizes) for row in range(size)]
    assert [row["a"] for row in outcome.good] == [row for _, row in outcome.places]
    assert outcome.ends == dict(enumerate(sizes))


def test_reading_begins_at_any_row_and_stops_at_any(digits: Path) -> None:
    opened = open_input("parquet", digits)
    (file,) = opened.frozen.files()
    part = Outcome(list(opened.file_rows.read([replace(file, start=499, stop=1203)])))
    assert part.places == [(0, row) for row in range(499, 1203)]
    assert part.good == pq.read_table(digits).slice(499, 704).to_pylist()


def test_a_truncated_file_is_one_bad_row(digits: Path, tmp_path: Path) -> None:
    content = digits.read_bytes()
    (tmp_path / "a.parquet").write_bytes(content[: len(content) // 2])
    assert set(read_files("parquet", tmp_path).bad) == {(0, 0)}


def test_rows_are_counted_without_reading_them(digits: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_text("nothing")
    reader = open_input("parquet", digits).file_rows.reader
    opened = open_input("parquet", digits, tmp_path)
    counts = [
        reader.rows_in(opened.frozen.address(file), file.size) for file in opened.frozen.files()
    ]
    assert sorted(counts, key=str) == [1, 1797]


def test_paths_are_added_where_asked_for(digits: Path) -> None:
    outcome = read_files("parquet", digits, include_paths=True)
    assert {row["path"] for row in outcome.good} == {str(digits)}


def test_a_column_named_path_is_in_the_way_of_paths(tmp_path: Path) -> None:
    pq.write_table(pa.table({"path": ["x"]}), tmp_path / "a.parquet")
    assert read_files("parquet", tmp_path).good == [{"path": "x"}]
    with pytest.raises(BadInput, match=r"a\.parquet has a column 'path' of its own"):
        read_files("parquet", tmp_path, include_paths=True)


@pytest.mark.parametrize("name", ["_bi_id", "_bi_anything"])
def test_columns_with_reserved_names_are_refused(tmp_path: Path, name: str) -> None:
    pq.write_table(pa.table({name: ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(BadInput, match=f"column '{name}': names that begin with _bi_ are reserved"):
        read_files("parquet", tmp_path)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(BadInput, match="has two columns 'a'"):
        read_files("parquet", tmp_path)
