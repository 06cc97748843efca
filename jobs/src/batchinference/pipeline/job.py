"""Runs one job from start to end and publishes its reports."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from batchinference import __version__
from batchinference.pipeline.commit.append import OutputTarget, plan_outputs
from batchinference.pipeline.commit.heartbeat import identity_of, keep_heartbeat
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.manifest_entry import RowCounts as Committed
from batchinference.pipeline.commit.row_set import format_missing_rows
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.commit.stored_report import load_report
from batchinference.pipeline.error_attribution import root_cause
from batchinference.pipeline.error_budget import check_errors
from batchinference.pipeline.errors import BadOutput, Incomplete, JobFailure
from batchinference.pipeline.execution.attempt_run import AttemptRun
from batchinference.pipeline.execution.cluster import spilled_bytes
from batchinference.pipeline.execution.executor import Executor, Loading
from batchinference.pipeline.execution.monitor import StopSignal, run_monitored
from batchinference.pipeline.input.planning import RowCount
from batchinference.pipeline.output.error_records import bad_row
from batchinference.pipeline.output.tables import table_for
from batchinference.pipeline.prepare import AlreadyComplete, prepare
from batchinference.pipeline.progress import Meter
from batchinference.pipeline.report.merge import merge_reports
from batchinference.pipeline.report.notes import RunNotes, collect_notes
from batchinference.plan import Plan
from batchinference.spec.job import BatchInference
from batchinference.spec.report import JobState, Memory, Report
from batchinference.spec.status import Counts
from batchinference.spec.write import WriteParquet, WriteTable

MAX_ATTEMPTS = 4
"""Maximum number of attempts of a run. If rows are still missing afterwards, the job fails."""
Publish = Callable[[Report], None]


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class RunningAttempt:
    """An attempt in progress."""

    prepared: AttemptRun
    execution: Executor


@dataclass
class JobRun:
    """A run of a job on a started Ray. `publish` is called with a report of every change."""

    job: BatchInference
    plan: Plan
    publish: Publish
    stop: StopSignal
    _state: JobState = field(default=JobState.PREPARING, init=False)
    _since: float = field(default_factory=time.monotonic, init=False)
    _seconds: dict[str, float] = field(default_factory=dict, init=False)
    _ran_before: float = field(default=0.0, init=False)
    _started_at: str = field(default_factory=now, init=False)
    _meter: Meter = field(default_factory=Meter, init=False)
    _pass: RunningAttempt | None = field(default=None, init=False)
    _told: RunNotes | None = field(default=None, init=False)
    _done: list[Report] = field(default_factory=list, init=False)

    def run(self) -> Report:
        """Run the job and return its final report, of success or failure. Raises nothing."""
        try:
            self.publish(self._report())
            ends = [self._run(target) for target in plan_outputs(self.job.spec)]
            last = self._done.pop() if self._done else ends[-1]
            return self._tell(last)
        except Exception as error:  # noqa: BLE001 - every error becomes a report
            return self._broken_off(root_cause(error))

    def _run(self, target: OutputTarget) -> Report:
        """Run the job for one output and return its final report, which is not published yet."""
        self.stop.check()
        self._enter(JobState.PREPARING)
        self._pass, self._told, self._meter = None, None, Meter()
        prepared = prepare(self.job.spec, target, identity_of(self.job), self._load)
        if isinstance(prepared, AlreadyComplete):
            return self._nothing_to_do(prepared)
        self._meter = Meter(prepared.count, prepared.start.counts.read)
        self._ran_before = self._seconds.get(JobState.RUNNING, 0.0)
        self._enter(JobState.RUNNING)
        going = self._begin(prepared)
        with keep_heartbeat(lambda: (self._pass or going).prepared.attempt.heartbeat):
            self._done.append(self._finish(*self._passes(going)))
        return self._done[-1]

    def _load(self) -> None:
        """Load all steps once. Raises the failure of a step, or Interrupted."""
        run_monitored(Loading(self.plan), lambda: None, self.stop)
        self.stop.check()  # an interrupted load proves nothing

    def _begin(self, prepared: AttemptRun) -> RunningAttempt:
        self._pass = RunningAttempt(prepared, Executor(self.job.spec, self.plan, prepared))
        return self._pass

    def _passes(self, going: RunningAttempt) -> tuple[RunningAttempt, Snapshot]:
        """Run attempts until no rows are missing. Return the last attempt and the final snapshot.

        One attempt is enough unless a node is lost: Ray recomputes its blocks and may cut them
        differently. Raises Incomplete if rows are missing after the last attempt."""
        for left in reversed(range(MAX_ATTEMPTS if going.prepared.is_repeatable else 1)):
            self._observe(going)
            if going.prepared.gaps != {}:
                run_monitored(going.execution, partial(self._observe, going), self.stop)
            end = going.prepared.close_and_snapshot()
            gaps = going.prepared.missing(end)
            if not gaps:
                return going, end
            self.stop.check()
            if left:
                going = self._begin(going.prepared.next_attempt(end))
        raise Incomplete(
            f"the output does not hold each input row once, it lacks {format_missing_rows(gaps)}"
        )

    def _broken_off(self, failure: JobFailure) -> Report:
        """Return the report of a failure. Publish it, and write it to the output if one is open."""
        prepared = self._pass.prepared if self._pass else None
        with suppress(OSError, BadOutput):  # unavailable storage may be the cause
            if prepared is not None:
                manifests = prepared.attempt.close()  # no task commits after the report
                self._meter.read(prepared.counts(), time.monotonic())
                self._told = collect_notes(manifests)
        self._enter(JobState.FAILED)
        report = self._report(failure)
        told = self._tell(report)
        with suppress(OSError, BadOutput):
            if prepared is not None:
                prepared.attempt.check_lease()
                prepared.attempt.layout.report.write(report.serialized())
        return told

    def _observe(self, going: RunningAttempt) -> None:
        """Update the progress and publish it.

        Raises TooManyErrors, and BadOutput if another run has taken over the output."""
        prepared = going.prepared
        try:
            prepared.attempt.check_lease()
            counts = prepared.counts()
        except OSError:
            return  # a transient storage error may fail the work, but not the progress update
        self._meter.read(counts, time.monotonic())
        self._tell(self._report())
        check_errors(self.job.spec.errors, counts, prepared.count, prepared.bad_row)

    def _finish(self, going: RunningAttempt, end: Snapshot) -> Report:
        prepared, write = going.prepared, self.job.spec.write
        attempt, entries = prepared.attempt, end.entries
        self._enter(JobState.FINALIZING)
        self._told = collect_notes(attempt.manifests())
        # the parts of one input row may be in several tasks, none of which can count that row
        rows = end.rows(len(prepared.input), prepared.input.rows_each)
        counts = replace(end.counts, read=rows)
        self._meter.finish(counts, self._seconds[JobState.RUNNING] - self._ran_before)
        self._tell(self._report())
        attempt.remove_all_but(entries)
        exact = RowCount(rows, estimated=False)
        check_errors(self.job.spec.errors, counts, exact, partial(bad_row, attempt.layout, entries))
        if isinstance(write, WriteTable):
            attempt.commit(write, table_for(write), end, self._report())
        elif isinstance(write, WriteParquet):
            end = going.execution.give_one_schema(end, write.compression)
        self._enter(JobState.SUCCEEDED)
        report = self._report()
        attempt.complete(end, report)
        return report

    def _nothing_to_do(self, found: AlreadyComplete) -> Report:
        """Return the report if the output exists: the job's own or, with mode ignore, another's."""
        now_: dict[str, object] = {"name": self.job.metadata.name, "started_at": self._started_at,
                "updated_at": now(), "seconds": {}}  # fmt: skip
        if found.done is not None:
            report = load_report(found.done)
            words = "; ".join(filter(None, ("the output was complete already", found.since)))
            now_ |= {"message": words, "state": JobState.SUCCEEDED, "reason": None}
        else:
            self._enter(JobState.SUCCEEDED)
            report = self._report()
            now_ |= {"message": f"'{report.output}' holds something already, and write.mode is "
                     "ignore: nothing was done"}  # fmt: skip
        return report.model_copy(update=now_)

    def _tell(self, report: Report) -> Report:
        """Publish a report, merged with the reports of earlier outputs of this run, and return it.

        An OSError while publishing does not fail the job."""
        told = merge_reports(self._done, report)
        with suppress(OSError):
            self.publish(told)
        return told

    def _enter(self, state: JobState) -> None:
        clock = time.monotonic()
        if not self._state.ended:
            seconds = self._seconds.get(self._state, 0.0) + clock - self._since
            self._seconds[self._state] = round(seconds, 3)
        self._state, self._since = state, clock

    def _report(self, failure: JobFailure | None = None) -> Report:
        layout = Layout.of(self.job.spec)
        if self._pass:  # its layout may be that of an append
            layout = self._pass.prepared.attempt.layout
        counts = self._meter.counts if self._pass else None
        return Report(
            name=self.job.metadata.name,
            state=self._state,
            reason=failure.reason if failure else None,
            message=failure.message if failure else None,
            progress=self._meter.progress,
            counts=_counts(counts) if counts else None,
            output=layout.output.uri,
            errors=layout.errors.uri if counts and counts.failed else None,
            stage=self._stage(),
            attempt=self._pass.prepared.attempt.number if self._pass else None,
            startedAt=self._started_at,
            updatedAt=now(),
            seconds=dict(self._seconds),
            batchSizes=self._told.batch_sizes if self._told else {},
            memory=_memory(self._told) if self._told else None,
            notes=self._told.notes if self._told else [],
            version=__version__,
        )

    def _stage(self) -> str | None:
        running = self._state == JobState.RUNNING
        return self._pass.execution.stage if running and self._pass else None


def _memory(told: RunNotes) -> Memory:
    return Memory(peakWorkerBytes=told.peak_bytes, spilledBytes=spilled_bytes())


def _counts(counts: Committed) -> Counts:
    return Counts(
        read=counts.read, written=counts.written, failed=counts.failed, skipped=counts.skipped
    )
