"""Observes and controls jobs on a cluster: their states, workers and driver logs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from batchinference.api.cluster_error import ClusterError
from batchinference.api.kubernetes import Kubernetes, Object
from batchinference.credentials import LineMasker
from batchinference.rendering import CLUSTER_LABEL, NODE_TYPE_LABEL, POD_GROUP_LABEL, RAY_CONTAINER
from batchinference.rendering.rayjob import RAY_LOGS
from batchinference.spec import parse
from batchinference.spec.parameters import ParameterValues, substitute
from batchinference.spec.problems import raise_for_problems
from batchinference.spec.progress import Counts, Progress, ReplacedFiles
from batchinference.spec.status import ENDED_PHASES, Cost
from batchinference.spec.warnings import WarningCount


@dataclass(frozen=True)
class JobStatus:
    """The state of a job on a cluster. `raw` is the field `status` of its BatchInference."""

    name: str
    namespace: str
    phase: str
    message: str
    progress: Progress
    stage: str
    counts: Counts | None
    attempt: int | None
    output: str
    devices: int | None
    """The number of devices, such as GPUs, of the current pods; None if there are none."""
    cost: str
    """The cost until now and the expected total cost; empty if the platform sets no prices."""
    warnings: list[WarningCount]
    raw: dict[str, Any] = field(repr=False)

    @property
    def replaced_files(self) -> ReplacedFiles | None:
        """The input files whose rows the job has replaced; None if there are none."""
        stored = self.raw.get("replacedFiles")
        return ReplacedFiles.model_validate(stored, extra="ignore") if stored else None

    @classmethod
    def of(cls, job: dict[str, Any]) -> JobStatus:
        """Return the state of a job. `job` is its BatchInference object."""
        status = job.get("status") or {}
        counts, cost = status.get("counts"), status.get("cost")
        ready = [each for each in status.get("conditions", ()) if each["type"] == "Ready"]
        metadata = job["metadata"]
        return cls(
            metadata["name"],
            metadata.get("namespace", "default"),
            status.get("phase", "Pending"),
            ready[0]["message"] if ready else "the operator has not seen the job yet",
            Progress.model_validate(status.get("progress") or {"rows": 0}, extra="ignore"),
            status.get("stage", ""),
            Counts.model_validate(counts, extra="ignore") if counts else None,
            status.get("attempt"),
            status.get("output") or job["spec"]["write"]["path"],
            status.get("devices"),
            str(Cost.model_validate(cost, extra="ignore")) if cost else "",
            [WarningCount.model_validate(one) for one in status.get("warnings", ())],
            status,
        )

    @property
    def ended(self) -> bool:
        """Whether the job has succeeded or failed."""
        return self.phase in ENDED_PHASES


@dataclass(frozen=True)
class JobHandle:
    """A job on a cluster."""

    name: str
    cluster: Kubernetes = field(repr=False)

    def status(self) -> JobStatus:
        """Return the state of the job. Raises ClusterError."""
        return JobStatus.of(self.cluster.get(self.name))

    def wait(
        self,
        timeout: float | None = None,
        interval: float = 2.0,
        sleep: Callable[[float], Any] = time.sleep,
    ) -> JobStatus:
        """Wait until the job has ended, and return its state. `timeout` and `interval` are in
        seconds. Raises TimeoutError after `timeout`, and ClusterError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not (status := self.status()).ended:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"job '{self.name}' is {status.phase} after {timeout:g} s")
            sleep(interval)
        return status

    def suspend(self) -> None:
        """Stop the job until `resume`. Its written rows are kept."""
        self.cluster.patch(self.name, {"suspend": True})

    def resume(self) -> None:
        """Continue a suspended job, or start a failed job again.

        A BatchInference that has failed cannot be resumed. It is therefore deleted, and created
        again with the same spec, labels and annotations. Raises ClusterError."""
        job = self.cluster.get(self.name)
        if JobStatus.of(job).phase == "Failed":
            self.cluster.replace({**job, "spec": {**job["spec"], "suspend": False}})
        else:
            self.cluster.patch(self.name, {"suspend": False})

    def cancel(self) -> None:
        """Stop the job and delete it. Its output keeps the rows that were written. If the job is
        submitted again, it computes only the missing rows."""
        self.cluster.delete(self.name)


def checked_for_cluster(document: dict[str, Any], values: ParameterValues) -> dict[str, Any]:
    """Return a BatchInference document with the values of its parameters. Raises SpecError if the
    result is invalid, or if a cluster would refuse it."""
    from batchinference.plan import plan_for_cluster  # imported here: only `submit` needs it
    from batchinference.rendering.cluster_checks import check_paths

    document = substitute(document, values)
    job = parse(document)
    plan_for_cluster(job.spec)
    raise_for_problems(check_paths(job.spec))
    return document


_ENDED_POD_PHASES = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Workers:
    """The number of ready pods (`ready`) and of all pods (`pods`) of a group of workers."""

    group: str
    ready: int
    pods: int

    def __str__(self) -> str:
        return f"{self.group} {self.ready}/{self.pods} ready"


def read_job(cluster: Kubernetes, name: str) -> tuple[JobStatus, Sequence[Workers]]:
    """Return the state of a job and the workers of its running attempt."""
    job = JobStatus.of(cluster.get(name))
    return job, read_workers(cluster, job)


def read_workers(cluster: Kubernetes, job: JobStatus) -> Sequence[Workers]:
    """Return the workers of the running attempt of a job. Empty if no attempt is running, or if
    the pods cannot be listed."""
    ray_cluster = job.raw.get("rayClusterName")
    if job.ended or not ray_cluster:
        return ()
    selector = f"{CLUSTER_LABEL}={ray_cluster},{NODE_TYPE_LABEL}=worker"
    try:
        return count_workers(cluster.list_pods(selector))
    except ClusterError:
        return ()


def count_workers(pods: Iterable[dict[str, Any]]) -> Sequence[Workers]:
    """Return the workers of each group, sorted by name. Ignore ending and ended pods."""
    labels = ((pod["metadata"].get("labels") or {}, pod) for pod in pods if not _ends(pod))
    alive = [(str(own.get(POD_GROUP_LABEL, "")), _is_ready(pod)) for own, pod in labels]
    total = Counter(group for group, _ in alive)
    ready = Counter(group for group, is_ready in alive if is_ready)
    return [Workers(group, ready[group], total[group]) for group in sorted(total)]


def _ends(pod: dict[str, Any]) -> bool:
    phase = (pod.get("status") or {}).get("phase")
    return "deletionTimestamp" in pod["metadata"] or phase in _ENDED_POD_PHASES


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


MAX_BYTES = 1_000_000
"""Maximum number of bytes that are read from the end of the driver log."""
RUNNING_PHASES = ("Starting", "Running", "Finalizing")
_COMMAND = ("sh", "-c", f"tail -c {MAX_BYTES} {RAY_LOGS}/job-driver-*.log")
_PREVIOUS = "--previous prints the log of the last run that has ended"


def running_log(cluster: Kubernetes, name: str) -> str | None:
    """Return the end of the driver log of a job, with masked credentials; None if no attempt of the
    job is running. Raises ClusterError if the log does not exist yet or cannot be read."""
    job = JobStatus.of(cluster.get(name))
    if job.phase not in RUNNING_PHASES:
        return None
    attempt = f"attempt {job.attempt} of job '{name}'"
    head = _head(cluster, str(job.raw.get("rayClusterName") or ""))
    if head is None:
        raise ClusterError(f"{attempt}: its head pod is not running yet ({job.phase}). {_PREVIOUS}")
    try:
        log = cluster.execute(head, RAY_CONTAINER, _COMMAND)
    except ClusterError as error:
        fix = f"Ask for the permission for pods/exec. {_PREVIOUS}"
        raise ClusterError(f"{attempt}: its log cannot be read: {error}. {fix}") from None
    if not log:
        raise ClusterError(f"{attempt}: its driver has no log yet ({job.phase}). {_PREVIOUS}")
    lines = log.splitlines()
    if len(log.encode()) >= MAX_BYTES:
        lines = lines[1:]  # in a line without its beginning, a secret may not be recognized
    return "\n".join(map(LineMasker(), lines))


def _head(cluster: Kubernetes, ray_cluster: str) -> str | None:
    """Return the name of the running head pod of a Ray cluster; None if there is none."""
    if not ray_cluster:
        return None
    heads = cluster.list_pods(f"{CLUSTER_LABEL}={ray_cluster},{NODE_TYPE_LABEL}=head")
    return next((str(pod["metadata"]["name"]) for pod in heads if _is_running(pod)), None)


def _is_running(pod: Object) -> bool:
    return not _ends(pod) and (pod.get("status") or {}).get("phase") == "Running"
