"""Detects dead and refused watches.

The API server ends each watch after `seconds`, and the client starts it again. A watch without a
response for PATIENCE times as long is dead, even if its connection is open. The check sends no
requests. It observes the requests that start the watches.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from batchinference.spec.job import GROUP, PLURAL, VERSION
from batchinference.spec.schedule import SCHEDULE_PLURAL

KINDS = (
    (f"/apis/{GROUP}/{VERSION}", PLURAL),
    (f"/apis/{GROUP}/{VERSION}", SCHEDULE_PLURAL),
    ("/apis/ray.io/v1", "rayjobs"),
    ("/api/v1", "pods"),
)
logger = logging.getLogger("batchinference.operator")
PATIENCE = 3
"""Number of watch periods without a response after which a watch is dead."""


class WatchHealth:
    """Records the last response to each watch.

    A response is an accepted watch, or a page of the list that precedes the watch.
    """

    def __init__(
        self, namespaces: Sequence[str], seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        scopes = [f"/namespaces/{namespace}" for namespace in namespaces] or [""]
        self._started = {
            f"{root}{scope}/{plural}": False for root, plural in KINDS for scope in scopes
        }
        self._last_answer = dict.fromkeys(self._started, clock())
        self._limit = PATIENCE * seconds
        self._clock = clock
        self._namespaces = frozenset(namespaces)
        self._refused: set[str] = set()

    def start(self) -> None:
        """Measure the time without a response from now on."""
        self._last_answer = dict.fromkeys(self._last_answer, self._clock())

    def record_answer(self, path: str, *, watch: bool) -> None:
        """Record that the server answered a list or a watch."""
        if path in self._started:
            self._last_answer[path] = self._clock()
            self._started[path] |= watch
            if path in self._refused:
                self._refused.discard(path)
                logger.info("%s is watched again", path)

    def record_refusal(self, path: str, problem: str) -> None:
        """Record that the server refused a list or a watch, and log it once."""
        if path in self._started and path not in self._refused:
            self._refused.add(path)
            effect = "its jobs are not reconciled until it can be watched again"
            logger.warning("%s cannot be watched (%s): %s", path, problem, effect)

    def is_refused(self, namespace: str) -> bool:
        """Return whether at least one kind cannot be watched in a namespace."""
        return any(f"/namespaces/{namespace}/" in path for path in self._refused)

    @property
    def lost(self) -> set[str]:
        """Namespaces in which at least one kind cannot be watched.

        Empty if this applies to all namespaces: then the permissions of the operator are wrong, and
        the health checks report all watches.
        """
        found = {name for name in self._namespaces if self.is_refused(name)}
        return found if found != self._namespaces else set()

    @property
    def missing(self) -> list[str]:
        """Watches that have not started yet, because their first list is not complete."""
        return self._without_lost([path for path, started in self._started.items() if not started])

    @property
    def dead(self) -> list[str]:
        """Watches without a response for too long."""
        seconds = self.seconds_since_answer()
        return self._without_lost([path for path in seconds if seconds[path] > self._limit])

    def _without_lost(self, paths: list[str]) -> list[str]:
        """Return the paths outside of lost namespaces, which must not fail health checks."""
        lost = [f"/namespaces/{name}/" for name in self.lost]
        return [path for path in paths if not any(scope in path for scope in lost)]

    def seconds_since_answer(self) -> dict[str, float]:
        """Return the seconds since the last response to each watch."""
        now = self._clock()
        return {path: now - answered for path, answered in self._last_answer.items()}
