"""Derives the phase of a job and the summary of its conditions from observations."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from batchinference.spec.causes import Cause
from batchinference.spec.report import JobState, Report
from batchinference.spec.status import PROCESSING_PHASES, Phase
from batchinference.text import counted
from batchinference_operator.status.conditions import Summary, Waiting
from batchinference_operator.status.last_warning import NODE_WARNINGS
from batchinference_operator.status.pod_problems import PodProblem
from batchinference_operator.status.pod_view import PodView
from batchinference_operator.status.ray_job_view import RayJobView

_NO_QUEUE = (
    "Kueue manages jobs without a queue. Set spec.cluster.queueName to a LocalQueue, and set "
    "spec.suspend to true and then to false"
)
_FAILED = Phase.FAILED, Summary("", "", failed=True)
"""The attempt has failed. `failure_cause` finds why."""
DRIVER = "/driver"
"""The key of the driver in messages. No object has this name."""
REPORT_UNREAD = "the final report could not be read, so counts may be missing; they are in {report}"


def derive_phase(
    ray_job: RayJobView,
    pods: Sequence[PodView],
    report: Report | None,
    output: str,
    before: str = "",
    messages: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Phase, Summary]:
    """Return the phase of a job and the summary of its conditions.

    `before` is the phase in the status. `messages` are the messages in `Observed.messages`, and
    under the key DRIVER why the driver does not answer. The driver's report takes precedence. If
    the report says that the output is complete, the job has succeeded, even if the cluster fails
    later.
    """
    if report is not None and report.state.ended:
        return _ended(report)
    if ray_job.ended:
        return _ended_without_report(ray_job, output)
    driver = _driver_phase(ray_job, report, before, messages.get(DRIVER, ""))
    return _unfinished(ray_job, pods, report, driver, messages)


def _ended(report: Report) -> tuple[Phase, Summary]:
    if report.state == JobState.SUCCEEDED:
        written = report.counts.written if report.counts else 0
        message = report.message or f"{counted(written, 'row')} written to {report.output}"
        return Phase.SUCCEEDED, Summary("Succeeded", message, complete=True)
    return _FAILED


def _ended_without_report(ray_job: RayJobView, output: str) -> tuple[Phase, Summary]:
    if ray_job.succeeded:
        file = f"{output.rstrip('/')}/_batchinference/report.json"
        message = f"output written to {output}; {REPORT_UNREAD.format(report=file)}"
        return Phase.SUCCEEDED, Summary("Succeeded", message, complete=True)
    return _FAILED


def _unfinished(
    ray_job: RayJobView,
    pods: Sequence[PodView],
    report: Report | None,
    driver: tuple[Phase, Summary],
    messages: Mapping[str, str],
) -> tuple[Phase, Summary]:
    why = f": {messages[ray_job.name]}" if ray_job.name in messages else ""
    if ray_job.suspended:
        where = f" in LocalQueue {ray_job.queue}" if ray_job.queue else ""
        message = f"waiting for Kueue to admit RayJob {ray_job.name}{where}{why}"
        fix = "" if ray_job.queue else f". {_NO_QUEUE}"
        return Phase.PENDING, Summary(Waiting.QUEUED, f"{message}{fix}")
    phase, summary = driver
    problem = next(_pod_problems(ray_job, pods, messages), None)
    gated = next((pod for pod in pods if pod.gated), None)
    if gated is not None and problem is None and not makes_progress(phase, report):
        return Phase.PENDING, Summary(
            Waiting.QUEUED, f"waiting for Kueue to admit pod {gated.name}{why}"
        )
    if problem is None:
        return phase, summary
    summary = Summary(problem.cause.value, problem.message)
    return phase if makes_progress(phase, report) else Phase.PENDING, summary


def makes_progress(phase: Phase, report: Report | None) -> bool:
    """Return whether rows are processed, and the driver does not wait for the first one."""
    if report is None or report.state != JobState.RUNNING:
        return phase in PROCESSING_PHASES
    return phase in PROCESSING_PHASES and report.progress is not None and report.progress.rows > 0


def _pod_problems(
    ray_job: RayJobView, pods: Sequence[PodView], messages: Mapping[str, str]
) -> Iterator[PodProblem]:
    if refusal := ray_job.pod_creation_error or ("" if pods else messages.get(ray_job.cluster, "")):
        yield PodProblem(Cause.REFUSED, refusal)
    for pod in pods:
        if pod.problem is not None:
            yield PodProblem(pod.problem.cause, f"pod {pod.name}: {pod.problem.message}")
        elif pod.waiting and pod.name in messages:
            of_node = messages[pod.name].startswith(NODE_WARNINGS)
            cause = Cause.NODE_LOST if of_node else Cause.CONTAINER_CONFIG
            yield PodProblem(cause, f"pod {pod.name}: {messages[pod.name]}")


def _driver_phase(
    ray_job: RayJobView, report: Report | None, before: str, problem: str
) -> tuple[Phase, Summary]:
    if not ray_job.driver_started:
        return Phase.STARTING, Summary("Starting", f"RayJob {ray_job.name} is starting its cluster")
    if report is None and (before in PROCESSING_PHASES or problem):
        phase = Phase(before) if before in PROCESSING_PHASES else Phase.STARTING
        why = problem or "its report is no longer available"
        return phase, Summary(Waiting.DRIVER_SILENT, f"no progress report: {why}")
    if report is None:
        return Phase.STARTING, Summary("Starting", "waiting for the driver's first report")
    if report.state == JobState.PREPARING:
        return Phase.STARTING, Summary("Starting", "the driver is preparing the job")
    if report.state == JobState.FINALIZING:
        return Phase.FINALIZING, Summary("Finalizing", "all rows are written; checking the output")
    return Phase.RUNNING, Summary("Running", "rows are being processed")
