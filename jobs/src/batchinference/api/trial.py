"""Makes the trial of a job over its first rows: `run --limit`."""

from __future__ import annotations

import os
from collections.abc import Iterator

from batchinference.api.changed_jobs import changed
from batchinference.spec import BatchInference, Problem
from batchinference.spec.addresses import is_local, local_path
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.problems import raise_for_problems
from batchinference.spec.write import WriteTable


def trial(job: BatchInference, rows: int) -> BatchInference:
    """Return the job over its first `rows` rows, with its own output next to the output of the job.

    A trial starts over. Its run must replace only its own output (`own_only`). Raises SpecError if
    the input cannot be limited, or if there is no place next to the output.
    """
    spec = job.spec
    raise_for_problems(_without_trial(spec))
    path = _trial_path(spec.write.path, rows)
    return changed(
        job,
        read=spec.read.limited(rows),
        write=spec.write.model_copy(update={"path": path, "mode": "overwrite"}),
        errors=spec.errors.model_copy(update={"path": None, "retry_failed_rows": False}),
        resume=False,
        notifications=[],
    )


def _without_trial(spec: BatchInferenceSpec) -> Iterator[Problem]:
    """Yield the reasons why a job has no trial."""
    fix = "Use batchinference preview, or run a copy of the job"
    if not spec.read.has_limit:
        problem = f"the rows of this format cannot be limited ({spec.read.format}). {fix}"
        yield Problem("spec.read.format", f"{problem} with a limit in read.query")
    if isinstance(spec.write, WriteTable):
        problem = f"a trial does not write to a table ({spec.write.format}). {fix}"
        yield Problem("spec.write.format", f"{problem} with write.format: parquet")
    if _is_root(spec.write.path):
        problem = f"a trial has no place next to it ({spec.write.path}). Write below it"
        yield Problem("spec.write.path", f"{problem}, such as {spec.write.path.rstrip('/')}/out")


def _trial_path(path: str, rows: int) -> str:
    """Return the path of a trial over `rows` rows of the job that writes to a path."""
    whole = os.path.normpath(local_path(path)) if is_local(path) else path.rstrip("/")
    return f"{whole}-limit-{rows}"


def _is_root(path: str) -> bool:
    """Return whether a path is a whole bucket, or the root of the file system."""
    rest = local_path(path).strip("/")
    return not rest or (not is_local(path) and "/" not in rest)
