"""Input files change, or are deleted, after their rows were written: `read.onChange: recompute` and
`read.onDelete: removeRows` replace these rows, and the output has exactly the rows of the current
files."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.commit.committer import Committer
from batchinference.pipeline.input import file_rows
from batchinference.pipeline.input.file_rows import FileRows
from batchinference.pipeline.output.output_rows import first_rows
from batchinference.spec import parse
from batchinference.spec.report import JobState, Report
from plugins.messages import Messages
from support.documents.minimal import Document
from support.jobs.on_ray import data_files, job_document
from support.jobs.user_code import step_until
from support.jobs.without_ray import run_without_ray
from support.outputs.rows import Row, rows_of
from support.outputs.verify_command import verified

EITHER = {"onChange": "recompute", "onDelete": "removeRows"}
WORDS = [
    {"name": "few", "filter": "text != 'skip'"},
    {"name": "words", "chunk": {"column": "text", "size": 2, "unit": "words"}},
]
"""A line becomes a row for every two words; lines `skip` are filtered."""


def nightly(directory: Path, read: Document | None = None, **spec: Any) -> Document:
    """Return the job of every night, which replaces the rows of changed and deleted files."""
    write = {"format": "parquet", "mode": "append", **spec.pop("write", {})}
    source, output = directory / "in", directory / "out"
    return job_document(
        "nightly", source, output, read={**EITHER, **(read or {})}, write=write, **spec
    )


def put(directory: Path, **files: list[str]) -> None:
    """Write text files with these lines. A file that exists gets a later time."""
    (directory / "in").mkdir(exist_ok=True)
    for name, lines in files.items():
        write(directory / "in" / f"{name}.txt", "".join(f"{line}\n" for line in lines).encode())


def write(path: Path, content: bytes) -> None:
    later = path.stat().st_mtime_ns + 10**9 if path.exists() else None
    path.write_bytes(content)
    if later is not None:
        os.utime(path, ns=(later, later))


def delete(directory: Path, name: str) -> None:
    (directory / "in" / f"{name}.txt").unlink()


def night(job: Document) -> Report:
    report = run_without_ray(job)
    assert report.state == JobState.SUCCEEDED, report.message
    return report


def proven(directory: Path) -> list[Row]:
    """Return the rows of an output that `verify` has proven."""
    assert verified(directory / "out").counts == {}
    return rows_of(directory / "out")


def texts(directory: Path) -> list[str]:
    return sorted(row["text"] for row in proven(directory))


def counts(report: Report) -> tuple[int, int, int, int]:
    """Return the number of rows read, written, failed and filtered."""
    assert report.counts is not None
    return (report.counts.read, report.counts.written, report.counts.failed, report.counts.filtered)


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """Return a list that gets the names of the files whose rows are read."""
    names: list[str] = []
    read = FileRows.read

    def noted(self: FileRows, files: Any, *arguments: Any) -> Any:
        names.extend(Path(file.path).name for file in files)
        return read(self, files, *arguments)

    with patch.object(FileRows, "read", noted):
        yield names


@pytest.mark.parametrize("lines", [["b 1", "b 3"], ["b 3"], ["b 1", "b 2", "b 3"], []],
                         ids=["changed", "shrunk", "grown", "emptied"])  # fmt: skip
@pytest.mark.parametrize("mode", ["error", "append"])
def test_rows_of_a_changed_file_are_replaced(tmp_path: Path, lines: list[str], mode: str) -> None:
    put(tmp_path, a=["a 1"], b=["b 1", "b 2"], c=["c 1"])
    night(nightly(tmp_path, write={"mode": mode}))
    put(tmp_path, b=lines)
    report = night(nightly(tmp_path))
    assert texts(tmp_path) == sorted(["a 1", *lines, "c 1"])
    assert counts(report) == (2 + len(lines), 2 + len(lines), 0, 0)
    assert str(report.replaced_files) == "1 recomputed, 0 removed"


def test_new_changed_and_deleted_files_of_several_nights_at_once(tmp_path: Path) -> None:
    put(tmp_path, a=["a 1"], b=["b 1"])
    night(nightly(tmp_path))
    put(tmp_path, c=["c 1"], d=["d 1"])
    night(nightly(tmp_path))
    put(tmp_path, b=["b 2", "b 3"], d=["d 2"], e=["e 1"])
    delete(tmp_path, "c")
    report = night(nightly(tmp_path))
    assert texts(tmp_path) == ["a 1", "b 2", "b 3", "d 2", "e 1"]
    assert counts(report) == (5, 5, 0, 0)
    assert str(report.replaced_files) == "2 recomputed, 1 removed"
    report = night(nightly(tmp_path))
    assert "0 new rows" in str(report.message)
    assert report.replaced_files is None


def test_file_that_changes_every_night_has_only_its_last_rows(tmp_path: Path) -> None:
    put(tmp_path, a=["a 1"], b=["b 1"])
    for number in range(4):
        put(tmp_path, b=[f"b {number}"] * (number + 1))
        night(nightly(tmp_path))
    assert texts(tmp_path) == ["a 1", *["b 3"] * 4]


def test_deleted_file_that_comes_back_is_a_new_file(tmp_path: Path) -> None:
    put(tmp_path, a=["a 1"], b=["b 1"])
    night(nightly(tmp_path))
    delete(tmp_path, "b")
    night(nightly(tmp_path))
    assert texts(tmp_path) == ["a 1"]
    put(tmp_path, b=["b 1"])
    night(nightly(tmp_path, {"onChange": "fail", "onDelete": "keep"}))
    assert texts(tmp_path) == ["a 1", "b 1"]


def test_file_that_comes_back_and_is_deleted_again_was_not_read_twice(tmp_path: Path) -> None:
    put(tmp_path, a=["a 1"])
    for _ in range(2):
        put(tmp_path, b=["b 1"])
        night(nightly(tmp_path))
        delete(tmp_path, "b")
        night(nightly(tmp_path))
    assert texts(tmp_path) == ["a 1"]


def test_rows_of_a_deleted_file_stay_by_default(tmp_path: Path) -> None:
    put(tmp_path, a=["a 1"], b=["b 1"])
    night(nightly(tmp_path))
    delete(tmp_path, "b")
    put(tmp_path, a=["a 2"])
    night(nightly(tmp_path, {"onDelete": "keep"}))
    assert sorted(row["text"] for row in rows_of(tmp_path / "out")) == ["a 2", "b 1"]


def test_no_rows_are_removed_if_all_files_are_gone(tmp_path: Path, messages: Messages) -> None:
    """The input may be a volume that is not mounted."""
    put(tmp_path, a=["a 1"])
    night(nightly(tmp_path))
    delete(tmp_path, "a")
    report = run_without_ray(nightly(tmp_path))
    messages.check(report.message)
    assert [row["text"] for row in rows_of(tmp_path / "out")] == ["a 1"]
    night(nightly(tmp_path, {"allowEmpty": True}))
    assert texts(tmp_path) == []


def test_filtered_and_exploded_rows_are_replaced(tmp_path: Path) -> None:
    job = nightly(tmp_path, steps=WORDS)
    put(tmp_path, a=["a b c d", "skip"], b=["e f g h i", "skip", "skip"])
    assert counts(night(job)) == (5, 5, 0, 3)
    put(tmp_path, b=["x", "skip"])
    assert counts(night(job)) == (4, 3, 0, 2)
    assert texts(tmp_path) == ["a b ", "c d", "x"]


class Same:
    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return batch


def test_rows_of_a_pool_that_are_spread_over_tasks_are_replaced(tmp_path: Path) -> None:
    """Parts of an input row are in several entries, together with rows of other files."""
    pool = {"name": "pool", "python": {"callable": f"{__name__}:Same"}, "replicas": {}}
    job = nightly(tmp_path, steps=[*WORDS, pool])
    put(tmp_path, a=["a b c d e f"] * 3, b=["g h i j k l m n o p", "skip"], c=["q r"] * 3)
    assert counts(night(job)) == (8, 17, 0, 1)
    put(tmp_path, b=["x y z", "skip", "skip"])
    assert counts(night(job)) == (9, 14, 0, 2)
    assert texts(tmp_path) == sorted([*["a b ", "c d ", "e f"] * 3, "x y ", "z", *["q r"] * 3])


def test_failed_rows_and_warnings_are_replaced(tmp_path: Path) -> None:
    step = step_until(tmp_path / "repaired")
    job = nightly(tmp_path, steps=[step], errors={"maxRows": 9})
    put(tmp_path, a=["a 1", "a bad"], b=["b bad", "b worst"], c=["c bad"])
    assert counts(night(job)) == (5, 1, 4, 0)
    put(tmp_path, b=["b 1"])
    delete(tmp_path, "c")
    assert counts(night(job)) == (3, 2, 1, 0)
    assert texts(tmp_path) == ["a 1", "b 1"]
    records = [row for file in tmp_path.glob("out/*/append-*/errors/part-*")
               for row in pq.read_table(file).to_pylist()]  # fmt: skip
    assert [Path(row["path"]).name for row in records] == ["a.txt"]
    (tmp_path / "repaired").touch()
    put(tmp_path, b=["b 2", "b bad"])
    job["spec"]["errors"]["retryFailedRows"] = True
    assert counts(night(job)) == (4, 4, 0, 0)
    assert texts(tmp_path) == ["a 1", "a bad", "b 2", "b bad"]


@pytest.mark.parametrize("number", range(2))
def test_file_changes_while_the_job_reads(tmp_path: Path, number: int) -> None:
    """The next run computes the rows again: the list of the files has the earlier version."""
    put(tmp_path, a=["a 1"], b=["b 1", "b 2"])
    if number:
        night(nightly(tmp_path))
        put(tmp_path, b=["b 3"])
    put_rows = Committer.put

    def change(self: Committer, *arguments: Any) -> None:
        put_rows(self, *arguments)
        put(tmp_path, b=["b 5"])

    with patch.object(Committer, "put", change):
        night(nightly(tmp_path))
    night(nightly(tmp_path))
    assert texts(tmp_path) == ["a 1", "b 5"]


@pytest.mark.parametrize("format_", ["text", "binary"])
def test_file_that_changes_while_the_job_reads_fails_it(
    tmp_path: Path, format_: str, messages: Messages
) -> None:
    """The file is replaced after it was listed, by one of the same size."""
    put(tmp_path, a=["a 1"], b=["b 1"])
    job = nightly(tmp_path, {"format": format_, "onChange": "fail"}, steps=[])
    read = FileRows.read

    def changed(self: FileRows, files: Any) -> Any:
        put(tmp_path, b=["b 2"])
        return read(self, files)

    with patch.object(FileRows, "read", changed):
        report = run_without_ray(job)
    assert report.state == JobState.FAILED
    messages.check(report.message)


@pytest.mark.parametrize("format_", ["text", "binary"])
def test_storage_error_when_a_version_is_checked_names_the_file(
    tmp_path: Path, format_: str
) -> None:
    put(tmp_path, a=["a 1"])
    job = nightly(tmp_path, {"format": format_, "onChange": "fail"}, steps=[])
    error = OSError(errno.EIO, "Input/output error")
    with patch.object(file_rows, "_check_unchanged", side_effect=error):
        report = run_without_ray(job)
    assert report.state == JobState.FAILED
    assert f"{tmp_path}/in/a.txt" in (report.message or "")


@pytest.mark.parametrize("rows", [["b 3", "b 2", "b 1"], ["b 4", "b 2"]], ids=["moved", "fewer"])
def test_missing_rows_are_not_read_from_another_version(tmp_path: Path, rows: list[str]) -> None:
    """A task is lost. The file is replaced before the next pass reads the rows of that task."""
    put(tmp_path, a=["a 1"], b=["b 1", "b 2", "b 3"])
    put_rows, calls = Committer.put, list[int]()

    def lose_the_first(self: Committer, *arguments: Any) -> None:
        calls.append(0)
        if len(calls) > 1:
            put_rows(self, *arguments)
        else:
            put(tmp_path, a=["a 2"], b=rows)

    with patch.object(Committer, "put", lose_the_first):
        assert run_without_ray(nightly(tmp_path, {"onChange": "fail"})).state == JobState.FAILED


def failing(self: Committer, *_: Any) -> None:
    raise OSError("no space")


@pytest.mark.parametrize("again", [["b 3"], ["b 4", "b 5"]], ids=["same", "changed again"])
@pytest.mark.parametrize("mode", ["error", "append"])
def test_file_changes_between_two_passes(tmp_path: Path, again: list[str], mode: str) -> None:
    job = nightly(tmp_path, write={"mode": mode})
    put(tmp_path, a=["a 1"], b=["b 1", "b 2"], c=["c 1"], d=["d 1"])
    put_rows, calls = Committer.put, list[int]()

    def first_two(self: Committer, *arguments: Any) -> None:
        calls.append(0)
        (put_rows if len(calls) < 3 else failing)(self, *arguments)

    with patch.object(Committer, "put", first_two):
        assert run_without_ray(job).state == JobState.FAILED
    put(tmp_path, b=["b 3"])
    delete(tmp_path, "d")
    with patch.object(Committer, "put", failing):
        assert run_without_ray(job).state == JobState.FAILED
    put(tmp_path, b=again)
    report = night(job)
    assert texts(tmp_path) == sorted(["a 1", *again, "c 1"])
    assert str(report.replaced_files) == "1 recomputed, 1 removed", "of all attempts"


@pytest.mark.parametrize("failed", [False, True])
def test_unfinished_replacement_passes_verify(tmp_path: Path, failed: bool) -> None:
    """The files still have the rows of the old content, which do not count."""
    steps = [step_until(tmp_path / "repaired")]
    job = nightly(tmp_path, steps=steps, errors={"maxRows": 9})
    put(tmp_path, a=["a 1"], b=["b 1", *["b bad"] * failed])
    night(job)
    put(tmp_path, b=["b 2"])
    with patch.object(Committer, "put", failing):
        assert run_without_ray(job).state == JobState.FAILED
    assert verified(tmp_path / "out").counts == {}
    night(job)
    assert texts(tmp_path) == ["a 1", "b 2"]


def names_of(directory: Path) -> set[str]:
    return {file.name for file in data_files(directory / "out")}


def test_only_the_changed_file_of_many_is_read_and_only_its_output_rewritten(
    tmp_path: Path, opened: list[str]
) -> None:
    for start in (0, 50):
        put(tmp_path, **{f"f{n:02}": [f"{n} {row}" for row in range(3)]
                         for n in range(start, start + 50)})  # fmt: skip
        night(nightly(tmp_path))
    before = names_of(tmp_path)
    assert len(before) == 2
    opened.clear()
    put(tmp_path, f07=["7 new"])
    report = night(nightly(tmp_path))
    assert opened == ["f07.txt"]
    assert len(before & names_of(tmp_path)) == 1, "the files of the other night stay"
    assert counts(report)[0] == 148
    assert len(texts(tmp_path)) == 298


def test_output_begun_without_the_field_computes_neighbours_again(
    tmp_path: Path, opened: list[str]
) -> None:
    """It is unknown which rows of an output file come from the changed file."""
    put(tmp_path, a=["a 1"], b=["b 1"], c=["c 1"])
    night(nightly(tmp_path, {"onChange": "fail", "onDelete": "keep"}))
    opened.clear()
    put(tmp_path, b=["b 2"])
    night(nightly(tmp_path))
    assert texts(tmp_path) == ["a 1", "b 2", "c 1"]
    assert sorted(opened) == ["a.txt", "b.txt", "c.txt"]


WRITES: dict[str, dict[str, Any]] = {
    "json": {"format": "json", "compression": "gzip"},
    "csv": {"format": "csv"},
    "rows per file": {"format": "parquet", "rowsPerFile": 2},
    "row numbers": {"format": "parquet", "rowNumber": "row"},
    "partitions": {"format": "parquet", "partitionBy": ["part"]},
    "webdataset": {"format": "webdataset"},
    "openaiBatch": {"format": "openaiBatch"},
}


@pytest.mark.parametrize("write", WRITES.values(), ids=[*WRITES])
def test_rows_are_replaced_in_outputs_of_all_kinds(tmp_path: Path, write: dict[str, Any]) -> None:
    added = {"part": "len(text) > 3", "custom_id": "text", "response": "'{}'"}
    steps = [{"name": "added", "addColumns": added}]
    job = nightly(tmp_path, steps=steps, write=write)
    put(tmp_path, a=["a", "a long"], b=["b 1", "b 22", "b 333"], c=["c"])
    night(job)
    put(tmp_path, b=["b 4444", "b 55"])
    delete(tmp_path, "c")
    night(job)
    assert verified(tmp_path / "out").counts == {}
    rows = first_rows(parse(job).spec.write, 9)
    result = [row.get("text") or row.get("custom_id") or row["text.txt"] for row in rows]
    wanted = ["a", "a long", "b 4444", "b 55"]
    if write["format"] == "webdataset":
        wanted = [f"{len(text)} bytes" for text in wanted]
    assert sorted(result) == sorted(wanted)
    if "rowNumber" in write:
        assert sorted(row["row"] for row in rows) == [0, 1, 10**12, 10**12 + 1]


@pytest.mark.parametrize("format_", ["csv", "json", "parquet", "binary"])
def test_changed_files_of_all_kinds_are_read(tmp_path: Path, format_: str) -> None:
    job = nightly(tmp_path, {"format": format_}, write={"format": "parquet"})
    (tmp_path / "in").mkdir()

    def put_rows(name: str, *numbers: int) -> None:
        sink = io.BytesIO()
        pq.write_table(pa.table({"n": numbers}), sink)
        lines = {"csv": "n\n", "json": '{"n": 7}\n', "binary": "x", "parquet": ""}[format_]
        lines += {"csv": "{}\n", "json": '{{"n": {}}}\n'}.get(format_, "").format(*numbers)
        content = sink.getvalue() if format_ == "parquet" else lines.encode()
        write(tmp_path / "in" / f"{name}.{format_}", content)

    put_rows("a", 1)
    put_rows("b", 2)
    put_rows("c", 3)
    first = night(job)
    put_rows("b", 5)
    (tmp_path / "in" / f"c.{format_}").unlink()
    last = night(job)
    rows = proven(tmp_path)
    assert counts(first)[0] - counts(last)[0] == counts(first)[0] // 3
    if format_ != "binary":
        assert sorted({row["n"] for row in rows} - {7}) == [1, 5]
