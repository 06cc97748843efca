"""The log of the driver of a running job, which is read from the head pod."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from batchinference.api.cluster_error import ClusterError
from batchinference.api.jobs_on_cluster import MAX_BYTES, running_log
from batchinference.api.kubernetes import Kubernetes, _websocket_refusal
from plugins.messages import Messages

HEAD = {"metadata": {"name": "daily-2-head"}, "status": {"phase": "Running"}}
LOG = "daily: preparing\ndaily: running, 0 rows, 0 %\n"
REFUSED = ClusterError('pods "daily-2-head" is forbidden: cannot create resource "pods/exec"')


class Cluster:
    """A cluster with a job in a phase, and these head pods. `log` is what a command prints."""

    def __init__(self, phase: str, *heads: Any, log: str | ClusterError = LOG) -> None:
        self.phase, self._heads, self._log = phase, heads, log
        self.selectors: list[str] = []
        self.commands: list[tuple[str, str, str]] = []

    def get(self, name: str) -> Any:
        status = {"phase": self.phase, "attempt": 2, "rayClusterName": "daily-2-x7kq2"}
        spec = {"write": {"path": "s3://a/b"}}
        return {"metadata": {"name": name}, "spec": spec, "status": status}

    def list_pods(self, selector: str) -> Iterator[Any]:
        self.selectors.append(selector)
        yield from self._heads

    def execute(self, pod: str, container: str, command: Sequence[str]) -> str:
        self.commands.append((pod, container, command[-1]))
        if isinstance(self._log, ClusterError):
            raise self._log
        return self._log


def log_of(cluster: Cluster) -> str | None:
    return running_log(cast(Kubernetes, cluster), "daily")


def test_log_of_the_driver_is_read_from_the_running_head() -> None:
    ending = {"metadata": {"name": "old", "deletionTimestamp": "2026-01-01T00:00:00Z"},
              "status": {"phase": "Running"}}  # fmt: skip
    cluster = Cluster("Running", ending, HEAD)
    assert log_of(cluster) == LOG.rstrip()
    assert cluster.selectors == ["ray.io/cluster=daily-2-x7kq2,ray.io/node-type=head"]
    ((pod, container, command),) = cluster.commands
    assert (pod, container) == ("daily-2-head", "ray")
    assert command.endswith("/tmp/ray/session_latest/logs/job-driver-*.log")


def test_credentials_are_masked_and_a_line_whose_beginning_is_cut_off_is_not_shown() -> None:
    assert log_of(Cluster("Running", HEAD, log="password=hunter22\n")) == "password=***"
    log = "rd=hunter22\n" + "x" * MAX_BYTES
    assert log_of(Cluster("Running", HEAD, log=log)) == "x" * MAX_BYTES


@pytest.mark.parametrize("phase", ["Pending", "Retrying", "Suspended", "Succeeded", "Failed"])
def test_job_without_a_running_attempt_has_no_such_log(phase: str) -> None:
    cluster = Cluster(phase, HEAD)
    assert log_of(cluster) is None
    assert cluster.commands == []


@pytest.mark.parametrize(
    "cluster",
    [Cluster("Starting"), Cluster("Running", HEAD, log=""), Cluster("Running", HEAD, log=REFUSED)],
    ids=["no head", "no log", "refused"],
)
def test_message_says_why_there_is_no_log(cluster: Cluster, messages: Messages) -> None:
    with messages.raises(ClusterError):
        log_of(cluster)


def test_message_of_a_refused_command_is_that_of_the_api_server() -> None:
    status = (
        '{"kind":"Status","status":"Failure","message":"pods \\"a\\" is forbidden","reason":"F"}'
    )
    reason = f"Handshake status 403 Forbidden -+-+- {{}} -+-+- {status.encode()!r}"
    assert _websocket_refusal(reason) == 'pods "a" is forbidden'
    assert _websocket_refusal("[Errno 111] Connection refused") == "[Errno 111] Connection refused"
