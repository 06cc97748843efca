"""Generates the tables of failures and of reasons for waiting for docs/troubleshooting.md."""

import re
from dataclasses import dataclass

from batchinference.spec.causes import Cause
from batchinference_operator.status.conditions import Waiting
from generators.pages import table


@dataclass(frozen=True)
class Entry:
    """A reason for waiting: what happened and why, and what to do."""

    meaning: str
    remedy: str


_WAITING = {
    Waiting.ADMISSION_PENDING: Entry(
        "the maximum number of jobs of the namespace or the cluster is running",
        "Wait, or increase `priority` of the job. The message contains the number of jobs ahead.",
    ),
    Waiting.QUEUED: Entry(
        "Kueue has not admitted the RayJob or its pods",
        "Compare the message with the quota of the ClusterQueue.",
    ),
    Waiting.NAME_TAKEN: Entry(
        "another RayJob has the name of the job's RayJob, such as one that "
        "`kubectl delete --cascade=orphan` left",
        "Wait if the message says so. Otherwise delete that RayJob: the job then starts. Or give "
        "the job [another name](cluster.md#run-a-failed-job-again).",
    ),
    Waiting.API_SERVER_UNAVAILABLE: Entry(
        "the API server, or a webhook that it calls, has not answered for a minute",
        "Nothing: the operator retries. Running jobs continue.",
    ),
    Waiting.KUBERAY_NOT_RESPONDING: Entry(
        "KubeRay has not accepted the RayJob, created a pod of it or deleted it for a minute",
        "Check that KubeRay runs, watches this namespace and may create pods in it: its log says "
        "why not.",
    ),
    Waiting.DRIVER_SILENT: Entry(
        "the driver has not answered several polls of the operator. The deadlines of the job "
        "continue",
        "Check the network policies between the operator and port 8265 of the head pod, and the "
        "log of the head pod. Without a deadline, a silent driver runs on: set `deadlines.stall`.",
    ),
    Waiting.DRIVER_UNAUTHORIZED: Entry(
        "the driver rejects the operator's token",
        "Check whether the token key of the operator was changed while the job was running "
        "([network](operations.md#network)).",
    ),
    Waiting.RUN_ACTIVE: Entry(
        "a scheduled time waits, because the previous run is active and the policy is `Forbid`",
        "Wait, or change `concurrencyPolicy` of the schedule.",
    ),
    Waiting.CLOCK_BEHIND: Entry(
        "the operator's clock is more than a minute behind the last time that was checked",
        "Correct the clock of the operator's node.",
    ),
}
"""What docs/troubleshooting.md says about each reason for waiting."""
_NOTES = {
    Cause.OUT_OF_MEMORY: " See [Out of memory](steps.md#out-of-memory).",
    Cause.OUT_OF_DISK: " On your machine, set `TMPDIR` to a directory on a larger disk.",
    Cause.WORKER_CRASHED: " See [Out of memory](steps.md#out-of-memory).",
    Cause.APPLICATION: " See [Out of memory](steps.md#out-of-memory), if it ran out. Without "
    "`errors`, a [row](errors.md#failed-rows) for which a step raises an error fails the job with "
    "this cause, too.",
    Cause.REFUSED: " If the API server refuses the RayJob itself, the job does not fail: it waits, "
    "and the operator [tries again](sharing.md#a-resourcequota-of-the-namespace).",
    Cause.CRASH_LOOP: " It takes 5 exits of head pods, or without any 20 of worker pods, or three "
    "times their number.",
    Cause.STALLED: " The [condition](cluster.md#watching) `Stalled` is something else.",
}
_LINKS = {
    re.compile("[Rr]un the job again"): "errors.md#run-the-job-again",
    re.compile("start over"): "errors.md#change-something",
    re.compile("searches for the row"): "errors.md#rows-that-kill-their-process",
    re.compile("[Rr]etry the failed rows"): "errors.md#run-only-the-failed-rows",
}
"""Phrases in remedies that become links, and the targets."""


def causes() -> str:
    """Return a table with each cause of failure."""
    return table(
        ("cause", "what happened", "retried", "what to do"),
        (
            (f"`{cause.value}`", cause.meaning, "yes" if cause.is_retried else "no",
             f"{_linked(cause.remedy)}{_NOTES.get(cause, '')}")
            for cause in Cause
        ),
    )  # fmt: skip


def reasons() -> str:
    """Return a table with each reason for waiting."""
    entries = ((reason, _WAITING[reason]) for reason in Waiting)
    rows = ((f"`{reason}`", entry.meaning, entry.remedy) for reason, entry in entries)
    return table(("reason", "why", "what to do"), rows)


def _linked(remedy: str) -> str:
    """Return a remedy with links on the phrases of `_LINKS`."""
    for phrase, target in _LINKS.items():
        remedy = phrase.sub(rf"[\g<0>]({target})", remedy)
    return remedy
