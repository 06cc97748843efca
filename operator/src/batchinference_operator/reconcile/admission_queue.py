"""The admission queue: decides which waiting job starts next if there is a concurrency limit.

Namespaces share the limit. The next job comes from the namespace with the fewest running jobs. If
several namespaces have equally few, the oldest of their first waiting jobs is next. Within a
namespace, jobs are ordered by priority and then by age, so a high priority has no effect on other
namespaces. A changed job updates only its own position, so no reconcile iterates over all jobs. All
state is derived from objects in the API server, so nothing is lost when the operator restarts."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice

from batchinference.spec.cluster import Cluster
from batchinference.spec.status import Phase
from batchinference_operator.reconcile.job_view import JobKey, JobView
from batchinference_operator.status.attempts import is_running

Position = tuple[int, str, str, str]
"""The sort key of a waiting job: descending priority, creation time, namespace, name."""

ROUND_FROM_POSITION = 10
"""From this value on, the status shows a rounded number of jobs ahead."""
UNLIMITED = 2**31
"""A capacity that is never reached."""


@dataclass(frozen=True)
class Concurrency:
    """The maximum numbers of concurrently running jobs; None means unlimited."""

    total: int | None = None
    per_namespace: int | None = None

    @property
    def has_limit(self) -> bool:
        """Whether at least one of the numbers is limited."""
        return self.total is not None or self.per_namespace is not None

    def capacity(self, running: int) -> int:
        """Return how many more jobs may run in total; negative if the limit was lowered."""
        return UNLIMITED if self.total is None else min(self.total, UNLIMITED) - running


@dataclass(frozen=True)
class QueueEntry:
    """What the admission queue knows about a job. A job that neither runs nor waits is finished,
    suspended, being deleted, queued by Kueue, or run by another controller."""

    resource_version: str
    """The resourceVersion of the job when it was observed."""
    priority: int = 0
    created_at: str = ""
    running: bool = False
    """Whether an attempt of the job runs, or the job is being suspended. False if Kueue admits the
    next attempt: the label of its RayJob says whether Kueue manages the running attempt."""
    waiting: bool = False


def queue_entry(job: JobView, platform: Cluster, *, gone: bool = False) -> QueueEntry:
    """Return the entry of a job in the admission queue. `gone` is whether its RayJob has ended or
    is gone. An attempt of a job that is being deleted counts as running until `gone`."""
    if job.finished or not job.managed:
        return QueueEntry(job.resource_version)
    stopping = job.deleting or job.spec.get("suspend") is True
    active = is_running(job.status) or job.status.get("phase") == Phase.SUSPENDING
    running = active and not (job.deleting and gone)
    queue = (job.spec.get("cluster") or {}).get("queueName")
    queued = isinstance(queue, str) or platform.queue_name is not None
    waiting = not (running or stopping or queued)
    priority = int(job.spec.get("priority", 0))
    running = running and not queued
    return QueueEntry(job.resource_version, priority, job.created_at, running, waiting)


@dataclass(frozen=True)
class AdmissionDecision:
    """Whether a waiting job may start now."""

    ahead: int
    """The number of jobs ahead of it; at the limit of its namespace, only jobs of the namespace."""
    admitted: bool
    why: str = ""
    """Why the job must wait."""

    @property
    def message(self) -> str:
        """The number of jobs ahead and why the job waits. A large number is rounded, because each
        change of the message causes a status write."""
        if self.ahead == 0:
            return f"next to start; {self.why}"
        if self.ahead < ROUND_FROM_POSITION:
            return f"{self.ahead} job{'s' * (self.ahead > 1)} ahead; {self.why}"
        unit = 10 ** (len(str(self.ahead)) - 1)
        return f"at least {self.ahead // unit * unit} jobs ahead; {self.why}"


@dataclass
class AdmissionQueue:
    """The running and the waiting jobs.

    After `admit`, a job counts as running until a later version of the job is observed. The write
    of its status may have succeeded even if there was no response.
    """

    limits: Concurrency = field(default_factory=Concurrency)
    wake: Callable[[JobKey], None] = lambda _: None
    """Called for each job that may be admitted now."""
    _entries: dict[JobKey, QueueEntry] = field(default_factory=dict)
    _with_ray_jobs: set[JobKey] = field(default_factory=set)
    _admitted: dict[JobKey, str] = field(default_factory=dict)
    _running: set[JobKey] = field(default_factory=set)
    _running_per_namespace: Counter[str] = field(default_factory=Counter)
    _positions: dict[JobKey, Position] = field(default_factory=dict)
    _waiting: dict[str, list[Position]] = field(default_factory=dict)

    def update(self, key: JobKey, entry: QueueEntry | None) -> None:
        """Record the state of a job; None if the job is gone."""
        if not self.limits.has_limit:
            return
        if entry is None or entry.resource_version != self._admitted.get(key):
            self._admitted.pop(key, None)
        self._entries.pop(key, None)
        if entry is not None and (entry.running or entry.waiting):
            self._entries[key] = entry
        self._reindex(key)

    def update_usage(self, key: JobKey, running: bool) -> None:
        """Record whether a job has a RayJob that has not ended. The job itself may be gone."""
        if self.limits.has_limit:
            (self._with_ray_jobs.add if running else self._with_ray_jobs.discard)(key)
            self._reindex(key)

    def decide(self, key: JobKey) -> AdmissionDecision | None:
        """Return whether a job that wants to start may start; None if it needs no admission."""
        entry = self._entries.get(key)
        if entry is None or not entry.waiting:
            return None
        if key in self._admitted:
            return AdmissionDecision(0, admitted=True)
        self._insert(key, entry)
        return self._decide(key)

    def admit(self, key: JobKey) -> None:
        """Record the start of a job that `decide` has admitted."""
        if entry := self._entries.get(key):
            self._admitted[key] = entry.resource_version
            self._reindex(key)

    def skip(self, key: JobKey) -> None:
        """Let the next job start if the job `key` was admitted but could not start. The next
        reconcile of the skipped job puts it back at its position in the queue."""
        if key in self._positions and self._decide(key).admitted:
            self._remove(key)
            self._wake()

    def _namespace_capacity(self, namespace: str) -> int:
        """Return how many more jobs may run in a namespace."""
        limit = self.limits.per_namespace
        return (
            UNLIMITED if limit is None else max(0, limit - self._running_per_namespace[namespace])
        )

    def _reindex(self, key: JobKey) -> None:
        """Update the position of a job, and wake the jobs that may start because of this."""
        position, was_running = self._positions.get(key), key in self._running
        entry = self._entries.get(key)
        runs = entry is not None and entry.running
        running = runs or key in self._admitted or key in self._with_ray_jobs
        self._remove(key)
        if running != was_running:
            (self._running.add if running else self._running.discard)(key)
            self._running_per_namespace[key[0]] += 1 if running else -1
        if entry is not None and entry.waiting and not running:
            self._insert(key, entry)
        made_room = (was_running or position is not None) and not running
        if made_room and position != self._positions.get(key, ()):
            self._wake()

    def _insert(self, key: JobKey, entry: QueueEntry) -> None:
        if key in self._positions or key in self._running:
            return
        position = (-entry.priority, entry.created_at, *key)
        self._positions[key] = position
        insort(self._waiting.setdefault(key[0], []), position)

    def _remove(self, key: JobKey) -> None:
        position = self._positions.pop(key, None)
        if position is None:
            return
        waiting = self._waiting[key[0]]
        del waiting[bisect_left(waiting, position)]
        if not waiting:
            del self._waiting[key[0]]

    def _decide(self, key: JobKey) -> AdmissionDecision:
        room = self.limits.capacity(len(self._running))
        namespace_room = self._namespace_capacity(key[0])
        if key not in self._positions:
            why = "waiting until the pods of the last attempt are gone"
            return AdmissionDecision(0, admitted=False, why=why)
        position = self._positions[key]
        before = self._jobs_ahead(key[0], position)
        if before[key[0]] >= namespace_room:
            limit = self.limits.per_namespace
            why = f"the limit of namespace {key[0]} is {limit} (concurrency.maxRunningPerNamespace)"
            return AdmissionDecision(before[key[0]], admitted=False, why=why)
        ahead = sum(
            min(count, namespace_room if name == key[0] else self._namespace_capacity(name))
            for name, count in before.items()
        )
        why = f"the limit of {self.limits.total} running jobs is reached (concurrency.maxRunning)"
        return AdmissionDecision(sum(before.values()), admitted=ahead < room, why=why)

    def _jobs_ahead(self, namespace: str, position: Position) -> dict[str, int]:
        """Return how many waiting jobs of each namespace are ahead of a waiting job.

        Jobs start in the order of their `share`: the number of running jobs plus earlier waiting
        jobs in their namespace. The older of two jobs with the same share comes first."""
        own = bisect_left(self._waiting[namespace], position)
        share, ahead = self._running_per_namespace[namespace] + own, {}
        for name, positions in self._waiting.items():
            count = share - self._running_per_namespace[name]
            if 0 <= count < len(positions) and positions[count][1:] < position[1:]:
                count += 1
            ahead[name] = min(max(0, count), len(positions))
        return {**ahead, namespace: own}

    def _wake(self) -> None:
        """Wake the jobs that may start now, in the order of admission."""
        room = max(0, self.limits.capacity(len(self._running)))
        candidates = merge(*map(self._candidates, self._waiting))
        for *_, namespace, name in islice(candidates, room):
            self.wake((namespace, name))

    def _candidates(self, namespace: str) -> Iterator[Position]:
        """Yield the positions of the waiting jobs of a namespace, up to its limit. In each
        position, the `share` of the job replaces the priority."""
        positions = islice(self._waiting[namespace], self._namespace_capacity(namespace))
        for share, position in enumerate(positions, self._running_per_namespace[namespace]):
            yield share, *position[1:]
