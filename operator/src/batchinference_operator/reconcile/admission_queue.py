"""The admission queue, for an operator with a concurrency limit.

Namespaces share the limit. The next job comes from the namespace with the fewest running jobs. If
namespaces have equally many, the one whose next job is oldest comes first. Within a namespace, jobs
are ordered by priority and then by age, so a high priority has no effect on other namespaces. A
reconcile counts nothing again: a change of a job moves only this job. All state follows from
objects in the API server, so nothing is lost when the operator restarts.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from math import inf

from batchinference.spec.cluster import Cluster
from batchinference.spec.phases import Phase
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.status.attempts import is_running

Key = tuple[str, str]
"""Namespace and name of a BatchInference."""
Position = tuple[int, str, str, str]
"""The sort key of waiting jobs: descending priority, creation time, namespace, name."""

ROUNDED_FROM = 10
"""From this number on, the status rounds the number of jobs that are ahead."""


@dataclass(frozen=True)
class Concurrency:
    """How many jobs may run at a time; None means unlimited."""

    total: int | None = None
    per_namespace: int | None = None

    @property
    def limited(self) -> bool:
        return self.total is not None or self.per_namespace is not None


@dataclass(frozen=True)
class AdmissionDecision:
    """Whether a waiting job may start, or must wait for the jobs that are ahead of it."""

    ahead: int
    admitted: bool
    why: str = ""
    """Why it must wait."""

    @property
    def message(self) -> str:
        """The message with its position, which is rounded in a long queue: each change of the
        message is a write of the status."""
        if self.ahead == 0:
            return f"it is the next to start: {self.why}"
        if self.ahead == 1:
            return f"1 job is ahead: {self.why}"
        if self.ahead < ROUNDED_FROM:
            return f"{self.ahead} jobs are ahead: {self.why}"
        unit = 10 ** (len(str(self.ahead)) - 1)
        return f"at least {self.ahead // unit * unit} jobs are ahead: {self.why}"


@dataclass(frozen=True)
class QueueEntry:
    """What the admission queue needs to know about a job. A job that neither runs nor waits has
    ended, is suspended, is being deleted or is queued by Kueue."""

    resource_version: str
    """The resourceVersion of the job when it was observed."""
    priority: int = 0
    created_at: str = ""
    running: bool = False
    """Whether it has or may have pods."""
    waiting: bool = False


@dataclass
class AdmissionQueue:
    """The running and the waiting jobs.

    An admitted job counts as running until a later version of the job is observed, which tells
    whether it started. A write whose response was lost may have succeeded.
    """

    limits: Concurrency = field(default_factory=Concurrency)
    wake: Callable[[Key], None] = lambda _: None
    """Called for each job that may be admitted now."""
    _entries: dict[Key, QueueEntry] = field(default_factory=dict)
    _with_pods: set[Key] = field(default_factory=set)
    _admitted: dict[Key, str] = field(default_factory=dict)
    _running: set[Key] = field(default_factory=set)
    _running_per_namespace: Counter[str] = field(default_factory=Counter)
    _positions: dict[Key, Position] = field(default_factory=dict)
    _waiting: dict[str, list[Position]] = field(default_factory=dict)

    # --- observations -------------------------------------------------------------------

    def update(self, key: Key, entry: QueueEntry | None) -> None:
        """Record the current state of a job; None if the job is gone."""
        if not self.limits.limited:
            return
        if entry is None or entry.resource_version != self._admitted.get(key):
            self._admitted.pop(key, None)
        if entry is None or not (entry.running or entry.waiting):
            self._entries.pop(key, None)
        else:
            self._entries[key] = entry
        self._reindex(key)

    def update_usage(self, key: Key, running: bool) -> None:
        """Record whether a job has RayJobs that have not ended, even if the job itself is gone."""
        if self.limits.limited:
            (self._with_pods.add if running else self._with_pods.discard)(key)
            self._reindex(key)

    # --- admission ----------------------------------------------------------------------

    def decide(self, key: Key) -> AdmissionDecision | None:
        """Return whether a job that wants to start may start; None if it needs no admission."""
        entry = self._entries.get(key)
        if entry is None or not entry.waiting or entry.running:
            return None
        if key in self._admitted:
            return AdmissionDecision(0, admitted=True)
        self._insert(key, entry)
        return self._decide(key)

    def admit(self, key: Key) -> None:
        """Record that an admitted job starts."""
        if entry := self._entries.get(key):
            self._admitted[key] = entry.resource_version
            self._reindex(key)

    def skip(self, key: Key) -> None:
        """Skip a job that may start but could not, so that the next job may start.

        The job returns to its position at its next reconcile.
        """
        if key in self._positions and self._decide(key).admitted:
            self._remove(key)
            self._wake()

    # --- order --------------------------------------------------------------------------

    def _reindex(self, key: Key) -> None:
        """Update the position of a job, and wake the jobs that may start if it makes room."""
        position, was_running = self._positions.get(key), key in self._running
        entry = self._entries.get(key)
        running = (
            key in self._admitted or key in self._with_pods or (entry is not None and entry.running)
        )
        self._remove(key)
        if running != was_running:
            (self._running.add if running else self._running.discard)(key)
            self._running_per_namespace[key[0]] += 1 if running else -1
        if entry is not None and entry.waiting and not running:
            self._insert(key, entry)
        if (was_running or position) and not running and position != self._positions.get(key, ()):
            self._wake()

    def _insert(self, key: Key, entry: QueueEntry) -> None:
        if key in self._positions or key in self._running:
            return
        position = (-entry.priority, entry.created_at, *key)
        self._positions[key] = position
        insort(self._waiting.setdefault(key[0], []), position)

    def _remove(self, key: Key) -> None:
        position = self._positions.pop(key, None)
        if position is None:
            return
        waiting = self._waiting[key[0]]
        del waiting[bisect_left(waiting, position)]
        if not waiting:
            del self._waiting[key[0]]

    def _decide(self, key: Key) -> AdmissionDecision:
        room, own = self._capacity(), self._namespace_capacity(key[0])
        if key not in self._positions:
            return AdmissionDecision(
                0, admitted=False, why="the pods of its last attempt still exist"
            )
        position = self._positions[key]
        before = self._jobs_ahead(key[0], position)
        if before[key[0]] >= own:
            limit = self.limits.per_namespace
            why = f"in namespace {key[0]} only {limit} may run at a time"
            return AdmissionDecision(before[key[0]], admitted=False, why=why)
        ahead = sum(min(count, self._namespace_capacity(name)) for name, count in before.items())
        why = f"only {self.limits.total} may run at a time"
        return AdmissionDecision(sum(before.values()), admitted=ahead < room, why=why)

    def _jobs_ahead(self, namespace: str, position: Position) -> dict[str, int]:
        """Return how many waiting jobs of each namespace are ahead of a waiting job.

        Jobs compare by the number of jobs that run in their namespace before them. It grows by one
        with each waiting job of the namespace.
        """
        own = bisect_left(self._waiting[namespace], position)
        share, found = self._running_per_namespace[namespace] + own, {}
        for name, positions in self._waiting.items():
            count = share - self._running_per_namespace[name]
            if 0 <= count < len(positions) and positions[count][1:] < position[1:]:
                count += 1
            found[name] = min(max(0, count), len(positions))
        return {**found, namespace: own}

    def _capacity(self) -> float:
        limit = self.limits.total
        return inf if limit is None else limit - len(self._running)

    def _namespace_capacity(self, namespace: str) -> float:
        limit = self.limits.per_namespace
        return inf if limit is None else max(0, limit - self._running_per_namespace[namespace])

    def _wake(self) -> None:
        """Wake the jobs that may start now."""
        room = self._capacity()
        for *_, namespace, name in islice(
            self._candidates(), int(min(room, 2**31)) if room > 0 else 0
        ):
            self.wake((namespace, name))

    def _candidates(self) -> Iterator[Position]:
        """Yield the waiting jobs in admission order, per namespace as many as its limit allows."""
        return merge(*map(self._namespace_candidates, self._waiting))

    def _namespace_candidates(self, namespace: str) -> Iterator[Position]:
        """Yield the waiting jobs of a namespace, each with the number that runs there before it."""
        room = self._namespace_capacity(namespace)
        positions = islice(self._waiting[namespace], None if room == inf else int(room))
        for share, position in enumerate(positions, self._running_per_namespace[namespace]):
            yield share, *position[1:]


def local_queue_of(job: JobView, platform: Cluster) -> str | None:
    """Return the LocalQueue through which Kueue admits the job; None if it has none."""
    queue = (job.spec.get("cluster") or {}).get("queue")
    return queue if isinstance(queue, str) else platform.queue


def entry_of(job: JobView, platform: Cluster) -> QueueEntry:
    """Return whether a job holds resources or waits for admission, and its priority."""
    if job.finished or not job.managed or local_queue_of(job, platform) is not None:
        return QueueEntry(job.resource_version)
    running = is_running(job.status) or job.status.get("phase") == Phase.SUSPENDING
    waiting = not (running or job.deleting or job.spec.get("suspend") is True)
    # a priority that was raised above the limit while the job waits is rejected at its start
    wanted, most = int(job.spec.get("priority", 0)), platform.limits.priority
    priority = wanted if most is None else min(wanted, most)
    return QueueEntry(job.resource_version, priority, job.created_at, running, waiting)
