"""Generates the table of phases and their transitions for docs/lifecycle.md."""

from batchinference.spec.status import Phase
from generators.pages import table

MEANINGS = {
    Phase.PENDING: "the job waits for admission, for the name of its RayJob, or for resources",
    Phase.PLANNING: "the operator is creating the objects of the attempt",
    Phase.STARTING: "the RayJob exists; the cluster and the driver are starting",
    Phase.RUNNING: "rows are being processed",
    Phase.FINALIZING: "all rows are written; the output is being checked",
    Phase.SUCCEEDED: "the output is complete",
    Phase.FAILED: "the job failed and is not retried",
    Phase.SUSPENDING: "the RayJob and its cluster are being deleted",
    Phase.SUSPENDED: "the job holds no resources; it continues when `suspend` is false",
    Phase.RETRYING: "an attempt failed; the next one starts after the backoff",
}

_SUSPEND = {Phase.SUSPENDING: "`suspend` is set"}
_END = {
    Phase.FAILED: "the cause is not retried, or `retry.maxAttempts` is reached",
    Phase.RETRYING: "the cause is retried",
}
_WORK = {
    Phase.FINALIZING: "all rows are written",
    Phase.SUCCEEDED: "the driver reported success",
    **_END,
    **_SUSPEND,
}
_BEGIN = {
    Phase.PLANNING: "the job is admitted",
    Phase.STARTING: "the RayJob was created",
    Phase.PENDING: "the job cannot start yet",
    Phase.FAILED: "the spec is invalid, or a deadline or limit of the job is exceeded",
}
TRANSITIONS: dict[Phase | None, dict[Phase, str]] = {
    None: {
        **_BEGIN,
        Phase.SUSPENDED: "`suspend` was set at creation",
        Phase.SUSPENDING: "suspended before the status named its RayJob",
    },
    Phase.PENDING: {
        Phase.PLANNING: "the job is admitted",
        Phase.STARTING: "the pods were scheduled",
        Phase.RUNNING: "the driver processes rows",
        **_WORK,
        Phase.SUSPENDED: "`suspend` is set and nothing was created",
    },
    Phase.PLANNING: {
        Phase.PENDING: "the API server rejects an object",
        Phase.STARTING: "the RayJob exists",
        Phase.RUNNING: "the driver processes rows",
        **_WORK,
    },
    Phase.STARTING: {
        Phase.PENDING: "a pod cannot start",
        Phase.RUNNING: "the driver processes rows",
        **_WORK,
    },
    Phase.RUNNING: {
        Phase.PENDING: "a pod cannot start",
        Phase.STARTING: "KubeRay submitted the job to a new head",
        **_WORK,
    },
    Phase.FINALIZING: {
        Phase.STARTING: "KubeRay submitted the job to a new head",
        Phase.RUNNING: "KubeRay submitted the job to a new head",
        Phase.PENDING: "Kueue evicted the job",
        Phase.SUCCEEDED: "the driver reported success",
        **_END,
        **_SUSPEND,
    },
    Phase.RETRYING: {
        **_BEGIN,
        Phase.SUSPENDING: "`suspend` is set",
        Phase.SUSPENDED: "`suspend` is set and all resources are deleted",
    },
    Phase.SUSPENDING: {**_BEGIN, Phase.SUSPENDED: "all resources are deleted"},
    Phase.SUSPENDED: {
        **_BEGIN,
        Phase.SUSPENDING: "a RayJob or pod of the job was found",
    },
    Phase.SUCCEEDED: {},
    Phase.FAILED: {Phase.PENDING: "the job failed as `InvalidSpec`, and its spec has changed"},
}
"""For each phase, the phases that can follow, and when they do. None is a job without a phase."""


def phases() -> str:
    """Return a table with each phase: its meaning, when it begins, and the next phases."""
    rows = []
    for phase in Phase:
        begins = dict.fromkeys(each[phase] for each in TRANSITIONS.values() if phase in each)
        rows.append(
            (phase, MEANINGS[phase], "; ".join(begins), ", ".join(TRANSITIONS[phase]) or "-")
        )
    return table(("phase", "meaning", "begins when", "next"), rows)
