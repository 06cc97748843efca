"""Missing rows: a resumed pass reads exactly these rows, in order and with their ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline.errors import Incomplete
from batchinference.pipeline.input import JobInput
from batchinference.pipeline.input.readers import BadRow, Chunk, parts_in_gaps, size_of
from batchinference.pipeline.input.readers.csv import CsvReader
from batchinference.pipeline.row_batch import MissingRows, RowRange
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.url_fetcher import Fetcher
from support.calls import counted
from support.inputs.formats import CASES, Case, pictures, png
from support.inputs.read_files import Input, Outcome, Position, open_input
from support.tiers import examples

FILES, ROWS = 4, 30
SIZES = [ROWS, ROWS, 0, 7]
"""Rows per file."""


@st.composite
def gaps_of_file(draw: st.DrawFn, size: int = ROWS) -> list[RowRange]:
    """Draw sorted, disjoint row ranges that are missing from a file; the last may have no end."""
    edges = sorted(draw(st.sets(st.integers(0, size), max_size=8)))
    gaps: list[RowRange] = [
        (first, after) for first, after in zip(edges[::2], edges[1::2], strict=False)
    ]
    if draw(st.booleans()):
        gaps = [gap for gap in gaps if gap[1] is not None and gap[1] < size]
        gaps.append((draw(st.integers(gaps[-1][1] + 1 if gaps and gaps[-1][1] else 0, size)), None))
    return gaps or [(0, None)]


def rows_in(gaps: Sequence[RowRange], size: int) -> list[int]:
    """Return the row numbers in the row ranges, for a file of `size` rows."""
    each = (range(first, size if after is None else min(after, size)) for first, after in gaps)
    return [row for numbers in each for row in numbers]


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.integers(0, 9), max_size=6), gaps_of_file(), st.integers(0, 5))
def test_chunk_is_cut_to_its_gaps(sizes: list[int], gaps: list[RowRange], first: int) -> None:
    row, result = first, []
    for size in sizes:
        chunk = pa.table({"n": range(row, row + size)})
        for skipped, wanted in parts_in_gaps(chunk, row, gaps):
            assert size_of(wanted) > 0 or not size
            result += wanted.column("n").to_pylist()
            assert not size or result[-size_of(wanted)] == row + skipped
        row += size
    assert result == [number for number in rows_in(gaps, row) if number >= first]


@settings(max_examples=examples(100), deadline=None)
@given(gaps_of_file(), st.integers(1, ROWS))
def test_bad_rows_are_cut_to_their_gaps(gaps: list[RowRange], size: int) -> None:
    chunk: Chunk = BadRow(ValueError("no"), size)
    parts = [(skipped, size_of(part)) for skipped, part in parts_in_gaps(chunk, 0, gaps)]
    rows = [row for skipped, count in parts for row in range(skipped, skipped + count)]
    assert rows == rows_in(gaps, size)


def read(given_: JobInput, gaps: MissingRows | None, tasks: int = 3) -> Outcome:
    return Outcome([batch for task in given_.read_tasks(tasks, gaps) for batch in task()])


def by_position(outcome: Outcome) -> dict[Position, Any]:
    """Return the good rows by file and row number. Fail if a row was read twice."""
    assert len(outcome.order) == len(set(outcome.order)), "a row was read twice"
    plain = (
        {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in each}
        for each in map(dict.items, outcome.good)
    )
    return dict(zip(outcome.order, plain, strict=True))


LINES = {"text": ("{}", ""), "json": ('{{"v": "{}"}}', ""), "csv": ("{},1", "v,n\n")}
"""The template of a line, and the header, of each format."""


def write_files(format_: str, directory: Path) -> None:
    """Write four files, one of them empty. Some lines of JSON and CSV are invalid."""
    for number, size in enumerate(SIZES):
        values = [f"{number}:{row}" for row in range(size)]
        path = directory / f"{number}.{format_.replace('text', 'txt')}"
        if format_ == "parquet":
            pq.write_table(pa.table({"v": values}), path, row_group_size=7)
            continue
        form, header = LINES[format_]
        bad = range(0, size, 9) if format_ != "text" else ()
        lines = ("broken" if row in bad else form.format(v) for row, v in enumerate(values))
        path.write_text(header + "".join(f"{line}\n" for line in lines))


@pytest.fixture(scope="module", params=[*LINES, "parquet"])
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Input:
    directory = tmp_path_factory.mktemp(request.param)
    write_files(request.param, directory)
    return open_input(request.param, directory)


GAPS_OF_FILES = st.fixed_dictionaries(
    {}, optional={file: gaps_of_file(size) for file, size in enumerate(SIZES)}
)


@given(GAPS_OF_FILES, st.integers(1, 9))
@settings(max_examples=examples(80, landing=10), deadline=None)
def test_exactly_the_rows_in_gaps_are_read(opened: Input, gaps: MissingRows, tasks: int) -> None:
    everything = opened.read()
    expected = {(file, row) for file, each in gaps.items() for row in rows_in(each, SIZES[file])}
    content = read(opened.given, gaps, tasks)
    full = by_position(everything)
    assert by_position(content) == {path: row for path, row in full.items() if path in expected}
    assert content.bad == {path: bad for path, bad in everything.bad.items() if path in expected}
    assert all(end == SIZES[file] for file, end in content.ends.items())
    unknown_ends = {file for file, each in gaps.items() if each[-1][1] is None}
    assert unknown_ends <= content.ends.keys()
    assert tasks > 1 or content.order == sorted(content.order), "rows are read in order"


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_format_reads_parts_like_the_whole(tmp_path: Path, case: Case) -> None:
    case.write(tmp_path)
    opened = open_input(case.format, tmp_path, **case.options)
    full, each = by_position(opened.read()), opened.given.rows_each
    wanted = {path for path in full if path[1] % 3 == 1 or (each and path[0] % 3 == 1)}
    gaps: MissingRows = {}
    for file, row in sorted(wanted):
        gaps.setdefault(file, []).append((row, row + 1))
    assert by_position(read(opened.given, gaps)) == {path: full[path] for path in wanted}


@pytest.mark.parametrize("format_", ["text", "parquet", "images"])
def test_finished_files_are_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str
) -> None:
    if format_ == "images":
        for number, pixels in enumerate(pictures(FILES)):
            (tmp_path / f"{number}.png").write_bytes(png(pixels))
    else:
        write_files(format_, tmp_path)
    given_ = open_input(format_, tmp_path).given
    names: set[str] = set()

    def filesystem(address: Location) -> pafs.FileSystem:
        names.add(Path(address.path).stem)
        return pafs.LocalFileSystem()

    def read_file(address: Location, limit: int | None = None) -> bytes:
        names.add(Path(address.path).stem)
        return Path(address.path).read_bytes()[:limit]

    monkeypatch.setattr(Location, "filesystem", property(filesystem))
    monkeypatch.setattr(Location, "read", read_file)
    read(given_, {1: [(0, 1)], 3: [(0, 1)]})
    assert names == {"1", "3"}


def test_only_row_groups_with_gaps_are_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"v": range(1000)}), tmp_path / "a.parquet", row_group_size=100)
    given_ = open_input("parquet", tmp_path, on_change="recompute").given
    with counted(pq.ParquetFile, "iter_batches") as batches:
        read(given_, {0: [(120, 130), (140, 141), (480, 510), (999, None)]}, tasks=1)
    assert [call.kwargs["row_groups"] for call in batches.call_args_list] == [[1], [4], [5], [9]]
    gaps: list[RowRange] = [(10, 260), (301, 302), (900, None)]
    outcome = read(given_, {0: gaps}, tasks=7)
    assert [row["v"] for row in outcome.good] == rows_in(gaps, 1000)
    assert outcome.ends == {0: 1000}
    (tmp_path / "a.parquet").write_bytes(b"damaged")
    assert set(read(given_, {0: gaps[:2]}, tasks=1).bad) == {(0, n) for n in rows_in(gaps[:2], 302)}
    pq.write_table(pa.table({"v": range(800)}), tmp_path / "a.parquet")
    with pytest.raises(Incomplete):
        read(given_, {0: gaps[2:]}, tasks=1)


def manifest(tmp_path: Path, names: list[str]) -> JobInput:
    """Return a manifest in CSV. Each of its files holds its own name."""
    for name in {*names, "x"}:
        (tmp_path / name).write_text(name)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("uri\n" + "".join(f"../{name}\n" for name in names))
    given_: JobInput = open_input(
        "manifest", tmp_path / "in", column="uri", decode="text", allow=[str(tmp_path)]
    ).given
    return given_


@pytest.mark.parametrize(
    ("gaps", "tasks"),
    [
        ([(3, 5), (6, 7), (11, 12), (29, 30)], 1),
        ([(3, 5), (26, None)], 2),
        ([(0, 30)], 3),
        ([(12, None)], 2),
    ],
)
def test_manifest_in_csv_is_read_once_for_several_gaps(
    tmp_path: Path, gaps: list[RowRange], tasks: int
) -> None:
    names = [f"n{row}" for row in range(30)]
    given_ = manifest(tmp_path, names)
    given_.count()
    with counted(CsvReader, "read") as reads, counted(Fetcher, "fetch") as fetches:
        outcome = read(given_, {0: gaps}, tasks=3)
    assert [row["text"] for row in outcome.good] == [names[row] for row in rows_in(gaps, 30)]
    fetched = [call.args[1] for call in fetches.call_args_list]
    assert sorted(fetched) == sorted(f"../{names[row]}" for row in rows_in(gaps, 30))
    assert reads.call_count == tasks
    assert outcome.ends == ({0: 30} if gaps[-1][1] is None else {})


def test_limit_ends_the_reading_of_gaps(tmp_path: Path) -> None:
    write_files("text", tmp_path)
    given_ = open_input("text", tmp_path, limit=40).given
    outcome = read(given_, {0: [(28, None)], 1: [(2, 4), (8, None)]})
    locations = [(0, 28), (0, 29), (1, 2), (1, 3), (1, 8), (1, 9)]
    assert (outcome.order, outcome.ends) == (locations, {0: 30, 1: 10})


def test_without_gaps_there_are_no_read_tasks(opened: Input) -> None:
    assert opened.given.read_tasks(3, {}) == []


def test_gaps_of_a_table_source_are_read(tmp_path: Path) -> None:
    from batchinference.pipeline.input.file_input import open_input as open_any
    from batchinference.spec.read import ReadLance

    path = tmp_path / "a.lance"
    lance.write_dataset(pa.table({"n": range(100)}), path, max_rows_per_file=40)
    given_ = open_any(ReadLance(format="lance", path=str(path)))
    assert len(given_) == 3
    outcome = read(given_, {0: [(0, 2), (38, None)], 2: [(5, 7)]})
    assert [row["n"] for row in outcome.good] == [0, 1, 38, 39, 85, 86]
    assert outcome.order == [(0, 0), (0, 1), (0, 38), (0, 39), (2, 5), (2, 6)]
    assert outcome.ends == {0: 40, 2: 20}
