"""Parquet: rows and types equal those of pyarrow."""

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

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.readers import CHUNK_ROWS
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


def test_rows_and_types_equal_pyarrow(digits: Path) -> None:
    expected = pq.read_table(digits)
    outcome = read_files("parquet", digits)
    assert outcome.good == expected.to_pylist()
    assert outcome.schema.equals(expected.schema)
    assert outcome.places == [(0, number) for number in range(len(expected))]
    assert outcome.ends == {0: len(expected)}


def test_every_type_is_preserved(tmp_path: Path) -> None:
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


def test_large_file_is_read_in_chunks(tmp_path: Path) -> None:
    rows = 2 * CHUNK_ROWS + 10
    pq.write_table(pa.table({"a": np.arange(rows)}), tmp_path / "a.parquet")
    outcome = read_files("parquet", tmp_path)
    assert [table.num_rows for table in outcome.tables] == [CHUNK_ROWS, CHUNK_ROWS, 10]
    assert [row for _, row in outcome.places] == [row["a"] for row in outcome.good]


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
    half = digits.read_bytes()
    half = half[: len(half) // 2]
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
    assert outcome.places == [(file, row) for file, size in enumerate(sizes) for row in range(size)]
    assert [row["a"] for row in outcome.good] == [row for _, row in outcome.places]
    assert outcome.ends == dict(enumerate(sizes))


def test_any_range_of_rows_can_be_read(digits: Path) -> None:
    opened = open_input("parquet", digits)
    (file,) = opened.snapshot.files()
    part = Outcome(list(opened.file_rows.read([replace(file, start=499, stop=1203)])))
    assert part.places == [(0, row) for row in range(499, 1203)]
    assert part.good == pq.read_table(digits).slice(499, 704).to_pylist()


def test_reserved_column_names_are_rejected(tmp_path: Path, messages: Messages) -> None:
    for name in ("_bi_id", "_bi_anything"):
        pq.write_table(pa.table({name: ["x"]}), tmp_path / "a.parquet")
        with messages.raises(BadInput):
            read_files("parquet", tmp_path)
