"""The jobs that the page shows: outputs, and jobs on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from time import monotonic
from typing import Any
from urllib.parse import quote

from batchinference.api.jobs_on_cluster import JobStatus
from batchinference.api.kubernetes import ClusterError
from batchinference.api.outputs import error_groups, last_log, status_of, works_at
from batchinference.api.progress import JobProgress, progress_of_job, progress_of_output
from batchinference.api.targets import Target
from batchinference.pipeline.errors import JobFailure, shown
from batchinference.pipeline.search.index import open_index
from batchinference.pipeline.storage.location import Location
from batchinference.ui.history import History
from batchinference.ui.pages import JobDetails, JobEntry

MIN_SECONDS = 1.0
"""The progress of a job is read at most once in this time, however many pages show it."""
LOG_CHARACTERS = 20_000


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


@dataclass
class ObservedJob:
    """A job, and its progress while the page is open. Safe for concurrent requests."""

    key: str
    target: Target
    _history: History = field(default_factory=History)
    _last: tuple[float, JobEntry] | None = None
    _lock: Lock = field(default_factory=Lock)

    def entry(self) -> JobEntry:
        """Return the progress of the job. Errors become part of the entry."""
        with self._lock:
            if self._last is None or monotonic() - self._last[0] >= MIN_SECONDS:
                entry = self._read()
                self._last = monotonic(), entry
            return self._last[1]

    def _read(self) -> JobEntry:
        try:
            with readable():
                progress, _ = _observe(self.target)
        except Unreadable as problem:
            return JobEntry(self.key, self.target.text, problem=str(problem))
        return self.observed(progress)

    def observed(self, progress: JobProgress) -> JobEntry:
        """Return the entry of a progress that has just been read."""
        self._history.add(monotonic(), progress.rows)
        rate = progress.rate if progress.rate is not None else self._history.rate
        return JobEntry(self.key, self.target.text, progress, rate)

    def details(self) -> JobDetails:
        """Return all that the page of this job shows. What cannot be read is left out."""
        entry = self.entry()
        if entry.problem:
            return JobDetails(entry, self._history.over_time)
        output = _or_default(self.target.output, "")
        return JobDetails(
            entry,
            self._history.over_time,
            _or_default(lambda: _observe(self.target)[1], []),
            _or_default(lambda: error_groups(output), []),
            _or_default(lambda: _log_of(output), ""),
            _or_default(lambda: bool(report_page(output)), default=False),
            _or_default(lambda: bool(open_index(Location(output))), default=False),
        )


def _or_default(read: Callable[[], Any], default: Any) -> Any:
    try:
        with readable():
            return read()
    except Unreadable:
        return default


def _observe(target: Target) -> tuple[JobProgress, list[tuple[str, str]]]:
    """Return the progress of a job, and further facts as names and values."""
    if target.is_job:
        job = JobStatus.of(target.cluster().get(target.text))
        facts = [("Namespace", job.namespace), ("Output", job.output)]
        facts += [("Attempt", str(job.attempt))] if job.attempt else []
        facts += [("GPUs", str(job.gpus))] if job.gpus else []
        facts += [("Cost", job.cost)] if job.cost else []
        return progress_of_job(job), facts
    found = status_of(target.output())
    facts = []
    for each in found:
        facts += [("Output", each.output), ("Written by", each.job), ("Attempt", str(each.attempt))]
        if each.heartbeat_age is not None:
            facts.append(("Last heartbeat", f"{each.heartbeat_age:.0f} s ago"))
    return progress_of_output(found), facts


def report_page(output: str) -> Location | None:
    """Return the HTML report of the job that has written to an output last; None if there is none.

    Raises JobFailure."""
    pages = [work.layout.report_page for work in works_at(output)]
    return next((page for page in reversed(pages) if page.exists()), None)


def _log_of(output: str) -> str:
    return last_log(output).read().decode(errors="replace")[-LOG_CHARACTERS:]


class GivenJobs:
    """The jobs whose outputs or names the user has given."""

    def __init__(self, targets: list[Target]) -> None:
        self._jobs = [ObservedJob(str(number), target) for number, target in enumerate(targets)]
        self.title = "on this machine" if len(targets) > 1 else targets[0].text

    def entries(self) -> list[JobEntry]:
        return [job.entry() for job in self._jobs]

    def find(self, key: str) -> ObservedJob | None:
        return next((job for job in self._jobs if job.key == key), None)


class JobsOfNamespace:
    """All jobs of a namespace of a cluster."""

    def __init__(self, namespace: str | None, context: str | None) -> None:
        """Raises ClusterError if there is no cluster."""
        self._cluster = Target("", namespace, context).cluster()
        self._context = context
        self._jobs: dict[str, ObservedJob] = {}
        self.title = f"namespace {self._cluster.namespace} of {self._cluster.host}"

    def entries(self) -> list[JobEntry]:
        """Return all jobs, those that have not ended first. Raises Unreadable."""
        with readable():
            found = [JobStatus.of(job) for job in self._cluster.list_jobs()]
        entries = [self._job(job.name).observed(progress_of_job(job)) for job in found]
        return sorted(entries, key=lambda entry: (entry.ended, entry.target))

    def find(self, key: str) -> ObservedJob | None:
        return self._job(key) if key == quote(key, safe="") else None

    def _job(self, name: str) -> ObservedJob:
        target = Target(name, self._cluster.namespace, self._context)
        return self._jobs.setdefault(name, ObservedJob(name, target))


Jobs = GivenJobs | JobsOfNamespace
