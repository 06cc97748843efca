"""Row ids: the file number and the row's position, independent of where reading starts."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from batchinference.pipeline.execution.block_codec import decode
from batchinference.pipeline.execution.dataset import BlockReader, RowsDatasource
from batchinference.pipeline.execution.segment import Segment
from batchinference.pipeline.execution.step_runner import ErrorHandling
from batchinference.pipeline.input.input_snapshot import InputFile
from batchinference.pipeline.input.planning import tasks_of
from batchinference.pipeline.input.readers.whole_file import BinaryReader
from batchinference.pipeline.row_batch import (
    MAX_FILES,
    READ_STEP,
    ROW_BITS,
    consecutive_ids,
    pack_id,
    unpack_ids,
)
from batchinference.pipeline.storage.location import Location
from support.inputs.read_files import Input, Outcome, open_input
from support.tiers import examples


def written(directory: Path, format_: str) -> Path:
    """Write five files: one is empty, and some have a failed row where the format allows it."""
    for number, count in enumerate((3, 1, 0, 4, 2)):
        values = [f"row {number}.{row}" for row in range(count)]
        WRITERS[format_](directory / f"{number}.{ENDINGS.get(format_, format_)}", values)
    return directory


def _parquet(path: Path, values: list[str]) -> None:
    pq.write_table(pa.table({"v": pa.array(values, pa.string())}), path)
    if len(values) == 1:
        path.write_text("no parquet")


def _images(path: Path, values: list[str]) -> None:
    Image.new("RGB", (4, 4), (len(values), 0, 0)).save(path)
    if len(values) == 1:
        path.write_text("no image")


def _lines(head: str, line: str, bad: str) -> Callable[[Path, list[str]], None]:
    def write(path: Path, values: list[str]) -> None:
        lines = [line.format(value) for value in values]
        if len(values) > 1:
            lines.insert(1, bad)
        path.write_bytes("".join(lines and [head, *lines]).encode(errors="surrogateescape"))

    return write


ENDINGS = {"text": "txt", "images": "png", "binary": "bin"}
WRITERS = {
    "text": _lines("", "{}\n", "\udcff\n"),
    "json": _lines("", '{{"v": "{}"}}\n', "broken\n"),
    "csv": _lines("v,n\n", "{},1\n", "broken\n"),
    "parquet": _parquet,
    "images": _images,
    "binary": _lines("", "{}\n", ""),
}


@pytest.fixture(scope="module", params=list(WRITERS))
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Input:
    options = {"size": [4, 4]} if request.param == "images" else {}
    directory = written(tmp_path_factory.mktemp(request.param), request.param)
    return open_input(request.param, directory, **options)


def everything_in(outcome: Outcome) -> dict[tuple[int, int], str]:
    """Return each row's data or error type, by file and row."""
    good = zip(outcome.order, map(str, outcome.good), strict=True)
    return {**dict(good), **{location: e.partition(":")[0] for location, e in outcome.bad.items()}}


def test_row_numbers_are_contiguous_from_zero(opened: Input) -> None:
    outcome, each = opened.read(), opened.given.rows_each
    ends = outcome.ends if each is None else dict.fromkeys(range(5), each)
    for file, end in ends.items():
        numbers = [row for number, row in (*outcome.order, *outcome.bad) if number == file]
        assert sorted(numbers) == list(range(end))
    assert sorted(ends) == list(range(5))


def test_end_follows_the_rows_of_a_file_of_several_rows(opened: Input) -> None:
    ended: list[int] = []
    for batch in opened.read().batches:
        files = set((batch.input_ids >> ROW_BITS).tolist())
        assert files.isdisjoint(ended)
        ended += [file for file, _ in batch.ends]
    assert ended == ([] if opened.given.rows_each else list(range(5)))


def test_row_ids_do_not_depend_on_the_first_file(opened: Input) -> None:
    everything = everything_in(opened.read())
    for first in range(5):
        for after in range(first + 1, 6):
            part = opened.read(first, after)
            assert everything_in(part).items() <= everything.items()
            files = {file for file, _ in everything_in(part)} | part.ends.keys()
            assert files == set(range(first, min(after, 5)))


def test_reading_again_yields_the_same_rows(opened: Input) -> None:
    travelled = Input(pickle.loads(pickle.dumps(opened.given)))
    first = opened.read()
    for again in (opened.read(), travelled.read()):
        assert everything_in(again) == everything_in(first)
        assert (again.order, again.ends) == (first.order, first.ends)


def test_failed_row_has_step_and_error(opened: Input) -> None:
    outcome = opened.read()
    assert outcome.bad or isinstance(opened.file_rows.reader, BinaryReader)
    assert all(": " in error for error in outcome.bad.values())
    steps = [batch.errors.column("step").to_pylist() for batch in outcome.batches]
    assert {step for result in steps for step in result} <= {READ_STEP}


NO_STAGES = Segment.of([], ErrorHandling(tolerant=True, input=Location("/none")))


@pytest.mark.parametrize("count", [1, 3, 40])
def test_read_tasks_of_ray_read_everything(opened: Input, count: int) -> None:
    source = RowsDatasource(
        [BlockReader(task, NO_STAGES) for task in opened.given.read_tasks(count)]
    )
    tasks = source.get_read_tasks(parallelism=count)
    read = Outcome([decode(block) for task in tasks for block in task()])
    assert min(count, 5) <= len(tasks) <= count
    assert everything_in(read) == everything_in(opened.read())
    assert read.ends == opened.read().ends
    assert source.get_name() == "Rows"
    assert source.estimate_inmemory_data_size() is None


def files_of(sizes: list[int]) -> list[InputFile]:
    return [InputFile(number, f"{number}", size) for number, size in enumerate(sizes)]


@settings(max_examples=examples(100), deadline=None)
@given(sizes=st.lists(st.integers(0, 10**9), min_size=1, max_size=200), tasks=st.integers(1, 300))
def test_tasks_get_contiguous_files(sizes: list[int], tasks: int) -> None:
    lists = tasks_of(files_of(sizes), tasks)
    assert [file for chosen in lists for file in chosen] == files_of(sizes)
    assert len(lists) <= tasks
    assert all(lists)


@settings(max_examples=examples(100), deadline=None)
@given(
    sizes=st.lists(st.integers(10**5, 10**6), min_size=20, max_size=200), tasks=st.integers(2, 10)
)
def test_tasks_have_similar_sizes(sizes: list[int], tasks: int) -> None:
    loads = [sum(file.size for file in chosen) for chosen in tasks_of(files_of(sizes), tasks)]
    assert max(loads) <= sum(sizes) / tasks + 2 * (max(sizes) + (1 << 16) * len(sizes) / tasks)
    assert [len(chosen) for chosen in tasks_of(files_of([0] * 100), 4)] == [25, 25, 25, 25]


MAX_ROWS = 1 << ROW_BITS
PLACES = st.tuples(st.integers(0, MAX_FILES - 1), st.integers(0, MAX_ROWS - 1))
FEW = settings(max_examples=examples(100))


@FEW
@given(locations=st.lists(PLACES, min_size=1))
def test_id_holds_file_and_row(locations: list[tuple[int, int]]) -> None:
    ids = np.array([pack_id(file, row) for file, row in locations], dtype=np.int64)
    files, numbers = unpack_ids(ids)
    assert list(zip(files.tolist(), numbers.tolist(), strict=True)) == locations


@FEW
@given(one=PLACES, other=PLACES)
def test_ids_follow_the_input_order(one: tuple[int, int], other: tuple[int, int]) -> None:
    assert (pack_id(*one) < pack_id(*other)) == (one < other)
    assert (pack_id(*one) == pack_id(*other)) == (one == other)


@FEW
@given(location=PLACES, count=st.integers(0, 20))
def test_rows_are_numbered_from_the_first(location: tuple[int, int], count: int) -> None:
    file, first = location
    first = min(first, MAX_ROWS - count)
    expected = [pack_id(file, first + number) for number in range(count)]
    assert consecutive_ids(file, first, count).tolist() == expected


def test_largest_id_fits_into_64_bits() -> None:
    assert pack_id(MAX_FILES - 1, MAX_ROWS - 1) == 2**63 - 1
    assert MAX_FILES > 8_000_000
    assert MAX_ROWS > 10**12
