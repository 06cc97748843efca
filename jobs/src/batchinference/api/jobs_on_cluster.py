"""Observes and controls jobs on a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from batchinference.api.kubernetes import Kubernetes
from batchinference.spec import SpecError, parse
from batchinference.spec.parameters import ParameterValues, substitute
from batchinference.spec.phases import ENDED_PHASES
from batchinference.spec.progress import Counts, Progress, ReplacedFiles
from batchinference.spec.status import Cost
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
    gpus: int | None
    """The number of GPUs of the current pods."""
    cost: str
    """The cost so far and the expected total; empty if the platform has no prices."""
    warnings: list[WarningCount]
    raw: dict[str, Any] = field(repr=False)

    @property
    def replaced_files(self) -> ReplacedFiles | None:
        """The input files whose rows the job has replaced; None if there are none."""
        found = self.raw.get("replacedFiles")
        return ReplacedFiles.model_validate(found, extra="ignore") if found else None

    @classmethod
    def of(cls, job: dict[str, Any]) -> JobStatus:
        """Return the state of the job that a BatchInference object describes."""
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
        seconds. Raises TimeoutError after `timeout`."""
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

        A BatchInference object whose job has ended never runs again, so that of a failed job is
        deleted and created again with its spec, labels and annotations. Raises ClusterError."""
        job = self.cluster.get(self.name)
        if JobStatus.of(job).phase == "Failed":
            self.cluster.replace({**job, "spec": {**job["spec"], "suspend": False}})
        else:
            self.cluster.patch(self.name, {"suspend": False})

    def cancel(self) -> None:
        """Stop the job and delete it. Its output keeps the rows that were written, so that the job
        resumes if it is submitted again."""
        self.cluster.delete(self.name)


def checked_for_cluster(document: dict[str, Any], values: ParameterValues) -> dict[str, Any]:
    """Return a BatchInference document with the values of its parameters inserted. Raises SpecError
    if it is invalid, or if a cluster would refuse it."""
    from batchinference.plan import plan_for_cluster  # imported here: only `submit` needs it
    from batchinference.rendering.path_checks import check_paths

    document = substitute(document, values)
    job = parse(document)
    plan_for_cluster(job.spec)
    if problems := check_paths(job.spec):
        raise SpecError(problems)
    return document
