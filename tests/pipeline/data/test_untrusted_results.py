"""Data of others that reaches a job through a step, an output or what a step prints."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.errors import BadOutput, JobFailure
from batchinference.pipeline.execution.worker_output import WorkerOutput
from batchinference.pipeline.output.output_rows import all_rows, first_rows
from batchinference.pipeline.ray_data_compat import ArrowPythonObjectType
from batchinference.pipeline.steps.user_code import columns_of
from batchinference.spec.write import WriteParquet
from plugins.messages import Messages
from support.documents.parsed_write import write_of

PICKLES = ArrowPythonObjectType().wrap_array(pa.array([b"pickle"], pa.large_binary()))
NAMED = {b"ARROW:extension:name": b"ray.data.arrow_pickled_object"}
UNREGISTERED = pa.schema([pa.field("a", pa.large_binary(), metadata=NAMED)])


@pytest.mark.parametrize(
    "result",
    [
        pa.table({"a": PICKLES}),
        {"a": PICKLES},
        {"a": pa.chunked_array([PICKLES])},
        {"a": pa.array([[1]]), "b": pa.StructArray.from_arrays([PICKLES], ["c"])},
        pa.table([pa.array([b"pickle"], pa.large_binary())], schema=UNREGISTERED),
    ],
    ids=["table", "array", "chunked", "nested", "unregistered"],
)
def test_step_cannot_return_pickles(result: object, messages: Messages) -> None:
    with messages.raises(JobFailure):
        columns_of("join", result)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Return an output with one row, and with links to a file and a directory of its reader."""
    private, output = tmp_path / "private", tmp_path / "out"
    for directory, value in ((private, 1), (output, 0)):
        directory.mkdir()
        pq.write_table(pa.table({"a": [value]}), directory / f"part-{value}.parquet")
    (output / "linked.parquet").symlink_to(private / "part-1.parquet")
    (output / "day=1").symlink_to(private)
    return output


def test_rows_behind_links_are_not_part_of_an_output(output: Path) -> None:
    write = WriteParquet(format="parquet", path=str(output))
    assert all_rows(write).column("a").to_pylist() == [0]
    assert [row["a"] for row in first_rows(write, 9)] == [0]


DAMAGED_FILES = [
    *(("parquet", "a.parquet"), ("json", "a.jsonl"), ("json", "a.jsonl.gz")),
    *(("csv", "a.csv.gz"), ("webdataset", "a.tar")),
]


def test_damaged_file_of_an_output_is_named(tmp_path: Path) -> None:
    for format_, name in DAMAGED_FILES:
        (tmp_path / name).write_bytes(b'{"a": 1}\n{"a": 2, "b')
        with pytest.raises(BadOutput, match=rf"/{name}' cannot be read \("):
            first_rows(write_of(format_, tmp_path), 2)
        (tmp_path / name).unlink()


def test_long_rows_and_line_ends_in_texts_of_a_csv_output_are_kept(tmp_path: Path) -> None:
    text = "a\r\n" * (1 << 20)
    (tmp_path / "a.csv").write_bytes(f'"t"\r\n"{text}"\r\n'.encode())
    assert first_rows(write_of("csv", tmp_path), 1) == [{"t": text}]


def test_columns_without_a_common_type_are_named(tmp_path: Path, messages: Messages) -> None:
    pq.write_table(pa.table({"a": pa.array([1], pa.int32())}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"a": ["x"]}), tmp_path / "b.parquet")
    with messages.raises(BadOutput):
        all_rows(WriteParquet(format="parquet", path=str(tmp_path)))
    for name, value in (("a", 2**60 + 1), ("b", 0.5)):
        pq.write_table(pa.table({"a": [value]}), tmp_path / f"{name}.parquet")
    with pytest.raises(BadOutput, match="Integer value"):
        all_rows(WriteParquet(format="parquet", path=str(tmp_path)))


@pytest.mark.timeout(60)
def test_long_line_of_digits_is_shown_in_linear_time(tmp_path: Path) -> None:
    line = "9" * 500_000
    (tmp_path / "worker-a-b-7.out").write_text(f"{line}\n 50%|#####     |\n")
    assert WorkerOutput(str(tmp_path)).new_lines() == [f"[worker 7] {line}"]
