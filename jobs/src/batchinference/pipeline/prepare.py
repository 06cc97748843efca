"""Checks a job, and begins its first attempt at an output unless there is nothing to do.

A job that cannot succeed is refused before its output is changed and before rows are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.decision import (
    Action,
    OutputReader,
    Request,
    restart_of,
    storage_errors_as_bad_output,
)
from batchinference.pipeline.commit.layout import Layout, work_of
from batchinference.pipeline.commit.lease import Lease, is_resource
from batchinference.pipeline.commit.output_plan import (
    OutputPlan,
    OutputTarget,
    begin_attempt,
    look_at_output,
)
from batchinference.pipeline.commit.removed_files import without_files
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.errors import BadInput, BadOutput
from batchinference.pipeline.execution.attempt_run import AttemptRun
from batchinference.pipeline.input import NOTHING, JobInput
from batchinference.pipeline.input.files import FileInput, known_columns, open_at_output
from batchinference.pipeline.input.planning import sizing_of
from batchinference.pipeline.input.snapshot import (
    NoNewFiles,
    check_previous_versions,
    describe_changes,
)
from batchinference.pipeline.output.file_layout import FileLayout
from batchinference.pipeline.output.tables import Table, table_of
from batchinference.pipeline.output.writers import rewriting_writer_for
from batchinference.pipeline.report.stored import finished_report
from batchinference.pipeline.row_batch import MissingRows
from batchinference.pipeline.schema import shape_of
from batchinference.pipeline.steps import check_step
from batchinference.pipeline.steps.code_identity import code_of
from batchinference.pipeline.steps.no_rows import columns_after_all
from batchinference.pipeline.steps.type_check import code_problems, type_problems
from batchinference.pipeline.storage.arrow_files import read_table
from batchinference.pipeline.storage.location import Location
from batchinference.plan.columns import check_columns, partition_problems
from batchinference.spec.addresses import fix_of_variable, is_windows_path, unexpanded_variable
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.read import Read, ReadFiles, ReadVersioned


@dataclass(frozen=True)
class NothingToDo:
    """There is nothing to do, because the output with the layout `complete` is complete. `remark`
    says which part of the input is not in the output. If the job would only append new files, and
    there are none, `parts` are all outputs of the job."""

    complete: Layout
    remark: str = ""
    parts: Sequence[Layout] = ()


def prepare(
    spec: BatchInferenceSpec, target: OutputTarget, job: str = "", *, own_only: bool = False
) -> AttemptRun | NothingToDo:
    """Check the job and begin its first attempt at an output, and return the attempt. `job` is the
    identity of the job. With `own_only`, only output of this job may be replaced. Raises BadOutput
    if the job must not change the output."""
    check_job(spec, target.layout)
    request, table = request_of(spec, job, own_only=own_only), table_of(spec.write)
    request = replace(request, recompute=target.recompute)
    plan = look_at_output(target, request, table)
    if plan.action is Action.FINISH_TABLE_COMMIT and plan.state.lease is not None:
        _complete(spec, target.layout, plan.state.lease)
        plan = look_at_output(replace(target, reader=OutputReader()), request, table)
    try:
        source = _open_input(spec, target, plan, job)
    except NoNewFiles as remark:
        return NothingToDo(target.complete[0], str(remark), target.complete)
    if plan.action is Action.ALREADY_COMPLETE:
        complete = plan.state.layout
        parts = target.complete or [complete]
        if spec.write.mode == "addColumn":  # the commit of the table has changed the input
            return NothingToDo(complete)
        restart = restart_of(command=not is_resource(job))
        return NothingToDo(complete, describe_changes(source, parts, restart))
    plan = _with_changes(plan, source, spec.read.format)
    _open_table(table, spec, source)
    count = source.count(plan.start.ends if plan.start else NOTHING)
    merged = table is not None or rewriting_writer_for(spec.write) is not None
    sizing = sizing_of(source, spec.read, count, merged=merged)
    with storage_errors_as_bad_output(spec.write):
        missing = _missing_rows(source, plan.start)
        attempt, start = begin_attempt(spec, plan, request, source.serialized)
        first_file = _first_file_number(spec, target)
    kind = _kind_of(plan, spec, target.layout)
    return AttemptRun(source, count, sizing, attempt, start, missing, table, first_file, kind=kind)


_KINDS = {Action.RETRY_FAILED: "retry", Action.RECOMPUTE: "recompute", Action.RESUME: "resume"}


def _kind_of(plan: OutputPlan, spec: BatchInferenceSpec, layout: Layout) -> str:
    """Return what a run does with the output, as a word of the run history (`RunRecord.kinds`)."""
    if kind := _KINDS.get(plan.action):
        return kind
    if plan.state.layout.is_replacement or plan.state.complete:
        return "overwrite"
    if layout.addition_number:
        return "append"
    again = "start" if plan.state.lease is None else "restart"
    return spec.write.mode if spec.write.adds and again == "start" else again


def _with_changes(plan: OutputPlan, source: JobInput, kind: str) -> OutputPlan:
    """Return the plan without committed rows that this source cannot continue, and without the rows
    of input files that were changed or removed."""
    if plan.start is not None and not source.continues(plan.start.input):
        plan = plan.without_rows(kind)
    if plan.start is None or not isinstance(source, FileInput):
        return plan
    changes = source.changes
    start = without_files(plan.start, changes.changed, changes.removed) if changes else plan.start
    return replace(plan, start=start, relisted=changes.relisted)


def _complete(spec: BatchInferenceSpec, layout: Layout, lease: Lease) -> None:
    """Complete an output whose driver, which had this lease, died after the commit of its table."""
    with storage_errors_as_bad_output(spec.write):
        end = Snapshot.read(layout.end, layout.key)
        Attempt(layout, lease).complete(end, finished_report(layout, end))


def check_job(spec: BatchInferenceSpec, layout: Layout) -> None:
    """Raise ModelLoad or BadInput if the model or code of a step does not exist, and BadOutput if
    the job must not write to its output paths. Nothing is loaded."""
    for step in spec.steps:
        check_step(step)
    check_errors_path(layout)
    check_caches(spec, layout)
    check_paths(spec.read, layout)


def check_paths(read: Read, layout: Layout) -> None:
    """Raise BadOutput if an output path contains a path of the input, an unexpanded shell variable
    or a Windows path. Must come before checks of existing content, whose advice would be wrong."""
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
        for target in (layout.output, layout.errors):
            is_same = source.path.rstrip("/") == target.path.rstrip("/")
            if target.holds(source) or (is_same and source.in_store_of(target)):
                raise BadOutput(
                    f"'{target.uri}' is an output path and contains the input '{source.uri}'. "
                    "Choose another write.path or errors.path"
                )


def check_errors_path(layout: Layout) -> None:
    """Raise BadOutput if readers of the output would read the error records as output. Readers skip
    names that begin with an underscore or a dot."""
    output, errors = layout.output, layout.errors
    parent, child = output.path.rstrip("/") + "/", f"{errors.path}/"
    if not (child.startswith(parent) and errors.in_store_of(output)):
        return
    if not any(part.startswith(("_", ".")) for part in child.removeprefix(parent).split("/")):
        raise BadOutput(
            f"spec.errors.path: '{errors.uri}' is below write.path '{output.uri}', so readers "
            "would read error records as output. Choose another errors.path, or remove the field"
        )


def check_caches(spec: BatchInferenceSpec, layout: Layout) -> None:
    """Raise BadOutput if a cache is inside the output, where readers would find its files."""
    for cache in filter(None, (step.cache for step in spec.steps)):
        if layout.output.holds(Location(cache.path, cache.storage) / "file"):
            raise BadOutput(
                f"spec.steps.cache.path: '{cache.path}' is in write.path '{layout.output.uri}'. "
                "Choose another path"
            )


def _open_table(table: Table | None, spec: BatchInferenceSpec, source: JobInput) -> None:
    """Raise BadOutput if a table cannot take the rows, as far as their columns are known by now."""
    if table is not None:
        columns = columns_after_all(spec.steps, known_columns(source))
        names = FileLayout.of(spec.write).written(columns.names)
        table.open(pa.schema(map(columns.field, names)))


def request_of(spec: BatchInferenceSpec, job: str, *, own_only: bool = False) -> Request:
    """Return what a job requests of its output, including the hashes of its code."""
    code, work = code_of(spec), work_of(spec)
    retry = spec.errors.retry_failed_rows
    return Request(spec.write, spec.resume, retry, job, code, work, own_only=own_only)


def _open_input(
    spec: BatchInferenceSpec, target: OutputTarget, plan: OutputPlan, job: str
) -> JobInput:
    """Return the input of the job after checks against the steps and the output.

    Raises BadInput, BadOutput, and NoNewFiles if there is nothing to append."""
    source = open_at_output(spec, target, plan)
    check_input(spec, source, target.layout)
    if spec.write.mode == "append":
        with storage_errors_as_bad_output(spec.write):
            check_previous_versions(source, target.previous_versions(job))
    return source


def check_input(spec: BatchInferenceSpec, source: JobInput, layout: Layout) -> None:
    """Raise BadOutput if an input file is in an output path, where attempts remove files. Raise
    BadInput if a step reads a missing or unsuitable column, if the first rows must be computed
    first but can differ in each read, or if the job does not accept that files are ignored."""
    for target in (layout.output, layout.errors) if spec.write.mode != "addColumn" else ():
        if (inside := source.below(target)) is not None:
            raise BadOutput(
                f"'{target.uri}' is an output path and contains an input file ({inside}). Choose "
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
        types = source.types() if isinstance(source, FileInput) else {}
        problems = list(type_problems(spec.steps, types))
    if not problems:
        written = columns_after_all(spec.steps, known_columns(source))
        shapes = {field.name: shape_of(field.type) for field in written}
        problems = list(partition_problems(spec.write, shapes))
    if problems:
        raise BadInput("; ".join(map(str, problems)))


def _missing_rows(source: JobInput, start: Snapshot | None) -> MissingRows | None:
    """Return the input rows that are not committed; None for all rows of the input."""
    if start is None and len(source):
        return None
    return start.missing_rows(len(source), source.rows_each) if start else {}


def _first_file_number(spec: BatchInferenceSpec, target: OutputTarget) -> int:
    """Return the number of input files of earlier appends, with which row numbers continue."""
    if spec.write.number_column is None:
        return 0
    return sum(read_table(pa.BufferReader(file.read())).num_rows for file in target.earlier)
