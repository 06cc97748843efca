"""Parquet files whose few bytes stand for many: memory is bounded, and other rows are read."""

from __future__ import annotations

import base64
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.readers import parquet
from batchinference.pipeline.readers.memory_limit import decoded, limited
from support.fuzzing.fuzzer import Worker
from support.inputs.read_files import open_input, read_files

MIB = 1 << 20
ONE_PAGE = zlib.decompress(base64.b64decode(
    "eNrtzLFKW2EUB/CTj3AJkqHLd/HCHbIYHNQ2gkLBIW51C7q4BgnUwSZNWl2/B3Ds2Nfo7uTziLvorfQt+uPwO3D+"
    "nHNmp+eTHPlXKWWQH0p/L6durHLVRsTun48v5ctWxPR3xGXqktTr2jR68fz6+Sml+BAAAAAAAAAAAAAAAAAAAAAA"
    "AAAAAAAAAAAAAAAAAAAA8D+7iIjcb/aOYrvaXH1d3MxzijzcSdu9edSpaZt2HG0eNjtVNF2Wh3WqH0spg/q59MeD"
    "szZHVylO6vI3bapm3D2O+LeUxu+LsTtazdfffy5+7F+tVvvz9Xp5N7pdrDfXy2+jw+ODTweTpm27s/vO7PR88gb8"
    "q2xA"
))  # fmt: skip
"""A value of 1 GiB of zeros in a page of zstd, without a dictionary."""
ONE_LIST = base64.b64decode(
    "UEFSMRUEFQAVEkwVABUAEgAAKLUv/SAAAQAAFQAVLhVALBWAjI2eAhUQFQYVBhwAAAAotS/9IBe5AAAIAAAAA/7wi42e"
    "AgEGAAAAgIyNngICABUEGUw1ABgGc2NoZW1hFQIANQIYAWEVAhUGTDwAAAA1BBgEbGlzdBUCABUCJQIYB2VsZW1lbnQl"
    "HkysEwgRAAAAFgIZHBkcJgAcFQIZNQAGEBk4AWEEbGlzdAdlbGVtZW50FQwWgIyNngIWeBacASY2JggpLBUEFQAVAgAV"
    "ABUQFQIAPCkmAv6LjZ4CGUYAAICMjZ4CAAAAABZ4FgImCBacAQAoIHBhcnF1ZXQtY3BwLWFycm93IHZlcnNpb24gMjYu"
    "MC4xGRwcAAAAywAAAFBBUjE="
)
"""A list of 300 million nulls: levels that are all the same are one run."""
TOO_MUCH = "max_row_bytes: decoding takes more memory than 3 times as many bytes"

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel has no such limit")


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.stop()


def one_large_value(path: Path, rows: int, size: int) -> None:
    """Write a dictionary with one value, which all rows have."""
    values = pa.array([bytes(size)])
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), values)
    pq.write_table(pa.table({"a": column}), path, compression="zstd", store_schema=False,
                   write_statistics=False, dictionary_pagesize_limit=1 << 30)  # fmt: skip
    assert path.stat().st_size < 10_000


@linux
@pytest.mark.timeout(300)
@pytest.mark.parametrize("content", [ONE_PAGE, ONE_LIST], ids=["page", "levels"])
def test_row_that_unpacks_to_too_much_is_bad(
    content: bytes, worker: Worker, tmp_path: Path
) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    ((place, message),) = read_files("parquet", path).bad.items()
    assert (place, TOO_MUCH in message) == ((0, 0), True), message
    request = {"format_": "parquet", "path": str(path), "options": {}}
    assert worker.problem(request, most=5 << 28) is None


@linux
@pytest.mark.timeout(300)
def test_rows_with_one_large_value_are_read_a_few_at_a_time(worker: Worker, tmp_path: Path) -> None:
    one_large_value(tmp_path / "a.parquet", rows=60, size=48 * MIB)
    request = {"format_": "parquet", "path": str(tmp_path / "a.parquet"), "options": {}}
    assert worker.problem(request) is None
    opened = open_input("parquet", tmp_path)
    tables = opened.file_rows.read(opened.frozen.files())
    assert sum(table.num_rows for table in tables if "a" in table.column_names) == 60


@linux
def test_rows_are_decoded_again_from_the_first_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tight(tables: Iterator[pa.Table], most: int) -> Iterator[pa.Table]:
        for table in tables:
            if table.num_rows > 10 and 100 in table["a"].to_pylist():
                raise MemoryError
            yield table

    monkeypatch.setattr(parquet, "decoded", tight)
    monkeypatch.setattr(parquet, "CHUNK_ROWS", 40)
    pq.write_table(pa.table({"a": range(200)}), tmp_path / "a.parquet", row_group_size=150)
    outcome = read_files("parquet", tmp_path)
    assert [row["a"] for row in outcome.good] == list(range(200))
    assert outcome.bad == {}


def test_rows_beside_one_that_is_too_large_are_read(tmp_path: Path) -> None:
    values = [bytes(size) for size in (10, 5000, 10, 10, 9000)]
    pq.write_table(pa.table({"a": values}), tmp_path / "a.parquet")
    outcome = read_files("parquet", tmp_path, max_row_bytes=1024)
    assert [len(row["a"]) for row in outcome.good] == [10, 10, 10]
    assert set(outcome.bad) == {(0, 1), (0, 4)}
    assert "bytes, more than max_row_bytes (1024)" in outcome.bad[0, 1]
    assert len(read_files("parquet", tmp_path).good) == 5


@linux
def test_memory_is_limited_only_while_decoding() -> None:
    with limited(64 * MIB):
        assert len(bytes(8 * MIB)) == 8 * MIB
        with pytest.raises(MemoryError):
            bytes(256 * MIB)
    assert len(bytes(256 * MIB)) == 256 * MIB


@linux
def test_what_a_decoder_keeps_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []

    def tables() -> Iterator[pa.Table]:
        for _ in range(3):
            kept.append(pa.allocate_buffer(10 * MIB))
            yield pa.table({"a": [1]})

    allowed = []
    monkeypatch.setattr("batchinference.pipeline.readers.memory_limit.limited", lambda more: (
        allowed.append(more) or limited(more)))  # fmt: skip
    assert len(list(decoded(tables(), 100 * MIB))) == 3
    assert [round(more / MIB) for more in allowed] == [100, 90, 80, 70]
