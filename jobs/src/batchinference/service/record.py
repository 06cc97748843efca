"""What a BatchInference records about its batch, in annotations."""

from __future__ import annotations

from pydantic import BaseModel

from batchinference.service.line_check import LineError

LABEL = "batchinference.dev/batch"
RECORD = "batchinference.dev/batch"
CANCELLED_AT = "batchinference.dev/batch-cancelled-at"
"""Annotation with the Unix time at which the batch was cancelled."""


class Record(BaseModel):
    """The request for a batch, and what was found in its file."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    model: str | None = None
    lines: int = 0
    errors: list[LineError] = []
    more_errors: int = 0
