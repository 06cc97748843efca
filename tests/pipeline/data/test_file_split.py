"""Division of an output into files: rows, columns and partitions."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as pads
import pytest

from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.output.file_split import FileSplit
from batchinference.pipeline.output.writers.parquet import ParquetWriter
from batchinference.pipeline.storage.partitions import NULL_DIRECTORY
from plugins.messages import Messages
from support.documents.refusals import short

TABLE = pa.table(
    {"n": range(7), "kind": ["b", "a", "b", None, "a b/c", "b", "a"], "flag": [True] * 7}
)


def test_rows_are_divided_into_files_and_hive_directories() -> None:
    for cut, expected in (
        (FileSplit(), [("", list(range(7)))]),
        (FileSplit(rows_per_file=3), [("", [0, 1, 2]), ("", [3, 4, 5]), ("", [6])]),
        (FileSplit(("n",), ("flag",), 5), [("flag=true", [0, 1, 2, 3, 4]), ("flag=true", [5, 6])]),
        (
            FileSplit(partition_by=("kind",)),
            [
                *(("kind=b", [0, 2, 5]), ("kind=a", [1, 6])),
                *(("kind=__HIVE_DEFAULT_PARTITION__", [3]), ("kind=a b%2Fc", [4])),
            ],
        ),
    ):
        found = [(folder, part.column("n").to_pylist()) for folder, part in cut.split(TABLE)]
        assert found == expected, cut


def test_columns_are_written_in_the_given_order() -> None:
    for columns, partition_by in ((("kind", "n"), ()), (("n",), ("flag",))):
        ((_, part),) = FileSplit(columns, partition_by).split(TABLE)
        assert part.column_names == [*columns]


def test_part_of_a_column_names_directories() -> None:
    labels = pa.array([{"label": "a"}, None, {"label": "b"}, {"label": "a"}])
    table = pa.table({"o": labels, "n": range(4)})
    files = list(FileSplit(partition_by=("o.label",)).split(table))
    assert {folder: part["n"].to_pylist() for folder, part in files} == {
        "o.label=a": [0, 3],
        f"o.label={NULL_DIRECTORY}": [1],
        "o.label=b": [2],
    }
    assert {tuple(part.column_names) for _, part in files} == {("o", "n")}
    literal = pa.table({"o": labels, "o.label": ["x"] * 4})
    assert [folder for folder, _ in FileSplit(partition_by=("o.label",)).split(literal)] == [
        "o.label=x"
    ]


def test_pyarrow_reads_the_partitions(tmp_path: Any) -> None:
    for number, (directory, part) in enumerate(
        FileSplit(partition_by=("kind", "flag")).split(TABLE)
    ):
        (tmp_path / directory).mkdir(parents=True, exist_ok=True)
        ((ending, content),) = ParquetWriter("snappy").files(part)
        (tmp_path / directory / f"{number}{ending}").write_bytes(content)
    read = pads.dataset(tmp_path, partitioning="hive").to_table().sort_by("n")
    assert read.column("n").to_pylist() == list(range(7))
    assert read.column("kind").to_pylist() == TABLE.column("kind").to_pylist()


@pytest.mark.parametrize(
    "cut",
    [
        FileSplit(("m",), fields={"m": "columns"}),
        FileSplit(partition_by=("m",), fields={"m": "partitionBy"}),
        FileSplit(partition_by=("lists",)),
    ],
    ids=short,
)
def test_unusable_columns_are_named(cut: FileSplit, messages: Messages) -> None:
    table = TABLE if cut.partition_by != ("lists",) else TABLE.append_column("lists", [[[1]] * 7])
    with messages.raises(JobFailure):
        list(cut.split(table))


def test_long_values_are_shortened_to_directories_that_differ() -> None:
    values = ["x" * 200, "x" * 201, "x" * 5000, "x" * 5000 + "y", "ü" * 300, "%" * 300]
    table = pa.table({"n": range(len(values)), "kind": values})
    folders = [folder for folder, _ in FileSplit(partition_by=("kind",)).split(table)]
    assert folders[0] == f"kind={'x' * 200}"
    assert len({*folders}) == len(values)
    assert max(map(len, folders)) <= 255
    assert all(unquote(folder).isprintable() and "%~" not in folder for folder in folders)
    assert folders == [folder for folder, _ in FileSplit(partition_by=("kind",)).split(table)]


def test_column_with_too_long_a_name_cannot_be_a_directory(messages: Messages) -> None:
    name = "ü" * 128
    with messages.raises(JobFailure):
        list(FileSplit(partition_by=(name,)).split(pa.table({"n": [1], name: ["a"]})))
