"""Records of the runs that have written to an output, and the table that shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from batchinference.spec.base import SpecModel
from batchinference.spec.durations import duration_text
from batchinference.spec.progress import Counts, Progress, average_rate
from batchinference.spec.report import JobState, Report, printable
from batchinference.spec.status import Timestamp

DIED = "died"
"""The state of a run whose process ended without a report."""
KEPT_RUNS, SHOWN_RUNS = 100, 20
"""Maximum number of records that an output keeps, and that commands show."""
MAX_MESSAGE, MAX_KINDS = 1024, 100
"""Limits of a record, which is untrusted: characters of a text, and number of kinds."""
_Text = Annotated[str, Field(max_length=MAX_MESSAGE)]
HEADINGS = (
    *("started", "run", "result", "read", "written", "failed", "time", "rows/s", "version"),
    "parameters",
)


class RunRecord(SpecModel):
    """A run that has written to an output. `counts` has only the rows of this run.

    `kinds` says what the run did with the output: `start`, `restart`, `resume`, `append`, `merge`,
    `addColumn`, `overwrite`, `retry` (failed rows) or `recompute` (changed files). `updatedAt` is
    when the run ended or last stored the record. `passNumber` is the number of its last pass. `job`
    is the name of the job and where it ran. `rayClusterName` is a field of the status of a job."""

    started_at: Timestamp
    updated_at: Timestamp
    state: _Text
    """The state in the report of the run, or DIED."""
    kinds: Annotated[list[_Text], Field(max_length=MAX_KINDS)]
    counts: Counts
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    rows_per_second: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Rows read per second in the state `running`, which includes the loading of models."""
    reason: _Text | None = None
    message: _Text | None = None
    parameters: dict[str, str] = {}
    job: _Text
    ray_cluster_name: _Text | None = None
    pass_number: int | None = None
    process: _Text
    version: _Text

    @property
    def ended(self) -> bool:
        """Return whether the run has a final state: it has succeeded, failed or died."""
        return self.state in (JobState.SUCCEEDED, JobState.FAILED, DIED)

    @property
    def cells(self) -> list[str]:
        """The cells of the record in the table with HEADINGS."""
        counts, speed = self.counts, Progress.of(0, rate=self.rows_per_second).speed
        results = {None: self.state, "Interrupted": "interrupted"}
        return [
            self.started_at,
            ", ".join(self.kinds),
            results.get(self.reason, f"{self.state}: {self.reason}"),
            *(f"{number:,}" for number in (counts.read, counts.written, counts.failed)),
            duration_text(self.seconds),
            speed.removesuffix(" rows/s"),
            self.version,
            " ".join(f"{name}={value}" for name, value in self.parameters.items()),
        ]

    @classmethod
    def parse(cls, content: bytes) -> RunRecord:
        """Return the record in a JSON text, with strings that are safe to display. Raises
        ValueError if it is invalid."""
        record = cls.model_validate_json(content, extra="ignore")
        return cls.model_validate(printable(record.model_dump(mode="json", by_alias=True)))


def figures_of(report: Report, before: Counts) -> dict[str, Any]:
    """Return the fields of a record that come from the report of its run. `before` are the counts
    of the output before the run."""
    counts = (report.counts or before) - before
    rate = average_rate(counts.read, report.seconds.get(JobState.RUNNING, 0.0))
    return {
        "startedAt": report.started_at,
        "updatedAt": report.updated_at,
        "state": report.state.value,
        "counts": counts,
        "seconds": round(sum(report.seconds.values()), 3),
        "rowsPerSecond": Progress.of(0, rate=rate).rows_per_second,
        "reason": report.reason,
        "message": report.message and report.message[:MAX_MESSAGE],
        "passNumber": report.pass_number,
        "version": report.version,
    }


def table_of(records: Sequence[RunRecord]) -> list[list[str]]:
    """Return headings and rows of the table, without empty columns; empty without records."""
    rows = [list(HEADINGS), *(record.cells for record in records)] if records else []
    is_shown = [any(row[column] for row in rows[1:]) for column in range(len(HEADINGS))]
    return [[cell for cell, shown in zip(row, is_shown, strict=True) if shown] for row in rows]
