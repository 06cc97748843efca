"""One job after the other, several at a time, each struck by the faults of its plan."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from random import Random

from chaos.faults import NothingThere, Site
from chaos.inputs import ROWS
from chaos.jobs import Job
from chaos.plans import Moment
from chaos.proof import Proof, prove
from support.kubectl import Object
from support.patience import Lives

LONGEST = 900.0
"""Seconds after which a job counts as lost."""
LONGEST_START = 240.0
SEARCH = 30.0
"""Seconds for which a fault waits for what it strikes at."""


@dataclass(frozen=True)
class Blow:
    """A fault that has struck: at all jobs, or at this one."""

    fault: str
    job: str | None
    at: float


@dataclass
class Story:
    """A job that has ended."""

    job: Job
    began: float
    ended: float
    status: Object
    again: int = 0
    """Rows on which its first step has run more than once."""
    proof: Proof = field(default_factory=Proof)
    blows: list[Blow] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass
class Battle:
    site: Site
    lives: Lives
    say: Callable[[str], None]
    _blows: list[Blow] = field(default_factory=list)
    _quiet: threading.Lock = field(default_factory=threading.Lock)

    def fight(self, job: Job, plan: list[Moment]) -> Story:
        """Run a job to its end under its faults, and look at what has come of it."""
        began = time.monotonic()
        self.site.jobs.apply(job.document())
        for moment in plan:
            self._strike(job, moment)
        self._until(lambda: self._has_ended(job), LONGEST)
        story = Story(job, began, time.monotonic(), self.lives.last(job.name))
        story.blows = [blow for blow in self._blows if _fell(blow, story)]
        with self._quiet:
            self._judge(story)
        self.say(f"{job.name} {story.status.get('phase')}, {story.again} rows again; "
                 f"{'; '.join(story.problems) or 'each row once'}")  # fmt: skip
        return story

    def _strike(self, job: Job, moment: Moment) -> None:
        if not moment.early:
            self._until(lambda: self._rows(job) or self._has_ended(job), LONGEST_START)
        self._until(lambda: self._has_ended(job), moment.wait)
        fault, deadline = moment.fault, time.monotonic() + SEARCH
        while not self._has_ended(job) and time.monotonic() < deadline:
            try:
                with self._quiet if fault.alone else nullcontext():
                    at = time.monotonic()
                    fault.strike(self.site, job.name, Random(moment.seed))
            except NothingThere:
                time.sleep(1)
                continue
            self._blows.append(Blow(fault.name, None if fault.shared else job.name, at))
            self.say(f"{job.name} at {self._rows(job)} rows: {fault.name}")
            return

    def _judge(self, story: Story) -> None:
        job, status = story.job, story.status
        rows = self.lives[job.name].rows
        story.again = self.site.store.passed(job.name) - ROWS
        wrong = story.problems
        if rows != sorted(rows):
            wrong.append(f"progress went back: {rows}")
        if status.get("phase") != "Succeeded":
            wrong.append(f"{job.name} is {status.get('phase')}: {_ends(status)}")
            return
        if status["counts"] != job.counts():
            wrong.append(f"counts are {status['counts']}, not {job.counts()}")
        story.proof = prove(job, self.site.store)
        wrong += story.proof.problems

    def _rows(self, job: Job) -> int:
        return max(self.lives[job.name].rows, default=0)

    def _has_ended(self, job: Job) -> bool:
        return self.lives.last(job.name).get("phase") in ("Succeeded", "Failed")

    def _until(self, condition: Callable[[], object], longest: float) -> None:
        """Wait, but not for ever."""
        deadline = time.monotonic() + longest
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.2)


def _ends(status: Object) -> str:
    """Of the attempts, in words."""
    return "; ".join(
        f"{attempt.get('cause', 'no end')} {attempt.get('message', '')[:300]}"
        for attempt in status.get("attempts", [])
    )


def _fell(blow: Blow, story: Story) -> bool:
    """Whether it has hit this job."""
    return blow.job in (None, story.job.name) and story.began <= blow.at <= story.ended
