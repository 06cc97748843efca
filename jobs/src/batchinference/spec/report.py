"""The report of a job, which its driver writes."""

from __future__ import annotations

import json
import re
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from batchinference.spec.base import SpecModel
from batchinference.spec.status import Counts, Progress, Rows, Timestamp
from batchinference.text import in_one_line

REPORT_FILE = "batchinference-report.json"
"""The name of the report in the directory of `--report-directory`."""


_LAST_WORD = re.compile(r"^batchinference: (\{.{0,8192}\})$", re.MULTILINE)
_MAX_LAST_WORD = 1024


def last_word(reason: str | None, message: str | None) -> str:
    """The last line of a driver's log when it has failed. KubeRay copies the end of the log into
    the status of the RayJob, so the cause is known also when the report is lost."""
    told = {"cause": reason, "message": (message or "")[:_MAX_LAST_WORD]}
    return f"batchinference: {json.dumps(told)}"


def last_word_in(log: str) -> tuple[str, str] | None:
    """The cause and the message of the last such line, if there is one."""
    found = _LAST_WORD.findall(log)
    try:
        told = json.loads(found[-1]) if found else {}
    except (ValueError, RecursionError):  # the log is the user's
        return None
    cause, message = told.get("cause"), told.get("message")
    if not (isinstance(cause, str) and isinstance(message, str)):
        return None
    return cause, in_one_line(message)


class JobState(StrEnum):
    """What the driver does."""

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
    """The highest memory use of a single process that reads, runs steps or writes. It includes
    memory that it shares with others."""
    spilled_bytes: int | None = None
    """Bytes that Ray's object store wrote to disk because it was full."""


class StepTimes(SpecModel):
    """The time of a step, of reading or of writing, added up over all processes. In an actor pool,
    the last rows of each replica are not measured: up to a tenth of its time, or 0.1 seconds."""

    rows: int
    """The measured rows."""
    seconds: float
    """Seconds that the step took for these rows, without waiting for rows."""
    cpu_seconds: float
    """CPU seconds of the processes in this time; for `write`, those of the writing threads."""
    rows_per_second: float
    """Rows per second of one process."""


class RowsOverTime(SpecModel):
    """The number of finished rows over time. Both lists have the same length."""

    seconds: list[float]
    """Seconds since the driver started."""
    rows: list[Rows]
    """Rows that were finished at each of these times. They include rows of earlier runs."""


class Report(SpecModel):
    """The state of a job at the time `updatedAt`."""

    name: str
    """The job's name."""
    state: JobState
    """What the driver does, or how the job ended."""
    reason: str | None = None
    """The cause of the failure."""
    message: str | None = None
    """The original message of the failure, or a remark about the result."""
    progress: Progress | None = None
    """The progress in rows."""
    counts: Counts | None = None
    """Rows by result."""
    stage: Annotated[str, Field(max_length=1024)] | None = None
    """The last stage that has work. The first stage of all is `read`, the last one is `write`."""
    output: Annotated[str, Field(max_length=8192)]
    """The path of the output."""
    errors: str | None = None
    """The path of the error records; absent if there are none."""
    attempt: int | None = None
    """The number of the attempt at this output, from 1."""
    started_at: Timestamp
    """When the driver started."""
    updated_at: Timestamp
    """When the report was written."""
    seconds: dict[str, float] = {}
    """Seconds spent in each state."""
    batch_sizes: dict[str, int] = {}
    """The smallest batch size of each step whose batch size was searched for, or was reduced
    because memory ran out."""
    steps: dict[str, StepTimes] = {}
    """The time of each step that ran in this attempt, of reading and decoding (`read`) and of
    encoding and storing rows (`write`)."""
    retries: int = 0
    """Tasks of this attempt that ran again because their process died."""
    memory: Memory | None = None
    """The memory that the job used."""
    rows_over_time: RowsOverTime | None = None
    """The progress so far, at no more than 60 times."""
    versions: dict[str, str] = {}
    """The versions of Python and of the packages that compute, by name."""
    notes: list[str] = []
    """Other events, as texts."""
    version: str
    """The version of the pipeline."""

    def serialized(self) -> bytes:
        text = self.model_dump_json(by_alias=True, exclude_none=True, indent=2)
        return (text + "\n").encode()

    @classmethod
    def parse(cls, content: bytes | str) -> Report:
        """Raises ValueError for what is no report. A newer driver may tell more than is known. The
        driver is the user's, so its texts are made safe to show."""
        report = cls.model_validate_json(content, extra="ignore")
        return cls.model_validate_json(
            json.dumps(_safe(report.model_dump(mode="json", by_alias=True)))
        )


def _safe(value: Any) -> Any:
    """Return a JSON value with all its texts in the form to show, the names of fields included."""
    match value:
        case str():
            return in_one_line(value)
        case list():
            return [_safe(each) for each in value]
        case dict():
            return {in_one_line(name): _safe(each) for name, each in value.items()}
    return value
