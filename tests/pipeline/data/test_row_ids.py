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

from batchinference.pipeline import row_ids
from batchinference.pipeline.execution.source import RowSource
from batchinference.pipeline.input.files import tasks_of
from batchinference.pipeline.input.listing import InputFile
from batchinference.pipeline.input.readers.binary import BinaryReader
from batchinference.pipeline.row_ids import READ_STEP
from support.inputs.read_files import Input, Outcome, data_of, open_input, own_columns
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


def by_id(outcome: Outcome) -> dict[tuple[int, int], str]:
    """Return each row's data or error type, by id and state."""
    data = iter(data_of(outcome.tables))
    own = (row for table in outcome.tables for row in own_columns(table))
    found = {}
    for row in own:
        good = row[row_ids.STATE] == row_ids.GOOD
        what = str(next(data)) if good else str(row.get(row_ids.ERROR)).partition(":")[0]
        found[row[row_ids.ID], row[row_ids.STATE]] = what
    return found


def test_row_numbers_are_contiguous_from_zero(opened: Input) -> None:
    outcome, each = opened.read(), opened.given.rows_each
    ends = outcome.ends if each is None else dict.fromkeys(range(5), each)
    for file, end in ends.items():
        numbers = [row for number, row in (*outcome.places, *outcome.bad) if number == file]
        assert sorted(numbers) == list(range(end))
    assert sorted(ends) == list(range(5))


def test_end_closes_each_file_of_several_rows(opened: Input) -> None:
    outcome = opened.read()
    if opened.given.rows_each is not None:
        assert outcome.ends == {}
        return
    own = [row for table in outcome.tables for row in own_columns(table)]
    open_file: int | None = None
    for row in own:
        file = row[row_ids.ID] >> row_ids.ROW_BITS
        assert open_file in (None, file), "rows of a file follow each other"
        open_file = None if row[row_ids.STATE] == row_ids.END else file
    assert own[-1][row_ids.STATE] == row_ids.END


def test_row_ids_do_not_depend_on_the_first_file(opened: Input) -> None:
    everything = by_id(opened.read())
    for first in range(5):
        for after in range(first + 1, 6):
            part = by_id(opened.read(first, after))
            assert part.items() <= everything.items()
            files = {row_id >> row_ids.ROW_BITS for row_id, _ in part}
            assert files == set(range(first, min(after, 5)))


def test_reading_again_gives_the_same(opened: Input) -> None:
    travelled = Input(pickle.loads(pickle.dumps(opened.given)))
    first = opened.read()
    for again in (opened.read(), travelled.read()):
        assert by_id(again) == by_id(first)
        assert again.places == first.places


def test_failed_row_has_step_and_error(opened: Input) -> None:
    own = [row for table in opened.read().tables for row in own_columns(table)]
    bad = [row for row in own if row[row_ids.STATE] == row_ids.FAILED]
    assert len(bad) > 0 or isinstance(opened.file_rows.reader, BinaryReader)
    assert all(row[row_ids.STEP] == READ_STEP for row in bad)
    assert all(": " in row[row_ids.ERROR] for row in bad)


def test_read_tasks_of_ray_read_everything(opened: Input) -> None:
    source = RowSource(opened.given.read_tasks(3))
    tasks = source.get_read_tasks(parallelism=3)
    read = [table for task in tasks for table in task()]
    tables = [table for table in read if own_columns(table)[0][row_ids.STATE] != row_ids.NOTE]
    assert len(tasks) == 3
    assert by_id(Outcome(tables)) == by_id(opened.read())
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


def test_task_opens_only_its_files(tmp_path: Path) -> None:
    written(tmp_path, "text")
    opened = open_input("text", tmp_path)
    (tmp_path / "0.txt").unlink()
    assert np.unique([file for file, _ in opened.read(1).places]).tolist() == [1, 3, 4]
