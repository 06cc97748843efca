"""Changes a job so that it runs over its first rows and leaves no output."""

from __future__ import annotations

from batchinference.spec import BatchInference
from batchinference.spec.job import ErrorPolicy
from batchinference.spec.write import WriteColumns, WriteParquet


def preview_of(job: BatchInference, rows: int, directory: str) -> BatchInference:
    """Return the job over its first rows, with a Parquet output in a directory. The first bad row
    fails it.

    Raises BadInput if the number of rows cannot be limited."""
    from batchinference.pipeline.errors import BadInput

    read, write = job.spec.read, job.spec.write
    if "limit" not in type(read.options).model_fields:
        raise BadInput(f"--preview: read.format {read.format} has no limit. Limit its query")
    limit = min(rows, getattr(read.options, "limit", None) or rows)
    options = read.options.model_copy(update={"limit": limit})
    columns = write.columns if isinstance(write, WriteColumns) else None
    update = {
        "read": read.model_copy(update={"options": options}),
        "write": WriteParquet(format="parquet", path=directory, columns=columns),
        "errors": ErrorPolicy(),
    }
    return job.model_copy(update={"spec": job.spec.model_copy(update=update)})
