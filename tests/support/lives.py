"""What the tests on a cluster wait for in the life of a job."""

from __future__ import annotations

from typing import Any

from support.kubectl import Kubectl, condition, eventually

Object = dict[str, Any]
START_OF_A_CLUSTER = 180


def belongings(kubectl: Kubectl, name: str, kinds: str) -> list[str]:
    """Whatever is left in the namespace that carries the job's name, but for pods that have ended:
    they hold nothing, and are there for a moment longer than their cluster."""
    return [
        f"{found['kind']} {found['metadata']['name']}"
        for found in kubectl.list(kinds)
        if found["metadata"]["name"].startswith(name) and not _pod_has_ended(found)
    ]


def _pod_has_ended(found: Object) -> bool:
    return found["kind"] == "Pod" and found["status"].get("phase") in ("Succeeded", "Failed")


def none_is_left(kubectl: Kubectl, name: str, kinds: str) -> None:
    eventually(f"no {kinds} of {name}", lambda: not belongings(kubectl, name, kinds), timeout=60)


def pods(kubectl: Kubectl, name: str, node_type: str) -> list[str]:
    """The names of the job's pods that are its head, or its workers."""
    return [found["metadata"]["name"] for found in pod_bodies(kubectl, name, node_type)]


def pod_bodies(kubectl: Kubectl, name: str, node_type: str) -> list[Object]:
    selector = f"batchinference.dev/name={name},ray.io/node-type={node_type}"
    return kubectl.list("pods", selector)


def rows_are_done(kubectl: Kubectl, name: str) -> None:
    eventually(
        f"rows of {name} are done",
        lambda: kubectl.status(name).get("progress", {}).get("rows"),
        START_OF_A_CLUSTER,
    )


def phase_is(kubectl: Kubectl, name: str, phase: str, timeout: float = 150) -> Object:
    """The status once it has this phase."""

    def reached() -> Object | None:
        status = kubectl.status(name)
        return status if status.get("phase") == phase else None

    try:
        return eventually(f"{name} is {phase}", reached, timeout, interval=0.2)
    except AssertionError as error:
        words = f"{error}\n{kubectl.status(name)}\n{kubectl.picture()}"
        raise AssertionError(words) from None


def reason_is(kubectl: Kubectl, name: str, reason: str, timeout: float) -> Object:
    """The status once it is not ready for this reason."""

    def so() -> Object | None:
        status = kubectl.status(name)
        ready = condition(status, "Ready", "False")
        return status if ready and ready["reason"] == reason else None

    try:
        return eventually(f"{name} is not ready because of {reason}", so, timeout, interval=0.2)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{kubectl.status(name)}") from None


def kill(kubectl: Kubectl, names: list[str]) -> None:
    """Pods go at once, as with their node's power."""
    assert names
    now = ("--grace-period=0", "--force", "--wait=false", "--ignore-not-found")
    kubectl("delete", "pod", *names, *now)


def suspend(kubectl: Kubectl, name: str, value: bool) -> None:
    patch = f'{{"spec": {{"suspend": {str(value).lower()}}}}}'
    kubectl("patch", "batchinference", name, "--type=merge", "--patch", patch)


def outcomes(status: Object) -> list[str]:
    """How each attempt ended."""
    return [attempt.get("outcome", "goes on") for attempt in status["attempts"]]
