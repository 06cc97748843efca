"""How a job goes, as its driver tells it."""

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
"""The report's name in the directory that a driver is told to keep it in."""


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


class StepTimes(SpecModel):
    """The time of a step, added up over all processes. Up to a tenth of the rows, the last ones of
    each process, is not measured."""

    rows: int
    """The measured rows."""
    seconds: float
    """How long the step took for them, without waiting for rows."""
    cpu_seconds: float
    """CPU time of the processes meanwhile."""
    rows_per_second: float
    """Rows a second of one process."""


class RowsOverTime(SpecModel):
    """How many rows were finished at which time. Both lists have the same length."""

    seconds: list[float]
    """Seconds since the driver began."""
    rows: list[Rows]
    """Rows that were finished then, those of earlier runs included."""


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
    steps: dict[str, StepTimes] = {}
    """The time of each step that ran in this attempt."""
    retries: int = 0
    """How many tasks of this attempt ran again because their process died, with a node or alone."""
    memory: Memory | None = None
    """What the job has taken of memory."""
    rows_over_time: RowsOverTime | None = None
    """The progress so far, at no more than 60 times."""
    versions: dict[str, str] = {}
    """The versions of Python and of the packages that compute, by name."""
    notes: list[str] = []
    """What else happened that is worth knowing."""
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
