"""Posts Events. They are only for users, so nothing waits for an Event or fails because of one."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from batchinference.rendering import MANAGER
from batchinference.spec.job import API_VERSION, GROUP
from batchinference_operator.kube.api import KubeApi
from batchinference_operator.kube.rate_limiter import RateLimiter
from batchinference_operator.observability.logging import log_context
from batchinference_operator.observability.metrics import Metrics
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.schedule_view import ScheduleView
from batchinference_operator.status.events import Event
from batchinference_operator.status.ray_job import Object

MAX_WAITING = 5000
"""Maximum number of waiting Events. Beyond it, the namespace with the most loses its oldest."""
EVENT_QPS = 10.0
EVENT_BURST = 50
"""Rate limit of Events, so that reconciling has priority: the Events of a thousand jobs that start
at once are posted over time."""
MAX_NOTE_BYTES = 1024
"""The limit of the API server."""
logger = logging.getLogger("batchinference.operator")


def _now() -> datetime:
    return datetime.now(UTC)


class EventRecorder:
    """Posts Events one by one, separately from the reconcile workers, round-robin by namespace."""

    def __init__(self, api: KubeApi, metrics: Metrics, now: Callable[[], datetime] = _now) -> None:
        self._api = api
        self._metrics = metrics
        self._now = now
        self._rate = RateLimiter(EVENT_QPS, EVENT_BURST)
        self._flows: dict[str, deque[Object]] = {}
        """The waiting Events by namespace; the next namespace to serve comes first."""
        self._waiting = asyncio.Semaphore(0)

    def record(self, job: JobView | ScheduleView, attempt: int, events: Iterable[Event]) -> None:
        """Queue Events for posting, about an attempt of a job or a minute of a schedule.

        Never waits and never fails.
        """
        for event in events:
            body = event_body(job, attempt, event, self._now())
            self._flows.setdefault(job.namespace, deque()).append(body)
            if sum(map(len, self._flows.values())) > MAX_WAITING:
                fullest = max(self._flows, key=lambda name: len(self._flows[name]))
                self._dropped(self._take(fullest)["reason"], f"{MAX_WAITING} others wait")
            else:
                self._waiting.release()

    async def work(self) -> None:
        """Post the queued Events until cancelled."""
        while True:
            await self._waiting.acquire()
            await self._rate.wait()
            body = self._take(next(iter(self._flows)))
            of = body["regarding"]
            with log_context(of["namespace"], of["name"]):
                await self._post(body)

    def _take(self, namespace: str) -> Object:
        """Remove and return the oldest Event of a namespace, and move the namespace to the end."""
        flow = self._flows.pop(namespace)
        body = flow.popleft()
        if flow:
            self._flows[namespace] = flow
        return body

    async def _post(self, body: Object) -> None:
        try:
            repeated = await self._api.post_event(body)
        except Exception as error:  # noqa: BLE001 - no failure may affect jobs
            self._dropped(body["reason"], str(error) or type(error).__name__)
        else:
            self._metrics.events.labels("repeated" if repeated else "posted").inc()

    def _dropped(self, reason: str, why: str) -> None:
        self._metrics.events.labels("dropped").inc()
        logger.warning("Event %s is dropped: %s", reason, why)


def event_body(job: JobView | ScheduleView, attempt: int, event: Event, now: datetime) -> Object:
    """Return the body of an Event, named after the job's uid, the reason and the attempt.

    If the same happens to many pods of an attempt, the Event keeps the first note and is counted.
    """
    identity = "\n".join((job.uid, event.reason, str(attempt)))
    name = f"{job.name}.{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
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
            "kind": job.kind,
            "namespace": job.namespace,
            "name": job.name,
            "uid": job.uid,
        },
    }


def _cut(note: str) -> str:
    """Return the note, cut to MAX_NOTE_BYTES: the API server counts bytes, not characters."""
    content = note.encode()
    if len(content) <= MAX_NOTE_BYTES:
        return note
    return content[: MAX_NOTE_BYTES - 3].decode(errors="ignore") + "..."
