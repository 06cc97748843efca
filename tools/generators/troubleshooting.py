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
        "If the message names a deleted BatchInference, wait: its RayJob is being deleted. "
        "Otherwise delete that RayJob, or give the job [another name]"
        "(cluster.md#run-a-failed-job-again).",
    ),
    "ApiServerUnavailable": Entry(
        "the API server, or a webhook that it calls, has not answered for a minute",
        "Nothing: the operator retries. Running jobs continue.",
    ),
    "KubeRayNotResponding": Entry(
        "KubeRay has not accepted the RayJob, or not created a pod of it, for a minute",
        "Check that KubeRay runs, watches this namespace and may create pods in it: its log says "
        "why not.",
    ),
    "DriverSilent": Entry(
        "the driver has not answered several polls of the operator. The deadlines of the job "
        "continue",
        "Check the network policies between the operator and port 8265 of the head pod, and the "
        "log of the head pod. Without a deadline, a silent driver runs on: set `deadlines.stall`.",
    ),
    "DriverUnauthorized": Entry(
        "the driver rejects the operator's token",
        "Check whether the token key of the operator was changed while the job was running "
        "([network](operations.md#network)).",
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
"""Reasons of the condition Ready while a job waits, except phases and causes of failure."""
MISTAKES = {
    ("not valid YAML",): Entry(
        "the file is not YAML: a tab, a missing colon, the same key twice, or a text that needs "
        "quotes",
        "Correct the line and column that the message names.",
    ),
    ("unknown field", "unknown option"): Entry(
        "the field or option does not exist there: its name has a typo, or it belongs to another "
        "level, format or runtime",
        "Use the name that the message suggests, or look it up in [Fields](reference.md).",
    ),
    ("required, but missing",): Entry(
        "a field without a default is missing", "Add the field that the message names."
    ),
    ("is not one of", "is unknown; did you mean"): Entry(
        "the field has fixed values, and this is none of them",
        "Use one of the values. They are case-sensitive.",
    ),
    ("expected ",): Entry(
        "the value has another type, unit, form or size than the field requires",
        "Write the value as the message says: numbers without quotes, memory and durations with a "
        "unit, lists in brackets.",
    ),
    ("is above max",): Entry(
        "the minimum of `replicas` or `cluster.workers` is above the maximum. The maximum of "
        "`replicas` is 1 by default",
        "Increase `max`, or decrease `min`.",
    ),
    ("has no action", "but a step has one action"): Entry(
        "a step needs exactly one action, such as `model` or `filter`",
        "Add an action, or make a step of each action.",
    ),
    ("are named",): Entry(
        "reports and worker groups identify a step by its name", "Rename one of the steps."
    ),
    ("not an expression", "unknown function", "a comparison with None"): Entry(
        "the expression of a `filter` or of `addColumns` is not part of the "
        "[expression language](jobs.md#steps), which is a small part of Python",
        "Use the functions and operators that the message names. Compute anything else in a "
        "`python` step.",
    ),
    ("the scheme", "needs a bucket", "must not contain credentials"): Entry(
        "the address of an input or output is in an unknown storage, incomplete, or has a password",
        "Use a path, or an address such as s3://BUCKET/PREFIX. Set credentials in the "
        "[environment](cluster.md#storage-and-secrets).",
    ),
    ("does not exist", "holds no files", "matches no file"): Entry(
        "an input path does not exist, a glob matches nothing, or no file has an extension of the "
        "format",
        "Correct `read.paths` or `read.format`. Relative paths start at the directory of the job "
        "file. For files with other extensions, set `read.options.fileExtensions` or use a glob. "
        "If there may be no files, set `read.allowEmpty`.",
    ),
    ("is a table of the format",): Entry(
        "the path is the directory of a table, whose Parquet files also hold deleted rows",
        "Read a Delta or Iceberg table with its own format. Export other tables as Parquet "
        "files. See "
        "[Which files are read](formats.md#which-files-are-read).",
    ),
    ("but the columns here are",): Entry(
        "a step or the output names a column that the input does not have, or that an earlier "
        "step has dropped or renamed",
        "Use one of the columns that the message lists. `batchinference preview` shows the columns "
        "after each step.",
    ),
    ("not found: ",): Entry(
        "the model is not in the path or on the Hub",
        "Correct `model.source`, or put the model there. On a cluster, it must be in the image, in "
        "a volume, in an object store or on the Hub.",
    ),
    ("there is no module", ".py has no", "is not valid Python", "which is not installed"): Entry(
        "`python.callable` or `model.factory` names code that does not exist or cannot be imported",
        "Write it as `module:name`, put the module next to the job file, and install the packages "
        "that it imports.",
    ),
    ("hides the module",): Entry(
        "a file next to the job has the name of a module of Python, which Ray would import instead",
        "Rename the file.",
    ),
    ("cannot be used",): Entry(
        "no file can be created in the output path",
        "Choose another `write.path`, or change the permissions that the message names.",
    ),
    ("no output of a BatchInference",): Entry(
        "the output path has files of something else, which are never deleted, even with "
        "`write.mode: overwrite`",
        "Choose another `write.path`, empty it, or set `write.mode` to append.",
    ),
}
"""Families of mistakes in a job, by parts of their messages."""
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
    Cause.OUT_OF_MEMORY: "- **See also:** [Out of memory](steps.md#out-of-memory), by the memory "
    "that is missing, and [more memory for the next attempt]"
    "(cluster.md#attempts-deadlines-and-cleanup).\n",
    Cause.WORKER_CRASHED: "- **See also:** [Out of memory](steps.md#out-of-memory), and [rows that "
    "kill their process](jobs.md#bad-rows).\n",
    Cause.APPLICATION: "- **See also:** [Out of memory](steps.md#out-of-memory), if GPU memory ran "
    "out (`CUDA out of memory`).\n",
    Cause.CRASH_LOOP: "- **When:** 5 head pods have exited. If none has, 20 worker pods, or three "
    "times the current number of pods if that is more.\n",
    Cause.STALLED: "- **Do not confuse it with** the [condition](#conditions) `Stalled`, which is "
    "True after a job has failed for any cause.\n",
}
_LINKS = {
    re.compile("[Rr]un the job again"): "#run-the-job-again",
    re.compile("start over"): "exactly-once.md#starting-over",
    re.compile("searches for the row"): "jobs.md#bad-rows",
    re.compile("[Rr]etry the failed rows"): "exactly-once.md#retrying-failed-rows",
}
"""The target of a link on each of these phrases."""
_INTRODUCTION = """# Troubleshooting

This page lists what can stop a job, why it happens, and what to do. It is generated from one
catalogue by `make generate`.

## Find the cause

| where the job ran | where the cause is |
| --- | --- |
| on your machine | the last lines of `batchinference run`; [report.html](report.md) |
| on a cluster | `kubectl get bi NAME -o wide`, `kubectl describe bi NAME`; the same report |

Both name one of the [causes](#causes-of-failure) and the original message. The report also groups
the failed rows by their cause and shows examples.

| problem | read |
| --- | --- |
| the job is refused before it starts | [Mistakes in a job](#mistakes-in-a-job) |
| the job waits | [Reasons for waiting](#reasons-for-waiting) |
| the job is slow | [Troubleshooting slow jobs](performance.md#troubleshooting-slow-jobs) |
| rows fail | [Bad rows](jobs.md#bad-rows) |
| `batchinference verify` finds a problem | [Verifying an output](verify.md) |

## Run the job again

| where the job ran | what to run |
| --- | --- |
| on your machine | the same command, such as `batchinference run job.yaml` |
| on a cluster | `kubectl replace --force -f job.yaml`, which deletes and creates the job |
| on a cluster, with values of `--set` | `batchinference cancel NAME`, then `submit` as before |
| on a cluster, suspended | `batchinference resume NAME` |

In all cases the job resumes: committed rows are not computed again. To compute all rows again
instead, see [Starting over](exactly-once.md#starting-over).

On a cluster, neither a change of the spec nor `batchinference resume` starts a failed job again.
The only exception is `InvalidSpec`: a change of the spec starts such a job again. See
[Run a failed job again](cluster.md#run-a-failed-job-again).

## Causes of failure

If a cause is retried, the operator starts the next attempt itself. `retry.onCause` changes for
single causes whether they are [retried](lifecycle.md#causes). If the cause is not retried, after
the last attempt, and always on your machine, correct the cause and
[run the job again](#run-the-job-again).
"""
_MISTAKES_TITLE = """## Mistakes in a job

`batchinference validate` finds mistakes in the job file. On a cluster, such a job fails as
`InvalidSpec`. `validate` and `run` also find mistakes in the input, the code, the models and
the output. Such a job fails as `BadInput`, `ModelLoad` or `BadOutput`.
[Typical mistakes](mistakes.md) has the whole message of each mistake.

| the message contains | what happened, and why | what to do |
| --- | --- | --- |
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
    mistakes = "".join(
        f"| {_quoted(parts)} | {entry.meaning} | {entry.remedy} |\n"
        for parts, entry in MISTAKES.items()
    )
    waiting = "".join(
        f"| `{reason}` | {entry.meaning} | {entry.remedy} |\n" for reason, entry in WAITING.items()
    )
    conditions = "".join(f"| `{name}` | {when} |\n" for name, when in CONDITIONS.items())
    return (
        f"{_INTRODUCTION}{causes}\n"
        f"{_MISTAKES_TITLE}{mistakes}\n"
        "## Reasons for waiting\n\n"
        "`REASON` of `kubectl get bi` is the phase, one of the causes above, or one of these:\n\n"
        f"| reason | why | what to do |\n| --- | --- | --- |\n{waiting}\n"
        "## Conditions\n\n"
        "Programs should use the conditions. Each has a reason and a message.\n\n"
        f"| condition | True when |\n| --- | --- |\n{conditions}"
    )


def _quoted(parts: tuple[str, ...]) -> str:
    return ", ".join(f"`{part.strip()}`" for part in parts)


def _linked(remedy: str) -> str:
    """Return a remedy with links on the phrases of `_LINKS`."""
    for phrase, target in _LINKS.items():
        remedy = phrase.sub(rf"[\g<0>]({target})", remedy)
    return remedy
