"""Ray starts after the output is claimed: a slow or failed start loses no rows."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from batchinference.api.runner import Runner
from batchinference.pipeline import job as job_module
from batchinference.pipeline import ray_compat
from batchinference.pipeline.commit import heartbeat
from batchinference.pipeline.commit.heartbeat import heartbeat_file, keep_heartbeat
from batchinference.pipeline.commit.lease import Lease
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.commit.output_state import CachedReader
from batchinference.pipeline.errors import Interrupted, JobFailure
from batchinference.pipeline.execution import ray_connection
from batchinference.pipeline.execution.ray_connection import START_TRIES
from batchinference.pipeline.execution.stop_signals import (
    STOPPING_EARLY,
    StopSignal,
    stop_on_signals,
)
from batchinference.pipeline.job import JobRun
from batchinference.plan import Plan, plan, plan_for_machine, requested_plan
from batchinference.spec import parse
from batchinference.spec.report import JobState, Report
from plugins.messages import Messages
from support.documents.minimal import Document, model_step
from support.jobs.on_ray import job_document, write_lines
from support.jobs.without_ray import in_this_process, run_without_ray
from support.outputs.builders import layout_of
from support.outputs.rows import rows_of


def document_of(directory: Path, name: str = "a", **write: Any) -> Document:
    source = directory / name
    if not source.exists():
        write_lines(source, {"lines.txt": [name]})
    return job_document("demo", source, directory / "out", write=write)


def run_on(
    given: Document, starts: Callable[[], Any], stop: StopSignal | None = None, **times: float
) -> Report:
    """Run a job, and call `starts` when Ray starts."""
    job = parse(given)

    @contextmanager
    def ray() -> Iterator[Plan]:
        starts()
        yield plan_for_machine(job.spec, gpus=0)

    with in_this_process():
        layout = replace(Layout.of(job.spec), **times)
        return JobRun(job, ray, lambda _: None, stop or StopSignal(), layout=layout).run()


def fail(failure: JobFailure) -> Callable[[], None]:
    def start() -> None:
        raise failure

    return start


FAILURES = [JobFailure("Ray could not start: no port"), Interrupted("stopped by SIGTERM")]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.reason)
def test_the_same_job_runs_after_a_failed_start_and_another_is_refused(
    tmp_path: Path, failure: JobFailure, messages: Messages
) -> None:
    report = run_on(document_of(tmp_path), fail(failure))
    assert (report.state, report.reason) == (JobState.FAILED, failure.reason)
    assert report.message == failure.message
    other = run_without_ray(document_of(tmp_path, "b"))
    messages.check(other.message)
    again = run_without_ray(document_of(tmp_path))
    assert (again.state, again.pass_number) == (JobState.SUCCEEDED, 2)
    assert rows_of(tmp_path / "out") == [{"text": "a"}]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.reason)
def test_a_failed_start_with_overwrite_keeps_the_old_output(
    tmp_path: Path, failure: JobFailure
) -> None:
    run_without_ray(document_of(tmp_path, "a"))
    new = document_of(tmp_path, "b", mode="overwrite")
    assert run_on(new, fail(failure)).reason == failure.reason
    assert CachedReader().is_complete(Layout.of(parse(document_of(tmp_path, "a")).spec))
    assert rows_of(tmp_path / "out") == [{"text": "a"}]
    assert run_without_ray(new).state == JobState.SUCCEEDED
    assert rows_of(tmp_path / "out") == [{"text": "b"}]


def test_a_stop_while_ray_starts_ends_the_run_before_any_row(tmp_path: Path) -> None:
    said: list[str] = []
    with stop_on_signals(said.append) as stop:
        report = run_on(document_of(tmp_path), lambda: stop.ask(signal.SIGINT), stop)
    assert (report.reason, report.message) == ("Interrupted", "stopped by SIGINT")
    assert report.counts is None
    assert said == [STOPPING_EARLY]


def test_a_stop_while_the_input_is_listed_starts_no_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = StopSignal()
    monkeypatch.setattr(
        job_module, "prepare_pass", partial(_stopped, stop, job_module.prepare_pass)
    )
    assert run_on(document_of(tmp_path), pytest.fail, stop).reason == "Interrupted"


def _stopped(stop: StopSignal, prepare: Callable[..., Any], *args: Any, **options: Any) -> Any:
    stop.ask(signal.SIGTERM)
    return prepare(*args, **options)


class Starts:
    """Records the starts of Ray. The first `failing` of them fail, after `meanwhile` is called."""

    def __init__(self, failing: int, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.count, self._failing, self._meanwhile = 0, failing, meanwhile

    def __call__(self, **_: Any) -> None:
        self.count += 1
        if self.count <= self._failing:
            self._meanwhile()
            raise RuntimeError("timed out")


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that starts Ray with a fake `ray.init`."""

    def run(starts: Starts, stop: StopSignal | None = None) -> None:
        monkeypatch.setattr(ray_connection.ray, "init", starts)
        files, check = ray_connection.RayFiles(str(tmp_path)), (stop or StopSignal()).check
        with ray_connection.local_ray(1, str(tmp_path), files, quiet=False, check_stop=check):
            pass

    monkeypatch.setattr(ray_connection.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_connection.ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray_connection.ray, "cluster_resources", dict)
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.syspath_prepend("unused")  # restores sys.path
    return run


def test_ray_that_does_not_start_in_time_is_started_again(
    start: Callable[..., None], messages: Messages
) -> None:
    start(late := Starts(failing=START_TRIES - 1))
    assert late.count == START_TRIES
    with messages.raises(JobFailure):
        start(never := Starts(failing=START_TRIES + 1))
    assert never.count == START_TRIES


def test_ctrl_c_ends_a_start_of_ray_at_once(start: Callable[..., None]) -> None:
    handler = signal.getsignal(signal.SIGINT)

    def press() -> None:
        signal.raise_signal(signal.SIGINT)
        pytest.fail("Ray starts nevertheless")

    with stop_on_signals(print) as stop, pytest.raises(Interrupted, match="stopped by SIGINT"):
        start(Starts(1, press), stop)
    assert signal.getsignal(signal.SIGINT) == handler


def test_a_start_of_ray_that_ends_early_leaves_no_processes(
    start: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, killed = object.__new__(ray_compat.Node), []
    monkeypatch.setattr(ray_compat.Node, "_register_shutdown_hooks", lambda _: None)
    monkeypatch.setattr(ray_compat.Node, "kill_all_processes", lambda *_, **__: killed.append(1))
    start(Starts(1, lambda: ray_compat.Node._register_shutdown_hooks(node)))
    assert killed == [1]


@pytest.mark.parametrize("failing", [1, START_TRIES])
def test_stopped_start_that_fails_is_interrupted(start: Callable[..., None], failing: int) -> None:
    stop = StopSignal()
    starts = Starts(failing, lambda: starts.count == failing and stop.ask(signal.SIGINT))
    with pytest.raises(Interrupted, match="stopped by SIGINT"):
        start(starts, stop)
    assert starts.count == failing, "it is not started again"


def test_another_run_is_refused_while_ray_starts(tmp_path: Path, messages: Messages) -> None:
    given = document_of(tmp_path)
    others: list[Report] = []

    def start() -> None:
        with patch.object(heartbeat, "this_process", lambda: "another process"):
            others.append(run_without_ray(given, lease_timeout=1.0))

    report = run_on(given, start, heartbeat_seconds=0.05)
    messages.check(others[0].message)
    assert report.state == JobState.SUCCEEDED


def test_second_run_in_the_process_is_refused(tmp_path: Path, messages: Messages) -> None:
    """A notebook has several threads. The run goes on, and afterwards another one may start."""
    given, others = document_of(tmp_path), list[Report]()
    report = run_on(given, lambda: others.append(run_on(given, pytest.fail)))
    messages.check(others[0].message)
    assert (report.state, rows_of(tmp_path / "out")) == (JobState.SUCCEEDED, [{"text": "a"}])
    assert run_on(given, pytest.fail).state == JobState.SUCCEEDED


def test_consecutive_heartbeats_differ(tmp_path: Path) -> None:
    """Otherwise a run that waits would not see that the next phase has begun."""
    layout, seen = layout_of(tmp_path), set()
    lease = Lease.new(layout, 1, begun=False)
    for _ in range(3):
        with keep_heartbeat(layout, lease):
            seen.add(heartbeat_file(layout, lease).read())
    assert len(seen) == 3


def test_spilled_bytes_do_not_start_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_connection.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_connection.ray, "get_runtime_context", pytest.fail)
    assert ray_connection.spilled_bytes() is None


@pytest.mark.parametrize(("gpus", "cpus"), [(0, 8), (1, 9)])
def test_ray_has_cpus_for_write_tasks_only_if_the_machine_has_the_gpu_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, cpus: int
) -> None:
    started: list[int] = []

    @contextmanager
    def local_ray(cpus: int, *_: Any, **__: Any) -> Iterator[ray_connection.Resources]:
        started.append(cpus)
        yield {"GPU": gpus, "memory": 0.0}

    monkeypatch.setattr(ray_connection, "local_ray", local_ray)
    monkeypatch.setattr(ray_connection, "machine_cpus", lambda: 8)
    monkeypatch.setattr(ray_connection, "accelerator_of_machine", lambda: ("GPU", gpus))
    given = document_of(tmp_path)
    given["spec"]["steps"] = [model_step(resources={"gpu": 1})]
    runner = Runner(parse(given), tmp_path, print, print, StopSignal())
    requested = requested_plan(runner.job.spec)
    monkeypatch.setattr(plan, "check_columns", pytest.fail)  # checked already
    with runner._ray(ray_connection.RayFiles(str(tmp_path)), requested) as fitted:
        assert fitted.single_segment == (gpus == 0)
    assert started == [cpus]
