"""Changes a job for a run that starts over, retries failed rows, or tries the first rows."""

from collections.abc import Iterator

from batchinference.api.job_files import beside, is_root
from batchinference.pipeline.errors import BadInput
from batchinference.spec import BatchInference, Problem
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.problems import raise_for_problems
from batchinference.spec.write import WriteTable
from batchinference.spec.write.tables import WriteStore


def with_failed_rows_retried(job: BatchInference) -> BatchInference:
    """Return the job with settings that retry its failed rows. Raises BadInput if the job cannot
    retry rows, or if another job or an earlier spec has written the output."""
    from batchinference.pipeline.commit.code_and_spec_changes import describe_spec_change
    from batchinference.pipeline.commit.lease import read_lease
    from batchinference.pipeline.commit.output_paths import Layout, work_of

    if why := job.spec.why_not_retried:
        raise BadInput(f"--retry-errors: {why.replace('errors.retryFailedRows', '--retry-errors')}")
    layout = Layout.of(job.spec)
    lease = read_lease(layout)
    if lease is None or lease.key != layout.key:
        changes = describe_spec_change(layout.spec, work_of(job.spec)) if lease is not None else ""
        fix = f" as it is now ({changes}). Undo these changes, or run" if changes else ". Run"
        raise BadInput(f"'{layout.output.uri}' holds no output of this job{fix} the job first")
    errors = job.spec.errors.model_copy(update={"retry_failed_rows": True})
    return job.with_spec(errors=errors, resume=True)


def with_new_output(job: BatchInference) -> BatchInference:
    """Return the job with settings that start it over and replace its output. Raises BadInput if
    its write mode (such as `append`) keeps the rows of earlier runs."""
    write = job.spec.write
    if write.adds:
        merges_only = isinstance(write, WriteStore)
        fix = "" if merges_only else "write.mode to overwrite to replace all of them, or set "
        raise BadInput(
            f"--restart: write.mode {write.mode} keeps the rows of earlier runs. Set {fix}resume "
            "to false to start an unfinished run over"
        )
    errors = job.spec.errors.model_copy(update={"retry_failed_rows": False})
    replacing = write.model_copy(update={"mode": "overwrite"})
    return job.with_spec(resume=False, write=replacing, errors=errors)


def job_of_run(
    job: BatchInference, *, restart: bool, retry_errors: bool
) -> tuple[BatchInference, bool]:
    """Return the job with settings for one run, and `own_only`. If `own_only` is True, the run must
    not replace output of another job. Raises BadInput."""
    if restart:
        return with_new_output(job), job.spec.write.mode != "overwrite"
    return (with_failed_rows_retried(job) if retry_errors else job), False


def trial(job: BatchInference, rows: int) -> BatchInference:
    """Return a job that processes only the first `rows` rows, and writes them next to the output.
    The job starts over. Run it with `own_only`, because it must not replace output of another job.
    Raises SpecError if the rows cannot be limited, or if the output is a table or a root."""
    spec = job.spec
    raise_for_problems(_without_trial(spec))
    path = beside(spec.write.path, f"limit-{rows}")
    return job.with_spec(
        read=spec.read.limited(rows),
        write=spec.write.model_copy(update={"path": path, "mode": "overwrite"}),
        errors=spec.errors.model_copy(update={"path": None, "retry_failed_rows": False}),
        resume=False,
        notifications=[],
    )


def _without_trial(spec: BatchInferenceSpec) -> Iterator[Problem]:
    fix = "Use batchinference preview, or run a copy of the job"
    if not spec.read.has_limit:
        problem = f"the rows of this format cannot be limited ({spec.read.format}). {fix}"
        yield Problem("spec.read.format", f"{problem} with a limit in read.query")
    if isinstance(spec.write, WriteTable):
        problem = f"a trial does not write to a table ({spec.write.format}). {fix}"
        yield Problem("spec.write.format", f"{problem} with write.format: parquet")
    if is_root(spec.write.path):
        path = spec.write.path
        problem = f"a trial is written next to it, and nothing can be next to a root ({path})"
        yield Problem("spec.write.path", f"{problem}. Write below it, to {path.rstrip('/')}/out")
