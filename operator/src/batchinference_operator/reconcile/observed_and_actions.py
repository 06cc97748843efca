"""The input and the output of reconcile."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from batchinference.rendering import KubeRayDeadlines
from batchinference.spec.report import Report
from batchinference_operator.reconcile.admission_queue import AdmissionDecision
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.status.attempts import is_running
from batchinference_operator.status.job_status import Status
from batchinference_operator.status.pod_problems import Crash, Disruption
from batchinference_operator.status.pod_view import PodView
from batchinference_operator.status.ray_job_view import Object, RayJobView


@dataclass(frozen=True)
class DriverAnswer:
    """The result of polling a driver. A few missed polls are not a result."""

    reached: bool
    """Whether the driver gave a valid answer, even without a report."""
    report: Report | None = None
    problem: str = ""
    """Why the driver gave no valid answer; empty if it did."""
    unauthorized: bool = False
    """Whether the driver rejects the operator's token."""


SILENT = DriverAnswer(reached=False)


@dataclass(frozen=True)
class Observed:
    """A job and the observed state of its objects: the input of reconcile."""

    job: JobView
    ray_jobs: Mapping[str, RayJobView] = field(default_factory=dict)
    """By name, the RayJobs with the label of the job, and the RayJob of the running attempt."""
    pods: tuple[PodView, ...] = ()
    disruption: Disruption | None = None
    """The decisive disruption of the last attempt's pods, maybe of a deleted pod."""
    answer: DriverAnswer | None = SILENT
    """The last answer of the driver; None if it was not polled since the operator started."""
    messages: Mapping[str, str] = field(default_factory=dict)
    """Messages by object name: Events about pods that do not start, Events about a RayCluster
    without pods, and Kueue's messages about a queued RayJob."""
    admission: AdmissionDecision | None = None
    """The decision of the admission queue; None if the job needs no admission."""
    crashes: tuple[Crash, ...] = ()
    """The crashes of the last attempt's pods, including deleted pods."""
    notified: Mapping[str, str] | None = None
    """For each notification about the end, by name, why it could not be sent, or "" if it was sent.
    None until all notifications were sent or given up."""

    @property
    def report(self) -> Report | None:
        """The report of the driver; None if it has written none or does not answer."""
        return self.answer.report if self.answer else None

    @property
    def driver_reached(self) -> bool:
        """Whether the driver answers, even without a report."""
        return self.answer is not None and self.answer.reached

    @property
    def ray_job(self) -> RayJobView | None:
        """The RayJob that has the name of the last attempt's RayJob, whoever owns it."""
        return self.ray_jobs.get(self.job.status.get("rayJobName", ""))

    @property
    def running_ray_job(self) -> RayJobView | None:
        """The RayJob of the running attempt if this job owns it."""
        return self._own_ray_job if is_running(self.job.status) else None

    @property
    def _own_ray_job(self) -> RayJobView | None:
        ray_job = self.ray_job
        return ray_job if ray_job is not None and ray_job.owner_uid == self.job.uid else None

    @property
    def owned_ray_jobs(self) -> list[RayJobView]:
        """The RayJobs of this job, without RayJobs of an earlier job with the same name."""
        return [one for one in self.ray_jobs.values() if one.owner_uid == self.job.uid]

    @property
    def live_ray_jobs(self) -> list[RayJobView]:
        """The RayJobs of this job that are not being deleted."""
        return [ray_job for ray_job in self.owned_ray_jobs if not ray_job.deleting]

    @property
    def stuck_in_deletion(self) -> list[RayJobView]:
        """The RayJobs that are being deleted although their pods are not: KubeRay may be down."""
        clusters = {pod.cluster for pod in self.pods if pod.ended_at is None and not pod.deleting}
        return [one for one in self.owned_ray_jobs if one.deleting and one.cluster in clusters]

    @property
    def cluster(self) -> str:
        """The RayCluster of the last attempt; empty while it has none."""
        ray_job = self._own_ray_job
        return ray_job.cluster if ray_job else str(self.job.status.get("rayClusterName", ""))

    @property
    def pods_of_attempt(self) -> list[PodView]:
        """The pods of the last attempt, without those of an earlier job with the same name."""
        cluster = self.cluster
        return [pod for pod in self.pods if pod.cluster == cluster]


@dataclass(frozen=True)
class Actions:
    """The actions of a reconcile: its output. `JobController._apply` has their order."""

    stop_drivers: tuple[RayJobView, ...] = ()
    """RayJobs whose drivers must commit what they have computed, and exit."""
    delete_ray_jobs: tuple[RayJobView, ...] = ()
    """RayJobs that must not continue, or whose TTL has expired."""
    create: tuple[Object, ...] = ()
    release_clusters: tuple[RayJobView, ...] = ()
    """Ended RayJobs whose clusters must be deleted."""
    remove_workers: tuple[RayJobView, ...] = ()
    """Ended RayJobs whose workers must be deleted, while the head is kept."""
    notify: bool = False
    """Whether to send the notifications about the end of the job."""
    delete_job: bool = False
    """Whether to delete the BatchInference, whose TTL has expired."""
    update_deadlines: tuple[RayJobView, KubeRayDeadlines] | None = None
    """The RayJob of the last attempt and KubeRay's new deadlines, if these have changed."""
    release_pods: RayJobView | None = None
    """The RayJob of the running attempt if Kueue must check its gated pods again."""
    status: Status | None = None
    """The status to write; None leaves the status unchanged."""
    requeue_after: float | None = None
    """Seconds until the next reconcile without an event; None to wait for an event."""
    admits: bool = False
    """Whether the status starts an attempt that the admission queue has admitted."""
