"""Readers: columns and row counts before reading, compressed files, missing libraries, retries."""

from __future__ import annotations

import errno
import gzip
import importlib.util
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.errors import BadInput, Incomplete, JobFailure
from batchinference.pipeline.input import file_rows
from batchinference.pipeline.input.file_rows import FileRows
from batchinference.pipeline.input.input_snapshot import InputFile
from batchinference.pipeline.input.path_columns import PathColumns
from batchinference.pipeline.input.readers import Chunk, Reader
from batchinference.pipeline.input.readers.text_lines import SAMPLE_BYTES
from batchinference.pipeline.row_batch import RowRange, unpack_ids
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.retry import ATTEMPTS
from plugins.messages import Messages
from support.inputs.formats import tar_of
from support.inputs.read_files import Input, Outcome, open_input, read_files


def counted(opened: Input) -> int | None:
    count = opened.given.count()
    return None if count is None else count.rows


@pytest.fixture
def files(tmp_path: Path) -> Path:
    contents = {
        "a.txt": "one\ntwo\nthree",
        "a.jsonl": '{"a": 1, "b": "x"}\n{"a": 2}\n',
        "a.csv": "a,b\n1,x\n2,y\n",
        "a.png": "no image",
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "a.parquet")
    return tmp_path


def test_columns_and_row_counts_are_known_before_reading(files: Path) -> None:
    result = {}
    for format_ in ("text", "json", "csv", "parquet", "images", "binary"):
        opened = open_input(format_, files)
        reader = opened.file_rows.reader
        result[format_] = (reader.columns(), counted(opened), reader.rows_exact)
    assert result == {
        "text": (["text"], 3, False),
        "json": (["a", "b"], 2, False),
        "csv": (["a", "b"], 3, False),  # an estimate, which includes the header
        "parquet": (["a", "b"], 1, True),
        "images": (["image"], 1, True),
        "binary": (["bytes"], 5, True),
    }


def test_columns_are_known_if_selected_but_not_of_damaged_files(files: Path) -> None:
    assert open_input("parquet", files, columns=["b"]).file_rows.reader.columns() == ["b"]
    for format_, content in {"json": b"\xff", "csv": b"", "parquet": b"\xff"}.items():
        damaged = files / f"damaged.{format_}"
        damaged.write_bytes(content)
        assert open_input(format_, damaged).file_rows.reader.columns() is None, format_


def test_rows_of_long_and_compressed_files_are_estimated(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    for lines_ in (10, 5_000, 100_000):
        content = "".join(f"{number}\n" for number in random.integers(0, 10**15, lines_))
        (tmp_path / "a.txt.gz").write_bytes(gzip.compress(content.encode(), 1))
        assert counted(open_input("text", tmp_path)) == pytest.approx(lines_, rel=0.2)
    (tmp_path / "a.txt.gz").unlink()
    (tmp_path / "a.txt").write_text("".join(f"line {number:06d}\n" for number in range(200_000)))
    assert counted(open_input("text", tmp_path)) == pytest.approx(200_000, abs=50)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_samples_are_estimated_from_the_beginning(tmp_path: Path, suffix: str) -> None:
    random = np.random.default_rng(5)
    members = ((f"{number}.bin", random.bytes(4000)) for number in range(2000))
    content = gzip.compress(tar_of(members), 1) if suffix else tar_of(members)
    (tmp_path / f"a.tar{suffix}").write_bytes(content)
    assert len(content) > 1.5 * SAMPLE_BYTES
    count = open_input("webdataset", tmp_path).given.count()
    assert count is not None
    assert count.estimated
    assert abs(count.rows - 2000) < 2000 * 0.14


COMPRESSED: dict[str, tuple[str, str, bytes, dict[str, object]]] = {
    "text": ("text", "a.txt", b"a\nb\n", {}),
    "utf-16": ("text", "a.txt", "ä\nb\n".encode("utf-16"), {"encoding": "utf-16"}),
    "json lines": ("json", "a.jsonl", b'{"a": 1}\n{"a": 2}\n', {}),
    "json array": ("json", "a.json", b'[{"a": 1}, {"a": 2}]', {"lines": False}),
    "csv": ("csv", "a.csv", b"a,b\n1,x\n2,y\n", {}),
    "csv in utf-16": ("csv", "a.csv", "a\né\nb\n".encode("utf-16"), {"encoding": "utf-16"}),
}


@pytest.mark.parametrize(
    ("format_", "name", "content", "options"), COMPRESSED.values(), ids=COMPRESSED
)
def test_gzip_files_are_decompressed(
    tmp_path: Path, format_: str, name: str, content: bytes, options: dict[str, object]
) -> None:
    (tmp_path / name).write_bytes(content)
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
    packed = read_files(format_, tmp_path / f"{name}.gz", **options)
    assert packed.good == read_files(format_, tmp_path / name, **options).good
    assert packed.ends == {0: 2}


@pytest.mark.parametrize(("format_", "library"), [("audio", "soundfile"), ("video", "av")])
def test_missing_library_is_reported_at_open(
    tmp_path: Path, format_: str, library: str, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == library else find_spec(name)
    )
    with messages.raises(BadInput):
        open_input(format_, tmp_path)


def test_empty_files_have_no_rows(tmp_path: Path) -> None:
    for format_, ending in {"text": "txt", "json": "json", "csv": "csv"}.items():
        (tmp_path / f"a.{ending}").touch()
        opened = open_input(format_, tmp_path)
        assert (counted(opened), opened.read().ends) == (0, {0: 0}), format_


def test_length_of_a_json_array_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[]")
    assert counted(open_input("json", tmp_path, lines=False)) is None


class Resets(Reader):
    """Raises errors after each chunk of five rows."""

    def __init__(self, chunks: int, errors: int) -> None:
        self._errors = [errors] * chunks

    def read(self, file: Location) -> Iterator[Chunk]:
        for number, errors in enumerate(self._errors):
            yield pa.table({"n": range(5 * number, 5 * number + 5)})
            if errors:
                self._errors[number] -= 1
                raise ConnectionResetError(errno.ECONNRESET, "connection reset")


class AlwaysResets(Reader):
    """Raises an error after a chunk without rows, again and again."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self, file: Location) -> Iterator[Chunk]:
        self.reads += 1
        assert self.reads < 50, "read without end"
        yield pa.table({"n": pa.nulls(0)})
        raise ConnectionResetError(errno.ECONNRESET, "connection reset")


def rows_of(reader: Reader) -> FileRows:
    return FileRows(Location("/in"), reader, PathColumns())


def chunks(reader: Reader) -> list[Chunk]:
    return list(rows_of(reader).chunks(InputFile(0, "a", 1)))


@pytest.mark.parametrize("errors", [1, ATTEMPTS - 1])
def test_reading_resumes_behind_the_rows_that_were_read(
    monkeypatch: pytest.MonkeyPatch, errors: int
) -> None:
    """Attempts are counted anew after each row that was read."""
    monkeypatch.setattr(file_rows.time, "sleep", lambda _: None)
    outcome = Outcome(list(rows_of(Resets(8, errors)).read([InputFile(0, "a", 1)])))
    assert [row["n"] for row in outcome.good] == [row for _, row in outcome.order]
    assert (len(outcome.order), outcome.ends) == (40, {0: 40})


def test_each_chunk_is_read_in_the_context_of_a_note() -> None:
    noted: list[int] = []

    def note(row: int) -> AbstractContextManager[None]:
        noted.append(row)
        return nullcontext()

    list(replace(rows_of(Resets(2, errors=0)), note=note).chunks(InputFile(4, "a", 1)))
    files, rows = unpack_ids(np.array(noted))
    assert (set(files), list(rows)[:2]) == ({4}, [0, 5])


def test_chunks_without_rows_are_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_rows.time, "sleep", lambda _: None)
    reader = AlwaysResets()
    with pytest.raises(JobFailure, match=r"a cannot be read: .*connection reset"):
        chunks(reader)
    assert reader.reads == ATTEMPTS


@dataclass
class RunsOut(Reader):
    """Reads ten rows, or fewer before an error, in small chunks."""

    rows: int = 10
    error: Exception | None = None

    def read(self, file: Location) -> Iterator[Chunk]:
        for row in range(self.rows):
            yield pa.table({"n": [row]})
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("gaps", [((3, 5), (8, None)), ((8, None),)], ids=repr)
def test_file_with_fewer_rows_than_before_has_no_end(gaps: tuple[RowRange, ...]) -> None:
    """Rows before a gap were read before, so an end there would hide missing rows."""
    file = InputFile(0, "a", 1, start=gaps[0][0], gaps=gaps)
    for reader, problem in (
        (
            RunsOut(6, MemoryError("no memory")),
            r"a could .* row \d, .*no memory .*Run the job again",
        ),
        (RunsOut(6), r"a could .* row 6, although 8 rows.*changed.*resume: false"),
    ):
        with pytest.raises(Incomplete, match=problem):
            list(rows_of(reader).read([file]))
    for reader, end in ((RunsOut(), 10), (RunsOut(8), 8), (RunsOut(9, MemoryError()), 10)):
        *_, last = rows_of(reader).read([file])
        assert last.ends == ((0, end),)
