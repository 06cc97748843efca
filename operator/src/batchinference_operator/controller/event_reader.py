"""Reads messages of Kubernetes and Kueue that explain why a job waits."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf

from batchinference.rendering import RAY_CLUSTER
from batchinference_operator.kube.api_errors import Conflict, Refused
from batchinference_operator.kube.kube_client import KubeClient
from batchinference_operator.kube.object_client import POD
from batchinference_operator.reconcile.kueue import is_gated
from batchinference_operator.reconcile.observed_and_actions import Observed
from batchinference_operator.status.timestamps import Clock, utc_now

MAX_PODS = 2
"""Maximum number of pods of a job whose Events are read. Events of other pods are similar."""
POD_START_SECONDS = 60.0
"""Seconds that a pod may take to start before its Events are read. Pulling an image takes time."""
FIRST_BACKOFF = 10.0
MAX_BACKOFF = 160.0
"""First and maximum seconds before Events about the same object are read again."""
logger = logging.getLogger("batchinference.operator")


@dataclass(frozen=True)
class _LastRead:
    message: str
    backoff: float
    until: float


@dataclass
class EventReader:
    """Reads Events about pods and RayClusters, and Kueue's messages about RayJobs. The messages
    only inform users, so no reconcile fails if they cannot be read."""

    api: KubeClient
    failed: set[str] = field(default_factory=set)
    """Kinds that could not be read last time, so that a failure is logged only once."""
    now: Clock = utc_now
    last_reads: dict[tuple[str, str], _LastRead] = field(default_factory=dict)
    """The last read of each object, by its namespace and name. The oldest read comes first."""

    async def messages(self, observed: Observed) -> dict[str, str]:
        """Return messages by object name. The objects are at most MAX_PODS pods whose containers do
        not start, a RayCluster without pods, and a RayJob that Kueue queues."""
        namespace, ray_job = observed.job.namespace, observed.ray_job
        since = self.now().timestamp() - POD_START_SECONDS
        pods = [pod for pod in observed.pods if pod.waiting and (pod.scheduled_at or inf) <= since]
        waiting = [(POD, pod.name) for pod in pods][:MAX_PODS]
        if ray_job is not None and ray_job.awaiting_pods and not observed.pods_of_attempt:
            waiting.append((RAY_CLUSTER, ray_job.cluster))
        messages: dict[str, str] = {}
        if waiting:
            with self._logged_once("Events"):
                for kind, name in waiting:
                    messages[name] = await self._warning(namespace, kind, name)
        if ray_job is not None and (ray_job.suspended or is_gated(observed)):
            with self._logged_once("Workloads"):
                messages[ray_job.name] = await self.api.queued_reason(namespace, ray_job)
        return {name: message for name, message in messages.items() if message}

    async def _warning(self, namespace: str, kind: str, name: str) -> str:
        """Return the last warning about an object. The result of a recent read is used again. Reads
        have a backoff, because each read searches all Events of the namespace."""
        key, now = (namespace, name), self.now().timestamp()
        last = self.last_reads.get(key)
        if last is not None and now < last.until:
            return last.message
        message = await self.api.last_warning(namespace, kind, name)
        backoff = FIRST_BACKOFF if last is None else min(2 * last.backoff, MAX_BACKOFF)
        self.last_reads.pop(key, None)
        self.last_reads[key] = _LastRead(message, backoff, now + backoff)
        self._forget(now - 2 * MAX_BACKOFF)
        return message

    def _forget(self, limit: float) -> None:
        """Forget the reads whose backoff ended before `limit`."""
        for key, last_read in list(self.last_reads.items()):
            if last_read.until >= limit:
                return
            del self.last_reads[key]

    @contextmanager
    def _logged_once(self, kind: str) -> Iterator[None]:
        """Log an error of the block, unless the last read of this kind has failed, too."""
        try:
            yield
        except (Refused, Conflict) as problem:
            if kind not in self.failed:
                logger.warning("%s cannot be read: %s", kind, problem)
            self.failed.add(kind)
        else:
            self.failed.discard(kind)
