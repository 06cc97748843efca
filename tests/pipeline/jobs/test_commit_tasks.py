"""Tasks that read, compute and commit: chunks, interruptions, and tasks that run again."""

from __future__ import annotations

import pickle
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline.commit.commit_groups import counts_of_group
from batchinference.pipeline.commit.committer import Committer
from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.pipeline.commit.row_coverage import RowSet, resolve_overlaps
from batchinference.pipeline.errors import BadOutput, Incomplete, JobFailure
from batchinference.pipeline.execution import (
    chunk_commits,
    commit_tasks,
    task_resources,
    worker_stop,
)
from batchinference.pipeline.execution.chunk_commits import ChunkCommits, CommitRules
from batchinference.pipeline.execution.commit_tasks import CommitTask
from batchinference.pipeline.execution.segment import Segment
from batchinference.pipeline.execution.task_resources import tasks_at_once
from batchinference.pipeline.execution.task_sizing import SMALL_COMMIT_SECONDS
from batchinference.pipeline.execution.worker_stop import StopRequest
from batchinference.pipeline.output.file_split import FileSplit
from batchinference.pipeline.output.writers.parquet import ParquetWriter
from batchinference.pipeline.row_batch import RowBatch, consecutive_ids, merged
from batchinference.plan import plan_for_cluster, plan_for_machine, ray_cpus
from batchinference.plan.groups import GROUP_LABEL
from batchinference.spec.reserved import END_VARIABLE
from plugins.messages import Messages
from support.documents.minimal import Document
from support.documents.parsed import spec_of
from support.jobs.on_ray import write_lines
from support.outputs.batches import end, failed, filtered, good
from support.outputs.builders import begin_pass, committing, layout_of
from support.tiers import examples

TASK, ROWS = 7, 20
PATIENCE = 60.0
"""Seconds after which a test that waits for another thread fails."""
NO_STEPS = pickle.dumps(((), None))
Files = Iterator[tuple[str, memoryview]]


class AsRead(Segment):
    """No steps: the results are the batches that were read."""

    def of_read(self, read: Iterator[RowBatch], _: threading.Event) -> Iterator[RowBatch]:
        return read


class Stop:
    """A request to stop without Ray."""

    def __init__(self, *, requested: bool = False) -> None:
        self.event = threading.Event()
        if requested:
            self.event.set()

    def is_sent(self) -> bool:
        return self.event.is_set()

    def stop_event(self) -> nullcontext[threading.Event]:
        return nullcontext(self.event)


def batches_of_four_rows() -> list[RowBatch]:
    """Return the input of a task in batches of four rows."""
    return [good(0, first, range(first, first + 4)) for first in range(0, ROWS, 4)]


def unread() -> list[RowBatch]:
    raise AssertionError("the task reads")


FOUR = batches_of_four_rows()[0].nbytes


def slowly(
    monkeypatch: pytest.MonkeyPatch, batches: list[RowBatch], seconds: float
) -> Callable[[], Iterator[RowBatch]]:
    """Return a reader of batches, each of which takes some seconds of the clock of tasks."""
    now = 0.0
    monkeypatch.setattr(chunk_commits, "time", SimpleNamespace(monotonic=lambda: now))

    def read() -> Iterator[RowBatch]:
        nonlocal now
        for batch in batches:
            now += seconds
            yield batch

    return read


def task_of(
    committer: Committer,
    read: Callable[[], Iterable[RowBatch]] = batches_of_four_rows,
    rows_per_commit: int = 1,
    stop: Stop | None = None,
    file_rows: int = 8,
) -> CommitTask:
    """Return a task that commits as soon as it has `file_rows` rows."""
    steps, stop = AsRead(NO_STEPS), stop or Stop()
    rules = CommitRules(rows_per_commit, file_bytes=file_rows * FOUR // 4)
    return CommitTask(TASK, lambda: iter(read()), steps, committer, rules, stop)


@pytest.fixture
def job_pass(tmp_path: Path) -> JobPass:
    return pass_in(tmp_path)


def pass_in(directory: Path) -> JobPass:
    source = write_lines(directory / "in", {"a.txt": ["x"], "b.txt": ["y"]})
    return begin_pass(layout_of(directory / "out"), source)


@pytest.fixture
def committer(job_pass: JobPass) -> Committer:
    return committing(job_pass)


def commits(job_pass: JobPass, task: int = TASK) -> list[tuple[int, int, int]]:
    """Return the number, the first row and the row after the last of each commit of a task."""
    return [
        (manifest.number, first, after)
        for manifest in job_pass.manifests(task)
        for entry in manifest.entries
        for _, first, after in entry.row_ranges
    ]


def counted_rows(job_pass: JobPass) -> list[tuple[int, int]]:
    """Return the rows that the commits that count hold, as ranges of ids."""
    entries = [entry for manifest in job_pass.manifests() for entry in manifest.entries]
    kept = RowSet.of(resolve_overlaps(entries))
    return list(zip(kept.starts.tolist(), kept.stops.tolist(), strict=True))


class TestChunks:
    @pytest.mark.parametrize(
        ("seconds", "rows_per_commit", "expected"),
        [
            (chunk_commits.COMMIT_SECONDS, 1, [(0, 4), (4, 8), (8, 12), (12, 16), (16, 20)]),
            (chunk_commits.COMMIT_SECONDS, 6, [(0, 8), (8, 16), (16, 20)]),
            (chunk_commits.COMMIT_SECONDS / 3, 6, [(0, 12), (12, 20)]),
            (SMALL_COMMIT_SECONDS / 2, 100, [(0, 8), (8, 16), (16, 20)]),
            (SMALL_COMMIT_SECONDS, 100, [(0, 4), (4, 8), (8, 12), (12, 16), (16, 20)]),
            (SMALL_COMMIT_SECONDS / 5, 100, [(0, 20)]),
            (0.0, 1, [(0, 20)]),
        ],
    )
    def test_late_chunk_is_committed_with_the_rows_that_it_has(
        self,
        committer: Committer,
        monkeypatch: pytest.MonkeyPatch,
        seconds: float,
        rows_per_commit: int,
        expected: list[tuple[int, int]],
    ) -> None:
        read = slowly(monkeypatch, batches_of_four_rows(), seconds)
        task_of(committer, read, rows_per_commit, file_rows=1 << 40)(retried=False)
        assert [(first, after) for _, first, after in commits(committer.job_pass)] == expected

    def test_long_task_makes_few_commits_of_few_rows(
        self, committer: Committer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each batch takes a minute, and each commit has a quarter of the time until then."""
        batches = [good(0, row, [row]) for row in range(60)]
        read = slowly(monkeypatch, batches, SMALL_COMMIT_SECONDS)
        task_of(committer, read, 100, file_rows=1 << 40)(retried=False)
        rows = [after - first for _, first, after in commits(committer.job_pass)]
        assert rows[:4] == [1, 1, 1, 1]
        assert rows == sorted(rows[:-1]) + rows[-1:]
        assert len(rows) < 20

    def test_commits_have_the_notes_of_their_batches_and_of_the_process(
        self, committer: Committer
    ) -> None:
        batch = replace(
            good(0, 0, [1]), notes=(("own", '{"batch_size": 8, "out_of_memory_at": 9}'),)
        )
        task_of(committer, lambda: [batch])(retried=False)
        (manifest,) = committer.job_pass.manifests()
        assert [step for step, _ in manifest.notes] == ["own", "read", "write", "write"]

    def test_rows_are_computed_while_the_chunk_before_is_committed(self, job_pass: JobPass) -> None:
        computed = threading.Event()

        class Slow(ParquetWriter):
            def files(self, table: pa.Table) -> Files:
                assert computed.wait(PATIENCE), "the commit blocks the task"
                yield from super().files(table)

        def read() -> Iterator[RowBatch]:
            first, second, third, fourth, fifth = batches_of_four_rows()
            yield from (first, second, third)
            assert commits(job_pass) == []
            computed.set()
            yield fourth
            # the second commit has begun, so that the first one has ended
            assert commits(job_pass)[0] == (0, 0, 8)
            yield fifth

        task_of(committing(job_pass, Slow("snappy")), read)(retried=False)
        assert len(commits(job_pass)) == 3

    @pytest.mark.parametrize(("bad", "read_rows"), [(0, 16), (8, 20), (16, 20)])
    def test_error_of_a_commit_ends_task(self, job_pass: JobPass, bad: int, read_rows: int) -> None:
        class FullDisk(ParquetWriter):
            def files(self, table: pa.Table) -> Files:
                if bad in table.column("n").to_pylist():
                    raise OSError("no space left")
                return super().files(table)

        used: list[int] = []

        def read() -> Iterator[RowBatch]:
            for batch in batches_of_four_rows():
                used.extend(batch.ids.tolist())
                yield batch

        with pytest.raises(OSError, match="no space left"):
            task_of(committing(job_pass, FullDisk("snappy")), read)(retried=False)
        assert len(used) == read_rows
        assert [first for _, first, _ in commits(job_pass)] == [*range(0, bad, 8)]

    def test_column_that_row_numbers_would_replace_is_found_in_the_first_batch(
        self, job_pass: JobPass, messages: Messages
    ) -> None:
        def read() -> Iterator[RowBatch]:
            yield batches_of_four_rows()[0]
            raise AssertionError("the task continues")

        committer = committing(job_pass, layout=FileSplit(row_number="n"))
        with messages.raises(JobFailure):
            task_of(committer, read)(retried=False)

    @pytest.mark.parametrize(
        ("rows_per_file", "expected"), [(0, [4, 8, 12, 16]), (12, [12]), (99, [16])]
    )
    def test_file_of_a_wanted_number_of_rows_may_be_large(
        self,
        committer: Committer,
        monkeypatch: pytest.MonkeyPatch,
        rows_per_file: int,
        expected: list[int],
    ) -> None:
        """Files of four rows are large."""
        ends: list[int] = []
        monkeypatch.setattr(ChunkCommits, "flush", lambda commits: commits._start_chunk())
        rules = CommitRules(1, rows_per_file=rows_per_file, file_bytes=FOUR)
        commits = ChunkCommits(committer, rules, TASK)
        for number, batch in enumerate(batches_of_four_rows()[:1] * 4, start=1):
            commits.add(batch)
            ends += [] if commits._batches else [4 * number]
        assert ends == expected

    def test_chunk_is_dropped_after_its_commit(self, committer: Committer) -> None:
        chunks: list[weakref.ref[RowBatch]] = []

        def put(self: Committer, batch: RowBatch, task: int, number: int) -> None:
            chunks.append(weakref.ref(batch))

        with (
            patch.object(Committer, "put", put),
            ChunkCommits(committer, CommitRules(1, file_bytes=2 * FOUR), TASK) as commits,
        ):
            for batch in batches_of_four_rows()[:2]:
                commits.add(batch)
            commits.wait()
            commits._pool.submit(int).result()  # the thread has dropped its last call
            assert [chunk() for chunk in chunks] == [None]


class TestEndOfATask:
    def test_stopped_task_commits_the_rows_that_are_complete(self, committer: Committer) -> None:
        stop = Stop()

        def read() -> Iterator[RowBatch]:
            for number, batch in enumerate(batches_of_four_rows(), start=1):
                if number == 3:
                    stop.event.set()
                yield batch

        task_of(committer, read, stop=stop)(retried=False)
        assert commits(committer.job_pass) == [(0, 0, 8), (1, 8, 12)]

    def test_failed_task_commits_the_rows_that_it_has_computed(self, committer: Committer) -> None:
        def read() -> Iterator[RowBatch]:
            yield from batches_of_four_rows()[:3]
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            task_of(committer, read)(retried=False)
        assert commits(committer.job_pass) == [(0, 0, 8), (1, 8, 12)]

    def test_task_that_starts_after_the_stop_reads_nothing(self, committer: Committer) -> None:
        task_of(committer, unread, stop=Stop(requested=True))(retried=False)
        assert committer.job_pass.manifests() == []

    def test_task_of_an_earlier_run_reads_nothing(
        self, committer: Committer, tmp_path: Path, messages: Messages
    ) -> None:
        begin_pass(committer.job_pass.layout, tmp_path / "in", 2)
        with messages.raises(BadOutput):
            task_of(committer, unread)(retried=False)


class TestRetriedTask:
    def test_overlapping_commits_of_earlier_executions_count_once(
        self, committer: Committer
    ) -> None:
        """Two executions ran concurrently, because Ray had lost contact with the first one."""
        committer.put(good(0, 0, range(6)), TASK, 0)
        committer.put(good(0, 4, range(6)), TASK, 1)
        task_of(committer)(retried=True)
        assert counted_rows(committer.job_pass) == [(0, ROWS)]
        assert [commit[:2] for commit in commits(committer.job_pass)[:3]] == [
            (0, 0),
            (1, 4),
            (2, 6),
        ]

    def test_file_that_is_read_less_far_than_before_is_no_changed_file(
        self, committer: Committer
    ) -> None:
        committer.put(good(0, 0, range(8)), TASK)
        ends = [good(0, 0, range(4)), failed(0, 4, "read", MemoryError("no memory")), end(0, 5)]
        with pytest.raises(Incomplete, match=r"up to row 5.*no memory"):
            task_of(committer, lambda: ends)(retried=True)
        assert counted_rows(committer.job_pass) == [(0, 8)]

    def test_numbers_continue_after_a_damaged_commit(self, committer: Committer) -> None:
        for number, batch in enumerate(batches_of_four_rows()[:3]):
            committer.put(batch, TASK, number)
        min(Path(committer.job_pass.directory.path).glob("0*.json")).write_bytes(b"")
        task_of(committer)(retried=True)
        assert [number for number, *_ in commits(committer.job_pass)] == [1, 2, 3, 3, 4]
        assert counted_rows(committer.job_pass) == [(0, ROWS)]

    def test_batches_are_committed_one_by_one_only_where_the_process_may_have_died(
        self, committer: Committer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(AsRead, "replaces_process", lambda _: True)
        read = slowly(monkeypatch, batches_of_four_rows(), SMALL_COMMIT_SECONDS / 2)
        task_of(committer, read, 100, file_rows=1 << 40)(retried=True)
        assert [(first, after) for _, first, after in commits(committer.job_pass)] == [
            *[(0, 4), (4, 8)],
            *[(8, 16), (16, 20)],
        ]

    def test_commits_of_other_tasks_do_not_matter(self, committer: Committer) -> None:
        committer.put(good(1, 0, range(6)), TASK + 1, 5)
        task_of(committer)(retried=True)
        assert commits(committer.job_pass)[0] == (0, 0, 8)


@st.composite
def inputs(draw: st.DrawFn) -> list[RowBatch]:
    """Generate the batches of two files, with good, failed and filtered rows."""
    batches = []
    for file in range(2):
        row = 0
        for size in draw(st.lists(st.integers(1, 5), max_size=6)):
            kind = draw(st.sampled_from(["good", "good", "failed", "filtered"]))
            rows = range(row, row + size)
            texts = ["x" * draw(st.integers(0, 9)) for _ in rows]
            table = pa.table({"n": rows, "text": texts})
            made = {
                "good": lambda rows=rows, file=file, table=table: [good(file, rows.start, table)],
                "failed": lambda rows=rows, file=file: [failed(file, row) for row in rows],
                "filtered": lambda rows=rows, file=file: [filtered(file, *rows)],
            }
            batches += made[kind]()
            row += size
        batches.append(end(file, row))
    return batches


@given(given_=inputs(), data=st.data())
@settings(max_examples=examples(60))
def test_each_row_is_committed_once_for_any_chunks(
    given_: list[RowBatch], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Executions of a task that were stopped or died, followed by one that ends."""
    committer = committing(pass_in(tmp_path_factory.mktemp("job")))
    ends = data.draw(st.lists(st.tuples(st.integers(0, len(given_)), st.booleans()), max_size=3))
    for number, (last, stopped) in enumerate([*ends, (len(given_), True)]):
        stop = Stop()

        def read(
            last: int = last, stopped: bool = stopped, stop: Stop = stop
        ) -> Iterator[RowBatch]:
            yield from given_[:last]
            if last < len(given_):
                stop.event.set()
            yield from given_[last:] if stopped else ()
            if not stopped:
                raise ValueError("died")

        rows, size = data.draw(st.integers(1, 20)), st.integers(1, 20 * FOUR)
        first = data.draw(st.integers(1, 9))
        steps = Segment(NO_STEPS, texts=("text",), batch_bytes=data.draw(size), first_rows=first)
        rules = CommitRules(rows, commit_seconds=0.0, file_bytes=data.draw(size))
        task = CommitTask(TASK, read, steps, committer, rules, stop)
        with nullcontext() if stopped else pytest.raises(ValueError, match="died"):
            task(retried=number > 0)
    manifests = committer.job_pass.manifests()
    row_ids = sorted(
        row_id
        for manifest in manifests
        for entry in manifest.entries
        for file, first, after in entry.row_ranges
        for row_id in consecutive_ids(file, first, after - first).tolist()
    )
    assert row_ids == sorted(merged(given_).input_ids.tolist())
    assert committer.job_pass.counts() == counts_of_group(merged(given_))
    assert dict(end for manifest in manifests for end in manifest.ends) == dict(merged(given_).ends)
    assert [manifest.number for manifest in manifests] == list(range(len(manifests)))


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the flags in Ray's control store."""
    flags = set[str]()
    monkeypatch.setattr(worker_stop, "has_flag", flags.__contains__)
    monkeypatch.setattr(worker_stop, "set_flag", flags.add)
    return flags


def quick(run: str, drain_seconds: float = 60.0) -> StopRequest:
    return StopRequest(run, poll_seconds=(0.01, 0.02), drain_seconds=drain_seconds)


@pytest.mark.usefixtures("flags")
def test_request_to_stop_reaches_the_tasks_of_its_run() -> None:
    with quick("run").stop_event() as of_run, quick("another").stop_event() as of_another:
        StopRequest("run").send()
        assert of_run.wait(10)
        assert not of_another.is_set()


def test_stop_is_noticed_after_ray_did_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_stop, "has_flag", Mock(side_effect=[ConnectionError, True]))
    assert quick("run").watched_for_ever().wait(10)


@pytest.mark.usefixtures("flags")
def test_processes_stop_when_their_pod_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(END_VARIABLE, str(tmp_path / "ends"))
    with quick("run").stop_event() as of_task:
        of_actor = quick("run").watched_for_ever()
        assert not of_task.wait(0.1)
        (tmp_path / "ends").touch()
        assert of_task.wait(10)
        assert of_actor.wait(10)


@pytest.mark.usefixtures("flags")
def test_process_of_a_task_that_does_not_stop_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    exited = threading.Event()
    monkeypatch.setattr(
        worker_stop, "os", SimpleNamespace(_exit=lambda code: exited.set(), environ={})
    )
    with quick("run", drain_seconds=0.01).stop_event():
        quick("run").send()
        assert exited.wait(10)


def test_tasks_ask_less_often_than_the_driver_and_at_different_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    ended = SimpleNamespace(wait=lambda seconds: waits.append(seconds) or len(waits) == 20)
    monkeypatch.setattr(worker_stop, "has_flag", lambda _: False)
    StopRequest("run")._poll(threading.Event(), ended)  # type: ignore[arg-type]
    assert len(set(waits)) > 10
    assert min(waits) >= 3 * commit_tasks.POLL_SECONDS


@pytest.mark.parametrize(
    ("cpus", "seconds", "limit"),
    [(0, 0.0, 1), (3, 9.0, 3), (3, 10.0, 12)],
    ids=["no worker yet", "one worker", "all workers"],
)
def test_first_tasks_need_no_further_workers(
    monkeypatch: pytest.MonkeyPatch, cpus: int, seconds: float, limit: int
) -> None:
    monkeypatch.setattr(task_resources.ray, "cluster_resources", lambda: {"CPU": cpus})
    workers = {"workers": {"cpu": 3, "max": 2}}
    assert tasks_at_once(plan_for_cluster(spec_of(cluster=workers)), seconds) == limit


def test_tasks_on_a_machine_never_wait_for_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_resources.ray, "cluster_resources", lambda: {"CPU": 3})
    assert tasks_at_once(plan_for_machine(spec_of()), 0.0) == 6


@pytest.mark.parametrize(("on_cluster", "cpus"), [(False, 0), (True, 1)])
def test_replica_with_a_device_leaves_its_cpu_to_decoding(*, on_cluster: bool, cpus: int) -> None:
    """On a cluster, it has its own pod, where nothing is decoded."""
    step = {"name": "a", "python": {"callable": "own:A"}, "resources": {"custom": {"NPU": 1}}}
    spec = spec_of(steps=[step])
    plan = plan_for_cluster(spec) if on_cluster else plan_for_machine(spec, 0, {"NPU": 1})
    assert task_resources.cpus_of(plan.stages[0], plan) == cpus


CLASS = {"name": "own", "python": {"callable": "own:Class"}}
POOL = {"name": "pool", "python": {"callable": "own:Pool"}, "replicas": {"max": 3}}
LARGE = {**CLASS, "resources": {"cpu": 3}}
FUNCTION = {"name": "f", "python": {"callable": "own:f"}, "resources": {"cpu": 2}}
SIZES: dict[str, tuple[list[Document], int, list[tuple[int, int]]]] = {
    "one pool": ([CLASS], 8, [(1, 8)]),
    "two pools": ([CLASS, {**CLASS, "name": "b"}], 8, [(1, 4), (1, 4)]),
    "next to limited replicas": ([CLASS, POOL], 8, [(1, 5), (1, 3)]),
    "few CPUs": ([LARGE], 2, [(1, 1)]),
    "workers with room for tasks": ([LARGE], 0, [(1, 2)]),
    "workers without room for tasks": ([LARGE, FUNCTION], 0, [(1, 1), (1, 1)]),
}


@pytest.mark.parametrize(("steps", "machine", "sizes"), SIZES.values(), ids=SIZES)
def test_pools_without_limits_use_all_cpus(
    monkeypatch: pytest.MonkeyPatch,
    steps: list[Document],
    machine: int,
    sizes: list[tuple[int, int]],
) -> None:
    """They also run if a single segment does not suit the input."""
    spec = spec_of(steps=steps, cluster={"workers": {"cpu": 4, "max": 2}})
    plan = plan_for_machine(spec) if machine else plan_for_cluster(spec)
    use_cluster(monkeypatch, ray_cpus(plan, machine))
    assert [task_resources.pool_size(stage, plan) for stage in plan.stages] == sizes


def use_cluster(monkeypatch: pytest.MonkeyPatch, cpus: float, *nodes: tuple[str, int]) -> None:
    """Let Ray have these CPUs, and nodes of these groups with these CPUs.

    Ray leaves out resources of which a node has none.
    """
    alive = [
        {
            "NodeID": f"node {number}",
            "Alive": True,
            "Labels": {GROUP_LABEL: group},
            "Resources": {"CPU": count} if count else {"memory": 1.0},
        }
        for number, (group, count) in enumerate(nodes, 1 - len(nodes))
    ]
    fake = SimpleNamespace(cluster_resources=lambda: {"CPU": cpus}, nodes=lambda: alive)
    monkeypatch.setattr(task_resources, "ray", fake)


@pytest.mark.parametrize(
    ("nodes", "size"),
    [
        ((("head", 0), ("cpu", 4), ("gpu", 64)), (1, 6)),
        ((("cpu", 4), ("gpu", 64)), (1, 2)),
        ((("cpu", 4), ("cpu", 0), ("gpu", 64)), (1, 2)),
        ((("cpu", 0), ("gpu", 64)), (1, 6)),
        ((("cpu", 4), ("cpu", 8), ("gpu", 64)), (1, 6)),
    ],
    ids=["autoscaling", "existing", "without CPUs", "only without CPUs", "of different sizes"],
)
def test_pools_use_no_cpus_of_other_groups(
    monkeypatch: pytest.MonkeyPatch, nodes: tuple[tuple[str, int], ...], size: tuple[int, int]
) -> None:
    """Their actors would take all CPUs of the group `cpu`, and no task could read or write."""
    pool = {"name": "gpu", "python": {"callable": "own:Pool"}, "resources": {"gpu": 1}}
    workers = {"cpu": 4, "max": 2}
    spec = spec_of(steps=[CLASS, pool], cluster={"workers": workers})
    plan = plan_for_cluster(spec)
    use_cluster(monkeypatch, sum(cpus for _, cpus in nodes), *nodes)
    assert task_resources.pool_size(plan.stages[0], plan) == size


@pytest.mark.parametrize("nodes", [[("head", 0)], []], ids=["autoscaling", "existing"])
def test_pools_use_no_cpus_of_nodes_that_are_left_out(
    monkeypatch: pytest.MonkeyPatch, nodes: list[tuple[str, int]]
) -> None:
    """Actors would take the CPUs that tasks need."""
    plan = plan_for_cluster(spec_of(steps=[CLASS], cluster={"workers": {"cpu": 4, "max": 2}}))
    use_cluster(monkeypatch, 8, *nodes, ("cpu", 4), ("cpu", 4))
    assert task_resources.pool_size(plan.stages[0], plan) == (1, 6)
    without = replace(plan, faulty_nodes=("node 0",))
    assert task_resources.pool_size(plan.stages[0], without) == (1, 2)
