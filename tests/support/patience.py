"""kubectl and a watch that outlive an API server which goes away for a moment."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from support.kubectl import Kubectl
from support.statuses import Status, Statuses, objects

PATIENCE = 90.0
"""Seconds."""
_AWAY = re.compile(
    r"refused|EOF|reset by peer|[Tt]imeout|timed out|TLS handshake|ServiceUnavailable|Unavailable"
    r"|Unable to connect|connection lost|broken pipe|closed network|not yet|shutting down"
    r"|error dialing|Unauthorized|Forbidden|unable to handle the request"
)
"""By what an API server that is not there, or has just begun, is told from one that says no."""


class PatientKubectl(Kubectl):
    """Calls again while the API server is away. For what may be done twice."""

    def __call__(self, *arguments: str, text: str | None = None, timeout: float = 120) -> str:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return super().__call__(*arguments, text=text, timeout=timeout)
            except AssertionError as error:
                if not _AWAY.search(str(error)) or time.monotonic() > deadline:
                    raise
            time.sleep(1)


class Lives(defaultdict[str, Statuses]):
    """The statuses of all BatchInferences of a namespace, by name."""

    def __init__(self) -> None:
        super().__init__(Statuses)

    def last(self, name: str) -> Status:
        """The last one that was seen."""
        return self[name][-1] if self[name] else {}


@contextmanager
def watched(kubectl: Kubectl) -> Iterator[Lives]:
    """Record the statuses of all BatchInferences while the block runs."""
    watch = _Watch(kubectl)
    watch.start()
    try:
        yield watch.lives
    finally:
        watch.stop()


class _Watch(threading.Thread):
    """`kubectl get --watch`, and again when the API server has ended it."""

    def __init__(self, kubectl: Kubectl) -> None:
        super().__init__(daemon=True)
        self.lives = Lives()
        self._stopped = threading.Event()
        self._command = ["kubectl", "--namespace", kubectl.namespace, "get", "batchinferences",
                         "--watch", "--output", "json"]  # fmt: skip
        self._process: subprocess.Popen[str] | None = None

    def run(self) -> None:
        while not self._stopped.wait(0.5):
            with subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            ) as self._process:
                for found in objects(self._process.stdout):
                    name, status = found["metadata"]["name"], found.get("status", {})
                    self.lives[name].append(status)

    def stop(self) -> None:
        self._stopped.set()
        if self._process:
            self._process.terminate()
        self.join(timeout=10)
