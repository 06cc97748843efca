"""Determines the phase and verdict of a job from the state of its RayJob, pods and driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from batchinference.spec.causes import Cause
from batchinference.spec.phases import AT_WORK, Phase
from batchinference.spec.report import JobState, Report
from batchinference_operator.status.conditions import Verdict
from batchinference_operator.status.observations import RayJobView
from batchinference_operator.status.pods import PodView, Trouble
from batchinference_operator.status.words import OF_NODE

UNREAD = "the driver's report could not be read: counts may be missing here; see {report}"


def judge(
    ray_job: RayJobView | None,
    pods: Sequence[PodView],
    report: Report | None,
    output: str,
    before: str = "",
    words: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Phase, Verdict]:
    """Return the phase and the verdict of a job.

    `before` is the phase that was written last. `words` are messages by object name: of Events
    about pods whose containers do not start or about a RayCluster without pods, of Kueue about a
    RayJob, and of failed polls of a driver. The driver's report takes precedence: if it says that
    the output is complete, the job succeeded, whatever happens to the cluster afterwards.
    """
    if report is not None and report.state.ended:
        return _ended(report)
    if ray_job is None:
        return Phase.PENDING, Verdict("Pending", "the RayJob is being created")
    if ray_job.ended:
        return _ended_without_report(ray_job, output)
    return _under_way(ray_job, pods, report, before, words)


def _ended(report: Report) -> tuple[Phase, Verdict]:
    if report.state == JobState.SUCCEEDED:
        written = report.counts.written if report.counts else 0
        message = report.message or f"{written} rows written to {report.output}"
        return Phase.SUCCEEDED, Verdict("Succeeded", message, complete=True)
    return Phase.FAILED, Verdict("Application", report.message or "the driver failed", failed=True)


def _ended_without_report(ray_job: RayJobView, output: str) -> tuple[Phase, Verdict]:
    if ray_job.succeeded:
        place = f"{output.rstrip('/')}/_batchinference/report.json"
        message = f"output written to {output}; {UNREAD.format(report=place)}"
        return Phase.SUCCEEDED, Verdict("Succeeded", message, complete=True)
    message = ray_job.message or f"RayJob {ray_job.name} ended as {ray_job.outcome}"
    return Phase.FAILED, Verdict("Application", message, failed=True)


def _under_way(
    ray_job: RayJobView,
    pods: Sequence[PodView],
    report: Report | None,
    before: str,
    words: Mapping[str, str],
) -> tuple[Phase, Verdict]:
    if ray_job.held:
        return Phase.PENDING, Verdict("Queued", _queued(ray_job, words))
    phase, verdict = _stage(ray_job, report, before, words)
    trouble = next(_troubles(ray_job, pods, words), None)
    gated = next((pod for pod in pods if pod.gated), None)
    if gated is not None and trouble is None and not _moves(phase, report):
        return Phase.PENDING, Verdict("Queued", _gated(ray_job, gated, words))
    if trouble is None:
        return phase, verdict
    return phase if _moves(phase, report) else Phase.PENDING, Verdict(
        trouble.cause.value, trouble.message
    )


def _moves(phase: Phase, report: Report | None) -> bool:
    return phase in AT_WORK and not _waits_for_first_row(report)


def _gated(ray_job: RayJobView, pod: PodView, words: Mapping[str, str]) -> str:
    why = f": {words[ray_job.name]}" if ray_job.name in words else ""
    return f"pod {pod.name} waits to be admitted by Kueue{why}"


def _queued(ray_job: RayJobView, words: Mapping[str, str]) -> str:
    where = f" by Kueue from queue {ray_job.queue}" if ray_job.queue else ""
    why = f": {words[ray_job.name]}" if ray_job.name in words else ""
    return f"RayJob {ray_job.name} waits to be admitted{where}{why}"


def _troubles(
    ray_job: RayJobView, pods: Sequence[PodView], words: Mapping[str, str]
) -> Iterator[Trouble]:
    if refusal := ray_job.no_pods or ("" if pods else words.get(ray_job.cluster, "")):
        yield Trouble(Cause.REFUSED, refusal)
    for pod in pods:
        if pod.trouble is not None:
            yield Trouble(pod.trouble.cause, f"pod {pod.name}: {pod.trouble.message}")
        elif pod.waiting and pod.name in words:
            of_node = words[pod.name].startswith(OF_NODE)
            cause = Cause.NODE_LOST if of_node else Cause.CONTAINER_CONFIG
            yield Trouble(cause, f"pod {pod.name}: {words[pod.name]}")


def _stage(
    ray_job: RayJobView, report: Report | None, before: str, words: Mapping[str, str]
) -> tuple[Phase, Verdict]:
    if not ray_job.driver_started:
        return Phase.STARTING, Verdict("Starting", f"RayJob {ray_job.name} is starting its cluster")
    if report is None and (before in AT_WORK or ray_job.name in words):
        phase = Phase(before) if before in AT_WORK else Phase.STARTING
        why = words.get(ray_job.name, "it has no report any more")
        return phase, Verdict("DriverSilent", f"the driver cannot be asked how it goes: {why}")
    if report is None:
        return Phase.STARTING, Verdict("Starting", "waiting for the driver's first report")
    if report.state == JobState.PREPARING:
        return Phase.STARTING, Verdict("Starting", "the driver is preparing the job")
    if report.state == JobState.FINALIZING:
        return Phase.FINALIZING, Verdict("Finalizing", "all rows are written; checking the output")
    return Phase.RUNNING, Verdict("Running", "rows are being processed")


def _waits_for_first_row(report: Report | None) -> bool:
    if report is None or report.state != JobState.RUNNING:
        return False
    return report.progress is None or report.progress.rows == 0
