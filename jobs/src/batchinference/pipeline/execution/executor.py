"""Runs one pass of a job on Ray: as a single segment if possible, or else as several segments with
Ray Data. This depends on the plan, the input and the output."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

import ray

from batchinference.pipeline.commit.committer import Committer
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.commit.table_commit import TableFiles, table_errors_as_bad_output
from batchinference.pipeline.execution.chunk_commits import CommitRules
from batchinference.pipeline.execution.commit_tasks import CommitTask, CommitTasks
from batchinference.pipeline.execution.crash_isolation import Isolation
from batchinference.pipeline.execution.crash_notes import ReadNotes, deaths_of
from batchinference.pipeline.execution.execution_control import ExecutionControl
from batchinference.pipeline.execution.length_sorting import WindowLimits, columns_of_first_model
from batchinference.pipeline.execution.prepared_pass import PreparedPass
from batchinference.pipeline.execution.row_files import committer_for
from batchinference.pipeline.execution.segment import Segment
from batchinference.pipeline.execution.step_runner import ErrorHandling
from batchinference.pipeline.execution.task_resources import (
    all_cpus,
    capacity_of,
    commit_task_arguments,
    tasks_at_once,
    write_task_arguments,
)
from batchinference.pipeline.execution.task_sizing import (
    FULL_FILES,
    LARGE_TASK_ROWS,
    number_of_tasks,
    small_commit_seconds,
)
from batchinference.pipeline.execution.worker_stop import StopRequest
from batchinference.pipeline.input import ReadRows
from batchinference.pipeline.input.file_input import known_columns
from batchinference.pipeline.input.planning import Sizing
from batchinference.pipeline.output.empty_output import with_columns, without_empty_files
from batchinference.pipeline.output.file_rewrites import (
    MERGED_BYTES,
    fit_in_driver,
    rewrites,
    size_of,
    without_removed,
)
from batchinference.pipeline.output.file_split import FileSplit
from batchinference.pipeline.output.tables import Table, schema_of_all, schema_without_rows
from batchinference.pipeline.output.tables.keys import store_keys
from batchinference.pipeline.output.writers.kinds import rewriting_writer_for, writer_for
from batchinference.pipeline.steps.schema_inference import columns_after_all
from batchinference.plan import Plan
from batchinference.plan.stages import TASK_CPUS
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.report import Capacity
from batchinference.spec.secrets import secret_variables

if TYPE_CHECKING:
    from batchinference.pipeline.execution.dataset import DatasetExecution

Result = TypeVar("Result")


class Executor:
    """Runs one pass: processes the missing input rows, and rewrites files of the output."""

    def __init__(
        self,
        spec: BatchInferenceSpec,
        plan: Plan,
        prepared: PreparedPass,
        measured_step: str | None = None,
    ) -> None:
        """`measured_step` is the step whose replicas per device this pass measures, if any."""
        self._spec, self._plan, self._prepared = spec, plan, prepared
        self.control = ExecutionControl(
            recovers=prepared.input.repeatable,
            has_commits=lambda: prepared.job_pass.counts().read > 0,
            has_deaths=lambda: bool(deaths_of(self._run_id)),
            stop=lambda: StopRequest(self._run_id).send(),
            measured_step=measured_step,
            measured_seconds=plan.measured_seconds,
        )

    @property
    def has_rows(self) -> bool:
        """Whether rows are missing."""
        return self._prepared.missing != {}

    def run(self) -> None:
        """Run the pass to its end. A pass without actor pools is a single segment. There are two
        exceptions: few tasks can read but all CPUs should compute, or tasks share output files.
        Then rows must move between tasks."""
        prepared = self._prepared
        share = prepared.share
        sizing = prepared.sizing.of_part(share)
        single = self._plan.single_segment
        wanted = self._number_of_tasks(sizing, share) if single else sizing.read_tasks
        tasks = prepared.input.read_tasks(wanted, prepared.missing, ReadNotes(self._run_id))
        # with too few parts of the input, the steps must not run in the tasks that read
        needed = min(wanted, sizing.blocks) if single else sizing.blocks
        enough = 2 * len(tasks) > needed and not self._spec.read.options.override_num_blocks
        divided = enough or prepared.input.divisible(self._at_once)
        if single and divided and self._fills_files(len(tasks), share):
            self._commit_tasks(tasks).run()
        else:
            blocks = len(tasks) if enough else sizing.blocks
            windows = self._window_limits(share)
            self._dataset(tasks, blocks, windows, reads_run_steps=enough).run()

    def _fills_files(self, tasks: int, share: float) -> bool:
        """Return whether `tasks` tasks fill nearly all their files with `rowsPerFile` rows; True
        without this setting. If False, Ray Data collects rows of several tasks for each file."""
        per_file, count = self._layout.rows_per_file, self._prepared.count
        if per_file is None:
            return True
        return count is not None and share * count.rows >= FULL_FILES * per_file * tasks

    def _number_of_tasks(self, sizing: Sizing, share: float) -> int:
        """Return the number of tasks of a single segment. Tasks should have many rows if output
        files are never merged. The same is true if the first model may read texts, which are sorted
        in windows."""
        read, job_input, count = self._spec.read, self._prepared.input, self._prepared.count
        if count is None or read.options.override_num_blocks:
            return sizing.blocks
        texts = read.HAS_TEXTS and columns_of_first_model(self._spec.steps)
        divisible = job_input.divisible(self._at_once)
        parts = None if divisible else math.ceil(share * len(job_input))
        large = max(LARGE_TASK_ROWS, FULL_FILES * (self._layout.rows_per_file or 0))
        return number_of_tasks(
            sizing.blocks,
            share * count.rows,
            self._at_once,
            parts,
            merged=self._merges,
            large_rows=large if texts or not self._merges else None,
        )

    @property
    def _merges(self) -> bool:
        """Whether small files are merged at the end of the job. False if the format does not allow
        this, or if the spec or the table determines how rows are divided into files."""
        table, layout = self._prepared.table, self._layout
        mergeable = table is not None or self._spec.write.MERGES_FILES
        partitions = table.file_partitions if table else layout.partition_by
        return mergeable and not (layout.rows_per_file or partitions)

    @cached_property
    def _layout(self) -> FileSplit:
        return FileSplit.of(self._spec.write)

    @cached_property
    def _at_once(self) -> float:
        """The number of tasks of a single segment that the CPUs can run at the same time."""
        return all_cpus(self._plan) / self._plan.task_cpus

    def _commit_tasks(self, tasks: list[ReadRows]) -> CommitTasks:
        prepared, plan, control = self._prepared, self._plan, self.control
        segment = Segment.of_job(plan, self._errors, self._run_id, self._isolation)
        stop, committer = StopRequest(self._run_id), self._committer
        commit_tasks = [
            CommitTask(number, task, segment, committer, self._rules, stop)
            for number, task in enumerate(tasks)
        ]
        arguments = commit_task_arguments(plan, repeatable=prepared.input.repeatable)
        at_once = partial(tasks_at_once, plan)
        control.stage = ", ".join(["read", *(s.name for s in plan.stages), "write"])
        return CommitTasks(commit_tasks, arguments, at_once, control)

    @property
    def _run_id(self) -> str:
        return self._prepared.job_pass.lease.run

    @property
    def _isolation(self) -> Isolation:
        """The isolation of this pass. It may leave rows that killed processes to other nodes. The
        next pass must be able to read these rows, and this pass must avoid the nodes of earlier
        deaths."""
        prepared, unused = self._prepared, frozenset(self._plan.faulty_nodes)
        avoided = prepared.isolation.suspected_nodes <= unused
        others = bool(self._plan.groups) and prepared.input.repeatable and avoided
        return replace(prepared.isolation, unused=unused if others else None)

    @property
    def _rules(self) -> CommitRules:
        per_file = self._layout.rows_per_file or 0
        enough = max(self._prepared.sizing.rows_per_file, per_file)
        return CommitRules(enough, small_commit_seconds(merged=self._merges), per_file)

    @property
    def _committer(self) -> Committer:
        write, prepared = self._spec.write, self._prepared
        writer = prepared.table or writer_for(write)
        job_pass, first_file = prepared.job_pass, prepared.first_file
        by_file = bool(self._spec.read.replaces_rows and rewriting_writer_for(write))
        return committer_for(write, job_pass, writer, self._errors, first_file, by_file=by_file)

    def _window_limits(self, share: float) -> WindowLimits | None:
        """Return the limits of windows of texts; None if the number of rows is unknown."""
        job_input, count = self._prepared.input, self._prepared.count
        if count is None:
            return None
        size = self._spec.read.row_bytes(job_input.size, count.rows)
        return WindowLimits(int(share * count.rows), size)

    def _dataset(
        self,
        tasks: list[ReadRows],
        blocks: int,
        windows: WindowLimits | None,
        *,
        reads_run_steps: bool,
    ) -> DatasetExecution:
        # imported here, because importing Ray Data takes long, and a single segment needs none
        from batchinference.pipeline.execution.dataset import DatasetExecution

        prepared = self._prepared
        return DatasetExecution(
            self._plan,
            tasks,
            blocks,
            prepared.input.repeatable,
            self._errors,
            self._committer,
            self._rules,
            self.control,
            windows,
            reads_run_steps=reads_run_steps,
            isolation=self._isolation,
        )

    @property
    def _errors(self) -> ErrorHandling:
        errors = self._spec.errors
        return ErrorHandling(
            errors.tolerant,
            self._prepared.job_pass.layout.input,
            errors.values,
            errors.failing_warnings,
            errors.max_rows,
            secret_variables(self._spec),
            self._spec.write.id_column,
            input_digest=self._prepared.start.input,
        )

    def rewrite_files(self, end: Snapshot) -> Snapshot:
        """Rewrite the files of a finished output, and return the new snapshot. An output without
        rows gets a file with its columns. Otherwise, all files get the same column types, and small
        files of this pass are merged if `_merges` is true."""
        write, job_pass = self._spec.write, self._prepared.job_pass
        end = self._without_removed(end)
        if not end.has_rows:
            return self._with_columns(end)
        end = without_empty_files(end)
        table = self._prepared.table
        writer = table.parquet if table else rewriting_writer_for(write)
        if writer is None:
            return end
        earlier = {file.name for entry in self._prepared.start.entries for file in entry.data}
        names = {file.name for entry in end.entries for file in entry.data}
        mergeable = names - earlier if self._merges else set()
        functions, entries = rewrites(job_pass, end.entries, writer, mergeable)
        rewritten = self._results(functions, in_tasks=not fit_in_driver(functions))
        return replace(end, entries=[*entries, *itertools.chain.from_iterable(rewritten)])

    def _without_removed(self, end: Snapshot) -> Snapshot:
        """Remove rows of changed or deleted input files. Return the new snapshot."""
        stale = [entry for entry in end.entries if entry.removed]
        writer = rewriting_writer_for(self._spec.write) if stale else None
        if writer is None:
            return end
        job_pass = self._prepared.job_pass
        functions = [partial(without_removed, job_pass, entry, writer) for entry in stale]
        in_tasks = sum(map(size_of, stale)) > MERGED_BYTES
        unchanged = [entry for entry in end.entries if not entry.removed]
        return replace(end, entries=[*unchanged, *self._results(functions, in_tasks=in_tasks)])

    def _with_columns(self, end: Snapshot) -> Snapshot:
        """Return the new snapshot of an output without rows. May write a file with its columns."""
        steps, columns = self._spec.steps, known_columns(self._prepared.input)
        planned = columns_after_all(steps, columns)
        guessed = columns_after_all(steps, columns, code_keeps_columns=True)
        return with_columns(self._prepared.job_pass, end, self._spec.write, planned, guessed)

    def place_files(self, table: Table, end: Snapshot) -> TableFiles:
        """Put the rows of a finished output into files of its table, and return these files."""
        data, entries = self._prepared.job_pass.layout.data, [e for e in end.entries if e.data]
        if not entries:
            return TableFiles(schema_without_rows(end.empty_schemas), [])
        schema = schema_of_all(data, entries)
        with table_errors_as_bad_output():
            table.find_data_location()
        files = [file for entry in entries for file in entry.data]
        keys = store_keys(table, self._prepared.job_pass, files)
        functions = [partial(table.stage, data, file, schema) for file in files]
        in_tasks = sum(file.bytes for file in files) > MERGED_BYTES
        origin = getattr(self._prepared.input, "origin", None)
        return TableFiles(schema, self._results(functions, in_tasks=in_tasks), keys, origin)

    def _results(
        self, functions: Sequence[Callable[[], Result]], *, in_tasks: bool
    ) -> list[Result]:
        """Call functions, in this process or in Ray tasks. Return their results in order."""
        if not in_tasks:
            return [function() for function in functions]
        arguments = write_task_arguments(self._plan)
        if not self._plan.groups:  # write tasks need less than a CPU, so too many would run
            arguments["num_cpus"] = TASK_CPUS
        task: Any = ray.remote(**arguments)(_run)
        results: list[Result] = ray.get([task.remote(function) for function in functions])
        return results

    @property
    def capacity(self) -> Capacity | None:
        """The resources that Ray has now; None if unknown."""
        return capacity_of(self._plan)


def _run(function: Callable[[], Result]) -> Result:
    return function()
