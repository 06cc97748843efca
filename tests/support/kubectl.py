"""kubectl, as a user would call it, on the cluster of KUBECONFIG."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import yaml

Object = dict[str, Any]
Found = TypeVar("Found")


def run(command: Sequence[str], *, text: str | None = None, timeout: float = 120) -> str:
    """The output of a command; AssertionError with all it said when it fails."""
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr or done.stdout}"
    return done.stdout


def eventually(
    what: str, condition: Callable[[], Found], timeout: float, interval: float = 0.5
) -> Found:
    """The first true value of a condition; AssertionError when none comes in time."""
    deadline = time.monotonic() + timeout
    while True:
        if found := condition():
            return found
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
        found = self("get", kind, name, "--output", "json", "--ignore-not-found")
        return json.loads(found) if found else None

    def list(self, kinds: str, selector: str = "") -> list[Object]:
        answer = self("get", kinds, "--output", "json", "--selector", selector)
        items: list[Object] = json.loads(answer)["items"]
        return items

    def status(self, name: str) -> Object:
        """The status of a BatchInference; empty before the operator has seen it."""
        job = self.get("batchinference", name)
        return (job or {}).get("status", {})

    def wait_complete(self, name: str, timeout: int) -> Object:
        """Wait as a user does; the status that stands then."""
        arguments = ("wait", "--for=condition=Complete", f"batchinference/{name}")
        try:
            self(*arguments, f"--timeout={timeout}s", timeout=timeout + 10)
        except AssertionError as error:
            status = json.dumps(self.status(name), indent=2)
            raise AssertionError(f"{error}\nits status: {status}\n{self.picture()}") from None
        return self.status(name)

    def wait_condition(self, name: str, kind: str, timeout: float) -> Object:
        """The condition of a BatchInference once it is true."""
        try:
            return eventually(
                f"{kind} of {name}", lambda: condition(self.status(name), kind, "True"), timeout
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\nits status: {self.status(name)}") from None

    def picture(self) -> str:
        """What there is, for the message of a test that fails."""
        return self("get", "batchinferences,rayjobs,rayclusters,pods", "--output", "wide")


def condition(status: Object, kind: str, value: str) -> Object | None:
    """A condition when it has this value."""
    return next(
        (
            found
            for found in status.get("conditions", [])
            if found["type"] == kind and found["status"] == value
        ),
        None,
    )
