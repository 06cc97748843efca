"""Records every status of BatchInferences that a watch reports."""

from __future__ import annotations

import json
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from support.cluster.kubectl import Kubectl, Object

Status = dict[str, Any]


class Statuses(list[Status]):
    """The statuses of one BatchInference, oldest first."""

    @property
    def phases(self) -> list[str]:
        """The phases in their order, without repetitions."""
        return _without_repetitions([status["phase"] for status in self if "phase" in status])

    @property
    def rows(self) -> list[int]:
        """The rows that were done, without repetitions."""
        return _without_repetitions(
            [status["progress"]["rows"] for status in self if "progress" in status]
        )


def _without_repetitions(values: list[Any]) -> list[Any]:
    return [value for at, value in enumerate(values) if at == 0 or values[at - 1] != value]


class History(defaultdict[str, Statuses]):
    """The statuses of all BatchInferences of a namespace, by name."""

    failure: Exception | None = None
    """The error that ended the watch."""

    def __init__(self) -> None:
        super().__init__(Statuses)

    def last(self, name: str) -> Status:
        """Return the latest status; empty when there is none."""
        assert self.failure is None, f"the watch has failed: {self.failure!r}"
        return self[name][-1] if self[name] else {}

    def record(self, body: Object) -> None:
        """Record the status of a BatchInference.

        A watch that the API server ends with an error yields a Status instead: it is ignored.
        """
        if body["kind"] == "BatchInference":
            self[body["metadata"]["name"]].append(body.get("status", {}))


@dataclass(frozen=True)
class WatchingKubectl(Kubectl):
    """kubectl whose waits read the history that a watch records, instead of calling kubectl."""

    history: History = field(default_factory=History)

    def latest(self, name: str) -> Object:
        return self.history.last(name)


@contextmanager
def watching(namespace: str) -> Iterator[WatchingKubectl]:
    """Watch the BatchInferences of a namespace while the block runs."""
    with watched(Kubectl(namespace)) as history:
        yield WatchingKubectl(namespace, history)


@contextmanager
def watched(kubectl: Kubectl) -> Iterator[History]:
    """Record the statuses of all BatchInferences while the block runs."""
    watch = _Watch(kubectl)
    watch.start()
    try:
        yield watch.history
    finally:
        watch.stop()


class _Watch(threading.Thread):
    """Runs `kubectl get --watch`, and restarts it whenever the API server has ended it."""

    def __init__(self, kubectl: Kubectl) -> None:
        super().__init__(daemon=True)
        self.history = History()
        self._stopped = threading.Event()
        self._command = ["kubectl", "--namespace", kubectl.namespace, "get", "batchinferences",
                         "--watch", "--output", "json"]  # fmt: skip
        self._process: subprocess.Popen[str] | None = None

    def run(self) -> None:
        try:
            while not self._stopped.wait(0.5):
                self._watch()
        except Exception as error:  # noqa: BLE001 - raised where the history is read
            self.history.failure = error

    def _watch(self) -> None:
        with subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as self._process:
            assert self._process.stdout is not None
            for result in objects(self._process.stdout):
                self.history.record(result)

    def stop(self) -> None:
        self._stopped.set()
        if self._process:
            self._process.terminate()
        self.join(timeout=10)


def objects(lines: Iterable[str]) -> Iterator[Object]:
    """Parse what `kubectl get --watch --output json` prints: one indented object after another."""
    text = ""
    for line in lines:
        text += line
        if line.rstrip("\n") == "}":  # only the last line of an object is not indented
            yield json.loads(text)
            text = ""
