"""Changes a job for one run: start over, or retry its failed rows."""

from __future__ import annotations

from batchinference.spec import BatchInference


def retried(job: BatchInference) -> BatchInference:
    """Return the job with retries of its failed rows enabled.

    Raises BadInput if the job cannot retry rows, or has no output yet.
    """
    from batchinference.pipeline.commit.changes import changed_spec
    from batchinference.pipeline.commit.layout import Layout, work_of
    from batchinference.pipeline.commit.lease import read_lease
    from batchinference.pipeline.errors import BadInput

    if why := job.spec.why_not_retried:
        raise BadInput(f"--retry-errors: {why}")
    layout = Layout.of(job.spec)
    lease = read_lease(layout)
    if lease is None or lease.key != layout.key:
        changes = changed_spec(layout.spec, work_of(job.spec)) if lease is not None else ""
        fix = f" as it is now ({changes}). Restore it, or run it" if changes else ". Run it"
        raise BadInput(f"'{layout.output.uri}' holds no output of this job{fix} first")
    errors = job.spec.errors.model_copy(update={"retry_failed_rows": True})
    return changed(job, errors=errors, resume=True)


def restarted(job: BatchInference) -> BatchInference:
    """Return the job with fields that start it over, regardless of what it has written.

    Unless the job itself overwrites, its run must replace only its own output (`own_only`).

    Raises BadInput for a mode such as append, which adds rows to the output of earlier runs.
    """
    from batchinference.pipeline.errors import BadInput

    write = job.spec.write
    if write.adds:
        raise BadInput(
            f"--restart: write.mode {write.mode} keeps the rows of earlier runs. Set write.mode to "
            "overwrite to replace all of them, or resume to false to repeat an unfinished run"
        )
    errors = job.spec.errors.model_copy(update={"retry_failed_rows": False})
    return changed(
        job, resume=False, write=write.model_copy(update={"mode": "overwrite"}), errors=errors
    )


def job_of_run(
    job: BatchInference, *, restart: bool, retry_errors: bool
) -> tuple[BatchInference, bool]:
    """Return the job for one run, and whether the run may replace only its own output. Raises
    BadInput."""
    if restart:
        return restarted(job), job.spec.write.mode != "overwrite"
    return (retried(job) if retry_errors else job), False


def changed(job: BatchInference, **fields: object) -> BatchInference:
    """Return the job with other fields of its spec."""
    return job.model_copy(update={"spec": job.spec.model_copy(update=fields)})
