"""What a driver and the operator exchange: the report, the last line of the log, and prices."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from batchinference.spec.base import Money, SpecModel
from batchinference.spec.progress import (
    STARTING,
    Counts,
    Progress,
    ReplacedFiles,
    RowsOverTime,
    Tokens,
)
from batchinference.spec.status import Choice, FaultyNodes, Timestamp
from batchinference.spec.warnings import WarningCount
from batchinference.text import in_one_line, money

REPORT_FILE = "batchinference-report.json"
"""The name of the report in the directory of `--report-directory`."""


_FAILURE_LINE = re.compile(r"^batchinference: (\{.{0,8192}\})$", re.MULTILINE)
_MAX_FAILURE_MESSAGE = 1024


def failure_line(reason: str | None, message: str | None) -> str:
    """Return the last log line of a driver that failed, with the cause and the message.

    KubeRay copies the end of the log into the status of the RayJob. If the report is lost, the
    operator reads the cause there.
    """
    failure = {"cause": reason, "message": (message or "")[:_MAX_FAILURE_MESSAGE]}
    return f"batchinference: {json.dumps(failure)}"


def parse_failure_line(log: str) -> tuple[str, str] | None:
    """Return cause and message of the last `failure_line` in a log; None if absent or invalid."""
    lines = _FAILURE_LINE.findall(log)
    try:
        failure = json.loads(lines[-1]) if lines else {}
    except (ValueError, RecursionError):  # user code can write to the log
        return None
    cause, message = failure.get("cause"), failure.get("message")
    if not (isinstance(cause, str) and isinstance(message, str)):
        return None
    return cause, in_one_line(message)


FEW_ROWS = 1000
"""The start may take most of the time of a job with fewer rows."""
MAX_WARNINGS = 32
"""Maximum number of warnings in a report. It has a warning for each name and step."""


class JobState(StrEnum):
    """The state of the driver."""

    PREPARING = "preparing"
    RUNNING = "running"
    FINALIZING = "finalizing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Return whether the driver has finished. The state is then final."""
        return self in (JobState.SUCCEEDED, JobState.FAILED)


class MemoryUse(SpecModel):
    """The memory use of a job in bytes."""

    peak_worker_bytes: int
    """The highest memory use, with shared memory, of a process that reads, runs steps or writes."""
    spilled_bytes: int | None = None
    """Bytes that Ray's object store wrote to disk because it was full."""


class StepTimes(SpecModel):
    """The time of a step, of reading or of writing, summed over all processes. The last rows of a
    replica may be missing: up to a tenth of its time, or 0.1 seconds."""

    rows: int
    """Number of measured rows."""
    seconds: float
    """Seconds that the step took for these rows, without the time in which it waited for rows."""
    compute_seconds: float | None = None
    """Seconds in which the replicas of an actor pool computed. Absent if the step runs in tasks."""
    wait_seconds: float | None = None
    """Seconds in which the replicas waited for rows, between the first and the last measured row of
    each replica. Absent if the step runs in tasks."""
    blocked_seconds: float | None = None
    """Seconds in which the replicas waited until the next step, or the write, took their results.
    Absent if the step runs in tasks."""
    load_seconds: float | None = None
    """Seconds in which processes loaded the model or code of the step. Absent if they were 0."""
    rows_per_second: float
    """Rows per second and process."""
    reused: int | None = None
    """Number of rows that have the result of an equal row (`dedupe`). Absent if there are none."""
    cached: int | None = None
    """Number of rows that have a result from the `cache`. Absent if there are none."""
    input_tokens: Tokens | None = None
    """Tokens that the model of the step has read. Absent if the model counts no tokens."""
    cached_tokens: Tokens | None = None
    """Input tokens whose computation was reused."""
    output_tokens: Tokens | None = None
    """Tokens that the model of the step has generated."""

    @property
    def tokens_text(self) -> str:
        """The tokens as text; empty if there are none."""
        read, cached, made = self.input_tokens, self.cached_tokens, self.output_tokens
        return Counts(inputTokens=read, cachedTokens=cached, outputTokens=made).tokens_text

    @property
    def occupancy(self) -> dict[str, float]:
        """The fractions of the time of an actor pool, by activity; empty for a step in tasks."""
        if self.wait_seconds is None:
            return {}
        seconds = {
            "computed": self.seconds if self.compute_seconds is None else self.compute_seconds,
            "waited for rows": self.wait_seconds,
            "waited for the write": self.blocked_seconds or 0.0,
        }
        total = sum(seconds.values())
        return {name: value / total for name, value in seconds.items()} if total > 0 else {}


class Capacity(SpecModel):
    """The resources of the Ray cluster or the machine that ran the job."""

    cpus: float
    """CPUs for reading, for steps that run in tasks and for writing."""
    gpus: float = 0.0
    """GPUs."""
    writers: int
    """Maximum number of files that are written at the same time."""

    def highest(self, other: Capacity | None) -> Capacity:
        """Return the higher value of each resource."""
        if other is None:
            return self
        return Capacity(
            cpus=max(self.cpus, other.cpus),
            gpus=max(self.gpus, other.gpus),
            writers=max(self.writers, other.writers),
        )


class RunCost(SpecModel):
    """The estimated cost of a run on a cluster whose platform has prices."""

    amount: Money
    """Cost of the pods of this run, from the start of Ray in each pod until the report."""
    before: Money = "0"
    """Cost of the earlier attempts of the job."""
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$", max_length=3)]
    """The currency of the prices, such as EUR."""

    @property
    def total(self) -> str:
        """The cost of this run and of the earlier attempts."""
        return money(float(self.amount) + float(self.before), self.currency)

    def __str__(self) -> str:
        """Return the total cost, and its parts if there were earlier attempts."""
        amount, before = float(self.amount), float(self.before)
        if not before:
            return self.total
        return f"{self.total} ({amount:,.2f} in this run, {before:,.2f} in earlier attempts)"


class Report(SpecModel):
    """The state of a job at the time `updatedAt`."""

    name: str
    """The job's name."""
    state: JobState
    """What the driver is doing, or how the job ended."""
    reason: str | None = None
    """The cause of the failure."""
    message: str | None = None
    """The original error message, or more about the result."""
    progress: Progress | None = None
    """The progress in rows."""
    counts: Counts | None = None
    """Rows by result."""
    stage: Annotated[str, Field(max_length=1024)] | None = None
    """The last stage, from `read` to `write`, that processes rows now."""
    output: Annotated[str, Field(max_length=8192)]
    """The path of the output."""
    output_bytes: Annotated[int, Field(ge=0)] | None = None
    """Bytes of the files of the output. Absent until the job has succeeded, and for tables."""
    errors: str | None = None
    """The path of the error records; absent if there are none."""
    pass_number: int | None = None
    """The number of the last pass over the missing rows of this output, from 1."""
    started_at: Timestamp
    """When the driver started."""
    updated_at: Timestamp
    """When the report was written."""
    seconds: dict[str, float] = {}
    """Seconds spent in each state."""
    batch_sizes: dict[str, int] = {}
    """The smallest batch size of each step with `batchSize: auto`, or with batches that became
    smaller for lack of memory."""
    replicas_per_device: dict[str, int] = {}
    """How many replicas share a device, for each step with `replicasPerDevice: auto`."""
    steps: dict[str, StepTimes] = {}
    """The time of each step in this attempt. `read` is for reading and decoding rows, and `write`
    for encoding and storing rows. `STEP (preparation)` is for tasks that convert texts to tokens
    for the actor pool of a model."""
    retries: int = 0
    """Number of tasks of this attempt that were retried because their process died."""
    memory: MemoryUse | None = None
    """The memory use of the job."""
    capacity: Capacity | None = None
    """The maximum of each resource during this attempt."""
    choice: Choice | None = None
    """The types of devices and capacity of the attempt. Absent if the job names no such types."""
    cost: RunCost | None = None
    """The estimated cost. Absent if the run is not on a cluster, or if there are no prices."""
    replaced_files: ReplacedFiles | None = None
    """Input files whose rows the job has replaced or removed. Absent if there are none."""
    rows_over_time: RowsOverTime | None = None
    """The progress so far, at no more than 60 points in time."""
    versions: dict[str, str] = {}
    """The versions of Python and of the packages that affect results, by name."""
    notes: list[str] = []
    """Other events, as text."""
    warnings: Annotated[list[WarningCount], Field(max_length=MAX_WARNINGS)] = []
    """The most frequent warnings, by name and step. They are differences between input and output,
    such as files that were not read or texts that were cut."""
    faulty_nodes: FaultyNodes = []
    """The Kubernetes nodes on which a device failed."""
    version: str
    """The version of BatchInference that ran the job."""

    @property
    def activity(self) -> str:
        """The state, or STARTING while the run has not finished a row."""
        starting = self.progress is not None and self.progress.rows_per_second is None
        return STARTING if starting and self.state is JobState.RUNNING else self.state.value

    @property
    def start_text(self) -> str:
        """The time of the start, such as `77 s for the start of workers and models`. Empty for a
        job with many rows, or if the start took less than half of its time."""
        rows = self.counts.read if self.counts else 0
        total = sum(self.seconds.values())
        processing = sum(times.seconds for times in self.steps.values())
        start = total - processing - self.seconds.get(JobState.FINALIZING, 0.0)
        shown = 0 < rows < FEW_ROWS and self.steps and 2 * start > total
        return f"{start:.0f} s for the start of workers and models" if shown else ""

    @property
    def tokens_text(self) -> str:
        """The tokens of the job, with the price per million if known; empty without tokens."""
        text = self.counts.tokens_text if self.counts else ""
        if not (text and self.counts and self.cost):
            return text
        amount = float(self.cost.amount) + float(self.cost.before)
        price = money(amount * 1e6 / self.counts.tokens, self.cost.currency)
        return f"{text}, {price} per million"

    def __repr_args__(self) -> Iterator[tuple[str, object]]:
        """Yield what `repr` shows: the result in one line instead of all fields."""
        counts = self.counts
        shown = {
            "name": self.name,
            "state": self.state.value,
            "reason": self.reason,
            "message": self.message,
            "written": counts.written if counts else None,
            "failed": counts.failed if counts else None,
            "output": self.output,
        }
        yield from ((name, value) for name, value in shown.items() if value is not None)

    def serialized(self) -> bytes:
        """Return the report as the indented JSON of a file in UTF-8, without absent fields."""
        text = self.model_dump_json(by_alias=True, exclude_none=True, indent=2)
        return (text + "\n").encode()

    @classmethod
    def parse(cls, content: bytes | str) -> Report:
        """Return the report in a JSON text. Raises ValueError if it is invalid.

        Unknown fields of a newer driver are ignored. All strings are made safe to display, because
        user code can write the report.
        """
        report = cls.model_validate_json(content, extra="ignore")
        return cls.model_validate_json(
            json.dumps(printable(report.model_dump(mode="json", by_alias=True)))
        )


def printable(value: Any) -> Any:
    """Return a JSON value with all strings and field names safe to display on one line."""
    match value:
        case str():
            return in_one_line(value)
        case list():
            return [printable(item) for item in value]
        case dict():
            return {in_one_line(name): printable(item) for name, item in value.items()}
    return value


PRICES_VARIABLE = "BATCHINFERENCE_JOB_PRICES"
"""Environment variable of the head with the prices as JSON. Jobs cannot set it."""


class PodPrices(SpecModel):
    """The prices of the pods of an attempt."""

    currency: str
    """The currency of the prices, such as EUR."""
    per_hour: dict[str, float]
    """The price of one pod per hour, by its group. The head is the group `head`."""
    before: float = 0.0
    """The cost of the earlier attempts of the job."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> PodPrices | None:
        """Return the prices in the environment variables of a driver; None if there are none."""
        text = environment.get(PRICES_VARIABLE)
        return cls.model_validate_json(text, extra="ignore") if text else None
