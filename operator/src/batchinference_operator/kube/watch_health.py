"""Records whether all watches are alive, for the health endpoints."""

import logging
import time
from collections.abc import Callable, Sequence

from batchinference.rendering import RAY_JOB
from batchinference.spec.job import KIND, SCHEDULE_KIND
from batchinference_operator.kube.object_client import POD, path_of

KINDS = (KIND, SCHEDULE_KIND, RAY_JOB, POD)
PATIENCE = 3
"""A watch is dead if it has no answer for PATIENCE times its maximum duration."""
logger = logging.getLogger("batchinference.operator")


class WatchHealth:
    """Records when the server last accepted each watch, or sent a page of the preceding list."""

    def __init__(
        self, namespaces: Sequence[str], seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        paths = (path_of(kind, namespace) for kind in KINDS for namespace in namespaces or [""])
        self._started = dict.fromkeys(paths, False)
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
    def lost_namespaces(self) -> set[str]:
        """The namespaces in which at least one kind cannot be watched.

        Empty if these are all namespaces: the permissions of the operator are then wrong, and the
        health checks must fail.
        """
        refused = {name for name in self._namespaces if self.is_refused(name)}
        return refused if refused != self._namespaces else set()

    @property
    def missing(self) -> list[str]:
        """The paths, outside of lost namespaces, for which no watch was accepted yet."""
        return self._without_lost([path for path, started in self._started.items() if not started])

    @property
    def dead(self) -> list[str]:
        """The paths of the watches that had no response for too long."""
        limit, answers = self._clock() - self._limit, self._last_answer.items()
        return self._without_lost([path for path, answered in answers if answered < limit])

    def _without_lost(self, paths: list[str]) -> list[str]:
        """Return the paths outside of lost namespaces. Health checks ignore lost namespaces."""
        lost = [f"/namespaces/{name}/" for name in self.lost_namespaces]
        return [path for path in paths if not any(scope in path for scope in lost)]
