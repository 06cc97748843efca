"""Files with damaged content: only the unreadable part counts as failed rows."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.error_classification import is_storage_error
from support.documents.minimal import document
from support.jobs.on_ray import errors_of, run_in_process
from support.outputs.rows import rows_of


def damaged_parquet(path: Path) -> None:
    """Write a file with a valid footer and a damaged page in its first row group."""
    table = pa.table({"text": [f"a line of text, number {n}" for n in range(1000)]})
    pq.write_table(table, path, compression="snappy", row_group_size=400)
    content = bytearray(path.read_bytes())
    content[200:400] = bytes(200)
    path.write_bytes(content)


def run(directory: Path, format_: str, output: Path, limit: int = 5) -> Any:
    read = {"format": format_, "paths": [str(directory)]}
    if format_ in ("text", "json", "csv"):
        read["options"] = {"fileExtensions": ["gz"]}
    write = {"format": "json", "path": str(output)}
    return run_in_process(document("damaged", read=read, write=write, errors={"maxRows": limit}))


def test_only_rows_of_a_damaged_row_group_fail(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"text": ["good"] * 3}), tmp_path / "in" / "a.parquet")
    damaged_parquet(tmp_path / "in" / "b.parquet")
    done = run(tmp_path / "in", "parquet", tmp_path / "out", limit=400)
    assert done.counts == (1003, 603, 400, 0), done.report
    bad = errors_of(tmp_path / "out")
    assert sorted(row["row"] for row in bad) == list(range(400))
    assert {row["path"] for row in bad} == {str(tmp_path / "in" / "b.parquet")}


@pytest.mark.parametrize(
    ("format_", "content"),
    [("text", "one\ntwo\n"), ("json", '{"a": 1}\n{"a": 2}\n'), ("csv", "a\n1\n2\n")],
)
@pytest.mark.parametrize("damage", [b"this is not gzip", None], ids=["no-gzip", "cut"])
def test_damaged_gz_file_is_one_bad_row(
    tmp_path: Path, format_: str, content: str, damage: bytes | None
) -> None:
    (tmp_path / "in").mkdir()
    packed = gzip.compress(content.encode())
    (tmp_path / "in" / "a.gz").write_bytes(packed)
    (tmp_path / "in" / "b.gz").write_bytes(damage or packed[: len(packed) // 2])
    done = run(tmp_path / "in", format_, tmp_path / "out")
    assert done.counts == (3, 2, 1, 0), done.report
    assert len(rows_of(tmp_path / "out")) == 2


def test_storage_errors_do_not_count_as_damage() -> None:
    assert is_storage_error(OSError(5, "Input/output error"))
    assert is_storage_error(OSError("When reading: AWS Error NETWORK_CONNECTION during GetObject"))
    assert not is_storage_error(OSError("Corrupt snappy compressed data."))
