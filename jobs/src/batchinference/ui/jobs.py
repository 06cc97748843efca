"""The jobs that the page shows: outputs, and jobs on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock, RLock
from time import monotonic
from typing import Any

from batchinference.api.jobs_on_cluster import JobStatus
from batchinference.api.kubernetes import ClusterError, Kubernetes
from batchinference.api.outputs import (
    OutputStatus,
    error_groups,
    last_log,
    status_of,
    works_at,
)
from batchinference.api.progress import JobProgress, progress_of_job, progress_of_output
from batchinference.api.targets import Target
from batchinference.api.workers import Workers, read_job
from batchinference.pipeline.errors import JobFailure, shown
from batchinference.pipeline.search.index import open_index
from batchinference.pipeline.storage.location import Location
from batchinference.ui.history import History
from batchinference.ui.pages import JobDetails, JobEntry

PROGRESS_SECONDS, DETAILS_SECONDS = 1.0, 15.0
"""The progress of a job, and the rest of its page, are read at most once in this time, however many
pages show them."""
LOG_CHARACTERS = 20_000
Facts = list[tuple[str, str]]
memory_lock = Lock()
"""Held while an output is searched: its memory limit applies to the whole process."""


class Unreadable(Exception):
    """A job or its output cannot be read. The message is for people."""


@contextmanager
def readable() -> Iterator[None]:
    """Turn the errors of reading a job or an output into Unreadable."""
    try:
        yield
    except ClusterError as error:
        raise Unreadable(str(error)) from None
    except JobFailure as failure:
        raise Unreadable(failure.message) from None
    except OSError as error:
        raise Unreadable(shown(str(error))) from None
    except MemoryError:
        raise Unreadable("the memory of this process is not sufficient") from None


@dataclass(frozen=True)
class Observation:
    """The state of a job at one moment. `facts` are further names and values."""

    progress: JobProgress
    output: str
    facts: Facts


@dataclass
class ObservedJob:
    """A job, and its progress while the page is open. Safe for concurrent requests."""

    key: str
    target: Target
    _history: History = field(default_factory=History)
    _entry: tuple[float, JobEntry] | None = None
    _observed: Observation | None = None
    """What the entry was read from; None if the job cannot be read."""
    _details: tuple[float, JobDetails] | None = None
    _lock: RLock = field(default_factory=RLock)

    @cached_property
    def _cluster(self) -> Kubernetes:
        return self.target.cluster()

    def observe(self) -> Observation:
        """Read the state of the job. Raises Unreadable."""
        with readable():
            if self.target.is_job:
                return _of_job(*read_job(self._cluster, self.target.text))
            output = self.target.output()
            return _of_output(output, status_of(output))

    def output(self) -> str:
        """Return the path of the output. Raises Unreadable."""
        if not self.target.is_job:
            return self.target.output()
        with readable():
            return JobStatus.of(self._cluster.get(self.target.text)).output

    def entry(self) -> JobEntry:
        """Return the progress of the job. Errors become part of the entry."""
        with self._lock:
            if self._entry is None or monotonic() - self._entry[0] >= PROGRESS_SECONDS:
                self._entry = monotonic(), self._read_entry()
            return self._entry[1]

    def _read_entry(self) -> JobEntry:
        try:
            self._observed = self.observe()
        except Unreadable as problem:
            self._observed = None
            return JobEntry(self.key, self.target.text, problem=str(problem))
        return self.record(self._observed.progress)

    def record(self, progress: JobProgress) -> JobEntry:
        """Add a progress that has just been read to the history, and return its entry."""
        with self._lock:
            self._history.add(monotonic(), progress.rows)
            rate = progress.rate if progress.rate is not None else self._history.rate
            return JobEntry(self.key, self.target.text, progress, rate)

    def details(self) -> JobDetails:
        """Return everything that the page of this job shows. What cannot be read is left out."""
        with self._lock:
            entry = self.entry()
            if self._details is None or self._is_outdated(self._details, entry):
                self._details = monotonic(), self._read_details(entry)
            return replace(self._details[1], entry=entry, history=self._history.over_time)

    @staticmethod
    def _is_outdated(details: tuple[float, JobDetails], entry: JobEntry) -> bool:
        read_at, found = details
        return found.entry.ended != entry.ended or monotonic() - read_at >= DETAILS_SECONDS

    def _read_details(self, entry: JobEntry) -> JobDetails:
        if self._observed is None:
            return JobDetails(entry, self._history.over_time)
        output = self._observed.output
        return JobDetails(
            entry,
            self._history.over_time,
            self._observed.facts,
            _or_default(lambda: error_groups(output), []),
            _or_default(lambda: last_log(output)[-LOG_CHARACTERS:], ""),
            _or_default(lambda: report_page(output) is not None, default=False),
            _or_default(lambda: _is_searchable(output), default=False),
        )


def _or_default(read: Callable[[], Any], default: Any) -> Any:
    try:
        with readable():
            return read()
    except Unreadable:
        return default


def _of_job(job: JobStatus, workers: Sequence[Workers]) -> Observation:
    facts = [("Namespace", job.namespace), ("Output", job.output)]
    facts += [("Attempt", str(job.attempt))] if job.attempt else []
    facts += [("GPUs", str(job.gpus))] if job.gpus else []
    facts += [("Cost", job.cost)] if job.cost else []
    return Observation(progress_of_job(job, workers), job.output, facts)


def _of_output(output: str, found: Sequence[OutputStatus]) -> Observation:
    facts: Facts = [("Output", output)]
    for each in found:
        facts += [("Written by", each.job), ("Attempt", str(each.attempt))]
        if each.heartbeat_age is not None:
            facts.append(("Last heartbeat", f"{each.heartbeat_age:.0f} s ago"))
    return Observation(progress_of_output(found), output, facts)


def _is_searchable(output: str) -> bool:
    with memory_lock:
        open_index(Location(output))
    return True


def report_page(output: str) -> Location | None:
    """Return the HTML report of the job that has written to an output last; None if there is none.

    Raises JobFailure."""
    pages = [work.layout.report_page for work in works_at(output)]
    return next((page for page in reversed(pages) if page.exists()), None)


class GivenJobs:
    """The jobs whose outputs or names the user has given."""

    def __init__(self, targets: list[Target]) -> None:
        self._jobs = [ObservedJob(str(number), target) for number, target in enumerate(targets)]
        self.title = ", ".join(target.text for target in targets)

    def entries(self) -> list[JobEntry]:
        """Return all jobs in the given order."""
        return [job.entry() for job in self._jobs]

    def find(self, key: str) -> ObservedJob | None:
        """Return the job with this key; None if there is none."""
        return next((job for job in self._jobs if job.key == key), None)


class JobsOfNamespace:
    """All jobs of a namespace of a cluster."""

    def __init__(self, namespace: str | None, context: str | None) -> None:
        """Raises ClusterError if there is no cluster."""
        self._cluster = Target("", namespace, context).cluster()
        self._context = context
        self._jobs: dict[str, ObservedJob] = {}
        self._lock = Lock()
        self.title = f"namespace {self._cluster.namespace} of {self._cluster.host}"

    def entries(self) -> list[JobEntry]:
        """Return all jobs, those that have not ended first. Raises Unreadable."""
        with readable():
            found = [JobStatus.of(job) for job in self._cluster.list_jobs()]
        with self._lock:
            self._jobs = {job.name: self._jobs.get(job.name) or self._job(job) for job in found}
            jobs = self._jobs
        entries = [jobs[job.name].record(progress_of_job(job)) for job in found]
        return sorted(entries, key=lambda entry: (entry.ended, entry.target))

    def find(self, key: str) -> ObservedJob | None:
        """Return the job with this name; None if there is none. Raises Unreadable."""
        if key not in self._jobs:
            self.entries()
        return self._jobs.get(key)

    def _job(self, job: JobStatus) -> ObservedJob:
        return ObservedJob(job.name, Target(job.name, self._cluster.namespace, self._context))


Jobs = GivenJobs | JobsOfNamespace
