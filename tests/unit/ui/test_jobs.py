"""The jobs of a namespace that the page lists."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.api.cluster_error import ClusterError
from batchinference.api.jobs_on_cluster import Workers
from batchinference.api.targets import Target
from batchinference.ui import observed_jobs
from batchinference.ui.observed_jobs import JobsOfNamespace
from batchinference.ui.pages import JobEntry


class FakeCluster:
    """The jobs of a namespace, each with a ready and a pending worker."""

    namespace, host = "research", "https://cluster"

    def __init__(self) -> None:
        self.pods_listed = 0
        self.jobs: dict[str, dict[str, Any]] = {}

    def add(self, name: str, phase: str, rows: int = 0) -> None:
        progress = {"rows": rows, "total": 100, "percent": rows}
        status = {"phase": phase, "rayClusterName": f"{name}-1-x7kq2", "progress": progress}
        spec = {"write": {"path": "s3://absent/out"}}
        self.jobs[name] = {"metadata": {"name": name}, "spec": spec, "status": status}

    def list_jobs(self) -> list[dict[str, Any]]:
        return list(self.jobs.values())

    def get(self, name: str) -> dict[str, Any]:
        return self.jobs[name]

    def list_pods(self, selector: str) -> list[dict[str, Any]]:
        self.pods_listed += 1
        pod = {"metadata": {"labels": {"ray.io/group": "cpu"}}}
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        return [{**pod, "status": ready}, {**pod, "status": {"phase": "Pending"}}]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    fake_cluster = FakeCluster()
    monkeypatch.setattr(Target, "cluster", lambda _: fake_cluster)
    monkeypatch.setattr(observed_jobs, "Kubernetes", lambda *_: fake_cluster)
    return fake_cluster


def test_jobs_of_a_namespace_that_have_not_ended_come_first(cluster: FakeCluster) -> None:
    for name, phase in (("a", "Succeeded"), ("c", "Running"), ("b", "Queued")):
        cluster.add(name, phase)
    jobs = JobsOfNamespace("research", None)
    assert [entry.target for entry in jobs.entries()] == ["b", "c", "a"]
    assert jobs.title == "namespace research of https://cluster"


def test_a_missing_cluster_is_no_missing_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/absent")
    with pytest.raises(ClusterError, match=r"^no cluster: "):
        JobsOfNamespace(None, None)


def test_job_of_a_namespace_is_found_by_name_until_it_is_deleted(cluster: FakeCluster) -> None:
    cluster.add("a", "Running", rows=20)
    jobs = JobsOfNamespace("research", None)
    result = jobs.find("a")
    assert result is not None
    assert shown_percent(result.entry()) == 20
    assert jobs.find("..") is None
    cluster.jobs.clear()
    jobs.entries()
    assert jobs.find("a") is None


def shown_percent(entry: JobEntry) -> int | None:
    assert entry.seen is not None
    return entry.seen.progress.percent


def test_running_job_has_workers_and_an_output(cluster: FakeCluster) -> None:
    cluster.add("a", "Running", rows=20)
    result = JobsOfNamespace("research", None).find("a")
    assert result is not None
    assert result.output() == "s3://absent/out"
    assert cluster.pods_listed == 0
    seen = result.entry().seen
    assert seen is not None
    assert seen.workers == [Workers("cpu", 1, 2)]
