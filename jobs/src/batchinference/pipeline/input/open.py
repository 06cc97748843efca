"""Opens the input of a job: files or a table source."""

from __future__ import annotations

from batchinference.pipeline.input.base import JobInput
from batchinference.pipeline.input.files import open_files
from batchinference.pipeline.input.snapshot import ProcessedFiles, ResumedInput
from batchinference.pipeline.input.sources import open_table
from batchinference.spec.read import Read, ReadFiles


def open_input(read: Read, earlier: ResumedInput | ProcessedFiles | None = None) -> JobInput:
    """Find the input of a job and return it as an input that does not change.

    `earlier` is the input snapshot of the job to resume, or the files that were processed already.
    Raises BadInput if a file is missing or has changed since then, and NoNewFiles if all files were
    processed before."""
    if isinstance(read, ReadFiles):
        return open_files(read, earlier=earlier)
    return open_table(read)
