"""The state of a job as phase and verdict, from what is seen of its RayJob, pods and driver."""

from __future__ import annotations

from collections.abc import Sequence

from batchinference.spec.report import JobState, Report
from batchinference.spec.status import Phase
from batchinference_operator.status.conditions import Verdict
from batchinference_operator.status.observations import PodView, RayJobView

UNREAD = "the driver's report could not be read: counts may be missing here; see {report}"


def judge(
    ray_job: RayJobView | None,
    pods: Sequence[PodView],
    report: Report | None,
    output: str,
    before: str = "",
) -> tuple[Phase, Verdict]:
    """The phase and what is to be said about it; `before` is the phase that was written last.

    The driver's word counts most: when its report says that the output is complete, then it is,
    whatever becomes of the cluster afterwards.
    """
    if report is not None and report.state.ended:
        return _ended(report)
    if ray_job is None:
        return Phase.PENDING, Verdict("Pending", "the RayJob is being created")
    if ray_job.ended:
        return _ended_without_report(ray_job, output)
    return _under_way(ray_job, pods, report, before)


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
    reason = ray_job.reason or ray_job.outcome
    message = ray_job.message or f"RayJob {ray_job.name} ended as {ray_job.outcome}"
    return Phase.FAILED, Verdict(reason, message, failed=True)


def _under_way(
    ray_job: RayJobView, pods: Sequence[PodView], report: Report | None, before: str
) -> tuple[Phase, Verdict]:
    phase, verdict = _stage(ray_job, report, before)
    for pod in pods:
        if pod.trouble is not None:
            moving = phase in _AT_WORK and not _waits_for_first_row(report)
            verdict = Verdict(pod.trouble.reason, f"pod {pod.name}: {pod.trouble.message}")
            return phase if moving else Phase.PENDING, verdict
    return phase, verdict


_AT_WORK = (Phase.RUNNING, Phase.FINALIZING)


def _stage(ray_job: RayJobView, report: Report | None, before: str) -> tuple[Phase, Verdict]:
    if not ray_job.driver_started:
        return Phase.STARTING, Verdict("Starting", f"RayJob {ray_job.name} is starting its cluster")
    if report is None and before in _AT_WORK:
        return Phase(before), Verdict("DriverSilent", "the driver has ceased to answer")
    if report is None:
        return Phase.STARTING, Verdict("Starting", "waiting for the driver's first report")
    if report.state == JobState.PREPARING:
        return Phase.STARTING, Verdict("Starting", "the driver is preparing the job")
    if report.state == JobState.FINALIZING:
        return Phase.FINALIZING, Verdict("Finalizing", "all rows are written; checking the output")
    return Phase.RUNNING, Verdict("Running", "rows are being processed")


def _waits_for_first_row(report: Report | None) -> bool:
    running = report is not None and report.state == JobState.RUNNING
    return running and not (report and report.progress and report.progress.rows)
