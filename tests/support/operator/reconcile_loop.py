"""Calls `reconcile` repeatedly for one job. Each call sees what the previous call has written."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from batchinference.rendering import KubeRayDeadlines
from batchinference.rendering.policy import PlatformPolicy
from batchinference.spec.platform_defaults import PlatformLimits
from batchinference.spec.report import JobState
from batchinference_operator.reconcile.admission_queue import AdmissionDecision
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.observed_and_actions import Actions, DriverAnswer, Observed
from batchinference_operator.reconcile.reconcile import reconcile as reconcile_once
from batchinference_operator.status.conditions import find_condition
from batchinference_operator.status.pod_problems import Crash
from batchinference_operator.status.pod_view import PodView
from batchinference_operator.status.ray_job_view import RayJobView
from batchinference_operator.status.timestamps import to_rfc3339
from support.operator.objects import CONFIG, INITIALIZING, RUNNING, job_body, ray_job_body, report
from support.operator.virtual_time import BEGINNING

Object = dict[str, Any]


class ReconcileLoop:
    """The job, its RayJobs and everything else that `reconcile` observes. Arguments are fields of
    the spec."""

    def __init__(self, **spec: Any) -> None:
        self.spec = {**job_body()["spec"], **spec}
        self.generation = 1
        self.annotations: dict[str, str] = {}
        self.status: Object = {}
        self.now: datetime = BEGINNING
        self.ray_jobs: dict[str, Object] = {}
        self.pods: tuple[PodView, ...] = ()
        self.disruption: Any = None
        self.crashes: tuple[Crash, ...] = ()
        self.report: Any = None
        self.phases: list[str] = []
        self.config = CONFIG
        self.messages: dict[str, str] = {}
        self.admission: AdmissionDecision | None = None
        self.notified: dict[str, str] | None = None

    def reconcile(self, seconds: float = 0.0) -> Actions:
        """Reconcile after this many seconds, and carry out the actions."""
        self.now += timedelta(seconds=seconds)
        body = job_body(status=self.status, generation=self.generation)
        body["spec"], body["metadata"]["annotations"] = self.spec, self.annotations
        seen = {name: RayJobView.of(one) for name, one in self.ray_jobs.items()}
        observed = Observed(
            JobView.of(body),
            seen,
            self.pods,
            self.disruption,
            DriverAnswer(self.report is not None, self.report),
            self.messages,
            self.admission,
            crashes=self.crashes,
            notified=self.notified,
        )
        actions = reconcile_once(observed, self.config, self.now)
        self._apply(actions)
        return actions

    def _apply(self, actions: Actions) -> None:
        for seen in actions.stop_drivers:
            self.ray_jobs[seen.name]["status"]["jobStatus"] = "STOPPED"
        for seen in actions.delete_ray_jobs:
            self.ray_jobs[seen.name]["metadata"]["deletionTimestamp"] = to_rfc3339(self.now)
        for body in actions.create:
            if body["kind"] == "RayJob":
                made = ray_job_body(body["metadata"]["name"])
                made["metadata"]["creationTimestamp"] = to_rfc3339(self.now)
                made["metadata"]["annotations"] = body["metadata"]["annotations"]
                made["spec"] |= KubeRayDeadlines.in_spec(body["spec"]).fields
                self.ray_jobs.setdefault(body["metadata"]["name"], made)
        for seen in actions.release_clusters:
            self.ray_jobs[seen.name]["spec"]["ttlSecondsAfterFinished"] = 0
        without = {seen.cluster for seen in actions.remove_workers}
        self.pods = tuple(one for one in self.pods if one.is_head or one.cluster not in without)
        if actions.update_deadlines is not None:
            seen, backstop = actions.update_deadlines
            self.ray_jobs[seen.name]["spec"] |= backstop.fields
        if actions.status is not None:
            self.status = actions.status
            self.phases.append(actions.status["phase"])

    def limit(self, **limits: Any) -> None:
        """Set the limits of the platform."""
        own = PlatformLimits.model_construct(**limits)
        defaults = CONFIG.defaults.model_copy(update={"limits": own})
        self.config = replace(CONFIG, defaults=defaults)

    def allow(self, **policy: Any) -> None:
        """Set the policy of the platform."""
        self.config = replace(CONFIG, policy=PlatformPolicy(**policy))

    # --- KubeRay and the driver ---------------------------------------------------------

    @property
    def ray_job(self) -> Object:
        """The RayJob of the last attempt."""
        return self.ray_jobs[self.status["rayJobName"]]

    def set_kuberay_status(self, **status: Any) -> None:
        """Write the status of the RayJob, as KubeRay does."""
        self.ray_job["status"] = {**self.ray_job["status"], **status}

    def finalize_deletions(self) -> None:
        """Remove the finalizers of deleted RayJobs, as KubeRay does."""
        for name, body in list(self.ray_jobs.items()):
            if "deletionTimestamp" in body["metadata"]:
                del self.ray_jobs[name]

    def remove(self, seconds: float = 0.0) -> None:
        """Let the operator delete the RayJob of the ended attempt, and KubeRay finalize it."""
        self.reconcile(seconds)
        self.finalize_deletions()

    def set_report(self, state: JobState, **fields: Any) -> None:
        """Set the report of the driver."""
        self.report = report(state, **{"updatedAt": to_rfc3339(self.now), **fields})

    def plan(self) -> None:
        self.reconcile()

    def begin(self, seconds: float) -> None:
        """Create a RayJob and adopt it immediately, as the controller does."""
        before = self.status
        self.reconcile(seconds)
        self.status = before
        self.phases.pop()
        self.reconcile()

    def start(self) -> None:
        """Advance until the RayJob gets its cluster."""
        self.plan()
        self.set_kuberay_status(**INITIALIZING)
        self.reconcile()

    def run(self, rows: int = 10) -> None:
        """Advance until the driver reports the first rows."""
        self.start()
        self.set_kuberay_status(**RUNNING)
        self.set_report(JobState.RUNNING, rows=rows)
        self.reconcile()

    def queue(self) -> None:
        """Advance until Kueue suspends the RayJob."""
        self.start()
        self.ray_job["spec"]["suspend"] = True
        self.reconcile()

    def finalize(self) -> None:
        """Advance until the driver reports that it finalizes the output."""
        self.run()
        self.set_report(JobState.FINALIZING, rows=10)
        self.reconcile()

    def lose(self) -> None:
        """Advance until an attempt with rows fails."""
        self.run()
        self.fail()

    def fail(self, cause: str = "NodeLost", message: str = "node lost") -> Actions:
        """Let the driver report a failure, and reconcile."""
        self.ray_job["spec"]["suspend"] = False
        self.set_kuberay_status(**RUNNING)
        self.set_report(JobState.FAILED, reason=cause, message=message)
        actions = self.reconcile()
        self.report = None
        return actions

    # --- the status ---------------------------------------------------------------------

    @property
    def phase(self) -> str:
        return str(self.status["phase"])

    @property
    def reason(self) -> str:
        return str(find_condition(self.status, "Ready")["reason"])

    @property
    def message(self) -> str:
        return str(find_condition(self.status, "Ready")["message"])

    @property
    def attempt(self) -> Object:
        """The last attempt."""
        body: Object = self.status["attempts"][-1]
        return body
