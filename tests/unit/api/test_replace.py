"""A failed job is deleted and created again, and is not lost if requests fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batchinference.api.cluster_error import ClusterError
from batchinference.api.kubernetes import Kubernetes, Object

OLD: Object = {
    "apiVersion": "batchinference.dev/v1beta1",
    "kind": "BatchInference",
    "metadata": {"name": "daily", "uid": "old", "labels": {"team": "a"}},
    "spec": {"suspend": False},
    "status": {"phase": "Failed"},
}
NO_ANSWER = ClusterError("no answer")
QUOTA = ClusterError("exceeded quota (403)", 403)


class Cluster(Kubernetes):
    """A cluster with one job. `failures` are those of the next calls by method; a lost answer is
    that of a request that was executed."""

    def __init__(self, **failures: list[ClusterError | None]) -> None:
        self.namespace, self.failures, self.pauses = "a", failures, 0
        self.job: Object | None = OLD
        self.lost_answers = False

    def request(self, method: str, path: str, body: Any = None, content_type: str = "") -> Object:
        if "dryRun" in path and method == "POST":
            return {}
        failure = next(iter(self.failures.get(method, [])), None)
        self.failures[method] = self.failures.get(method, [])[1:]
        if failure is None or self.lost_answers:
            self._execute(method, path, body)
        if failure is not None:
            raise failure
        return self.job or {}

    def _execute(self, method: str, path: str, body: Any) -> None:
        if method == "POST":
            if self.job:
                raise ClusterError("object is being deleted: it already exists (409)", 409)
            self.job = {**body, "metadata": {**body["metadata"], "uid": "new"}}
        elif self.job is None:
            raise ClusterError("not found (404)", 404)
        elif method == "DELETE":
            assert body == {"preconditions": {"uid": self.job["metadata"]["uid"]}}
            self.job = self.job if "dryRun" in path else None

    def sleep(self, _: float) -> None:
        self.pauses += 1


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("lost_answers", [False, True])
@pytest.mark.parametrize("method", ["POST", "DELETE", "GET"])
def test_requests_without_an_answer_are_repeated(
    method: str, lost_answers: bool, directory: Path
) -> None:
    cluster = Cluster(**{method: [None, NO_ANSWER] if method == "DELETE" else [NO_ANSWER] * 3})
    cluster.lost_answers = lost_answers
    cluster.replace(OLD, cluster.sleep)
    assert cluster.job is not None
    assert cluster.job["metadata"] == {"name": "daily", "labels": {"team": "a"}, "uid": "new"}
    assert cluster.pauses > 0
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("failures", [[QUOTA], [NO_ANSWER] * 100])
def test_job_that_cannot_be_created_again_is_in_a_file(
    failures: list[ClusterError | None], directory: Path
) -> None:
    cluster = Cluster(POST=failures)
    with pytest.raises(ClusterError) as failure:
        cluster.replace(OLD, cluster.sleep)
    (file,) = directory.iterdir()
    assert str(file) in str(failure.value)
    kept = json.loads(file.read_text())
    assert (kept["metadata"], kept["spec"]) == (
        {"name": "daily", "labels": {"team": "a"}},
        OLD["spec"],
    )


def test_job_that_may_not_be_deleted_is_kept(directory: Path) -> None:
    cluster = Cluster(DELETE=[ClusterError("forbidden (403)", 403)])
    with pytest.raises(ClusterError):
        cluster.replace(OLD, cluster.sleep)
    assert cluster.job is OLD
    assert list(directory.iterdir()) == []


def test_another_job_with_the_name_is_kept() -> None:
    cluster = Cluster()
    other = {**OLD, "metadata": {"name": "daily", "uid": "other"}, "spec": {"suspend": True}}
    cluster.failures["DELETE"] = [None, ClusterError("precondition failed (409)", 409)]
    request = cluster.request

    def submitted_meanwhile(method: str, path: str, *arguments: Any) -> Object:
        if method == "GET":
            cluster.job = other
        return request(method, path, *arguments)

    cluster.request = submitted_meanwhile  # type: ignore[method-assign,assignment]
    with pytest.raises(ClusterError):
        cluster.replace(OLD, cluster.sleep)
    assert cluster.job is other
