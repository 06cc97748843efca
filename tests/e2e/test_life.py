"""The whole life of jobs whose operator is replaced, and lets one of them run at a time."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from batchinference.spec.phases import Phase
from support.deployment import upgraded
from support.documents import document
from support.kubectl import Kubectl
from support.lives import outcomes, phase_is, pods, reason_is, rows_are_done, suspend
from support.objectstore import ObjectStore
from support.statuses import Status, Statuses, recorded

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


@dataclass
class Lives:
    """What has become of three jobs, the first of which ran before the upgrade."""

    kept: Status
    kept_ray_jobs: list[str]
    """Uids, before the upgrade and at the end."""
    waiting: Statuses
    failing: Statuses


@pytest.fixture
def into_database(store: ObjectStore, slow_job: Callable[[str], Job]) -> Job:
    """A job that writes into a database beside its driver, which a test may lock."""
    job = slow_job("waiting")
    output = store.uri(f"slow/{uuid.uuid4().hex[:6]}")
    job["spec"]["cluster"]["env"].append(
        {"name": "DB", "value": f"sqlite:///{DATABASE}?timeout=60"}
    )
    job["spec"]["write"] = {"format": "sql", "path": output, "table": "lines", "urlEnv": "DB"}
    return job


@contextmanager
def locked_database(kubectl: Kubectl, pod: str) -> Iterator[None]:
    """Nobody else writes into the database of a head during the block."""
    command = ["kubectl", "--namespace", kubectl.namespace, "exec", "--stdin", pod]
    command += ["--container", "ray-head", "--", "python", "-c", LOCK]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        yield
        process.stdin.close()


@pytest.fixture
def fails_twice(store: ObjectStore) -> Job:
    job = document("failing", read={"format": "text", "paths": [store.uri("nothing/here")]})
    again = {"maxAttempts": 2, "backoff": {"initial": "1s"}, "onCause": {"BadInput": "retry"}}
    job["spec"]["retry"] = again
    return job


@pytest.fixture
def lives(
    operator: Kubectl,
    kubectl: Kubectl,
    slow_job: Callable[[str], Job],
    into_database: Job,
    fails_twice: Job,
    create: Callable[[Job], str],
) -> Iterator[Lives]:
    def ray_job() -> str:
        return str((kubectl.get("rayjob", f"{kept}-1") or {})["metadata"]["uid"])

    long = slow_job("kept")
    long["spec"]["steps"][0]["batchSize"] = 10  # it goes on while the operator is replaced
    kept = create(long)
    rows_are_done(kubectl, kept)
    before = ray_job()
    with upgraded(operator, ONE_AT_A_TIME):
        waiting = create(into_database)
        with recorded(kubectl, waiting) as of_waiting:
            reason_is(kubectl, waiting, "WaitingForTurn", 30)
            status = kubectl.wait_complete(kept, timeout=240)
            phase_is(kubectl, waiting, "Starting")
            suspend(kubectl, waiting, True)
            phase_is(kubectl, waiting, "Suspended")
            failing = create(fails_twice)
            with recorded(kubectl, failing) as of_failing:
                phase_is(kubectl, failing, "Starting")
                suspend(kubectl, waiting, False)
                # the turn is whose it is when the first attempt at the other has failed
                phase_is(kubectl, waiting, "Running", timeout=240)
                rows_are_done(kubectl, waiting)
                with locked_database(kubectl, *pods(kubectl, waiting, "head")):
                    phase_is(kubectl, waiting, "Finalizing")
                kubectl.wait_complete(waiting, timeout=240)
                phase_is(kubectl, failing, "Failed", timeout=240)
        yield Lives(status, [before, ray_job()], of_waiting, of_failing)


@pytest.mark.timeout(900)
def test_an_upgrade_restarts_nothing_and_every_phase_is_reached(lives: Lives) -> None:
    assert outcomes(lives.kept) == ["Succeeded"]
    assert lives.kept_ray_jobs[0] == lives.kept_ray_jobs[1]
    assert outcomes(lives.waiting[-1]) == ["Suspended", "Succeeded"]
    counts = {"read": 2000, "written": 1800, "failed": 0, "skipped": 200}
    assert lives.waiting[-1]["counts"] == counts
    assert outcomes(lives.failing[-1]) == ["Failed", "Failed"]
    reached = {*lives.waiting.phases, *lives.failing.phases}
    assert reached == set(Phase)
