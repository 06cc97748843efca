"""Jobs that put rows into Qdrant and OpenSearch: killed drivers, delayed drivers, `verify`.

The servers are those of support/servers/stores.py: real ones do not run in the tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from batchinference.spec.report import JobState
from plugins.messages import Messages
from support.jobs.crash_points import JobProcess, local_site
from support.jobs.delayed_drivers import Check, delay_driver
from support.jobs.vector_jobs import COMPUTED, STORES, VectorJob
from support.outputs.verify_command import verified
from support.servers.stores import Answer, Call, stored_in
from support.tiers import in_long_tier

pytestmark = pytest.mark.xdist_group("crashes")
ROWS = {"a": [1.0, 0.0], "b": [0.0, 1.0], "c": [0.6, 0.8]}


@pytest.fixture(params=STORES)
def vectors(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[VectorJob]:
    COMPUTED.clear()
    with stored_in(STORES[request.param]()) as store:
        job = VectorJob(request.param, tmp_path, store)
        job.lines("a", "a=1,0", "b=0,1")
        job.lines("b", "c=0.6,0.8", "d=1,2,3")
        yield job


def rows_of(job: VectorJob) -> dict[str, Any]:
    return {name: pytest.approx(vector) for name, vector in job.vectors().items()}


def test_rows_of_new_files_are_put(vectors: VectorJob) -> None:
    assert vectors.run().state == JobState.SUCCEEDED
    assert (rows_of(vectors), vectors.proven()) == (ROWS, True)
    vectors.lines("c", "a=0,1", "e=1,0")
    assert vectors.run().state == JobState.SUCCEEDED
    assert COMPUTED == ["a=1,0", "b=0,1", "c=0.6,0.8", "d=1,2,3", "a=0,1", "e=1,0"]
    assert rows_of(vectors) == {**ROWS, "a": [0.0, 1.0], "e": [1.0, 0.0]}
    assert vectors.proven()


def test_job_killed_at_any_request_is_completed_without_computing_again(
    vectors: VectorJob, tmp_path: Path
) -> None:
    site = local_site(tmp_path / "of_processes")
    undisturbed = JobProcess(site, vectors.job(path=str(tmp_path / "undisturbed")))
    assert undisturbed.end() == 0, undisturbed.report.message
    wrong = {}
    calls = enumerate(list(vectors.store.calls), start=1)
    for request in [number for number, call in calls if call.writes or in_long_tier()]:
        output = tmp_path / f"out-{request}"
        vectors.store.clear()
        job = vectors.job(path=str(output))
        process = killed_at(vectors, request, JobProcess, site, job)
        begun = (output / "_batchinference" / "output.json").exists()
        COMPUTED.clear()
        again = vectors.run(path=str(output))
        proof = verified(output, "--trust-output")
        state = (process, again.state, rows_of(vectors), proof.result, bool(begun and COMPUTED))
        if state != (-signal.SIGKILL, JobState.SUCCEEDED, ROWS, "proven", False):
            wrong[f"{request}: {vectors.store.calls[-1].path}"] = (*state, again.message)
    assert wrong == {}


def killed_at(
    vectors: VectorJob, request: int, start: Callable[..., JobProcess], *arguments: Any
) -> int:
    """Run a job whose process is killed when the store has done a request, before it answers."""
    started: Future[JobProcess] = Future()

    def kill(_: Call) -> Answer | None:
        if len(vectors.store.calls) < request:
            return None
        os.kill(started.result().pid, signal.SIGKILL)
        return -1, None

    vectors.store.fault = kill
    started.set_result(start(*arguments))
    code = started.result().end()
    vectors.store.fault = lambda call: None
    return code


@pytest.mark.parametrize("after", [0, 1], ids=["before a row is put", "before a batch is put"])
def test_delayed_driver_does_not_replace_newer_rows(
    vectors: VectorJob, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job puts other vectors under the same keys while a driver is delayed."""
    newer = {"a": [0.0, 1.0], "b": [1.0, 0.0], "c": [0.8, 0.6]}

    def other(check: Check) -> None:
        check()
        lines = [f"{name}={x},{y}" for name, (x, y) in newer.items()]
        other = VectorJob(vectors.format, vectors.folder / "other", vectors.store)
        other.lines("a", *lines)
        assert other.run().state == JobState.SUCCEEDED

    delay_driver(monkeypatch, other, after)
    assert vectors.run().state == JobState.SUCCEEDED
    assert rows_of(vectors) == newer
    assert vectors.proven()


def test_driver_whose_output_was_taken_over_fails(
    vectors: VectorJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(check: Check) -> None:
        check()
        assert vectors.run().state == JobState.SUCCEEDED

    delay_driver(monkeypatch, other, after=1)
    assert vectors.run().reason == "BadOutput"
    assert (rows_of(vectors), vectors.proven()) == (ROWS, True)


def test_verify_finds_keys_that_the_store_lost(vectors: VectorJob) -> None:
    assert vectors.run().state == JobState.SUCCEEDED
    vectors.store.remove(vectors.store.rows()[0]["_id"])
    assert verified(vectors.output, "--trust-output").counts == {"missingKeys": 1}


def test_untrusted_output_leads_to_no_server(vectors: VectorJob) -> None:
    assert vectors.run().state == JobState.SUCCEEDED
    vectors.store.calls.clear()
    assert verified(vectors.output).exit_code == 0
    assert vectors.store.calls == []


def test_key_that_changes_during_a_commit_is_refused(
    vectors: VectorJob, messages: Messages
) -> None:
    vectors.store.fault = lambda call: (403, {}) if call.writes_rows else None
    assert vectors.run().state == JobState.FAILED
    vectors.store.fault = lambda call: None
    refused = vectors.run(key=["text"])
    assert refused.reason == "BadOutput"
    messages.check(refused.message or "")
    assert vectors.run().state == JobState.SUCCEEDED
    assert rows_of(vectors) == ROWS
