"""Makes the trial of a job over its first rows: `run --limit`."""

from __future__ import annotations

from collections.abc import Iterator

from batchinference.api.changed_jobs import changed
from batchinference.api.files import beside, is_root
from batchinference.spec import BatchInference, Problem
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
    path = beside(spec.write.path, f"limit-{rows}")
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
    if is_root(spec.write.path):
        problem = f"a trial has no place next to it ({spec.write.path}). Write below it"
        yield Problem("spec.write.path", f"{problem}, such as {spec.write.path.rstrip('/')}/out")
