"""Results of a model step in files that jobs share: found if, and only if, they are right."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import PropertyMock, patch

import numpy as np
import pyarrow as pa
import pytest

from batchinference.pipeline.arrow import tensors_to_lists, to_column
from batchinference.pipeline.execution.segment import Segment
from batchinference.pipeline.row_hashes import row_hashes
from batchinference.pipeline.row_warnings import RowWarning
from batchinference.pipeline.steps import result_cache
from batchinference.pipeline.steps.result_cache import FILE_BYTES, KnownResults, ResultCache
from batchinference.pipeline.storage.location import Location
from batchinference.spec.warnings import WarningName
from support.outputs.stages import TOLERANT
from support.servers.s3 import S3Server

FORK = multiprocessing.get_context("fork")


def keys_of(*names: object) -> list[bytes]:
    return row_hashes(pa.table({"name": [str(name) for name in names]}))


def results(*names: object, column: Any = None, warnings: Any = None) -> KnownResults:
    values = pa.array([f"of {name}" for name in names]) if column is None else column
    return KnownResults(keys_of(*names), pa.table({"answer": values}), warnings or {})


def cache(path: Path, digest: str = "d") -> ResultCache:
    return ResultCache(Location(str(path)), digest, ["answer"])


def stored(path: Path, *groups: KnownResults) -> None:
    """Store results, each in a file."""
    for group in groups:
        writer = cache(path)
        writer.add(group)
        writer.flush()
        assert writer.errors == 0


def cached_values(location: ResultCache, *names: object) -> dict[object, Any]:
    """Return the values of these names that are in a cache."""
    names_of = dict(zip(keys_of(*names), names, strict=True))
    return {
        names_of[key]: each.table.column("answer")[row].as_py()
        for each in location.find(names_of)
        for row, key in enumerate(each.keys)
        if key in names_of
    }


def files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


def test_results_that_other_processes_store_meanwhile_are_found(tmp_path: Path) -> None:
    stored(tmp_path, results("a"))
    reader = cache(tmp_path)
    assert cached_values(reader, "a", "b", "c") == {"a": "of a"}
    stored(tmp_path, results("b"), results("c"))
    assert cached_values(reader, "a", "b", "c") == {"a": "of a"}
    reader._next_refresh = 0.0
    assert cached_values(reader, "a", "b", "c") == {"a": "of a", "b": "of b", "c": "of c"}


def test_results_of_other_models_are_not_found(tmp_path: Path) -> None:
    stored(tmp_path, results("a"))
    assert cached_values(cache(tmp_path, "other"), "a") == {}
    (file,) = files(tmp_path)
    (tmp_path / "other").mkdir()
    file.rename(tmp_path / "other" / file.name)
    moved = cache(tmp_path, "other")
    assert (cached_values(moved, "a"), moved.errors) == ({}, 1)


def test_empty_cache_has_no_results(tmp_path: Path) -> None:
    empty = cache(tmp_path / "new")
    assert (cached_values(empty, "a"), empty.errors) == ({}, 0)


@pytest.mark.parametrize("part", ["key", "values", "end"])
def test_damaged_file_is_not_used_but_counted(tmp_path: Path, part: str) -> None:
    stored(tmp_path, results("a", "b"), results("c"))
    file = next(file for file in files(tmp_path) if "-2." in file.name)
    content = bytearray(file.read_bytes())
    at = {"key": 40, "values": len(content) - 40, "end": len(content) - 1}[part]
    content[at] ^= 1
    file.write_bytes(content)
    damaged = cache(tmp_path)
    assert cached_values(damaged, "a", "b", "c") == {"c": "of c"}
    assert damaged.errors == 1


@pytest.mark.parametrize("left", [0, 10, 64, 100])
def test_truncated_file_is_not_used(tmp_path: Path, left: int) -> None:
    stored(tmp_path, results("a", "b"))
    (file,) = files(tmp_path)
    os.truncate(file, left)
    truncated = cache(tmp_path)
    assert cached_values(truncated, "a", "b") == {}
    assert truncated.errors == (left >= 64)  # without its keys, it is not read


def test_file_with_the_right_hash_but_other_content_is_not_used(tmp_path: Path) -> None:
    for number, rest in enumerate((b"", b"x" * 8, result_cache._content_of([results(1, 2)])[1])):
        key = bytes([number]) * 32
        location = tmp_path / str(number) / "d"
        location.mkdir(parents=True)
        name = f"{hashlib.sha256(b'd' + key + rest).hexdigest()}-1.results"
        (location / name).write_bytes(key + rest)
        reader = cache(tmp_path / str(number))
        assert (reader.find([key]), reader.errors) == ([], 1)


@pytest.mark.parametrize("name", ["x.results", f"{'0' * 64}-0.results", f"{'0' * 64}-99.results"])
def test_other_files_are_ignored(tmp_path: Path, name: str) -> None:
    stored(tmp_path, results("a"))
    (tmp_path / "d" / name).write_bytes(b"any" * 999)
    assert cached_values(cache(tmp_path), "a", "b") == {"a": "of a"}


def test_file_that_was_deleted_meanwhile_is_no_error(tmp_path: Path) -> None:
    stored(tmp_path, results("a"))
    reader = cache(tmp_path)
    cached_values(reader, "x")
    files(tmp_path)[0].unlink()
    assert (cached_values(reader, "a"), reader.errors) == ({}, 0)


def test_keys_with_the_same_beginning_are_told_apart(tmp_path: Path) -> None:
    one, other = b"same....".ljust(32, b"1"), b"same....".ljust(32, b"2")
    stored(tmp_path, KnownResults([one], pa.table({"answer": ["one"]}), {}))
    (group,) = cache(tmp_path).find([other])
    assert other not in group.by_key()


def test_types_and_warnings_are_kept(tmp_path: Path) -> None:
    warning = RowWarning(1, WarningName.TEXT_CUT, 7)
    images = to_column(np.arange(8, dtype=np.uint8).reshape(2, 2, 2))
    columns = [
        pa.array([1, None], pa.int16()),
        pa.array([[0.5], [float("nan"), -0.0]], pa.list_(pa.float32())),
        pa.array([{"label": "a", "score": 1.0}, None]),
        pa.nulls(2),
        images,
        to_column([np.zeros((1, 2)), np.ones((2, 1))]),
    ]
    for number, column in enumerate(columns):
        names = f"a{number}", f"b{number}"
        stored(tmp_path, results(*names, column=column, warnings={1: [warning]}))
        (group,) = cache(tmp_path).find(keys_of(*names))
        assert group.table.schema.types == [column.type]
        assert row_hashes(group.table) == row_hashes(pa.table({"answer": column}))
        assert group.warnings == {1: [warning]}


def test_values_of_different_types_are_not_converted(tmp_path: Path) -> None:
    writer = cache(tmp_path)
    writer.add(results("a"))
    writer.add(results("b", column=pa.array([1])))
    writer.add(results("c"))
    writer.flush()
    assert cached_values(cache(tmp_path), "a", "b", "c") == {"a": "of a", "b": 1, "c": "of c"}
    assert len(files(tmp_path)) == 2


def test_tensors_are_read_by_a_process_that_has_made_none(tmp_path: Path) -> None:
    stored(tmp_path, results("a", column=to_column(np.ones((1, 2, 3)))))
    code = (
        "import sys; from batchinference.pipeline.steps.result_cache import ResultCache;"
        "from batchinference.pipeline.storage.location import Location;"
        "cache = ResultCache(Location(sys.argv[1]), 'd', ['answer']);"
        "print(cache.find([bytes.fromhex(sys.argv[2])])[0].table.schema.types)"
    )
    arguments = [str(tmp_path), keys_of("a")[0].hex()]
    run = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, check=True, text=True
    )
    assert "tensor" in run.stdout.lower()


def test_results_are_written_together_but_do_not_wait_long(tmp_path: Path) -> None:
    clock = iter(range(10**6))
    with patch.object(result_cache.time, "monotonic", lambda: float(next(clock))):
        writer = cache(tmp_path)
        for number in range(1000):
            writer.add(results(number))
    assert 20 <= len(files(tmp_path)) <= 120
    rows = sum(int(file.name.partition("-")[2].partition(".")[0]) for file in files(tmp_path))
    assert rows >= 1000 - result_cache.FILE_SECONDS


def test_large_results_do_not_wait(tmp_path: Path) -> None:
    cache(tmp_path).add(results("a", column=pa.array(["x" * result_cache.FILE_BYTES])))
    assert len(files(tmp_path)) == 1


def test_results_are_written_at_the_end_of_a_task(tmp_path: Path) -> None:
    writer = cache(tmp_path)
    writer.add(results("a"))
    assert list(Segment.of([], TOLERANT).take_notes()) == []
    assert len(files(tmp_path)) == 1


def test_storage_that_fails_is_counted_and_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    writer = cache(tmp_path / "file")
    for name in "abc":
        writer.add(results(name))
        writer.flush()
    assert (cached_values(writer, "a"), writer.errors) == ({}, 1)


def _write(path: Path, names: Iterable[object]) -> None:
    writer = cache(path)
    for name in names:
        writer.add(results(name))
    writer.flush()


def test_jobs_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(_write, [tmp_path] * 4, [range(0, 40), range(20, 60)] * 2))
    assert cached_values(cache(tmp_path), *range(60)) == {name: f"of {name}" for name in range(60)}


def _write_for_ever(path: Path) -> None:
    for number in range(10**9):
        stored(path, results(*range(10 * number, 10 * number + 10)))


def test_process_that_is_killed_while_it_writes_leaves_no_wrong_result(tmp_path: Path) -> None:
    for _ in range(3):
        writer = FORK.Process(target=_write_for_ever, args=[tmp_path])
        writer.start()
        while len(files(tmp_path)) < 5:
            pass
        os.kill(writer.pid or 0, signal.SIGKILL)
        writer.join()
    reader = cache(tmp_path)
    known = cached_values(reader, *range(1000))
    assert known == {name: f"of {name}" for name in known}
    assert len(known) >= 40
    assert reader.errors == 0


def test_cache_in_an_object_store(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    s3.client().create_bucket(Bucket="cache")
    location = Location("s3://cache/deep/results")
    for group in (results(*range(50)), results(*range(40, 99))):
        writer = ResultCache(location, "d", ["answer"])
        writer.add(group)
        writer.flush()
    reader = ResultCache(location, "d", ["answer"])
    assert cached_values(reader, *range(200)) == {name: f"of {name}" for name in range(99)}
    missing = ResultCache(Location("s3://missing/results"), "d", ["answer"])
    assert cached_values(missing, 1) == {}
    missing.add(results(1))
    missing.flush()
    assert missing.errors == 1


def test_results_are_found_among_those_of_many_files(tmp_path: Path) -> None:
    stored(tmp_path, *(results(*range(at, at + 7)) for at in range(0, 210, 7)))
    reader = cache(tmp_path)
    assert cached_values(reader, *range(0, 300, 3)) == {at: f"of {at}" for at in range(0, 210, 3)}
    assert tensors_to_lists(reader.find(keys_of(0))[0].table).num_rows == 7


def test_only_wanted_results_are_kept_if_many_files_have_some(tmp_path: Path) -> None:
    warning = RowWarning(1, WarningName.TEXT_CUT, 7)
    stored(tmp_path, results("a", "b", warnings={1: [warning]}), results("c", "d"))
    some = cache(tmp_path).find(keys_of("b", "c"), max_bytes=FILE_BYTES)
    (full,) = cache(tmp_path).find(keys_of("b"), max_bytes=FILE_BYTES)
    values = {each.table.column("answer")[0].as_py(): each for each in some}
    assert {value: each.table.num_rows for value, each in values.items()} == {"of b": 1, "of c": 1}
    assert values["of b"].warnings == {0: [warning]}
    assert full.table.num_rows == 2


def test_waiting_results_are_measured_once(tmp_path: Path) -> None:
    writer = cache(tmp_path)
    with patch.object(KnownResults, "nbytes", PropertyMock(return_value=1)) as measured:
        for number in range(50):
            writer.add(results(number))
    assert measured.call_count == 50
