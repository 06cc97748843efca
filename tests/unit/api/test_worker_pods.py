"""The worker pods of a job on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from batchinference.api.cluster_error import ClusterError
from batchinference.api.jobs_on_cluster import JobStatus, Workers, count_workers, read_workers


def pod(group: str = "cpu", ready: str = "True", phase: str = "Running", **metadata: Any) -> Any:
    conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": ready}]
    labels = {"ray.io/group": group}
    return {"metadata": {"labels": labels, **metadata},
            "status": {"phase": phase, "conditions": conditions}}  # fmt: skip


def job(phase: str = "Running", **status: Any) -> JobStatus:
    metadata, spec = {"name": "daily"}, {"write": {"path": "s3://a/b"}}
    status = {"phase": phase, "rayClusterName": "daily-2-x7kq2", **status}
    return JobStatus.of({"metadata": metadata, "spec": spec, "status": status})


class Pods:
    """A cluster with these pods, or one that refuses to list pods."""

    def __init__(self, *pods: Any, refuses: bool = False) -> None:
        self.selectors: list[str] = []
        self._pods, self._refuses = pods, refuses

    def list_pods(self, selector: str) -> Iterator[Any]:
        self.selectors.append(selector)
        if self._refuses:
            raise ClusterError("pods is forbidden (403)", 403)
        yield from self._pods


def test_pods_are_counted_by_group() -> None:
    pending = {"metadata": {"labels": {"ray.io/group": "embed"}}, "status": {"phase": "Pending"}}
    count = count_workers([pod(), pod("embed", ready="False"), pod(), pod(ready="False"), pending])
    assert count == [Workers("cpu", 2, 3), Workers("embed", 0, 2)]
    assert str(count[0]) == "cpu 2/3 ready"


@pytest.mark.parametrize(
    "gone",
    [pod(phase="Failed"), pod(phase="Succeeded"), pod(deletionTimestamp="2026-01-01T00:00:00Z")],
)
def test_pods_that_end_do_not_count(gone: Any) -> None:
    assert count_workers([gone]) == []


def test_only_workers_of_the_last_attempt_are_read() -> None:
    cluster = Pods(pod())
    assert read_workers(cluster, job()) == [Workers("cpu", 1, 1)]  # type: ignore[arg-type]
    (selector,) = cluster.selectors
    assert selector == "ray.io/cluster=daily-2-x7kq2,ray.io/node-type=worker"


@pytest.mark.parametrize("one", [job("Failed"), job(rayClusterName=None)])
def test_pods_are_not_read_without_a_running_attempt(one: JobStatus) -> None:
    cluster = Pods(pod())
    assert read_workers(cluster, one) == ()  # type: ignore[arg-type]
    assert cluster.selectors == []


def test_workers_are_unknown_to_a_user_who_may_not_list_pods() -> None:
    assert read_workers(Pods(refuses=True), job()) == ()  # type: ignore[arg-type]
