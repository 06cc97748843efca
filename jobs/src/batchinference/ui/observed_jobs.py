"""Observes the jobs that the pages show: outputs, and jobs on a cluster."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock, RLock
from time import monotonic
from typing import Any

from batchinference.api.cluster_error import ClusterError
from batchinference.api.jobs_on_cluster import JobStatus, read_job
from batchinference.api.kubernetes import Kubernetes
from batchinference.api.observation import Observation, SpeedMeter, observed_job, observed_output
from batchinference.api.output_status import (
    error_groups,
    failed_row,
    history_of,
    last_log,
    report_page,
    status_of,
)
from batchinference.api.targets import Target
from batchinference.pipeline.errors import JobFailure, redact
from batchinference.pipeline.output.error_groups import Record
from batchinference.spec.history import table_of
from batchinference.ui.pages import JobDetails, JobEntry

PROGRESS_SECONDS, DETAILS_SECONDS = 1.0, 15.0
"""The progress of a job is read at most every PROGRESS_SECONDS, and the rest of its page at most
every DETAILS_SECONDS. So many open pages cause few reads."""
LOG_CHARACTERS = 20_000
"""Maximum number of characters of a log that a page shows."""


class Unreadable(Exception):
    """A job or its output cannot be read. The message is for the user."""


@contextmanager
def readable() -> Iterator[None]:
    """Convert errors of reading a job or an output into Unreadable."""
    try:
        yield
    except ClusterError as error:
        raise Unreadable(str(error)) from None
    except JobFailure as failure:
        raise Unreadable(failure.message) from None
    except OSError as error:
        raise Unreadable(redact(str(error))) from None
    except MemoryError:
        raise Unreadable("the memory of this process is not sufficient") from None


@dataclass
class ObservedJob:
    """A job, and the history of its progress. Safe for concurrent requests."""

    key: str
    target: Target
    _meter: SpeedMeter = field(default_factory=SpeedMeter)
    _entry: tuple[float, JobEntry] | None = None
    _details: tuple[float, JobDetails] | None = None
    _lock: RLock = field(default_factory=RLock)

    @cached_property
    def _cluster(self) -> Kubernetes:
        return self.target.cluster()

    def output(self) -> str:
        """Return the path of the output. Raises Unreadable."""
        with readable():
            if not self.target.is_job:
                return self.target.output()
            return JobStatus.of(self._cluster.get(self.target.text)).output

    def entry(self) -> JobEntry:
        """Return the progress of the job as an entry of the list. If the job cannot be read, the
        entry says why."""
        with self._lock:
            if self._entry is None or monotonic() - self._entry[0] >= PROGRESS_SECONDS:
                self._entry = monotonic(), self._read_entry()
            return self._entry[1]

    def _read_entry(self) -> JobEntry:
        try:
            with readable():
                if self.target.is_job:
                    return self.record(observed_job(*read_job(self._cluster, self.target.text)))
                output = self.target.output()
                return self.record(observed_output(output, status_of(output)))
        except Unreadable as problem:
            return JobEntry(self.key, self.target.text, problem=str(problem))

    def record(self, seen: Observation) -> JobEntry:
        """Add an observation of this moment to the history, and return it as an entry."""
        with self._lock:
            return JobEntry(self.key, self.target.text, self._meter.with_measured_speed(seen))

    def details(self) -> JobDetails:
        """Return the content of the page of this job. Unreadable parts are empty."""
        with self._lock:
            entry = self.entry()
            if self._details is None or self._is_outdated(self._details, entry):
                self._details = monotonic(), self._read_details(entry)
            return replace(self._details[1], entry=entry, history=self._meter.history.over_time)

    def failed_row(self, key: str) -> list[Record]:
        """Return the error records of the row with this key, if any. Raises Unreadable."""
        with readable():
            return failed_row(self.output(), key)

    @staticmethod
    def _is_outdated(details: tuple[float, JobDetails], entry: JobEntry) -> bool:
        """Return whether details are old, or the job has ended since they were read."""
        read_at, job = details
        return job.entry.ended != entry.ended or monotonic() - read_at >= DETAILS_SECONDS

    def _read_details(self, entry: JobEntry) -> JobDetails:
        if entry.seen is None:
            return JobDetails(entry, self._meter.history.over_time)
        output = entry.seen.output
        return JobDetails(
            entry,
            self._meter.history.over_time,
            _or_default(lambda: error_groups(output), []),
            _or_default(lambda: last_log(output)[-LOG_CHARACTERS:], ""),
            _or_default(lambda: report_page(output) is not None, default=False),
            _or_default(lambda: table_of(history_of(output)), []),
        )


def _or_default(read: Callable[[], Any], default: Any) -> Any:
    """Return the result of `read`, or `default` if the job or output is unreadable."""
    try:
        with readable():
            return read()
    except Unreadable:
        return default


class GivenJobs:
    """The outputs and the jobs on a cluster that the user has named."""

    def __init__(self, targets: list[Target]) -> None:
        self._jobs = [ObservedJob(str(number), target) for number, target in enumerate(targets)]
        self.title = ", ".join(target.text for target in targets)

    def entries(self) -> list[JobEntry]:
        """Return the entries of all jobs, in the order of the command line."""
        return [job.entry() for job in self._jobs]

    def find(self, key: str) -> ObservedJob | None:
        """Return the job with this key; None if there is none."""
        return next((job for job in self._jobs if job.key == key), None)


class JobsOfNamespace:
    """All jobs of a namespace of a cluster."""

    def __init__(self, namespace: str | None, context: str | None) -> None:
        """Connect to the cluster of a context. Raises ClusterError if that is impossible."""
        self._cluster = Kubernetes(namespace, context)
        self._context = context
        self._jobs: dict[str, ObservedJob] = {}
        self._lock = Lock()
        self.title = f"namespace {self._cluster.namespace} of {self._cluster.host}"

    def entries(self) -> list[JobEntry]:
        """Return the entries of all jobs. Jobs that have not ended are first. Raises Unreadable."""
        with readable():
            current = [JobStatus.of(job) for job in self._cluster.list_jobs()]
        with self._lock:
            self._jobs = {job.name: self._jobs.get(job.name) or self._job(job) for job in current}
            jobs = self._jobs
        entries = [jobs[job.name].record(observed_job(job)) for job in current]
        return sorted(entries, key=lambda entry: (entry.ended, entry.target))

    def find(self, key: str) -> ObservedJob | None:
        """Return the job with this name; None if there is none. Raises Unreadable."""
        if key not in self._jobs:
            self.entries()
        return self._jobs.get(key)

    def _job(self, job: JobStatus) -> ObservedJob:
        return ObservedJob(job.name, Target(job.name, self._cluster.namespace, self._context))


Jobs = GivenJobs | JobsOfNamespace
