"""Posts Events about jobs and schedules. Reconciles never wait for Events or fail due to them."""

import asyncio
import hashlib
import logging
import socket
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from batchinference.rendering import MANAGER
from batchinference.spec.job import API_VERSION, GROUP
from batchinference_operator.kube.kube_client import KubeClient
from batchinference_operator.kube.rate_limiter import RateLimiter
from batchinference_operator.observability.logging import log_context
from batchinference_operator.observability.metrics import Metrics
from batchinference_operator.reconcile.job_view import ResourceView
from batchinference_operator.status.job_events import Event
from batchinference_operator.status.ray_job_view import Object
from batchinference_operator.status.timestamps import Clock, utc_now

MAX_WAITING = 5000
"""Maximum number of queued Events. If there are more, the oldest Event of the namespace with the
longest queue is dropped."""
EVENT_QPS = 10.0
EVENT_BURST = 50
"""The rate limit of Events. It is low, so that reconciles can send more requests, for instance when
a thousand jobs start at once."""
MAX_NOTE_BYTES = 1024
"""The API server's limit for the note of an Event."""
logger = logging.getLogger("batchinference.operator")


@dataclass(eq=False)
class EventRecorder:
    """Posts Events one at a time, round-robin by namespace, separately from reconcile workers."""

    api: KubeClient
    metrics: Metrics
    now: Clock = utc_now
    _rate: RateLimiter = field(default_factory=lambda: RateLimiter(EVENT_QPS, EVENT_BURST))
    _flows: dict[str, deque[Object]] = field(default_factory=dict)
    """The queued Events by namespace. The next namespace to serve comes first."""
    _waiting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    def record(self, job: ResourceView, attempt: int, events: Iterable[Event]) -> None:
        """Queue Events for posting. Never waits and never fails. Events with the same reason and
        `attempt` become one Event with a count. `attempt` is the number of the job's attempt, or
        the current minute for a schedule."""
        for event in events:
            body = event_body(job, attempt, event, self.now())
            self._flows.setdefault(job.namespace, deque()).append(body)
            if sum(map(len, self._flows.values())) > MAX_WAITING:
                fullest = max(self._flows, key=lambda name: len(self._flows[name]))
                self._record_drop(self._pop_event(fullest)["reason"], f"{MAX_WAITING} others wait")
            else:
                self._waiting.release()

    async def work(self) -> None:
        """Post the queued Events until cancelled."""
        while True:
            await self._waiting.acquire()
            await self._rate.wait()
            body = self._pop_event(next(iter(self._flows)))
            regarding = body["regarding"]
            with log_context(regarding["namespace"], regarding["name"]):
                await self._post(body)

    def _pop_event(self, namespace: str) -> Object:
        """Remove and return the oldest Event of a namespace, and move the namespace to the end."""
        flow = self._flows.pop(namespace)
        body = flow.popleft()
        if flow:
            self._flows[namespace] = flow
        return body

    async def _post(self, body: Object) -> None:
        try:
            repeated = await self.api.post_event(body)
        except Exception as error:  # noqa: BLE001 - no failure may affect jobs
            self._record_drop(body["reason"], str(error) or type(error).__name__)
        else:
            self.metrics.events.labels("repeated" if repeated else "posted").inc()

    def _record_drop(self, reason: str, why: str) -> None:
        self.metrics.events.labels("dropped").inc()
        logger.warning("Event %s is dropped: %s", reason, why)


def event_body(job: ResourceView, attempt: int, event: Event, now: datetime) -> Object:
    """Return the body of an Event.

    The name of an Event depends only on the job's uid, the reason and the attempt. So if the same
    happens to many pods of an attempt, there is one Event with the first note and a count.
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
        "note": _truncate_note(event.note),
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


def _truncate_note(note: str) -> str:
    """Return the note, cut to MAX_NOTE_BYTES bytes (not characters)."""
    content = note.encode()
    if len(content) <= MAX_NOTE_BYTES:
        return note
    return content[: MAX_NOTE_BYTES - 3].decode(errors="ignore") + "..."
