"""Begins the first attempt of a job at an output, unless there is nothing to do.

A job that cannot succeed is refused before rows are read and before the output is changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.attempt_plan import AttemptPlan, begin_attempt, plan_attempt
from batchinference.pipeline.commit.changed_input_files import without_input_files
from batchinference.pipeline.commit.lease import Lease, is_cluster_job
from batchinference.pipeline.commit.output_paths import Layout, work_of
from batchinference.pipeline.commit.output_state import (
    CachedReader,
    Request,
    storage_errors_as_bad_output,
)
from batchinference.pipeline.commit.output_targets import OutputTarget
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.commit.start_or_resume import Action, restart_advice
from batchinference.pipeline.errors import BadInput, BadOutput
from batchinference.pipeline.execution.attempt_run import AttemptRun
from batchinference.pipeline.input import NO_ENDS, JobInput
from batchinference.pipeline.input.changed_files import (
    NoNewFiles,
    check_previous_versions,
    describe_changes,
)
from batchinference.pipeline.input.file_input import FileInput, known_columns, open_at_output
from batchinference.pipeline.input.planning import sizing_of
from batchinference.pipeline.output.file_split import FileSplit
from batchinference.pipeline.output.tables import Table, table_or_none
from batchinference.pipeline.output.writers import rewriting_writer_for
from batchinference.pipeline.report.stored_report import finished_report
from batchinference.pipeline.row_batch import MissingRows
from batchinference.pipeline.schema import shape_of
from batchinference.pipeline.steps import check_step
from batchinference.pipeline.steps.code_hashes import code_of
from batchinference.pipeline.steps.column_checks import code_problems, type_problems
from batchinference.pipeline.steps.schema_inference import columns_after_all
from batchinference.pipeline.storage.arrow_files import read_table
from batchinference.pipeline.storage.location import Location
from batchinference.plan.column_checks import check_columns, partition_problems
from batchinference.spec.addresses import fix_of_variable, is_windows_path, unexpanded_variable
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.read import Read, ReadFiles, ReadVersioned


@dataclass(frozen=True)
class NothingToDo:
    """The output with the layout `complete` is complete. `remark` says which part of the input is
    not in it. If the job would only add new files, and there are none, `parts` are all outputs of
    the work, to which they would be added."""

    complete: Layout
    remark: str = ""
    parts: Sequence[Layout] = ()


def prepare(
    spec: BatchInferenceSpec, target: OutputTarget, job: str = "", *, own_only: bool = False
) -> AttemptRun | NothingToDo:
    """Check the job, begin its first attempt at an output, and return the attempt. `job` is the
    identity of the job. With `own_only`, only output of this job is replaced. Raises BadOutput if
    the job must not change the output."""
    check_job(spec, target.layout)
    request, table = request_of(spec, job, own_only=own_only), table_or_none(spec.write)
    request = replace(request, recompute=target.recompute)
    plan = plan_attempt(target, request, table)
    if plan.action is Action.FINISH_TABLE_COMMIT and plan.state.lease is not None:
        _complete(spec, target.layout, plan.state.lease)
        plan = plan_attempt(replace(target, reader=CachedReader()), request, table)
    try:
        source = _open_input(spec, target, plan, job)
    except NoNewFiles as remark:
        return NothingToDo(target.complete[0], str(remark), target.complete)
    if plan.action is Action.ALREADY_COMPLETE:
        complete = plan.state.layout
        parts = target.complete or [complete]
        if spec.write.mode == "addColumn":  # its commit has changed the input
            return NothingToDo(complete)
        restart = restart_advice(command=not is_cluster_job(job))
        return NothingToDo(complete, describe_changes(source, parts, restart))
    plan = _with_changes(plan, source, spec.read.format)
    _open_table(table, spec, source)
    count = source.count(plan.start.ends if plan.start else NO_ENDS)
    merged = table is not None or rewriting_writer_for(spec.write) is not None
    sizing = sizing_of(source, spec.read, count, merged=merged)
    with storage_errors_as_bad_output(spec.write):
        missing = _missing_rows(source, plan.start)
        attempt, start = begin_attempt(spec, plan, request, source.serialized)
        first_file = _first_file_number(spec, target)
    kind = _kind_of(plan, spec, target.layout)
    return AttemptRun(source, count, sizing, attempt, start, missing, table, first_file, kind=kind)


_KINDS = {Action.RETRY_FAILED: "retry", Action.RECOMPUTE: "recompute", Action.RESUME: "resume"}


def _kind_of(plan: AttemptPlan, spec: BatchInferenceSpec, layout: Layout) -> str:
    """Return what a run does with the output, as the history names it (`RunRecord.kinds`)."""
    if kind := _KINDS.get(plan.action):
        return kind
    if plan.state.layout.is_replacement or plan.state.complete:
        return "overwrite"
    if layout.addition_number:
        return "append"
    again = "start" if plan.state.lease is None else "restart"
    return spec.write.mode if spec.write.adds and again == "start" else again


def _with_changes(plan: AttemptPlan, source: JobInput, kind: str) -> AttemptPlan:
    """Return the plan without rows that cannot be resumed from a source of this kind, and without
    the rows of files that have changed or are gone."""
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
    """Complete an output whose driver with this lease died after the commit of its table."""
    with storage_errors_as_bad_output(spec.write):
        end = Snapshot.read(layout.final_snapshot, layout.key)
        Attempt(layout, lease).mark_complete(end, finished_report(layout, end))


def check_job(spec: BatchInferenceSpec, layout: Layout) -> None:
    """Raise ModelLoad or BadInput if a model or code of a step does not exist, and BadOutput if the
    job must not write to the paths of its output. Nothing is loaded."""
    for step in spec.steps:
        check_step(step)
    check_errors_path(layout)
    check_caches(spec, layout)
    check_paths(spec.read, layout)


def check_paths(read: Read, layout: Layout) -> None:
    """Raise BadOutput if an output path holds a path of the input: advice about the content of the
    output, such as to append to it, would be wrong then. Also if it has a variable of a shell, so
    that a directory with its name would be created."""
    variable = unexpanded_variable(layout.output.uri) if layout.output.local else ""
    if variable and not layout.output.exists():
        raise BadOutput(
            f"spec.write.path: '{layout.output.uri}' has the variable {variable}, which is not "
            f"expanded. {fix_of_variable(variable)}"
        )
    if layout.output.local and is_windows_path(layout.output.uri):
        raise BadOutput(
            f"spec.write.path: '{layout.output.uri}' is a path of Windows. Write a path with '/'"
        )
    if not isinstance(read, ReadFiles | ReadVersioned):
        return
    for path in read.locations.values():
        source = Location(path, read.storage)
        for place in (layout.output, layout.errors):
            is_same = source.path.rstrip("/") == place.path.rstrip("/")
            if place.holds(source) or (is_same and source.in_store_of(place)):
                raise BadOutput(
                    f"'{place.uri}' is an output path and contains the input '{source.uri}'. "
                    "Choose another write.path or errors.path"
                )


def check_errors_path(layout: Layout) -> None:
    """Raise BadOutput if readers of the output would read error records as output. Readers skip
    names that begin with an underscore or a dot."""
    output, errors = layout.output, layout.errors
    place, within = output.path.rstrip("/") + "/", f"{errors.path}/"
    if not (within.startswith(place) and errors.in_store_of(output)):
        return
    if not any(part.startswith(("_", ".")) for part in within.removeprefix(place).split("/")):
        raise BadOutput(
            f"spec.errors.path: '{errors.uri}' is below write.path '{output.uri}', so readers "
            "would read error records as output. Choose another errors.path, or remove the field"
        )


def check_caches(spec: BatchInferenceSpec, layout: Layout) -> None:
    """Raise BadOutput if a cache is in the output, where readers would find its files."""
    for cache in filter(None, (step.cache for step in spec.steps)):
        if layout.output.holds(Location(cache.path, cache.storage) / "file"):
            raise BadOutput(
                f"spec.steps.cache.path: '{cache.path}' is in write.path '{layout.output.uri}'. "
                "Choose another path"
            )


def _open_table(table: Table | None, spec: BatchInferenceSpec, source: JobInput) -> None:
    """Raise BadOutput if a table cannot take the rows, as far as their columns are known before
    they are computed."""
    if table is not None:
        columns = columns_after_all(spec.steps, known_columns(source))
        names = FileSplit.of(spec.write).written(columns.names)
        table.open(pa.schema(map(columns.field, names)))


def request_of(spec: BatchInferenceSpec, job: str, *, own_only: bool = False) -> Request:
    """Return what a job requests of its output. The hashes of its code are computed."""
    code, work = code_of(spec), work_of(spec)
    retry = spec.errors.retry_failed_rows
    return Request(spec.write, spec.resume, retry, job, code, work, own_only=own_only)


def _open_input(
    spec: BatchInferenceSpec, target: OutputTarget, plan: AttemptPlan, job: str
) -> JobInput:
    """Return the input of the job, which suits its steps and its output.

    Raises BadInput and BadOutput if it does not, and NoNewFiles."""
    source = open_at_output(spec, target, plan)
    check_input(spec, source, target.layout)
    if spec.write.mode == "append":
        with storage_errors_as_bad_output(spec.write):
            check_previous_versions(source, target.previous_versions(job))
    return source


def check_input(spec: BatchInferenceSpec, source: JobInput, layout: Layout) -> None:
    """Raise BadOutput if an input file is in an output path, where attempts remove files, and
    BadInput if a step reads a column that does not exist or has an unsuitable type, or if the job
    does not accept that files are ignored."""
    for place in (layout.output, layout.errors) if spec.write.mode != "addColumn" else ():
        if (inside := source.path_inside(place)) is not None:
            raise BadOutput(
                f"'{place.uri}' is an output path and contains an input file ({inside}). Choose "
                "another write.path or errors.path"
            )
    source.ignored.check(spec.errors.warnings)
    for field in () if source.repeatable else spec.first_rows_columns:
        raise BadInput(
            f"spec.{field}: rows of {spec.read.format} may differ each time that they are read, so "
            "that no rows can be computed first. Remove the field, or read files"
        )
    columns = source.columns()
    problems = [*check_columns(spec, columns), *code_problems(spec.steps, columns)]
    if not problems:
        problems = list(
            type_problems(spec.steps, source.types())
            if isinstance(source, FileInput)
            else type_problems(spec.steps, {})
        )
    if not problems:
        types = {
            field.name: shape_of(field.type)
            for field in columns_after_all(spec.steps, known_columns(source))
        }
        problems = list(partition_problems(spec.write, types))
    if problems:
        raise BadInput("; ".join(map(str, problems)))


def _missing_rows(source: JobInput, start: Snapshot | None) -> MissingRows | None:
    """Return the rows of the input that are not committed; None if none of its rows is."""
    if start is None and len(source):
        return None
    return start.missing_rows(len(source), source.rows_each) if start else {}


def _first_file_number(spec: BatchInferenceSpec, target: OutputTarget) -> int:
    """Return the number of input files of earlier appends, from which row numbers continue."""
    if spec.write.number_column is None:
        return 0
    return sum(read_table(pa.BufferReader(file.read())).num_rows for file in target.earlier)
