"""The jobs of a namespace that the page lists."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.api.targets import Target
from batchinference.ui.jobs import JobsOfNamespace


class FakeCluster:
    """The jobs of a namespace."""

    namespace, host = "research", "https://cluster"

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}

    def add(self, name: str, phase: str, rows: int = 0) -> None:
        status = {"phase": phase, "progress": {"rows": rows, "total": 100}}
        spec = {"write": {"path": "s3://absent/out"}}
        self.jobs[name] = {"metadata": {"name": name}, "spec": spec, "status": status}

    def list_jobs(self) -> list[dict[str, Any]]:
        return list(self.jobs.values())

    def get(self, name: str) -> dict[str, Any]:
        return self.jobs[name]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    found = FakeCluster()
    monkeypatch.setattr(Target, "cluster", lambda _: found)
    return found


def test_jobs_of_a_namespace_that_have_not_ended_come_first(cluster: FakeCluster) -> None:
    for name, phase in (("a", "Succeeded"), ("c", "Running"), ("b", "Queued")):
        cluster.add(name, phase)
    jobs = JobsOfNamespace("research", None)
    assert [entry.target for entry in jobs.entries()] == ["b", "c", "a"]
    assert jobs.title == "namespace research of https://cluster"


def test_job_of_a_namespace_is_found_by_name_until_it_is_deleted(cluster: FakeCluster) -> None:
    cluster.add("a", "Running", rows=20)
    jobs = JobsOfNamespace("research", None)
    found = jobs.find("a")
    assert found is not None
    assert found.entry().percent == 20
    assert jobs.find("..") is None
    cluster.jobs.clear()
    jobs.entries()
    assert jobs.find("a") is None
