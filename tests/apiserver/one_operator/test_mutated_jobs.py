"""Mutated jobs: each is refused or runs, and no mutated value reaches a shell.

There are 200 at a landing and 10,000 in the long tier. `MUTATED_JOBS` sets another number."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from apiserver.one_operator.mutated_jobs import MARK, mutated_job
from batchinference.rendering.rayjob import entrypoint
from support.cluster.kubectl import eventually
from support.operator.process import OperatorProcess
from support.servers.api_server import Namespace, Refused
from support.tiers import examples

Object = dict[str, Any]

pytestmark = pytest.mark.scaled("mutations")
JOBS = int(os.environ.get("MUTATED_JOBS", examples(10_000, landing=200)))
SECONDS = 60 + JOBS / 10
"""Deadline of the operator for all jobs."""
_OF_SHELLS = re.compile(r"[$`;&|<>()\n\x00]")


@pytest.fixture(scope="module")
def verdict_counts(module_namespace: Namespace, shared_operator: OperatorProcess) -> Counter[str]:
    """Create all jobs, wait until each has an outcome, and count the outcomes."""
    with ThreadPoolExecutor(8) as clients:
        outcomes = Counter(clients.map(lambda seed: _created(module_namespace, seed), range(JOBS)))
    eventually("an outcome of each job", lambda: _undecided(module_namespace) == [], SECONDS, 2)
    return outcomes + Counter(_phase(job) for job in module_namespace.list("BatchInference"))


def _created(namespace: Namespace, seed: int) -> str:
    path, strict = namespace.path("BatchInference"), "Strict" if seed % 2 else "Ignore"
    try:
        namespace.server.post(path, mutated_job(seed), fieldValidation=strict)
    except Refused as refused:
        return f"refused with {refused.code}"
    return "taken"


def _phase(job: Object) -> str:
    return str(job.get("status", {}).get("phase", "unknown"))


def _undecided(namespace: Namespace) -> list[str]:
    """Return jobs without a status, and those that have no RayJob and no reason for it."""
    accept = {"Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}
    items = namespace.server.call("GET", namespace.path("RayJob"), headers=accept)["items"]
    made = {body["metadata"]["name"].rsplit("-", 1)[0] for body in items or ()}
    return [
        f"{job['metadata']['name']}: {job.get('status')}"
        for job in namespace.list("BatchInference")
        if _phase(job) == "unknown"
        or (job["metadata"]["name"] not in made and _phase(job) not in ("Failed", "Suspended"))
    ]


def test_api_server_accepts_or_refuses_with_4xx(verdict_counts: Counter[str]) -> None:
    assert verdict_counts["taken"] > JOBS / 20
    assert set(verdict_counts) <= {
        *("taken", "refused with 400", "refused with 409", "refused with 422"),
        *("Planning", "Starting", "Pending", "Failed", "Suspended"),
    }


def test_failed_job_has_reason_and_message(
    verdict_counts: Counter[str], module_namespace: Namespace
) -> None:
    failed = [job for job in module_namespace.list("BatchInference") if _phase(job) == "Failed"]
    assert failed
    for job in failed:
        (condition,) = [c for c in job["status"]["conditions"] if c["type"] == "Failed"]
        assert condition["reason"] == "InvalidSpec", condition
        assert condition["message"]


def test_operator_stays_healthy(
    verdict_counts: Counter[str], shared_operator: OperatorProcess
) -> None:
    assert shared_operator.answers("/healthz") == 200
    assert "Traceback" not in shared_operator.output()


def test_no_mutation_reaches_a_shell(
    verdict_counts: Counter[str], module_namespace: Namespace
) -> None:
    """KubeRay puts rayStartParams into a command line without quoting."""
    for body in module_namespace.list("RayJob"):
        assert body["spec"]["entrypoint"] == entrypoint()
        for group in _groups(body["spec"]["rayClusterSpec"]):
            for name, value in group.get("rayStartParams", {}).items():
                assert not _OF_SHELLS.search(f"{name}={value}"), (name, value)
            for container in _containers(group["template"]["spec"]):
                words = [*container.get("command", []), *container.get("args", [])]
                assert MARK not in " ".join(words), words


def _groups(cluster: Object) -> Iterator[Object]:
    yield cluster["headGroupSpec"]
    yield from cluster.get("workerGroupSpecs", [])


def _containers(pod: Object) -> Iterator[Object]:
    yield from pod.get("initContainers", [])
    yield from pod["containers"]
