"""Posting Events. They are for people, so nothing waits for one and nothing fails by one."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from batchinference.rendering import MANAGER
from batchinference.spec.job import API_VERSION, GROUP, KIND
from batchinference_operator.reconcile.model import JobView
from batchinference_operator.runtime.gateway import Gateway
from batchinference_operator.runtime.logs import about
from batchinference_operator.runtime.metrics import Metrics
from batchinference_operator.runtime.rate import Rate
from batchinference_operator.status.events import Event
from batchinference_operator.status.observations import Object

MAX_WAITING = 5000
"""Events that wait to be posted. For one more, the oldest of the namespace with most is dropped."""
QPS, BURST = 10.0, 50
"""Events yield to the work on jobs: a thousand that begin at once are told of by and by."""
MAX_NOTE_BYTES = 1024
"""As the API server has it."""
logger = logging.getLogger("batchinference.operator")


def _now() -> datetime:
    return datetime.now(UTC)


class Recorder:
    """Posts Events one after the other, apart from the work on jobs. Namespaces take turns."""

    def __init__(
        self, gateway: Gateway, metrics: Metrics, now: Callable[[], datetime] = _now
    ) -> None:
        self._gateway = gateway
        self._metrics = metrics
        self._now = now
        self._rate = Rate(QPS, BURST)
        self._lanes: dict[str, deque[Object]] = {}
        """Events that wait, by namespace; that of the next one first."""
        self._waiting = asyncio.Semaphore(0)

    def record(self, job: JobView, attempt: int, events: Iterable[Event]) -> None:
        """Have Events posted about the last attempt. It never waits and never fails."""
        for event in events:
            body = event_body(job, attempt, event, self._now())
            self._lanes.setdefault(job.namespace, deque()).append(body)
            if sum(map(len, self._lanes.values())) > MAX_WAITING:
                fullest = max(self._lanes, key=lambda name: len(self._lanes[name]))
                self._dropped(self._take(fullest)["reason"], f"{MAX_WAITING} others wait")
            else:
                self._waiting.release()

    async def work(self) -> None:
        """Post what comes; it ends when it is cancelled."""
        while True:
            await self._waiting.acquire()
            await self._rate.turn()
            body = self._take(next(iter(self._lanes)))
            of = body["regarding"]
            with about(of["namespace"], of["name"]):
                await self._post(body)

    def _take(self, namespace: str) -> Object:
        """The oldest Event of a namespace, whose turn comes last from then on."""
        lane = self._lanes.pop(namespace)
        body = lane.popleft()
        if lane:
            self._lanes[namespace] = lane
        return body

    async def _post(self, body: Object) -> None:
        try:
            repeated = await self._gateway.post_event(body)
        except Exception as words:  # noqa: BLE001 - whatever it is, jobs are not to suffer from it
            self._dropped(body["reason"], str(words) or type(words).__name__)
        else:
            self._metrics.events.labels("repeated" if repeated else "posted").inc()

    def _dropped(self, reason: str, words: str) -> None:
        self._metrics.events.labels("dropped").inc()
        logger.warning("Event %s is dropped: %s", reason, words)


def event_body(job: JobView, attempt: int, event: Event, now: datetime) -> Object:
    """The Event under a name that follows from its reason: what befalls many pods of an attempt is
    told in the words of the first, and counted."""
    said = "\n".join((job.uid, event.reason, str(attempt)))
    name = f"{job.name}.{hashlib.sha256(said.encode()).hexdigest()[:16]}"
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": job.namespace, "name": name},
        "type": event.type,
        "reason": event.reason,
        "action": event.action,
        "note": _cut(event.note),
        "eventTime": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": f"{GROUP}/operator",
        "reportingInstance": f"{MANAGER}-{socket.gethostname()}"[:128],
        "regarding": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": job.namespace,
            "name": job.name,
            "uid": job.uid,
        },
    }


def _cut(note: str) -> str:
    """A note that the API server takes: it counts bytes."""
    content = note.encode()
    if len(content) <= MAX_NOTE_BYTES:
        return note
    return content[: MAX_NOTE_BYTES - 3].decode(errors="ignore") + "..."
