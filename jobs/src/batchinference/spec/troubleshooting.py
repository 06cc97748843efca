"""Generates docs/troubleshooting.md: what can stop a job, why, and what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass

from batchinference.spec.causes import Cause


@dataclass(frozen=True)
class Entry:
    """An entry of the catalogue: what happened and why, and what to do."""

    meaning: str
    remedy: str


WAITING = {
    "AdmissionPending": Entry(
        "the maximum number of jobs of the namespace or the cluster is running",
        "Wait, or increase `priority` of the job. The message contains the number of jobs ahead.",
    ),
    "Queued": Entry(
        "Kueue has not admitted the RayJob or its pods",
        "Compare the message with the quota of the ClusterQueue.",
    ),
    "NameTaken": Entry(
        "a RayJob with the name of the job's RayJob exists and belongs to something else",
        "Delete that RayJob.",
    ),
    "ApiServerUnavailable": Entry(
        "the API server, or a webhook that it calls, has not answered for a minute",
        "Nothing: the operator retries. Running jobs continue.",
    ),
    "DriverSilent": Entry(
        "the operator cannot reach the driver of the job",
        "Check the network policies between the operator and port 8265 of the head pod, and the "
        "log of the head pod.",
    ),
    "DriverUnauthorized": Entry(
        "the driver rejects the operator's token",
        "Check whether the token key of the operator was changed while the job was running.",
    ),
    "RunActive": Entry(
        "a scheduled time waits, because the previous run is active and the policy is `Forbid`",
        "Wait, or change `concurrencyPolicy` of the schedule.",
    ),
    "ClockBehind": Entry(
        "the operator's clock is more than a minute behind the last time that was checked",
        "Correct the clock of the operator's node.",
    ),
}
"""Reasons of the condition Ready that are neither a phase nor a cause."""
CONDITIONS = {
    "Ready": "the job is complete or suspended",
    "Complete": "the output is complete",
    "Failed": "the job has failed and is not retried",
    "Suspended": "the job holds no resources",
    "Reconciling": "the job is in progress",
    "Stalled": "the job has failed for any cause and is not retried, or a schedule needs a "
    "correction. Flux and Argo CD read this condition. It is not the [cause](#stalled) of the same "
    "name, which is retried",
}
"""The conditions of a status, and when each is True."""
_NOTES = {
    Cause.STALLED: "- **Do not confuse it with** the [condition](#conditions) `Stalled`, which is "
    "True after a job has failed for any cause.\n",
}
_RUN_AGAIN = re.compile("[Rr]un the job again")
_INTRODUCTION = """# Troubleshooting

This page is generated from one catalogue by `make generate`. It lists what can stop a job, why it
happens, and what to do.

## Find the cause

| where the job ran | where the cause is |
| --- | --- |
| on your machine | the last lines of `batchinference run`; [report.html](report.md) |
| on a cluster | `kubectl get bi NAME -o wide`, `kubectl describe bi NAME`; the same report |

Both name one of the [causes](#causes-of-failure) and the original message. The report also groups
the failed rows by their cause and shows examples. If a job is slow, see
[Troubleshooting slow jobs](performance.md#troubleshooting-slow-jobs). For findings of
`batchinference verify`, see [Verifying an output](verify.md). For mistakes in a job file, see
[Typical mistakes](mistakes.md).

## Run the job again

| where the job ran | what to run |
| --- | --- |
| on your machine | the same command, such as `batchinference run job.yaml` |
| on a cluster | `kubectl replace --force -f job.yaml`, which deletes and creates the job |

In both cases the job resumes: committed rows are not computed again. On a cluster, a failed job is
not started again by a change of its spec, nor by `batchinference resume`. The only exception is
`InvalidSpec`. See [Run a failed job again](cluster.md#run-a-failed-job-again).

## Causes of failure

If a cause is retried, the operator starts the next attempt itself ([retry](lifecycle.md#causes)).
In all other cases, correct the cause and [run the job again](#run-the-job-again): if the cause is
not retried, after the last attempt, and on your machine.
"""


def troubleshooting_page() -> str:
    """Return docs/troubleshooting.md."""
    causes = "".join(
        f"\n### {cause.value}\n\n"
        f"- **What happened:** {cause.meaning}.\n"
        f"- **Retried:** {'yes' if cause.retried else 'no'}.\n"
        f"- **What to do:** {_linked(cause.remedy)}\n"
        f"{_NOTES.get(cause, '')}"
        for cause in Cause
    )
    waiting = "".join(
        f"| `{reason}` | {entry.meaning} | {entry.remedy} |\n" for reason, entry in WAITING.items()
    )
    conditions = "".join(f"| `{name}` | {when} |\n" for name, when in CONDITIONS.items())
    return (
        f"{_INTRODUCTION}{causes}\n"
        "## Reasons for waiting\n\n"
        "`REASON` of `kubectl get bi` is the phase, one of the causes above, or one of these:\n\n"
        f"| reason | why | what to do |\n| --- | --- | --- |\n{waiting}\n"
        "## Conditions\n\n"
        "Programs should use the conditions. Each has a reason and a message.\n\n"
        f"| condition | True when |\n| --- | --- |\n{conditions}"
    )


def _linked(remedy: str) -> str:
    """Return a remedy with a link to the commands that run a job again."""
    return _RUN_AGAIN.sub(r"[\g<0>](#run-the-job-again)", remedy)
