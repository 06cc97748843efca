"""The state of a job as phase and verdict, from what is seen of its RayJob, pods and driver."""

from __future__ import annotations

from collections.abc import Sequence

from batchinference.spec.report import JobState, Report
from batchinference.spec.status import Phase
from batchinference_operator.status.conditions import Verdict
from batchinference_operator.status.observations import PodView, RayJobView

UNREAD = "the driver's report could not be read: counts may be missing here; see {report}"


def judge(
    ray_job: RayJobView | None, pods: Sequence[PodView], report: Report | None, output: str
) -> tuple[Phase, Verdict]:
    """The phase and what is to be said about it.

    The driver's word counts most: when its report says that the output is complete, then it is,
    whatever becomes of the cluster afterwards.
    """
    if report is not None and report.state.ended:
        return _ended(report)
    if ray_job is None:
        return Phase.PENDING, Verdict("Pending", "the RayJob is being created")
    if ray_job.ended:
        return _ended_without_report(ray_job, output)
    return _under_way(ray_job, pods, report)


def _ended(report: Report) -> tuple[Phase, Verdict]:
    if report.state == JobState.SUCCEEDED:
        written = report.counts.written if report.counts else 0
        message = report.message or f"{written} rows written to {report.output}"
        return Phase.SUCCEEDED, Verdict("Succeeded", message, complete=True)
    reason = report.reason or "Application"
    return Phase.FAILED, Verdict(reason, report.message or "the driver failed", failed=True)


def _ended_without_report(ray_job: RayJobView, output: str) -> tuple[Phase, Verdict]:
    if ray_job.succeeded:
        place = f"{output.rstrip('/')}/_batchinference/report.json"
        message = f"output written to {output}; {UNREAD.format(report=place)}"
        return Phase.SUCCEEDED, Verdict("Succeeded", message, complete=True)
    reason = ray_job.reason or ray_job.deployment_status
    message = ray_job.message or f"RayJob {ray_job.name} ended as {ray_job.deployment_status}"
    return Phase.FAILED, Verdict(reason, message, failed=True)


def _under_way(
    ray_job: RayJobView, pods: Sequence[PodView], report: Report | None
) -> tuple[Phase, Verdict]:
    rows = report.progress.rows if report and report.progress else 0
    for pod in pods:
        if pod.trouble is not None:
            phase = Phase.RUNNING if rows else Phase.PENDING
            return phase, Verdict(pod.trouble.reason, f"pod {pod.name}: {pod.trouble.message}")
    if not ray_job.driver_started:
        return Phase.STARTING, Verdict("Starting", f"RayJob {ray_job.name} is starting its cluster")
    if report is None or report.state == JobState.PREPARING:
        return Phase.STARTING, Verdict("Starting", "the driver is preparing the job")
    if report.state == JobState.FINALIZING:
        return Phase.FINALIZING, Verdict("Finalizing", "all rows are written; checking the output")
    return Phase.RUNNING, Verdict("Running", "rows are being processed")
