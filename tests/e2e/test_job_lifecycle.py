"""Jobs under an operator that runs one at a time reach every phase."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from batchinference.spec.status import Phase
from e2e.jobs import GATED, counts
from support.cluster.deployment import upgraded
from support.cluster.kubectl import Kubectl
from support.cluster.object_store import ObjectStore, starts
from support.cluster.statuses import WatchingKubectl
from support.cluster.waits import (
    JOB_END,
    outcomes,
    pods,
    suspend,
    wait_for_phase,
    wait_for_reason,
    wait_for_rows,
)
from support.documents.minimal import document

Job = dict[str, Any]
ONE_AT_A_TIME = {"concurrency": {"maxRunning": 1}}
DATABASE = "/tmp/lines.db"
LOCK = f"""
import sqlite3, sys
connection = sqlite3.connect("{DATABASE}", isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def into_database(slow_job: Callable[..., Job]) -> Job:
    """Return a job that writes into a database in its head pod, which a test can lock."""
    job = slow_job("waiting")
    job["spec"]["cluster"]["env"].append(
        {"name": "DB", "value": f"sqlite:///{DATABASE}?timeout=60"}
    )
    job["spec"]["write"] |= {"format": "sql", "table": "lines", "urlEnv": "DB"}
    return job


@contextmanager
def locked_database(kubectl: Kubectl, pod: str) -> Iterator[None]:
    """Block other writers of the database of a head during the block."""
    command = ["kubectl", "--namespace", kubectl.namespace, "exec", "--stdin", pod]
    command += ["--container", "ray", "--", "python", "-c", LOCK]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        yield
        process.stdin.close()


def fails_twice(store: ObjectStore) -> Job:
    """Return a job without input that fails, and fails again when it is retried."""
    job = document("failing", read={"format": "text", "paths": [store.uri("nothing/here")]})
    again = {"maxAttempts": 2, "backoff": {"initial": "1s"}, "onCause": {"BadInput": "Retry"}}
    job["spec"] |= {"retry": again, "priority": 5}
    return job


@pytest.mark.long("phases")
@pytest.mark.timeout(900)
def test_every_phase_is_reached_and_a_job_that_gave_way_resumes_its_rows(
    kubectl: WatchingKubectl,
    store: ObjectStore,
    slow_job: Callable[..., Job],
    open_gate: Callable[[Job], None],
    into_database: Job,
    create: Callable[[Job], str],
) -> None:
    job = slow_job("kept")
    kept = create(job)
    seen = wait_for_rows(kubectl, kept)
    with upgraded(ONE_AT_A_TIME):
        waiting = create(into_database)
        wait_for_reason(kubectl, waiting, "AdmissionPending")
        suspend(kubectl, kept, True)
        wait_for_phase(kubectl, waiting, "Starting")
        suspend(kubectl, waiting, True)
        wait_for_phase(kubectl, waiting, "Suspended")
        open_gate(job)
        suspend(kubectl, kept, False)
        resumed = kubectl.wait_complete(kept, JOB_END)
        failing = create(fails_twice(store))
        wait_for_phase(kubectl, failing, "Starting")
        suspend(kubectl, waiting, False)
        # it starts when the first attempt of the other job has failed
        wait_for_rows(kubectl, waiting)
        with locked_database(kubectl, *pods(kubectl, waiting, "head")):
            open_gate(into_database)
            wait_for_phase(kubectl, waiting, "Finalizing")
        status = kubectl.wait_complete(waiting, JOB_END)
        failed = wait_for_phase(kubectl, failing, "Failed")
    assert outcomes(resumed) == ["Suspended", "Succeeded"]
    assert resumed["counts"] == counts(GATED)
    first, second = starts(store, job["spec"]["write"]["path"])
    assert (first, second >= seen) == (0, True), "committed rows are kept"
    assert outcomes(status) == ["Suspended", "Succeeded"]
    assert status["counts"] == counts(GATED)
    assert outcomes(failed) == ["Failed", "Failed"]
    history = kubectl.history
    assert {*history[waiting].phases, *history[failing].phases} == set(Phase)
