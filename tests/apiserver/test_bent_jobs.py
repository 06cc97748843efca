"""Jobs of all kinds of nonsense: each is refused or runs, and none of it reaches a shell.

`BENT_JOBS` says how many; 10,000 take one and a half minutes.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from batchinference.rendering.rayjob import entrypoint
from support.apiserver import Namespace, Refused
from support.bent import MARK, bent
from support.kubectl import eventually
from support.operator_process import OperatorProcess

Object = dict[str, Any]

JOBS = int(os.environ.get("BENT_JOBS", "10000"))
SECONDS = 60 + JOBS / 10
"""How long the operator may take over all of them."""
_OF_SHELLS = re.compile(r"[$`;&|<>()\n\x00]")


@pytest.fixture(scope="module")
def judged(module_namespace: Namespace, operator_of_all: OperatorProcess) -> Counter[str]:
    """What became of each job, when nothing happens to any of them any more."""
    with ThreadPoolExecutor(8) as clients:
        fates = Counter(clients.map(lambda seed: _created(module_namespace, seed), range(JOBS)))
    eventually("a fate of each job", lambda: _undecided(module_namespace) == [], SECONDS, 2)
    return fates + Counter(_fate(job) for job in module_namespace.list("BatchInference"))


def _created(namespace: Namespace, seed: int) -> str:
    path, strict = namespace.path("BatchInference"), "Strict" if seed % 2 else "Ignore"
    try:
        namespace.server.post(path, bent(seed), fieldValidation=strict)
    except Refused as refused:
        return f"refused with {refused.code}"
    return "taken"


def _fate(job: Object) -> str:
    return str(job.get("status", {}).get("phase", "unknown"))


def _undecided(namespace: Namespace) -> list[str]:
    """Jobs of which nothing is said, and those that have neither failed nor been given a RayJob,
    nor wait as they are told to."""
    made = {body["metadata"]["name"].rsplit("-", 1)[0] for body in namespace.list("RayJob")}
    return [
        f"{job['metadata']['name']}: {job.get('status')}"
        for job in namespace.list("BatchInference")
        if _fate(job) == "unknown"
        or (job["metadata"]["name"] not in made and _fate(job) not in ("Failed", "Suspended"))
    ]


def test_the_api_server_refuses_in_words_or_takes(judged: Counter[str]) -> None:
    assert judged["taken"] > JOBS / 20
    assert set(judged) <= {
        *("taken", "refused with 400", "refused with 409", "refused with 422"),
        *("Planning", "Starting", "Pending", "Failed", "Suspended"),
    }


def test_what_fails_names_the_field(judged: Counter[str], module_namespace: Namespace) -> None:
    failed = [job for job in module_namespace.list("BatchInference") if _fate(job) == "Failed"]
    assert failed
    for job in failed:
        (condition,) = [c for c in job["status"]["conditions"] if c["type"] == "Failed"]
        assert condition["reason"] == "InvalidSpec", condition
        assert condition["message"]


def test_the_operator_goes_on(judged: Counter[str], operator_of_all: OperatorProcess) -> None:
    assert operator_of_all.answers("/healthz") == 200
    assert "Traceback" not in operator_of_all.output()


def test_nothing_reaches_a_shell(judged: Counter[str], module_namespace: Namespace) -> None:
    """KubeRay puts rayStartParams into a command line as they are."""
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
