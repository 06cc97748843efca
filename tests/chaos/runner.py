"""Runs jobs, several at a time, and injects the faults of their plans."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from random import Random

from chaos.faults import NoTarget, Site
from chaos.inputs import ROWS
from chaos.jobs import Job
from chaos.output_check import Proof, prove
from chaos.plans import Injection
from support.cluster.kubectl import ENDED, Object
from support.cluster.state import state
from support.cluster.statuses import History
from support.timeouts import scaled

MAX_START_SECONDS = scaled(240.0)
"""The time for which a fault waits for the first row."""
MAX_JOB_SECONDS = scaled(420.0)
"""The time after the last fault within which a job must end."""
MAX_SEARCH_SECONDS = scaled(90.0)
"""The time for which a fault waits until its target exists."""


@dataclass(frozen=True)
class Injected:
    """A fault that was injected into one job or into a shared component."""

    fault: str
    job: str | None
    at: float


@dataclass
class Result:
    """A job that has ended."""

    job: Job
    began: float
    ended: float
    status: Object
    again: int = 0
    """Number of rows that the first step has processed more than once."""
    proof: Proof = field(default_factory=Proof)
    faults: list[Injected] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass
class Runner:
    site: Site
    history: History
    log: Callable[[str], None]
    injected: list[Injected] = field(default_factory=list)
    _exclusive: threading.Lock = field(default_factory=threading.Lock)
    """Held while an exclusive fault is injected."""

    def run(self, job: Job, plan: list[Injection]) -> Result:
        """Run a job to its end under the faults of its plan."""
        began = time.monotonic()
        self.site.jobs.apply(job.document())
        for injection in plan:
            self._inject(job, injection)
        self.site.store.open_gate(job.name)
        self._wait(lambda: self._has_ended(job), MAX_JOB_SECONDS)
        if not self._has_ended(job):
            self.log(state(self.site.jobs, self.site.operator, job.name))
        result = Result(job, began, time.monotonic(), self.history.last(job.name))
        result.faults = [one for one in self.injected if _concerns(one, result)]
        return result

    def check(self, result: Result) -> None:
        """Check the rows and counts of a job, after the last fault."""
        self._find_problems(result)
        self.log(f"{result.job.name} {result.status.get('phase')}, {result.again} rows again; "
                 f"{'; '.join(result.problems) or 'each row once'}")  # fmt: skip

    def _inject(self, job: Job, injection: Injection) -> None:
        if not injection.early:
            self._wait(lambda: self._rows(job) or self._has_ended(job), MAX_START_SECONDS)
        self._wait(lambda: self._has_ended(job), injection.wait)
        fault, deadline = injection.fault, time.monotonic() + MAX_SEARCH_SECONDS
        while not self._has_ended(job) and time.monotonic() < deadline:
            try:
                with self._exclusive if fault.exclusive else nullcontext():
                    at = time.monotonic()
                    fault.inject(self.site, job.name, Random(injection.seed))
            except NoTarget:
                time.sleep(1)
                continue
            self.injected.append(Injected(fault.name, None if fault.shared else job.name, at))
            self.log(f"{job.name} at {self._rows(job)} rows: {fault.name}")
            return

    def _find_problems(self, result: Result) -> None:
        job, status, problems = result.job, result.status, result.problems
        rows = self.history[job.name].rows
        result.again = self.site.store.passed(job.name) - ROWS
        if rows != sorted(rows):
            problems.append(f"progress decreased: {rows}")
        if status.get("phase") != "Succeeded":
            problems.append(f"{job.name} is {status.get('phase')}: {_attempts(status)}")
            return
        # a head that is killed at the end loses its report, and then there are no counts
        counts = status.get("counts")
        lost = counts is None and "report could not be read" in str(status["conditions"])
        if counts != job.counts() and not lost:
            problems.append(f"counts are {counts}, not {job.counts()}")
        result.proof = prove(job, self.site.store)
        problems += result.proof.problems

    def _rows(self, job: Job) -> int:
        return max(self.history[job.name].rows, default=0)

    def _has_ended(self, job: Job) -> bool:
        return self.history.last(job.name).get("phase") in ENDED

    def _wait(self, condition: Callable[[], object], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.2)


def _attempts(status: Object) -> str:
    return "; ".join(
        f"{attempt.get('cause', 'no cause')} {attempt.get('message', '')[:300]}"
        for attempt in status.get("attempts", [])
    )


def _concerns(one: Injected, result: Result) -> bool:
    """Return whether a fault affected this job."""
    return one.job in (None, result.job.name) and result.began <= one.at <= result.ended
