"""A job that is looked at again and again: each look sees what the one before has written."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from batchinference.spec.limits import Limits
from batchinference.spec.report import JobState
from batchinference_operator.reconcile.clock import stamp
from batchinference_operator.reconcile.following import created
from batchinference_operator.reconcile.model import Actions, JobView, Observed
from batchinference_operator.reconcile.reconcile import reconcile
from batchinference_operator.reconcile.turns import Turn
from batchinference_operator.status.observations import RayJobView
from batchinference_operator.status.pods import Loss, PodView
from support.operator_objects import INITIALIZING, RUNNING, SETTINGS, job_body, ray_job_body, report
from support.virtual_time import BEGINNING

Object = dict[str, Any]


class Looks:
    """The job, its RayJobs and all else that is seen of it. Arguments are fields of the spec."""

    def __init__(self, **spec: Any) -> None:
        self.spec = {**job_body()["spec"], **spec}
        self.generation = 1
        self.status: Object = {}
        self.now: datetime = BEGINNING
        self.ray_jobs: dict[str, Object] = {}
        self.pods: tuple[PodView, ...] = ()
        self.losses: tuple[Loss, ...] = ()
        self.said: Any = None
        self.phases: list[str] = []
        self.settings = SETTINGS
        self.words: dict[str, str] = {}
        self.turn: Turn | None = None
        self.unheard_pods = False

    def look(self, seconds: float = 0.0) -> Actions:
        """Look after so many seconds, and do what is to be done but for KubeRay's part."""
        self.now += timedelta(seconds=seconds)
        body = job_body(status=self.status, generation=self.generation)
        body["spec"] = self.spec
        seen = {name: RayJobView.of(one) for name, one in self.ray_jobs.items()}
        reached = self.said is not None
        observed = Observed(
            JobView.of(body),
            seen,
            self.pods,
            self.losses,
            self.said,
            reached,
            self.words,
            self.turn,
            unheard_pods=self.unheard_pods,
        )
        actions = reconcile(observed, self.settings, self.now)
        self._act(actions)
        return actions

    def _act(self, actions: Actions) -> None:
        for seen in actions.stop:
            self.ray_jobs[seen.name]["status"]["jobStatus"] = "STOPPED"
        for seen in actions.remove:
            self.ray_jobs[seen.name]["metadata"]["deletionTimestamp"] = stamp(self.now)
        for body in actions.create:
            if body["kind"] == "RayJob":
                made = ray_job_body(body["metadata"]["name"])
                made["metadata"]["creationTimestamp"] = stamp(self.now)
                self.ray_jobs.setdefault(body["metadata"]["name"], made)
        for seen in actions.release:
            self.ray_jobs[seen.name]["spec"]["ttlSecondsAfterFinished"] = 0
        if actions.status is not None:
            self.status = actions.status
            self.phases.append(actions.status["phase"])

    def limit(self, **limits: Any) -> None:
        """The platform's limits."""
        defaults = SETTINGS.defaults.model_copy(update={"limits": Limits.model_construct(**limits)})
        self.settings = replace(SETTINGS, defaults=defaults)

    # --- what KubeRay and the driver do -------------------------------------------------

    @property
    def ray_job(self) -> Object:
        """That of the last attempt."""
        return self.ray_jobs[self.status["rayJobName"]]

    def play(self, **status: Any) -> None:
        """What KubeRay says of it."""
        self.ray_job["status"] = {**self.ray_job["status"], **status}

    def let_go(self) -> None:
        """KubeRay lets go of what was removed."""
        for name, body in list(self.ray_jobs.items()):
            if "deletionTimestamp" in body["metadata"]:
                del self.ray_jobs[name]

    def tell(self, state: JobState, **fields: Any) -> None:
        """What the driver says."""
        self.said = report(state, **{"updatedAt": stamp(self.now), **fields})

    def plan(self) -> None:
        self.look()

    def begin(self, seconds: float) -> None:
        """A RayJob is made, and the status says so at once."""
        before, (*_, made) = self.status, self.look(seconds).create
        planned = self.status
        self.phases.pop()
        job = JobView.of({**job_body(status=before), "spec": self.spec})
        body = self.ray_jobs[made["metadata"]["name"]]
        self._act(created(job, planned, body, self.settings, self.now))

    def start(self) -> None:
        """As far as the RayJob that gets its cluster."""
        self.plan()
        self.play(**INITIALIZING)
        self.look()

    def run(self, rows: int = 10) -> None:
        """As far as the first rows."""
        self.start()
        self.play(**RUNNING)
        self.tell(JobState.RUNNING, rows=rows)
        self.look()

    def queue(self) -> None:
        """As far as a RayJob that Kueue holds back."""
        self.start()
        self.ray_job["spec"]["suspend"] = True
        self.look()

    def finalize(self) -> None:
        """As far as the last rows."""
        self.run()
        self.tell(JobState.FINALIZING, rows=10)
        self.look()

    def lose(self) -> None:
        """As far as the loss of an attempt that had rows."""
        self.run()
        self.fail()

    def fail(self, cause: str = "NodeLost", message: str = "in its words") -> Actions:
        """The driver fails."""
        self.ray_job["spec"]["suspend"] = False
        self.play(**RUNNING)
        self.tell(JobState.FAILED, reason=cause, message=message)
        actions = self.look()
        self.said = None
        return actions

    # --- what stands in the status ------------------------------------------------------

    @property
    def phase(self) -> str:
        return str(self.status["phase"])

    @property
    def reason(self) -> str:
        (found,) = {str(condition["reason"]) for condition in self.status["conditions"]}
        return found

    @property
    def message(self) -> str:
        (found,) = {str(condition["message"]) for condition in self.status["conditions"]}
        return found

    @property
    def attempt(self) -> Object:
        """The last one."""
        found: Object = self.status["attempts"][-1]
        return found
