"""Opens what a job reads: files or a table source."""

from __future__ import annotations

from batchinference.pipeline.input.base import JobInput
from batchinference.pipeline.input.files import open_files
from batchinference.pipeline.input.snapshot import ProcessedFiles, ResumedInput
from batchinference.pipeline.input.sources import open_table
from batchinference.spec.read import Read, ReadFiles


def open_input(read: Read, earlier: ResumedInput | ProcessedFiles | None = None) -> JobInput:
    """Find and freeze what a job reads; `earlier` is what was frozen of it when the job began, or
    what is not to be read any more.

    Raises BadInput that says what is missing, or has changed since, and NothingNew."""
    if isinstance(read, ReadFiles):
        return open_files(read, earlier=earlier)
    return open_table(read)
