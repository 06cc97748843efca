"""Runs one job from start to end: its outputs, their passes, and the reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from batchinference.pipeline.commit.heartbeat import only_run_in_process
from batchinference.pipeline.commit.lease import identity_of
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.commit.output_targets import OutputTarget, output_targets
from batchinference.pipeline.commit.replacement import swap_in_replacement
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.error_classification import root_cause
from batchinference.pipeline.errors import BadOutput, JobFailure, OutOfMemory, WorkerCrashed
from batchinference.pipeline.execution.cost import cost_so_far
from batchinference.pipeline.execution.crash_notes import deaths_of, take_deaths
from batchinference.pipeline.execution.executor import Executor
from batchinference.pipeline.execution.prepared_pass import PassEnd, Passes, PreparedPass
from batchinference.pipeline.execution.ray_connection import spilled_bytes
from batchinference.pipeline.execution.replica_search import ReplicaSearch
from batchinference.pipeline.execution.stop_signals import StopSignal, run_monitored
from batchinference.pipeline.execution.task_resources import (
    without_faulty_nodes,
    without_suspected_nodes,
)
from batchinference.pipeline.first_rows import limited_to_first_rows, with_findings
from batchinference.pipeline.first_rows.cascade import with_thresholds
from batchinference.pipeline.html_report import write_page
from batchinference.pipeline.input import RowCount
from batchinference.pipeline.input.file_input import FileInput, has_changes
from batchinference.pipeline.output.error_records import bad_row
from batchinference.pipeline.output.openai_errors import write_error_file
from batchinference.pipeline.pass_start import NothingToDo, prepare_pass
from batchinference.pipeline.report.builder import ReportBuilder, collect_notes, merge_reports
from batchinference.pipeline.report.history import RunHistory
from batchinference.pipeline.row_batch import READ_STEP, WRITE_STEP, unpack_ids
from batchinference.pipeline.run_limits import check_errors, check_tokens, check_warnings
from batchinference.plan import Plan
from batchinference.spec.job import BatchInference
from batchinference.spec.read import ReadFiles
from batchinference.spec.report import JobState, PodPrices, Report
from batchinference.spec.secrets import secret_variables
from batchinference.spec.write import WriteTable

Publish = Callable[[Report], None]
RayContext = Callable[[], AbstractContextManager[Plan]]
"""Starts Ray or connects to a cluster. Yields the plan, adapted to the resources of Ray."""


@dataclass
class JobRun:
    """A run of a job. `publish` is called with each new report, and `say` with lines for the user.
    `ray` is entered after the checks of the job, so a job with nothing to do starts no Ray. With
    `own_only`, only output of this job may be replaced. `prices` are the prices of pods, if
    known."""

    job: BatchInference
    ray: RayContext
    publish: Publish
    stop: StopSignal
    own_only: bool = False
    prices: PodPrices | None = None
    say: Callable[[str], None] = lambda _: None
    layout: Layout | None = None
    """The layout of the job's main output; None for that of the spec."""
    page: str | None = field(default=None, init=False)
    """The address of the HTML page of the report, if the page could be written."""
    _reports: ReportBuilder = field(init=False)
    _finished: list[Report] = field(default_factory=list, init=False)
    """The reports of the outputs that this run has completed."""
    _pass: PreparedPass | None = field(default=None, init=False)
    """The pass in progress. The report of a failure is written to its output."""
    _exit_stack: ExitStack = field(default_factory=ExitStack, init=False)
    _plan: Plan | None = field(default=None, init=False)
    _faulty_nodes: tuple[str, ...] = field(default=(), init=False)
    """The nodes with devices that have failed in this run, which no output uses any more."""
    _end: PassEnd | None = field(default=None, init=False)
    """The end of `_pass`; None while it runs."""
    _notes: list[tuple[str, str]] = field(default_factory=list, init=False)
    """The notes of all finished passes at the current output."""

    @cached_property
    def _history(self) -> RunHistory:
        return RunHistory(self.job.spec)

    @cached_property
    def _layout(self) -> Layout:
        """The layout of the main output. The pass in progress may have another layout."""
        return self.layout or Layout.of(self.job.spec)

    def run(self) -> Report:
        """Run the job and return its final report. An error becomes the report of a failure."""
        secret_variables(self.job.spec)  # messages hide the secrets from now on
        with self._exit_stack:
            return self._run()

    def _run(self) -> Report:
        layout, read = self._layout, self.job.spec.read
        may_be_empty = isinstance(read, ReadFiles) and read.allow_empty
        self._reports = ReportBuilder(self.job.metadata.name, layout, may_be_empty)
        try:
            self._exit_stack.enter_context(only_run_in_process(layout))
            self._publish_first()
            targets = output_targets(self.job.spec, layout, has_changes(self.job.spec))
            reports = [self._run_output(target) for target in self._interruptible(targets)]
            return self._publish(self._finished.pop() if self._finished else reports[-1])
        except Exception as error:  # noqa: BLE001 - every error becomes a report
            return self._fail(self._with_crash_location(root_cause(error)))

    def _interruptible(self, targets: Iterator[OutputTarget]) -> Iterator[OutputTarget]:
        """Yield the outputs. A second signal also ends the listing of the input for an output."""
        while True:
            with self.stop.interrupting():
                target = next(targets, None)
            if target is None:
                return
            yield target

    def _run_output(self, target: OutputTarget) -> Report:
        """Run the job for one output, and return the final report without publishing it."""
        self.stop.check()
        self._pass = self._end = None
        self._notes.clear()
        self._reports.begin_output(target.layout)
        identity = identity_of(self.job)
        with self.stop.interrupting():
            run = prepare_pass(self.job.spec, target, identity, own_only=self.own_only)
        if isinstance(run, NothingToDo):
            if run.parts:
                return self._reports.of_nothing_new(run.parts, run.remark)
            return self._reports.of_complete_output(run.complete, run.remark)
        self._pass = run
        for remark in run.input.remarks if isinstance(run.input, FileInput) else ():
            self.say(f"{self.job.metadata.name}: {remark}")
        self._reports.begin_pass(run.job_pass.number)
        self._history.begin(run, merge_reports(self._finished, self._reports.build()))
        if self._plan is None:
            self.stop.check()  # Ray may take long to start
            with run.job_pass.keep_heartbeat():
                self._plan = self._exit_stack.enter_context(self.ray())
            self.stop.check()
        self._reports.begin_rows(run.count, run.start.counts, run.start.replaced_files)
        plan = replace(self._plan, faulty_nodes=self._faulty_nodes)
        self._finished.append(self._run_passes(run, plan))
        return self._finished[-1]

    def _run_passes(self, run: PreparedPass, plan: Plan) -> Report:
        """Run passes until no rows are missing, finalize the output, and return its report. Raises
        JobFailure if rows are missing after the last pass."""
        passes, search = Passes(), ReplicaSearch.of(plan, repeatable=run.input.repeatable)
        while True:
            plan = search.with_replicas(with_thresholds(plan, run.start.thresholds))
            with run.job_pass.keep_heartbeat():
                with self.stop.interrupting():  # rows of files without statistics are counted
                    first = limited_to_first_rows(self.job.spec, run)
                measured = None if first.is_sample else search.step
                pass_plan = without_suspected_nodes(plan, run.isolation.suspected_nodes)
                executor = Executor(self.job.spec, pass_plan, first, measured)
                end = with_findings(self.job.spec, run, self._run_pass(run, executor, search))
                self._reports.findings = end.snapshot.findings
                if not end.missing:
                    return self._finalize(run, end, executor)
                self.stop.check()
                deaths, losses = take_deaths(run.job_pass.lease.run), executor.control.losses
                self._reports.add_faults(losses)
                healthy = without_faulty_nodes(plan, losses)
                run = passes.begin_next(run, end, deaths, losses, excluded=healthy != plan)
            plan, self._faulty_nodes = healthy, healthy.faulty_nodes

    def _run_pass(self, run: PreparedPass, executor: Executor, search: ReplicaSearch) -> PassEnd:
        """Process the missing rows, close the pass, and return its end."""
        self._pass, self._end = run, None
        self._reports.begin_pass(run.job_pass.number)
        observe = partial(self._observe, run, executor)
        observe()
        failed = False
        if executor.has_rows:
            try:
                run_monitored(executor.run, executor.control, observe, self.stop)
            except JobFailure as failure:
                if not (failed := search.retries_with_fewer(failure)):
                    raise
        with self.stop.interrupting():
            self._end = end = run.close()
        if executor.control.measured_step and not failed:
            search.record(end.notes)
        retries = {"retries": len(executor.control.losses), "task": run.job_pass.number}
        self._add_notes([*end.notes, (WRITE_STEP, json.dumps(retries)), *search.take_notes()])
        return end

    def _add_notes(self, notes: Iterable[tuple[str, str]]) -> None:
        """Add the notes of the pass that has just ended to the report."""
        self._notes += notes
        self._reports.add_notes(collect_notes(self._notes), spilled_bytes())

    def _observe(self, run: PreparedPass, executor: Executor) -> None:
        """Update the progress and publish it. Raises TooManyErrors or LimitExceeded if a limit is
        exceeded. Raises BadOutput if another run has taken over the output."""
        try:
            run.job_pass.check_lease()
            counts = run.counts()
        except OSError:
            return  # a storage error may be transient; the next update tries again
        with suppress(OSError):
            self._reports.warnings = run.warnings(counts)
        self._reports.read(counts, executor.control.stage)
        self._reports.add_capacity(executor.capacity)
        self._publish(self._reports.build())
        check_errors(
            self.job.spec.errors, counts, run.count, run.bad_row, resumes=self.job.spec.resume
        )
        check_warnings(self.job.spec.errors, self._reports.warnings, counts, run.count)
        check_tokens(self.job.spec.cluster.limits, counts)

    def _final_files(self, run: PreparedPass, end: PassEnd, executor: Executor) -> Snapshot:
        """Rewrite the files of a pass without missing rows, and commit the rows to the table, if
        any. Return the final snapshot."""
        job_pass, write, snapshot = run.job_pass, self.job.spec.write, end.snapshot
        unified, listed = executor.rewrite_files(snapshot), end.files
        if unified.entries != snapshot.entries:
            job_pass.write_unified_snapshot(unified)
            listed = None  # list again: old files remain, and Ray may have run a rewrite twice
        snapshot = unified
        job_pass.remove_orphans(snapshot.entries, listed)
        files = (file for entry in snapshot.entries for file in entry.data)
        self._reports.output_bytes = sum(file.bytes for file in files)
        if run.table is not None and isinstance(write, WriteTable):
            placed = executor.place_files(run.table, snapshot)
            self._reports.about_table = run.table.remark(placed.schema)
            job_pass.commit_table(write, run.table, placed, snapshot, self._reports.build())
        return snapshot

    def _finalize(self, run: PreparedPass, end: PassEnd, executor: Executor) -> Report:
        """Complete the output of a pass without missing rows, and return the report."""
        job_pass, write = run.job_pass, self.job.spec.write
        self._reports.enter(JobState.FINALIZING)
        self._check_final(run, end.snapshot)
        with self.stop.interrupting():
            snapshot = self._final_files(run, end, executor)
        self._reports.cost = cost_so_far(self.prices)
        self._reports.enter(JobState.SUCCEEDED)
        report = self._reports.build()
        if write.id_column is not None:
            write_error_file(
                job_pass.layout,
                write.id_column,
                snapshot.entries,
                run.first_file,
                guard=job_pass.guard,
            )
        job_pass.mark_complete(snapshot, report)
        if job_pass.layout.is_replacement:
            # the report in the replacement is final, even if it cannot be swapped in
            self._pass = None
            layout = self._layout
            with self.stop.interrupting():
                swap_in_replacement(layout, identity_of(self.job))
        else:
            layout = job_pass.layout
        self._history.store(merge_reports(self._finished, report))
        runs = self._history.last_runs()
        self.page = write_page(layout, self.job.spec, report, snapshot.entries, runs)
        return report

    def _check_final(self, run: PreparedPass, snapshot: Snapshot) -> None:
        """Publish the final counts and warnings. Raises TooManyErrors if they exceed a limit."""
        # the counts of tasks do not include input rows that are split between tasks
        rows = snapshot.rows(len(run.input), run.input.rows_each)
        counts = snapshot.counts.model_copy(update={"read": rows})
        self._reports.finish(counts)
        self._reports.warnings = run.final_warnings(snapshot)
        self._publish(self._reports.build())
        example = partial(bad_row, run.job_pass.layout, snapshot.entries)
        total = RowCount(rows, estimated=False)
        check_errors(self.job.spec.errors, counts, total, example, resumes=self.job.spec.resume)
        check_warnings(self.job.spec.errors, self._reports.warnings, counts, total)

    def _fail(self, failure: JobFailure) -> Report:
        """Publish and return the report of a failure, and store it if a pass has begun."""
        run, entries = self._pass, self._end.snapshot.entries if self._end else []
        self._reports.add_faults([failure])
        with suppress(OSError, BadOutput):  # the failure may be that storage is unavailable
            if run is not None:
                run.job_pass.stop_commits()  # no task commits after the report
                self._reports.read(run.counts())
                if self._end is None:
                    manifests = run.job_pass.manifests()
                    entries = [entry for manifest in manifests for entry in manifest.entries]
                    self._add_notes(note for manifest in manifests for note in manifest.notes)
                    self._reports.warnings = run.final_warnings(run.start.with_commits(manifests))
        self._reports.cost = cost_so_far(self.prices)
        self._reports.enter(JobState.FAILED)
        report = self._reports.build(failure)
        published = self._publish(report)
        with suppress(OSError, BadOutput):
            if run is not None:
                run.job_pass.write_report(report)
                layout = run.job_pass.layout
                runs = self._history.last_runs()
                self.page = write_page(layout, self.job.spec, report, entries, runs)
        return published

    def _with_crash_location(self, failure: JobFailure) -> JobFailure:
        """Return the failure. If a process died, the message also names the step and the rows that
        it was computing, if they are known."""
        if self._pass is None or not isinstance(failure, OutOfMemory | WorkerCrashed):
            return failure
        run = self._pass.job_pass.lease.run
        notes = [note for death in deaths_of(run) or deaths_of(run, reading=True) for note in death]
        note = min(notes, key=lambda note: note.rows, default=None)
        if note is None:
            return failure
        (file, _), (first, last) = unpack_ids(np.array([note.first, note.last]))
        path = self._pass.paths[int(file)].as_py()
        activity = f"step '{note.step}' on rows {first} to {last} of {path}"
        if note.step == READ_STEP:
            activity = f"reading {path} from row {first} on"
        return type(failure)(f"{failure.message}. The process died in {activity}")

    def _publish_first(self) -> None:
        """Publish the first report, and ignore storage errors. Raises PermissionError, because
        later reports would also be refused."""
        try:
            self.publish(self._reports.build())
        except PermissionError:
            raise
        except OSError:
            return

    def _publish(self, report: Report) -> Report:
        """Merge a report with the reports of earlier outputs of this run. Publish the result and
        return it. An OSError during this does not fail the job."""
        merged = merge_reports(self._finished, report)
        self._history.store(merged)
        with suppress(OSError):
            self.publish(merged)
        return merged
