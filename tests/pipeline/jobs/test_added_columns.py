"""The mode addColumn: new columns for the rows of the Lance dataset that the job reads."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.spec.report import JobState, Report
from plugins.messages import Messages
from support.documents.minimal import Document, document
from support.jobs.delayed_drivers import delay_driver, kill_after_commit
from support.jobs.text_table import COMPUTED
from support.jobs.without_ray import run_without_ray
from support.outputs.verify_command import verified

OWN = {"callable": "support.jobs.text_table:without_x", "method": "map"}
STEPS: list[Document] = [
    {"name": "own", "python": OWN},
    {"name": "few", "filter": "id != 8"},
    {"name": "more", "addColumns": {"size": "len(text) + id"}},
]
SIZES: dict[int, int | None] = {
    **{number: number + 2 for number in range(10) if number not in (3, 5, 8)},
    **dict.fromkeys((3, 8)),  # failed, filtered
}
"""The new column. Row 5 was deleted before the job."""
Dataset = lance.LanceDataset
Change = Callable[[Dataset], object]


def row(number: int, text: str = "new") -> pa.Table:
    return pa.table({"id": [number], "text": [text]})


@pytest.fixture(params=[False, True], ids=["row addresses", "stable row ids"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A dataset of three fragments, in which a row was deleted."""
    texts = [("x" if number == 3 else "a") + str(number) for number in range(10)]
    rows = pa.table({"id": list(range(10)), "text": texts})
    path = tmp_path / "data"
    lance.write_dataset(rows, path, max_rows_per_file=4, enable_stable_row_ids=request.param)
    lance.dataset(path).delete("id = 5")
    COMPUTED.clear()
    return path


def run(path: Path, *, columns: list[str] | None = None, **spec: Any) -> Report:
    write = {"format": "lance", "path": str(path), "mode": "addColumn"}
    fields: Document = {
        "read": {"format": "lance", "path": str(path)},
        "write": {**write, "columns": columns or ["size"]},
        "steps": STEPS,
        "errors": {"maxRows": 10},
    }
    return run_without_ray(document("job", **fields | spec))


def sizes(path: Path) -> dict[int, int | None]:
    rows = lance.dataset(path).to_table().to_pylist()
    assert all(list(row) == ["id", "text", "size"] for row in rows)
    return {row["id"]: row["size"] for row in rows}


def files(path: Path) -> list[list[str]]:
    fragments = lance.dataset(path).get_fragments()
    return [[file.path for file in fragment.data_files()] for fragment in fragments]


def before_the_commit(monkeypatch: pytest.MonkeyPatch, path: Path, change: Change) -> None:
    """Change the dataset after the rows of the next job are computed, and before its commit."""
    real = JobPass.commit_table

    def register(self: JobPass, *arguments: Any) -> None:
        monkeypatch.setattr(JobPass, "commit_table", real)
        change(lance.dataset(path))
        real(self, *arguments)

    monkeypatch.setattr(JobPass, "commit_table", register)


def during_the_commit(monkeypatch: pytest.MonkeyPatch, path: Path, change: Change) -> None:
    """Change the dataset when the next job has prepared its commit, which conflicts then."""
    delay_driver(monkeypatch, lambda _: change(lance.dataset(path)))


def test_new_column_is_added_without_writing_others(path: Path) -> None:
    before = files(path)
    report = run(path)
    assert report.state == JobState.SUCCEEDED, report.message
    assert report.counts is not None
    assert (report.counts.written, report.counts.failed, report.counts.filtered) == (7, 1, 1)
    assert sizes(path) == SIZES
    assert [each[:-1] for each in files(path)] == before
    assert verified(path, "--trust-output").counts == {}
    version = lance.dataset(path).version
    assert run(path).state == JobState.SUCCEEDED
    assert lance.dataset(path).version == version


def test_vectors_of_two_jobs_are_added(path: Path) -> None:
    vector = {"name": "vector", "python": {"callable": "support.jobs.user_code:vectors"}}
    assert run(path).state == JobState.SUCCEEDED
    report = run(path, columns=["vector"], steps=[vector])
    assert report.state == JobState.SUCCEEDED, report.message
    rows = lance.dataset(path).to_table()
    assert rows.schema.field("vector").type == pa.list_(pa.float32(), 2)
    assert rows["vector"].to_pylist() == [[float(at), 0.5] for at in rows["id"].to_pylist()]


@pytest.mark.parametrize("name", ["_rowid", "_rowaddr", "_row_last_updated_at_version", "a.b"])
def test_names_that_lance_uses_are_refused(path: Path, name: str) -> None:
    report = run(path, columns=[name])
    assert (report.state, len(COMPUTED)) == (JobState.FAILED, 0)
    assert f"'{name}'" in (report.message or "")


def test_version_that_was_removed_during_the_job_is_reported(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clean(data: Dataset) -> None:
        lance.write_dataset(row(99), data.uri, mode="append")
        lance.dataset(data.uri).cleanup_old_versions(dt.timedelta(0))

    before_the_commit(monkeypatch, path, clean)
    report = run(path)
    assert report.state == JobState.FAILED
    assert report.message is not None
    assert report.message.startswith("write.mode")


CHANGES: dict[str, tuple[Change, dict[int, int | None]]] = {
    "rows were appended": (
        lambda data: lance.write_dataset(row(100), data.uri, mode="append"),
        {100: None},
    ),
    "a row was updated": (lambda data: data.update({"text": "'b'"}, where="id = 2"), {2: None}),
    "a row was deleted": (lambda data: data.delete("id = 2"), {}),
    "a fragment was deleted": (lambda data: data.delete("id < 4"), {}),
}


@pytest.mark.parametrize("when", [before_the_commit, during_the_commit])
@pytest.mark.parametrize("changed", CHANGES)
def test_dataset_may_change_while_the_job_computes(
    path: Path, changed: str, when: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    change, differences = CHANGES[changed]
    when(monkeypatch, path, change)
    report = run(path)
    assert report.state == JobState.SUCCEEDED, report.message
    left = {row["id"] for row in lance.dataset(path).to_table().to_pylist()}
    assert sizes(path) == {at: size for at, size in (SIZES | differences).items() if at in left}
    assert len(COMPUTED) == 9
    assert verified(path, "--trust-output").counts == {}


def test_compacted_dataset_needs_stable_row_ids(
    path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    version = lance.dataset(path).version
    before_the_commit(monkeypatch, path, lambda data: data.optimize.compact_files())
    report = run(path)
    if not lance.dataset(path).has_stable_row_ids:
        assert report.reason == "BadOutput"
        messages.check(report.message or "")
        lance.dataset(path, version=version).restore()
        report = run(path)
    assert (report.state, sizes(path), len(COMPUTED)) == (JobState.SUCCEEDED, SIZES, 9)


def test_replaced_dataset_is_not_changed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = row(0, "other")
    before_the_commit(
        monkeypatch, path, lambda data: lance.write_dataset(other, data.uri, mode="overwrite")
    )
    assert run(path).reason == "BadOutput"
    assert lance.dataset(path).to_table() == other


def test_job_resumes_although_the_dataset_has_changed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(data: Dataset) -> None:
        lance.write_dataset(row(100), data.uri, mode="append")
        raise OSError("killed")

    before_the_commit(monkeypatch, path, die)
    assert run(path).state == JobState.FAILED
    assert run(path).state == JobState.SUCCEEDED
    assert (sizes(path), len(COMPUTED)) == (SIZES | {100: None}, 9)


def test_driver_killed_after_its_commit_leaves_proof(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_after_commit(monkeypatch)
    assert run(path).state == JobState.FAILED
    assert run(path).state == JobState.SUCCEEDED
    assert (sizes(path), len(COMPUTED)) == (SIZES, 9)


def test_column_that_exists_is_refused(path: Path, messages: Messages) -> None:
    report = run(path, columns=["text"])
    assert report.reason == "BadOutput"
    messages.check(report.message or "")
    assert COMPUTED == []


def test_column_that_another_job_adds_meanwhile_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_the_commit(monkeypatch, path, lambda data: data.add_columns({"size": "id * 2"}))
    assert run(path).reason == "BadOutput"
    assert sizes(path)[9] == 18


def test_several_rows_for_a_row_are_refused(path: Path, messages: Messages) -> None:
    code = {"callable": "support.jobs.user_code:twice", "method": "flatMap"}
    report = run(path, steps=[{"name": "twice", "python": code}, *STEPS])
    assert report.reason == "BadOutput"
    messages.check(report.message or "")
    assert lance.dataset(path).schema.names == ["id", "text"]
