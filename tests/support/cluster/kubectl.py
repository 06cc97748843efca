"""kubectl on the cluster of KUBECONFIG, as a user would call it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import yaml

from support.timeouts import scaled

Object = dict[str, Any]
Found = TypeVar("Found")
ENDED = ("Succeeded", "Failed")


def run(command: Sequence[str], *, text: str | None = None, timeout: float = 120) -> str:
    """Return the output of a command; raise AssertionError with its output when it fails."""
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr or done.stdout}"
    return done.stdout


def eventually(
    what: str, condition: Callable[[], Found], timeout: float, interval: float = 0.5
) -> Found:
    """Return the first true value of a condition; raise AssertionError after the timeout, which is
    longer on a slow machine."""
    timeout = scaled(timeout)
    deadline = time.monotonic() + timeout
    while True:
        if result := condition():
            return result
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}"
        time.sleep(interval)


@dataclass(frozen=True)
class Kubectl:
    """kubectl in one namespace."""

    namespace: str

    def __call__(self, *arguments: str, text: str | None = None, timeout: float = 120) -> str:
        command = ["kubectl", "--namespace", self.namespace, *arguments]
        return run(command, text=text, timeout=timeout)

    def apply(self, *objects: Object) -> None:
        self("apply", "--filename", "-", text=yaml.safe_dump_all(objects))

    def get(self, kind: str, name: str) -> Object | None:
        result = self("get", kind, name, "--output", "json", "--ignore-not-found")
        return json.loads(result) if result else None

    def list(self, kinds: str, selector: str = "") -> list[Object]:
        answer = self("get", kinds, "--output", "json", "--selector", selector)
        items: list[Object] = json.loads(answer)["items"]
        return items

    def status(self, name: str) -> Object:
        """Return the status of a BatchInference; empty if the operator has not written one."""
        return (self.get("batchinference", name) or {}).get("status", {})

    def latest(self, name: str) -> Object:
        """Return the status that wait functions check."""
        return self.status(name)

    def status_when(
        self, name: str, what: str, predicate: Callable[[Object], object], timeout: float
    ) -> Object:
        """Wait until the status of a BatchInference satisfies a predicate, and return it.

        Raise AssertionError as soon as the job has ended otherwise.
        """

        def satisfied() -> Object | None:
            status = self.latest(name)
            if predicate(status):
                return status
            assert status.get("phase") not in ENDED, f"{name} has ended, not: {what}"
            return None

        try:
            return eventually(f"{name}: {what}", satisfied, timeout, interval=0.2)
        except AssertionError as error:
            status = json.dumps(self.status(name), indent=2)
            raise AssertionError(f"{error}\nstatus: {status}\n{self.object_summary()}") from None

    def wait_complete(self, name: str, timeout: float) -> Object:
        return self.status_when(
            name, "is complete", lambda s: condition(s, "Complete", "True"), timeout
        )

    def wait_condition(self, name: str, kind: str, timeout: float) -> Object:
        """Return a condition of a BatchInference once it is true."""
        status = self.status_when(name, f"is {kind}", lambda s: condition(s, kind, "True"), timeout)
        result = condition(status, kind, "True")
        assert result is not None
        return result

    def object_summary(self) -> str:
        """Return a summary of the existing objects, for the message of a failed test."""
        return self("get", "batchinferences,rayjobs,rayclusters,pods", "--output", "wide")


def condition(status: Object, kind: str, value: str) -> Object | None:
    """Return a condition if it has this value, else None."""
    return next(
        (
            result
            for result in status.get("conditions", [])
            if result["type"] == kind and result["status"] == value
        ),
        None,
    )
