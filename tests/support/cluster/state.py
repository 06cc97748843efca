"""The state of a namespace, for the report of a test that fails."""

from __future__ import annotations

from collections.abc import Callable

from support.cluster.kubectl import Kubectl

REPLICAS = "app.kubernetes.io/instance=batchinference"
MAX_CHARACTERS = 6000
"""The number of characters that are kept from the end of each command's output."""


def state(kubectl: Kubectl, operator: Kubectl, job: str | None = None) -> str:
    """Return the objects and events of a namespace and the operator's log; with a job's name also
    the log of its driver."""
    calls = [
        kubectl.object_summary,
        lambda: kubectl("get", "events", "--sort-by=.lastTimestamp"),
        lambda: operator("logs", f"--selector={REPLICAS}", "--prefix", "--tail=60"),
    ]
    if job is not None:
        calls.append(lambda: _driver_log(kubectl, job))
    return "\n".join(_output(call) for call in calls)


def _output(call: Callable[[], str]) -> str:
    try:
        return call()[-MAX_CHARACTERS:]
    except Exception as error:  # noqa: BLE001 - parts of the report may be missing
        return str(error)


def _driver_log(kubectl: Kubectl, job: str) -> str:
    """Return the end of the driver's log, which Ray keeps on the head."""
    selector = f"batchinference.dev/name={job},ray.io/node-type=head"
    (head,) = kubectl.list("pods", selector)
    log = "tail -n 60 /tmp/ray/session_latest/logs/job-driver-*.log"
    return kubectl("exec", head["metadata"]["name"], "-c", "ray", "--", "bash", "-c", log)
