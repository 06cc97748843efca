"""One look at one job: from what was observed to what is to be done.

Nothing is remembered between two looks but what stands in the API server, so the operator may be
stopped at any point and go on from there.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from batchinference.rendering import (
    RAY_API_VERSION,
    RAY_JOB,
    Names,
    Owner,
    config_map,
    effective,
    ray_job,
    token_secret,
)
from batchinference.spec import SpecError, parse
from batchinference.spec.cluster import Cluster
from batchinference.spec.status import Phase
from batchinference_operator.reconcile.model import Actions, JobView, Observed
from batchinference_operator.status.conditions import Verdict, holds
from batchinference_operator.status.observations import Object, RayJobView
from batchinference_operator.status.status import Finding, Status, build_status
from batchinference_operator.status.verdict import judge

FIRST_ATTEMPT = 1
POLL_SECONDS = 2.0
"""How often the driver of a running job is asked for its report."""
SILENT_SECONDS = 10.0
"""How often a driver is asked that does not answer: each time takes a worker for a while."""
IDLE_SECONDS = 30.0
"""How often a job is looked at of which nothing new is heard."""
REPORT_GRACE_SECONDS = 60.0
"""How long the report of a RayJob that has ended is asked for before it is done without."""


@dataclass(frozen=True)
class Settings:
    """What reconcile needs to know of the installation."""

    defaults: Cluster
    token_key: bytes

    def token(self, uid: str) -> str:
        """The token of a job's Ray cluster. It follows from the operator's key, so that it need
        not be read back: the operator has no right to read Secrets."""
        return hmac.new(self.token_key, uid.encode(), hashlib.sha256).hexdigest()


def finished(job: JobView) -> bool:
    """Whether the job has come to its end and its status says so."""
    return holds(job.status, "Complete") or holds(job.status, "Failed")


def names_of(job: JobView) -> Names:
    return Names(job.name, job.uid, FIRST_ATTEMPT)


def settled(job: JobView) -> bool:
    """Whether nothing more is to be found out about a job: it is finished, or being deleted."""
    return job.deleting or finished(job)


def wants_report(observed: Observed) -> bool:
    """Whether the driver is to be asked how it goes."""
    seen = observed.ray_job
    return (
        not settled(observed.job)
        and seen is not None
        and seen.owner_uid == observed.job.uid
        and seen.driver_started
    )


def reconcile(observed: Observed, settings: Settings, now: datetime) -> Actions:
    """What is to be done about a job."""
    job, seen = observed.job, observed.ray_job
    if job.deleting:
        return Actions()  # what is created now, Kubernetes would have to delete again
    if finished(job):
        return _clean_up(job, seen)
    if seen is not None and seen.owner_uid != job.uid:
        return _wait_for_name(job, seen, now)
    if seen is None:
        return _vanished(job, now) if job.status.get("rayJobName") else _start(job, settings, now)
    actions = _follow(observed, seen, now)
    if job.status.get("rayJobName"):
        return actions
    # the status names the RayJob from the look on that gives it its token
    return replace(actions, create=(_token_of(job, seen, settings),))


def _clean_up(job: JobView, seen: RayJobView | None) -> Actions:
    """The status is final. The cluster has done its duty, which is to be read."""
    if seen is not None and seen.owner_uid == job.uid and seen.kept and not seen.deleting:
        return Actions(release=seen.name)
    return Actions()


def _wait_for_name(job: JobView, seen: RayJobView, now: datetime) -> Actions:
    if seen.owner_uid is not None:
        message = f"waiting until RayJob {seen.name} of a deleted BatchInference is gone"
    else:
        message = f"a RayJob named {seen.name} exists and is not this job's: delete or rename it"
    finding = Finding(Phase.PENDING, Verdict("NameTaken", message))
    return Actions(status=_status(job, finding, now), again_after=POLL_SECONDS)


def refused(job: JobView, words: str, now: datetime) -> Status:
    """The status of a job whose objects the API server does not take, in the server's words."""
    return _status(job, Finding(Phase.PENDING, Verdict("Refused", words)), now)


def _vanished(job: JobView, now: datetime) -> Actions:
    """Somebody deleted the RayJob. Rows may be written; nothing is begun anew by itself."""
    message = f"RayJob {job.status['rayJobName']} was deleted before the job ended"
    finding = Finding(Phase.FAILED, Verdict("RayJobDeleted", message, failed=True))
    return Actions(status=_status(job, finding, now))


def _start(job: JobView, settings: Settings, now: datetime) -> Actions:
    try:
        objects = render(job, settings)
    except SpecError as error:
        finding = Finding(Phase.FAILED, Verdict("InvalidSpec", str(error), failed=True))
        return Actions(status=_status(job, finding, now))
    verdict = Verdict("Pending", f"RayJob {names_of(job).ray_job} is created")
    status = _status(job, Finding(Phase.PENDING, verdict), now)
    return Actions(create=objects, status=status, again_after=POLL_SECONDS)


def render(job: JobView, settings: Settings) -> tuple[Object, ...]:
    """What a job is started with, the RayJob last: what it mounts is there before it.

    Raises SpecError.
    """
    complete = effective(parse(job.document), settings.defaults)
    names, owner = names_of(job), Owner(job.name, job.uid)
    return config_map(complete, names, owner), ray_job(complete, names, owner)


def _token_of(job: JobView, seen: RayJobView, settings: Settings) -> Object:
    """The Secret with the token. It belongs to the RayJob, so it can only come after it."""
    owner = Owner(seen.name, seen.uid, RAY_JOB, RAY_API_VERSION)
    return token_secret(job.namespace, names_of(job), settings.token(job.uid), owner)


def _follow(observed: Observed, seen: RayJobView, now: datetime) -> Actions:
    job, report = observed.job, observed.report
    unheard = seen.driver_started and not observed.driver_reached
    if seen.ended and unheard and _age(seen.ended_at, now) < REPORT_GRACE_SECONDS:
        return _ask_again(job, seen, now)
    output = str(job.spec.get("write", {}).get("path", ""))
    phase, verdict = judge(seen, observed.pods, report, output, job.status.get("phase", ""))
    status = _status(job, Finding(phase, verdict, seen, report), now)
    if verdict.complete or verdict.failed:
        return Actions(status=status)
    if not seen.driver_started:
        return Actions(status=status, again_after=IDLE_SECONDS)
    return Actions(status=status, again_after=SILENT_SECONDS if unheard else POLL_SECONDS)


def _ask_again(job: JobView, seen: RayJobView, now: datetime) -> Actions:
    """The driver has spoken its last word, only it could not be heard."""
    verdict = Verdict("Finalizing", "the RayJob has ended; reading the driver's report")
    status = _status(job, Finding(Phase.FINALIZING, verdict, seen), now)
    return Actions(status=status, again_after=POLL_SECONDS)


def _status(job: JobView, finding: Finding, now: datetime) -> Status:
    return build_status(job.status, job.generation, finding, _stamp(now))


def _stamp(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _age(stamp: str, now: datetime) -> float:
    """Seconds since a time stamp; without one, as if it were long ago."""
    if not stamp:
        return float("inf")
    return (now - datetime.fromisoformat(stamp)).total_seconds()
