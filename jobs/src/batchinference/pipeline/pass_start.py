"""Checks a job, and begins its first pass at an output if there is something to do. A pass computes
the rows that are not committed. All checks come before it reads rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from batchinference.pipeline.commit.changed_input_files import without_input_files
from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.pipeline.commit.lease import Lease, is_cluster_job
from batchinference.pipeline.commit.output_paths import Layout, work_of
from batchinference.pipeline.commit.output_state import (
    CachedReader,
    Request,
    storage_errors_as_bad_output,
)
from batchinference.pipeline.commit.output_targets import OutputTarget
from batchinference.pipeline.commit.pass_plan import PassPlan, begin_pass, plan_pass
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.commit.start_or_resume import Action, restart_advice
from batchinference.pipeline.execution.prepared_pass import PreparedPass
from batchinference.pipeline.input import NO_ENDS, JobInput
from batchinference.pipeline.input.changed_files import (
    NoNewFiles,
    check_previous_versions,
    describe_changes,
)
from batchinference.pipeline.input.file_input import FileInput, known_columns, open_at_output
from batchinference.pipeline.input.planning import sizing_of
from batchinference.pipeline.job_checks import check_input, check_job
from batchinference.pipeline.output.file_split import FileSplit
from batchinference.pipeline.output.tables import Table
from batchinference.pipeline.output.tables.kinds import table_or_none
from batchinference.pipeline.output.writers.kinds import rewriting_writer_for
from batchinference.pipeline.report.stored_report import finished_report
from batchinference.pipeline.row_batch import MissingRows
from batchinference.pipeline.steps.code_hashes import code_of
from batchinference.pipeline.steps.schema_inference import columns_after_all
from batchinference.pipeline.storage.arrow_files import read_table
from batchinference.spec.job import BatchInferenceSpec


@dataclass(frozen=True)
class NothingToDo:
    """The output with the layout `complete` is complete, so there is nothing to do. `remark` says
    that no input files are new, or which changes of the input are not in the output. `parts` are
    all complete outputs of a job that appends new files, if there are no new files."""

    complete: Layout
    remark: str = ""
    parts: Sequence[Layout] = ()


def prepare_pass(
    spec: BatchInferenceSpec, target: OutputTarget, job: str = "", *, own_only: bool = False
) -> PreparedPass | NothingToDo:
    """Check the job, and begin its first pass at an output. Return the pass, or NothingToDo. Raises
    ModelLoad, BadInput or BadOutput if a check fails. `job` is the identity of the job. With
    `own_only`, only output of this job may be replaced."""
    check_job(spec, target.layout)
    request, table = request_of(spec, job, own_only=own_only), table_or_none(spec.write)
    request = replace(request, recompute=target.recompute)
    plan = plan_pass(target, request, table)
    if plan.action is Action.FINISH_TABLE_COMMIT and plan.state.lease is not None:
        _complete(spec, target.layout, plan.state.lease)
        request = replace(request, has_completed=True)
        plan = plan_pass(replace(target, reader=CachedReader()), request, table)
    try:
        source = _open_input(spec, target, plan, job)
    except NoNewFiles as remark:
        return NothingToDo(target.complete[0], str(remark), target.complete)
    if plan.action is Action.ALREADY_COMPLETE:
        return _already_complete(spec, source, target, plan.state.layout, job)
    plan = _with_changes(plan, source, spec.read.format)
    _open_table(table, spec, source)
    count = source.count(plan.start.ends if plan.start else NO_ENDS)
    merged = table is not None or rewriting_writer_for(spec.write) is not None
    sizing = sizing_of(source, spec.read, count, merged=merged)
    with storage_errors_as_bad_output(spec.write):
        missing, first_file = _missing_rows(source, plan.start), _first_file_number(spec, target)
        job_pass, start = begin_pass(spec, plan, request, source.serialized)
    kind = _kind_of(plan, spec, target.layout)
    return PreparedPass(
        source, count, sizing, job_pass, start, missing, table, first_file, kind=kind
    )


def _already_complete(
    spec: BatchInferenceSpec, source: JobInput, target: OutputTarget, complete: Layout, job: str
) -> NothingToDo:
    """Return NothingToDo for a complete output, with a remark if its input has changed since."""
    if spec.write.mode == "addColumn":  # the input is the table that the job itself changed
        return NothingToDo(complete)
    restart = restart_advice(command=not is_cluster_job(job))
    return NothingToDo(complete, describe_changes(source, target.complete or [complete], restart))


_KINDS = {Action.RETRY_FAILED: "retry", Action.RECOMPUTE: "recompute", Action.RESUME: "resume"}


def _kind_of(plan: PassPlan, spec: BatchInferenceSpec, layout: Layout) -> str:
    """Return what a run does with the output, as a word of the run history (`RunRecord.kinds`)."""
    if kind := _KINDS.get(plan.action):
        return kind
    if plan.state.layout.is_replacement or plan.state.complete:
        return "overwrite"
    if layout.addition_number:
        return "append"
    again = "start" if plan.state.lease is None else "restart"
    return spec.write.mode if spec.write.adds and again == "start" else again


def _with_changes(plan: PassPlan, source: JobInput, kind: str) -> PassPlan:
    """Return the plan without the committed rows of input files that were changed or removed. The
    plan starts over if the committed rows have other IDs than the rows of this source."""
    if plan.start is not None and not source.has_ids_of(plan.start.input):
        plan = plan.restarted(kind)
    if plan.start is None or not isinstance(source, FileInput):
        return plan
    changes = source.changes
    start = (
        without_input_files(plan.start, changes.changed, changes.removed) if changes else plan.start
    )
    return replace(plan, start=start, relisted=changes.relisted)


def _complete(spec: BatchInferenceSpec, layout: Layout, lease: Lease) -> None:
    """Complete an output whose table is committed. The driver with `lease` died afterwards."""
    with storage_errors_as_bad_output(spec.write):
        end = Snapshot.read(layout.final_snapshot, layout.key)
        JobPass(layout, lease).mark_complete(end, finished_report(layout, end))


def _open_table(table: Table | None, spec: BatchInferenceSpec, source: JobInput) -> None:
    """Read an existing table. Raises BadOutput if the known columns of the rows do not fit it."""
    if table is not None:
        columns = columns_after_all(spec.steps, known_columns(source))
        names = FileSplit.of(spec.write).names_in_files(columns.names)
        table.open(pa.schema(map(columns.field, names)))


def request_of(spec: BatchInferenceSpec, job: str, *, own_only: bool = False) -> Request:
    """Return what a job wants from its output, with the hashes of its code."""
    code, work = code_of(spec), work_of(spec)
    retry = spec.errors.retry_failed_rows
    return Request(spec.write, spec.resume, retry, job, code, work, own_only=own_only)


def _open_input(
    spec: BatchInferenceSpec, target: OutputTarget, plan: PassPlan, job: str
) -> JobInput:
    """Return the input of the job, checked against the steps and the output. Raises BadInput or
    BadOutput if a check fails, and NoNewFiles if there is nothing to append."""
    source = open_at_output(spec, target, plan)
    check_input(spec, source, target.layout)
    if spec.write.mode == "append":
        with storage_errors_as_bad_output(spec.write):
            check_previous_versions(source, target.previous_versions(job))
    return source


def _missing_rows(source: JobInput, start: Snapshot | None) -> MissingRows | None:
    """Return the input rows that are not committed; None for all rows of the input."""
    if start is None and len(source):
        return None
    return start.missing_rows(len(source), source.rows_each) if start else {}


def _first_file_number(spec: BatchInferenceSpec, target: OutputTarget) -> int:
    """Return the number of input files of earlier appends; 0 if rows get no row numbers."""
    if spec.write.number_column is None:
        return 0
    return sum(read_table(pa.BufferReader(file.read())).num_rows for file in target.earlier)
