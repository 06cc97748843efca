"""Options of all file formats: limit, order, partitioning and missing paths."""

from __future__ import annotations

import io
import json
from datetime import date
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input import RowCount
from batchinference.pipeline.input.file_input import FileInput
from batchinference.pipeline.input.file_rows import FileRows
from batchinference.pipeline.input.planning import sizing_of
from plugins.messages import Messages
from support.documents.parsed import job
from support.documents.refusals import short
from support.inputs.read_files import Outcome, open_input
from support.tiers import examples

SIZES = [3, 0, 5, 1, 4]
"""Rows per file, in the order of file names."""


def write(directory: Path, format_: str, sizes: list[int] = SIZES) -> Path:
    """Write files whose rows hold `FILE:ROW`."""
    directory.mkdir(exist_ok=True)
    for file, size in enumerate(sizes):
        values = [f"{file}:{row}" for row in range(size)]
        path = directory / f"{file:03}.{format_}"
        match format_:
            case "parquet":
                pq.write_table(pa.table({"text": pa.array(values, pa.string())}), path)
            case "jsonl":
                path.write_text("".join(json.dumps({"text": value}) + "\n" for value in values))
            case "txt":
                path.write_text("".join(value + "\n" for value in values))
    return directory


HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
FORMATS = {"parquet": "parquet", "jsonl": "json", "txt": "text"}
"""Formats by file extension. Only Parquet files store their number of rows."""


def read_all(given: FileInput, tasks: int = 3) -> Outcome:
    return Outcome([batch for task in given.read_tasks(tasks) for batch in task()])


def texts(outcome: Outcome) -> list[str]:
    return [row["text"] for row in outcome.good]


def test_limit_of_files_that_are_one_row_each_reads_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        (tmp_path / f"{number}.bin").write_bytes(b"x")
    monkeypatch.setattr(FileRows, "chunks", Mock(side_effect=AssertionError("a file is read")))
    assert len(open_input("binary", tmp_path, limit=3).given) == 3


@settings(max_examples=examples(60), deadline=None)
@given(
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    limit=st.integers(1, 20),
    tasks=st.integers(1, 8),
    seed=st.none() | st.integers(0, 2**31 - 1),
    ending=st.sampled_from(list(FORMATS)),
)
def test_row_ids_are_kept_for_every_limit_and_order(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    limit: int,
    tasks: int,
    seed: int | None,
    ending: str,
) -> None:
    directory = write(tmp_path_factory.mktemp("in"), ending, sizes)
    shuffled = {} if seed is None else {"shuffle": "files", "shuffleSeed": seed}
    limited = open_input(FORMATS[ending], directory, limit=limit, **shuffled).given
    full = texts(open_input(FORMATS[ending], directory).read())
    outcome = read_all(limited, tasks)
    by_place = dict(zip(outcome.order, texts(outcome), strict=True))
    assert all(text == f"{file}:{row}" for (file, row), text in by_place.items())
    assert sorted(by_place.values()) == sorted(full[:limit])
    assert set(outcome.ends) == set(range(len(limited)))
    assert sum(outcome.ends.values()) == min(limit, len(full))
    assert limited.count() == RowCount(min(limit, len(full)), estimated=False)


def test_limit_counts_failed_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\nno json\n{"text": "two"}\n')
    outcome = read_all(open_input("json", tmp_path, limit=2).given)
    assert texts(outcome) == ["one"]
    assert list(outcome.bad) == [(0, 1)]


def test_limit_reduces_files_and_size(tmp_path: Path) -> None:
    opened = open_input("parquet", write(tmp_path / "in", "parquet"), limit=6)
    table = pq.read_table(io.BytesIO(opened.given.serialized()))
    assert table.column("rows").to_pylist() == [3, 0, 3]
    write(tmp_path / "large", "parquet", [1000])
    size = open_input("parquet", tmp_path / "large").given.size
    assert open_input("parquet", tmp_path / "large", limit=100).given.size == round(size / 10)


def order(directory: Path, **options: Any) -> list[int]:
    """Return the file numbers in the order in which the files are read."""
    given = open_input("text", directory, **options).given
    return list(dict.fromkeys(file for file, _ in read_all(given, tasks=1).order))


def test_shuffle_seed_decides_the_order_of_files(tmp_path: Path) -> None:
    directory = write(tmp_path / "in", "txt", [1] * 50)
    first = order(directory, shuffle="files", shuffleSeed=1)
    assert first == order(directory, shuffle="files", shuffleSeed=1)
    assert first != order(directory, shuffle="files", shuffleSeed=2)
    assert sorted(first) == list(range(50)) == order(directory)
    unseeded = [tuple(order(directory, shuffle="files")) for _ in range(3)]
    assert len(set(unseeded)) == 3


def test_override_num_blocks_sets_the_tasks(tmp_path: Path) -> None:
    write(tmp_path / "in", "txt", [9] * 5)
    for blocks, tasks in [(1, 1), (2, 2), (5, 5), (40, 25)]:  # parts of up to two rows
        given_ = open_input("text", tmp_path / "in", overrideNumBlocks=blocks).given
        options = {"overrideNumBlocks": blocks}
        read = job(read={"format": "text", "paths": ["in"], "options": options}).spec.read
        sizing = sizing_of(given_, read, given_.count(), merged=True)
        assert sizing.blocks == blocks
        assert len(given_.read_tasks(sizing.read_tasks)) == tasks


def partitioned(directory: Path, **parts: list[str]) -> Path:
    """Write a Parquet file of two rows for each combination of two partition values."""
    (one, firsts), (two, seconds) = parts.items()
    for first in firsts:
        for second in seconds:
            path = directory / f"{one}={first}" / f"{two}={second}" / "data.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table({"id": [1, 2]}), path)
    return directory


def test_path_of_the_job_may_have_partition_keys(tmp_path: Path) -> None:
    (tmp_path / "lang=de").mkdir()
    (tmp_path / "lang=de" / "a.txt").write_text("eins\n")
    texts_ = open_input("text", tmp_path / "lang=de", partitioning="hive").given
    assert read_all(texts_).good == [{"text": "eins", "lang": "de"}]


def test_partition_values_are_decoded_text_or_null(tmp_path: Path) -> None:
    parts = ["a%20b%2Fc", "1", "__HIVE_DEFAULT_PARTITION__", "x=y", "caf%E9", "caf%E8"]
    directory = partitioned(tmp_path / "in", kind=parts, n=["007"])
    given = open_input("parquet", directory, partitioning="hive", includePaths=True).given
    outcome = read_all(given)
    assert {row["kind"] for row in outcome.good} == {
        *("a b/c", "1", None, "x=y"),
        *("caf%E9", "caf%E8"),  # Latin-1 is no UTF-8
    }
    assert {row["n"] for row in outcome.good} == {"007"}
    assert {row["path"] for row in outcome.good} == set(map(str, directory.rglob("*.parquet")))
    assert given.columns() == ["id", "kind", "n", "path"]
    assert outcome.schema.field("kind").type == pa.string()


@pytest.mark.parametrize(
    "files",
    [
        ["a.parquet"],
        ["kind=a/a.parquet", "z.parquet"],
        ["kind=a/a.parquet", "sort=b/b.parquet"],
        ["kind=a/kind=b/a.parquet"],
        ["path=7/a.parquet"],
    ],
    ids=short,
)
def test_unusable_partitions_are_rejected(
    tmp_path: Path, files: list[str], messages: Messages
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": [1]}), tmp_path / name)
    with messages.raises(BadInput):
        open_input("parquet", tmp_path, partitioning="hive", includePaths=True)


def test_column_of_a_partition_key_equals_the_path_or_fails_its_row(tmp_path: Path) -> None:
    for year, own in {"2024": [2024, 2025, 2024], HIVE_NULL: [None, 1, None]}.items():
        (tmp_path / f"year={year}").mkdir()
        table = pa.table({"id": [0, 1, 2], "year": pa.array(own, pa.int16())})
        pq.write_table(table, tmp_path / f"year={year}" / "a.parquet")
    given = open_input("parquet", tmp_path, partitioning="hive").given
    outcome = read_all(given)
    assert [(row["id"], row["year"]) for row in outcome.good] == [
        *((0, 2024), (2, 2024)),
        *((0, None), (2, None)),
    ]
    assert given.columns() == ["id", "year"]
    assert outcome.order == [(0, 0), (0, 2), (1, 0), (1, 2)]
    assert all("column 'year'" in message for message in outcome.bad.values())


TYPES: dict[str, tuple[list[str], list[Any], str]] = {
    "integers": (["2024", "-7", "0"], [2024, -7, 0], "int64"),
    "dates": (["2024-02-29", "2025-01-01"], [date(2024, 2, 29), date(2025, 1, 1)], "date32[day]"),
    "leading zeros": (["7", "07"], ["7", "07"], "string"),
    "too large": (["1", "9" * 19], ["1", "9" * 19], "string"),
    "no date": (["2024-02-30"], ["2024-02-30"], "string"),
    "integers and texts": (["1", "x"], ["1", "x"], "string"),
    "with null": (["5", HIVE_NULL], [5, None], "int64"),
    "only null": ([HIVE_NULL], [None], "string"),
    "negative zero": (["-0"], ["-0"], "string"),
}


@pytest.mark.parametrize("case", TYPES)
def test_types_of_partition_values_are_inferred_from_all_of_them(case: str, tmp_path: Path) -> None:
    texts_, values, kind = TYPES[case]
    partitioned(tmp_path, n=texts_, other=["x"])
    outcome = read_all(open_input("parquet", tmp_path, partitioning="hive", sampled=1).given)
    assert {row["n"] for row in outcome.good} == set(values)
    assert {str(table.schema.field("n").type) for table in outcome.tables} == {kind}


def test_declared_types_of_partition_values_are_used_or_refused(
    tmp_path: Path, messages: Messages
) -> None:
    partitioned(tmp_path, n=["007", "8"], other=["x"])
    for declared, values in {"int64": {7, 8}, "string": {"007", "8"}}.items():
        outcome = read_all(open_input(
            "parquet", tmp_path, partitioning="hive", types={"n": declared}).given)  # fmt: skip
        assert {row["n"] for row in outcome.good} == values
    with pytest.raises(BadInput, match=r"types\.other: 'x' in .* is not int64"):
        open_input("parquet", tmp_path, partitioning="hive", types={"other": "int64"})
    (tmp_path / "n=1.txt").mkdir()
    (tmp_path / "n=1.txt" / "a.txt").write_text("x")
    with messages.raises(BadInput):
        open_input("text", tmp_path / "n=1.txt", partitioning="hive", types={"m": "int64"})


def test_ignore_missing_paths_skips_missing_paths(tmp_path: Path, messages: Messages) -> None:
    write(tmp_path / "in", "txt", [2])
    paths = (tmp_path / "in", tmp_path / "none", tmp_path / "no*" / "*.txt")
    with pytest.raises(BadInput, match=r"read.paths\[1\]: '.*/none' does not exist"):
        open_input("text", *paths)
    assert texts(open_input("text", *paths, ignoreMissingPaths=True).read()) == ["0:0", "0:1"]
    with messages.raises(BadInput):
        open_input("text", tmp_path / "none", ignoreMissingPaths=True)
