"""One job from beginning to end, and the reports it publishes on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from batchinference import __version__
from batchinference.pipeline.coverage import rows_covered
from batchinference.pipeline.dataset import Execution
from batchinference.pipeline.engine import spilled_bytes
from batchinference.pipeline.failures import BadOutput, JobFailure, cause_of
from batchinference.pipeline.layout import Layout
from batchinference.pipeline.manifest import Counts as Committed
from batchinference.pipeline.owner import is_complete
from batchinference.pipeline.prepare import NothingToDo, Prepared, prepare
from batchinference.pipeline.progress import Meter
from batchinference.pipeline.sizing import RowCount
from batchinference.pipeline.supervise import StopRequest, check_errors, supervise
from batchinference.pipeline.tellings import Tellings, told_by
from batchinference.plan import Plan
from batchinference.spec.job import BatchInference
from batchinference.spec.report import JobState, Memory, Report
from batchinference.spec.status import Counts
from batchinference.spec.write import WriteParquet, WriteTable

Publish = Callable[[Report], None]


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class JobRun:
    """A job on a Ray that is up. `publish` is told of every change."""

    job: BatchInference
    plan: Plan
    publish: Publish
    stop: StopRequest
    _state: JobState = field(default=JobState.PREPARING, init=False)
    _since: float = field(default_factory=time.monotonic, init=False)
    _seconds: dict[str, float] = field(default_factory=dict, init=False)
    _started_at: str = field(default_factory=now, init=False)
    _meter: Meter | None = field(default=None, init=False)
    _attempt: int | None = field(default=None, init=False)
    _told: Tellings | None = field(default=None, init=False)

    def run(self) -> Report:
        """Run it. The report that comes back has ended, well or badly; nothing is raised."""
        layout = Layout.of(self.job.spec)
        try:
            self.publish(self._report())
            self.stop.check()
            prepared = prepare(self.job.spec, layout)
            if isinstance(prepared, NothingToDo):
                return self._nothing_to_do(layout, prepared.since)
            return self._run(prepared)
        except Exception as error:  # noqa: BLE001 - every end becomes a report
            return self._failed(cause_of(error))

    def _run(self, prepared: Prepared) -> Report:
        attempt = prepared.attempt
        meter = self._meter = Meter(prepared.count)
        self._attempt = attempt.number

        def observe() -> None:
            self._observe(prepared, meter)

        self._enter(JobState.RUNNING)
        try:
            observe()
            execution = Execution(self.job.spec, self.plan, prepared)
            supervise(execution, observe, self.stop)
            return self._finish(prepared, meter, execution)
        except Exception as error:  # noqa: BLE001 - every end becomes a report
            with suppress(OSError):  # the cause may be that storage is gone
                meter.read(attempt.counts(), time.monotonic())
                self._told = told_by(attempt.manifests())
            report = self._failed(cause_of(error))
            with suppress(OSError, BadOutput):
                attempt.check_owner()
                attempt.layout.report.write(report.serialized())
            return report

    def _observe(self, prepared: Prepared, meter: Meter) -> None:
        """Take a reading and publish it. Raises TooManyErrors, and BadOutput when another run has
        taken over the output."""
        try:
            prepared.attempt.check_owner()
            counts = prepared.attempt.counts()
        except OSError:
            return  # storage that is away for a moment fails the work, if anything, not the reading
        meter.read(counts, time.monotonic())
        self._tell(self._report())
        check_errors(self.job.spec.errors, counts, _known(prepared.count), prepared.attempt)

    def _finish(self, prepared: Prepared, meter: Meter, execution: Execution) -> Report:
        attempt = prepared.attempt
        self._enter(JobState.FINALIZING)
        counts = attempt.counts()
        meter.finish(counts, time.monotonic())
        self._tell(self._report())
        parts, rows_each = len(prepared.input), prepared.input.rows_each
        manifests = attempt.check_and_clean(parts, rows_each)
        self._told = told_by(manifests)
        # rows that became several may lie in several tasks, none of which can count them
        counts = replace(counts, read=rows_covered(manifests, parts, rows_each))
        meter.finish(counts, time.monotonic())
        exact = RowCount(counts.read, estimated=False)
        check_errors(self.job.spec.errors, counts, exact, attempt)
        if isinstance(self.job.spec.write, WriteTable):
            # a driver that dies right after the commit leaves the report of it
            attempt.layout.report.write(self._report().serialized())
            attempt.commit(self.job.spec.write, manifests)
        elif isinstance(self.job.spec.write, WriteParquet):
            execution.give_one_schema(manifests, self.job.spec.write.compression)
        self._enter(JobState.SUCCEEDED)
        report = self._report()
        attempt.complete(report)
        self._tell(report)
        return report

    def _nothing_to_do(self, layout: Layout, since: str) -> Report:
        """The report of a job whose output is there: its own, or with mode ignore another's."""
        now_ = {"name": self.job.metadata.name, "started_at": self._started_at,
                "updated_at": now(), "seconds": {}}  # fmt: skip
        done = next((one for one in (layout, layout.whole) if is_complete(one)), None)
        if done is not None:
            report = Report.parse(done.report.read())
            words = "; ".join(filter(None, ("the output was complete already", since)))
            now_ |= {"message": words, "state": JobState.SUCCEEDED}
        else:
            self._enter(JobState.SUCCEEDED)
            report = self._report()
            now_ |= {"message": f"'{layout.output.uri}' holds something already, and write.mode is "
                     "ignore: nothing was done"}  # fmt: skip
        report = report.model_copy(update=now_)
        self._tell(report)
        return report

    def _failed(self, failure: JobFailure) -> Report:
        self._enter(JobState.FAILED)
        report = self._report(failure)
        self._tell(report)
        return report

    def _tell(self, report: Report) -> None:
        """Publish a report, unless that cannot be done just now: the job does not fail by that."""
        with suppress(OSError):
            self.publish(report)

    def _enter(self, state: JobState) -> None:
        clock = time.monotonic()
        self._seconds[self._state] = round(clock - self._since, 3)
        self._state, self._since = state, clock

    def _report(self, failure: JobFailure | None = None) -> Report:
        layout = Layout.of(self.job.spec)
        counts = self._meter.counts if self._meter else None
        return Report(
            name=self.job.metadata.name,
            state=self._state,
            reason=failure.reason if failure else None,
            message=failure.message if failure else None,
            progress=self._meter.progress if self._meter else None,
            counts=_counts(counts) if counts else None,
            output=layout.output.uri,
            errors=layout.errors.uri if counts and counts.failed else None,
            attempt=self._attempt,
            startedAt=self._started_at,
            updatedAt=now(),
            seconds=dict(self._seconds),
            batchSizes=self._told.batch_sizes if self._told else {},
            memory=_memory(self._told) if self._told else None,
            notes=self._told.notes if self._told else [],
            version=__version__,
        )


def _memory(told: Tellings) -> Memory:
    return Memory(peakWorkerBytes=told.peak_bytes, spilledBytes=spilled_bytes())


def _known(count: RowCount | None) -> RowCount | None:
    return None if count is None or count.estimated else count


def _counts(counts: Committed) -> Counts:
    return Counts(
        read=counts.read, written=counts.written, failed=counts.failed, skipped=counts.skipped
    )
