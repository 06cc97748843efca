"""Every status that a BatchInference has had, as a watch shows them."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.kubectl import Kubectl, Object

Status = dict[str, Any]


class Statuses(list[Status]):
    """Statuses in the order in which they came."""

    @property
    def phases(self) -> list[str]:
        """The phases, each once for as long as it lasted."""
        seen = [status["phase"] for status in self if "phase" in status]
        return [phase for at, phase in enumerate(seen) if at == 0 or seen[at - 1] != phase]

    @property
    def rows(self) -> list[int]:
        """Rows done, as often as they changed."""
        seen = [status["progress"]["rows"] for status in self if "progress" in status]
        return [rows for at, rows in enumerate(seen) if at == 0 or seen[at - 1] != rows]


@contextmanager
def recorded(kubectl: Kubectl, name: str) -> Iterator[Statuses]:
    """Record the statuses of one BatchInference while the block runs."""
    statuses = Statuses()
    command = ["kubectl", "--namespace", kubectl.namespace, "get", "batchinference", "--watch"]
    with subprocess.Popen(
        [*command, "--output", "json", "--field-selector", f"metadata.name={name}"],
        stdout=subprocess.PIPE,
        text=True,
    ) as watch:
        reader = threading.Thread(target=_read, args=(watch.stdout, statuses), daemon=True)
        reader.start()
        try:
            yield statuses
        finally:
            watch.terminate()
            reader.join(timeout=10)


def _read(stream: Any, statuses: Statuses) -> None:
    for found in objects(stream):
        statuses.append(found.get("status", {}))


def objects(stream: Any) -> Iterator[Object]:
    """What `kubectl get --watch --output json` prints, one after the other."""
    text = ""
    for line in stream:
        text += line
        if line.rstrip("\n") == "}":  # objects are indented, so this line alone ends one
            yield json.loads(text)
            text = ""
