"""The guarantees of docs/exactly-once.md, each for each kind of job."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.execution import executor
from batchinference.pipeline.execution.chunk_commits import CommitRules
from batchinference.pipeline.execution.crash_isolation import CRASHED
from batchinference.pipeline.execution.stop_signals import StopSignal
from batchinference.spec.report import JobState, Report
from support.documents.minimal import Document, document
from support.documents.vllm_models import vllm_step
from support.jobs.on_ray import Run, run_job, write_lines
from support.jobs.vector_jobs import STORES, store_fields
from support.outputs.rows import rows_of
from support.outputs.tables import table_rows, write_fields
from support.outputs.verify_command import verified
from support.servers.openai import save_language_model
from support.servers.stores import Store, stored_in

pytestmark = pytest.mark.usefixtures("ray")

POOL = {"replicas": {}}
VLLM = vllm_step("model", chat=False) | {"batchSize": 2}
"""A fake engine. Several batches are computed at the same time."""
SCRIPTED = {"python": {"callable": "own_code:scripted"}}
SAME = {"python": {"callable": "own_code:Same"}, **POOL}
CODES = {"python": {"callable": "own_code:codes"}}
MODEL = {
    "model": {
        "runtime": "torch",
        "factory": "own_models:scripted",
        "inputs": {"codes": "codes"},
        "output": "codes",
    },
    "batchSize": 2,
    "replicas": {},
}
"""A model in the process of the actor. One batch is prepared while another one is computed."""
COPY = {"addColumns": {"copy": "text"}}
TABLES = {f"a table of {format_}": format_ for format_ in ("delta", "iceberg", "lance", "sql")}
MERGES = {f"merge into {format_}": f"{format_} merge" for format_ in ("delta", "iceberg", "sql")}
UPSERTS = {f"upsert into {format_}": format_ for format_ in STORES}
ADDED, PARTS = {"addColumn to lance": "lance addColumn"}, "files in partitions"
TABLE_OF = {**TABLES, **MERGES, **UPSERTS, **ADDED, "a pool and a table": "iceberg"}
"""The format of each table, and a mode other than the default."""
KINDS: dict[str, list[Document]] = {
    "no pool": [{}],
    "one pool": [{}, POOL, {}],
    "two pools": [{}, POOL, POOL],
    "one replica": [{}, {"replicas": {"max": 1}, "batchSize": 3}, {}],
    "a model": [CODES, MODEL, {"dropColumns": ["codes"]}],
    "vLLM": [{}, VLLM, {}],
    **{kind: [{}] for kind in (*TABLES, *MERGES)},
    **{kind: [{}, CODES] for kind in UPSERTS},
    **{kind: [{}, COPY] for kind in (*ADDED, PARTS)},
    "a pool and a table": [{}, POOL, {}],
    "before a pool": [SCRIPTED, SAME],
    "after a pool": [SAME, SCRIPTED],
}
"""The fields of the steps of each kind of job. The last pool, or the last step, runs the texts."""
NEXT_TO_POOL = ("before a pool", "after a pool")
"""The kinds in which a task that reads or commits runs the texts."""


class Job:
    """A job of one kind, whose last pool does what the texts say."""

    def __init__(self, directory: Path, kind: str, store: Store | None = None) -> None:
        self._directory, self._kind, self._store = directory, kind, store
        self._table, _, self._mode = TABLE_OF.get(kind, "").partition(" ")
        self._output, self._column = directory / "out", "copy" if kind in ADDED else "text"
        (directory / "code").mkdir()
        if kind == "vLLM":
            (directory / "code" / "record").touch()
            save_language_model(directory / "code" / "model")

    def _step(self, number: int) -> Document:
        fields = KINDS[self._kind]
        step = fields[number]
        pools = [at for at, each in enumerate(fields) if each and each not in (CODES, COPY)]
        directory = str(self._directory / "code")
        if step is VLLM:
            return {**step, "model": step["model"] | {"source": f"{directory}/model"}}
        if step is MODEL:
            model = step["model"] | {"factoryArgs": {"directory": directory}}
            return {"name": "model", **step, "model": model}
        if step is SCRIPTED:
            python = step["python"] | {"callArgs": {"directory": directory}}
            return {"name": "step", "python": python}
        if step.keys() & {"python", "addColumns", "dropColumns"}:
            return {"name": f"step{number}", **step}
        scripted = {"callable": "own_code:Scripted", "constructorArgs": {"directory": directory}}
        same = {"callable": "own_code:Same" if step else "own_code:same"}
        python = scripted if number == (pools or [0])[-1] else same
        return {"name": f"step{number}", "python": python, **step}

    def run(self, stop: StopSignal | None = None, **arguments: Any) -> Run:
        steps = [self._step(number) for number in range(len(KINDS[self._kind]))]
        read = {"format": "text", "paths": [str(self._directory / "in")]}
        if self._kind in ADDED:
            read = {"format": "lance", "path": str(self._output)}
        job = document("job", read=read, write=self._write(), steps=steps, errors={"maxRows": 5})
        return run_job(job, stop=stop, **arguments)

    def _write(self) -> Document:
        if self._store is not None:
            vector = {"key": ["text"], "vectorColumn": "codes", "dimensions": 16}
            return store_fields(self._table, self._store, self._directory, **vector)
        if self._kind == PARTS:
            return write_fields("parquet", self._directory) | {"partitionBy": ["copy"]}
        fields = write_fields(self._table or "json", self._directory)
        own = {"merge": {"key": ["text"]}, "addColumn": {"columns": [self._column]}}
        return fields | ({"mode": self._mode, **own[self._mode]} if self._mode else {})

    def read(self, **files: list[str]) -> None:
        """Write the input: the lines of each file, or the rows of each fragment."""
        for name, lines in files.items():
            if self._kind in ADDED:
                lance.write_dataset(pa.table({"text": lines}), self._output, mode="append")
            else:
                write_lines(self._directory / "in", {f"{name}.txt": lines})

    def texts(self) -> list[str]:
        """Return the texts in the output, as its readers see them."""
        if self._store is not None:
            rows = self._store.rows()
        elif self._table:
            rows = table_rows(self._table, self._directory)
        else:
            parts = (self._output, *self._output.glob("copy=*"))
            rows = [row for part in parts for row in rows_of(part)]
        computed = [row for row in rows if row.get("copy") or self._kind not in ADDED]
        return sorted(row[self._column] for row in computed)

    def committed(self) -> list[str]:
        """Return the committed texts of an unfinished output."""
        if not self._table:
            return self.texts()
        assert self.texts() == []
        tables = map(pq.read_table, self._output.rglob("staged/*.parquet"))
        return [text for table in tables for text in table[self._column].to_pylist()]

    def errors(self) -> dict[str, str]:
        """Return the error of each failed row, by the numbers of its file and its row."""
        tables = map(pq.read_table, self._output.rglob("errors/*.parquet"))
        return dict(sorted((row["id"], row["error"]) for t in tables for row in t.to_pylist()))

    def computed(self) -> list[str]:
        """Return the texts that were computed, each as often as that happened."""
        files = (self._directory / "code").glob("computed-*")
        return [text for file in files for text in file.read_text().split("\n")]

    def release(self) -> None:
        """End the wait of the texts that hold."""
        (self._directory / "code" / "release").touch()

    def is_proven(self) -> bool:
        return verified(self._output, "--trust-output").result == "proven"


SOON = ("no pool", "one pool", "a model", "vLLM", "a table of delta")
"""The kinds that each landing tests."""


@pytest.fixture(
    params=[
        kind if kind in SOON else pytest.param(kind, marks=pytest.mark.long("crash-points"))
        for kind in KINDS
        if kind not in ("one replica", *NEXT_TO_POOL)
    ]
)
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Job]:
    store = STORES.get(UPSERTS.get(request.param, ""))
    with stored_in(store()) if store else nullcontext() as served:
        yield Job(tmp_path, request.param, served)


@pytest.mark.parametrize(
    "retries",
    [4, pytest.param(1, marks=pytest.mark.long("crash-points"))],
    ids=["retries", "passes"],
)
def test_rows_that_kill_their_process_and_rows_that_raise_are_failed_rows(
    job: Job, retries: int
) -> None:
    """With few retries by Ray, the row is isolated in later passes."""
    check_failed_rows(job, task_retries=retries)


@pytest.mark.parametrize("kind", NEXT_TO_POOL)
def test_rows_that_kill_a_task_next_to_a_pool_are_failed_rows(tmp_path: Path, kind: str) -> None:
    check_failed_rows(Job(tmp_path, kind))


def check_failed_rows(job: Job, **retries: int) -> None:
    """Run a job in which a row kills its process and another one raises."""
    job.read(a=["a0", "die", "a2"], b=["b0", "b1", "fail"], c=["c0", "c1"])
    run = job.run(**retries)
    assert (run.report.state, run.counts) == (JobState.SUCCEEDED, (8, 6, 2, 0))
    assert job.texts() == ["a0", "a2", "b0", "b1", "c0", "c1"]
    errors = job.errors()
    assert [*errors] == ["0:1", "1:2"]
    assert errors["0:1"] == f"WorkerCrashed: {CRASHED}"
    assert "WorkerCrashed" not in errors["1:2"]
    assert run.report.retries >= 2
    assert job.is_proven()


def test_rows_are_committed_in_chunks_kept_at_a_stop_and_not_computed_again(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks commit after each batch."""
    monkeypatch.setattr(executor, "small_commit_seconds", lambda **_: 0.0)
    files = {f"f{number}": [f"{number} {row}" for row in range(4)] for number in range(6)}
    job.read(**files, waiting=["hold"])
    stop = StopSignal()
    stop.drain_seconds = 2.0

    def stop_when_committed(report: Report) -> None:
        if report.counts is not None and report.counts.written >= 12:
            stop.ask(signal.SIGTERM)

    first = job.run(stop, on_publish=stop_when_committed)
    assert (first.report.state, first.report.reason) == (JobState.FAILED, "Interrupted")
    assert first.counts[1] >= 12
    kept = job.committed()
    assert len(kept) >= 12
    job.release()
    second = job.run()
    assert (second.report.state, second.counts) == (JobState.SUCCEEDED, (25, 25, 0, 0))
    assert job.texts() == sorted(["hold", *(text for rows in files.values() for text in rows)])
    computed = job.computed()
    assert [text for text in kept if computed.count(text) != 1] == []
    assert job.is_proven()


def test_stop_commits_the_rows_that_were_computed(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks commit nothing before the stop, and none of them ends before it."""
    monkeypatch.setattr(executor.Executor, "_rules", CommitRules(1 << 20, 600.0))
    monkeypatch.setattr(executor, "number_of_tasks", lambda *_, **__: 6)
    files = {f"f{number}": [f"slow {number} {row}" for row in range(60)] for number in range(6)}
    job.read(**files)
    stop, before, written = StopSignal(), set[str](), list[int]()

    def stop_when_computed(report: Report) -> None:
        if not before and len(texts := job.computed()) >= 12:
            before.update(texts)
            written.append(report.counts.written if report.counts else 0)
            stop.ask(signal.SIGTERM)

    first = job.run(stop, on_publish=stop_when_computed)
    assert (first.report.state, first.report.reason) == (JobState.FAILED, "Interrupted")
    kept = job.committed()
    assert (written, before - {*kept}) == ([0], set())
    job.release()
    second = job.run()
    assert (second.report.state, second.counts) == (JobState.SUCCEEDED, (360, 360, 0, 0))
    assert job.texts() == sorted(text for rows in files.values() for text in rows)
    computed = job.computed()
    assert [text for text in kept if computed.count(text) != 1] == []
    assert job.is_proven()


@pytest.mark.long("crash-points")
def test_job_goes_on_after_an_actor_has_no_restarts_left(tmp_path: Path) -> None:
    """Ray Data would wait for it for ever."""
    job = Job(tmp_path, "one replica")
    files = {f"f{number}": ["die" if number % 2 else "a", "b", "c"] for number in range(6)}
    job.read(**files)
    run = job.run(task_retries=1, actor_restarts=2)
    assert (run.report.state, run.counts) == (JobState.SUCCEEDED, (18, 15, 3, 0))
    assert job.is_proven()
