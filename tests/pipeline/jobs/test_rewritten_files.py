"""Schema unification writes files under new names. A late execution of it leaves no files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.lease import read_lease
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output.schema_unification import RewriteTask, rewrites
from batchinference.pipeline.storage.location import Location
from batchinference.spec import parse
from support.jobs.on_ray import data_files, write_lines
from support.jobs.without_ray import run_without_ray, small_job, write_input
from support.outputs.batches import good
from support.outputs.made import begin_attempt, close_attempt, commit_rows, layout_of


def names(output: Path) -> set[str]:
    return {file.name for file in data_files(output)}


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    """Return a closed attempt with two files, of which one has only nulls in a column."""
    source = write_lines(tmp_path / "in", {"a.txt": ["x", "y"]})
    attempt = begin_attempt(layout_of(tmp_path / "out"), source)
    for row, value in enumerate([None, 1.5]):
        table = pa.table({"half": pa.array([value])})
        commit_rows(attempt, good(0, row, table), task=row)
    return attempt


def rewriting(attempt: Attempt) -> tuple[Snapshot, RewriteTask]:
    end = close_attempt(attempt)
    (task,) = rewrites(attempt, end.entries, "snappy").values()
    return end, task


def take_over(attempt: Attempt, end: Snapshot) -> None:
    Attempt.open(attempt.layout, attempt.number + 1, end)


def finish(attempt: Attempt, end: Snapshot) -> None:
    attempt.put_unified(end)


@pytest.mark.parametrize("happens", [take_over, finish], ids=["a takeover", "its twin's end"])
@pytest.mark.parametrize("moment", ["before the write", "after it"])
def test_late_rewrite_leaves_no_file(
    attempt: Attempt,
    monkeypatch: pytest.MonkeyPatch,
    happens: Callable[[Attempt, Snapshot], None],
    moment: str,
) -> None:
    end, task = rewriting(attempt)
    output = Path(attempt.layout.output.path)
    before, write = names(output), Location.write

    def written(self: Location, content: bytes) -> None:
        monkeypatch.setattr(Location, "write", write)
        write(self, content)
        happens(attempt, end)

    if moment == "after it":
        monkeypatch.setattr(Location, "write", written)
    else:
        happens(attempt, end)
    with pytest.raises(BadOutput):
        task()
    assert names(output) == before


def test_old_and_new_files_exist_until_a_snapshot_names_the_new_ones(attempt: Attempt) -> None:
    end, task = rewriting(attempt)
    entry = task()
    output = Path(attempt.layout.output.path)
    assert len(names(output)) == 3
    assert attempt.load_committed().entries == end.entries, "the new file does not count yet"
    unified = end.only([entry, end.entries[1]])
    attempt.put_unified(unified)
    assert [one.data for one in attempt.load_committed().entries] == [
        one.data for one in unified.entries
    ]
    attempt.remove_orphans(unified.entries)
    assert names(output) == {file.name for one in unified.entries for file in one.data}


def test_snapshot_of_an_earlier_attempt_is_not_used(attempt: Attempt) -> None:
    """A late driver has written it after another attempt began."""
    end, _ = rewriting(attempt)
    later = Attempt.open(attempt.layout, attempt.number + 1, end)
    stale = Snapshot(end.work, end.input, [], {}, attempt.number)
    attempt.layout.end.write(stale.serialized())
    assert later.load_committed().entries == end.entries


def test_no_name_gets_a_second_content(tmp_path: Path) -> None:
    job = small_job(write_input(tmp_path / "in"), tmp_path / "out")
    run_without_ray(job)
    layout = Layout.of(parse(job).spec)
    lease = read_lease(layout)
    assert lease is not None
    committed = {
        file.name: file
        for manifest in Attempt(layout, lease).manifests()
        for entry in manifest.entries
        for file in entry.data
    }
    final = {file.name: file for entry in Snapshot.read(layout.end, layout.key).entries
             for file in entry.data}  # fmt: skip
    assert len(final) == len(committed)
    assert final.keys() - committed.keys(), "some were rewritten"
    assert all(committed[name] == final[name] for name in final.keys() & committed.keys())
