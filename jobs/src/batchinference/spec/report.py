"""How a job goes, as its driver tells it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from batchinference.spec.base import SpecModel
from batchinference.spec.status import Counts, Progress, Timestamp

REPORT_FILE = "batchinference-report.json"
"""The report's name in the directory that a driver is told to keep it in."""


class JobState(StrEnum):
    """Where the driver is."""

    PREPARING = "preparing"
    RUNNING = "running"
    FINALIZING = "finalizing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED)


class Memory(SpecModel):
    """Bytes of memory."""

    peak_worker_bytes: int
    """The most that one process had which read, ran steps or wrote, what it shares with others
    included."""
    spilled_bytes: int | None = None
    """What Ray's object store has written to disk, because it was full."""


class Report(SpecModel):
    """A job as of `updated_at`."""

    name: str
    """The job's name."""
    state: JobState
    """preparing, running, finalizing, succeeded or failed."""
    reason: str | None = None
    """Why it failed, in one word."""
    message: str | None = None
    """Why it failed, for people; or what else there is to say."""
    progress: Progress | None = None
    """Rows done so far."""
    counts: Counts | None = None
    """Rows by what became of them."""
    stage: Annotated[str, Field(max_length=1024)] | None = None
    """Where the rows are that are under way: the last stage that has work, `read` and `write`
    being the first and the last of all."""
    output: Annotated[str, Field(max_length=8192)]
    """Where the output is."""
    errors: str | None = None
    """Where the bad rows are, when there are any."""
    attempt: int | None = None
    """Which run towards this output it is, from 1."""
    started_at: Timestamp
    """When the driver began."""
    updated_at: Timestamp
    """When this was written."""
    seconds: dict[str, float] = {}
    """Seconds spent in each state."""
    batch_sizes: dict[str, int] = {}
    """Rows a batch of the steps whose size was searched for or had to shrink, by step: the
    smallest of their replicas."""
    memory: Memory | None = None
    """What the job has taken of memory."""
    notes: list[str] = []
    """What else happened that is worth knowing."""
    version: str
    """The version of the pipeline."""

    def serialized(self) -> bytes:
        text = self.model_dump_json(by_alias=True, exclude_none=True, indent=2)
        return (text + "\n").encode()

    @classmethod
    def parse(cls, content: bytes | str) -> Report:
        """Raises ValueError for what is no report. A newer driver may tell more than is known."""
        return cls.model_validate_json(content, extra="ignore")
