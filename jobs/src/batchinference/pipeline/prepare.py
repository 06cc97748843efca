"""Begins the first attempt of a job at an output, unless there is nothing to do.

A job that cannot succeed is refused before rows are read and before the output is changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from batchinference.pipeline.commit.append import OutputTarget, previous_versions_of
from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.claim import Claim, discard_replaced, publish
from batchinference.pipeline.commit.code_hashes import write_code
from batchinference.pipeline.commit.decision import (
    Action,
    AlreadyComplete,
    FinishReplacement,
    FinishTableCommit,
    OutputState,
    Replace,
    Request,
    Resume,
    RetryFailed,
    Start,
    decide,
    load_state,
    storage_errors_as_bad_output,
)
from batchinference.pipeline.commit.layout import Layout, work_of
from batchinference.pipeline.commit.lease import ensure_not_running, read_lease
from batchinference.pipeline.commit.retry_errors import without_failed
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.errors import BadInput, BadOutput
from batchinference.pipeline.execution.attempt_run import AttemptRun
from batchinference.pipeline.input import NOTHING, JobInput
from batchinference.pipeline.input.files import FileInput, known_columns, open_input
from batchinference.pipeline.input.planning import sizing_of
from batchinference.pipeline.input.snapshot import (
    STATS,
    NoNewFiles,
    ProcessedFiles,
    ResumedInput,
    digest,
    read_snapshot,
)
from batchinference.pipeline.output.file_layout import FileLayout
from batchinference.pipeline.output.tables import Table, table_of
from batchinference.pipeline.output.writers import rewriting_writer_for
from batchinference.pipeline.report.stored import finished_report
from batchinference.pipeline.row_batch import MissingRows
from batchinference.pipeline.steps import check_step
from batchinference.pipeline.steps.code_identity import code_of
from batchinference.pipeline.steps.no_rows import columns_after_all
from batchinference.pipeline.steps.type_check import type_problems
from batchinference.pipeline.storage.arrow_files import read_table
from batchinference.pipeline.storage.location import Location
from batchinference.plan.columns import check_columns
from batchinference.spec.addresses import unexpanded_variable
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.read import Read, ReadFiles
from batchinference.spec.secrets import without_secrets
from batchinference.spec.write import Write, WriteOrdered

PARTS_AT_ONCE = 10_000
"""Parts of an input that are Python objects at the same time."""


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
    identity of the job. With `own_only`, only output of this job is replaced. Raises OutputInUse if
    the job must not change the output."""
    table = table_of(spec.write)
    for step in spec.steps:
        check_step(step)
    check_errors_path(target.layout)
    check_paths(spec.read, target.layout)
    request = request_of(spec, job, own_only=own_only)
    state, action = _decide(target.layout, request, table)
    start = _load_committed(request, state, action, table)
    try:
        source = _open_input(spec, target, state.layout, start)
    except NoNewFiles as remark:
        return NothingToDo(target.complete[0], str(remark), target.complete)
    check_input(spec, source, target.layout)
    _check_previous_versions(spec, source, job)
    if isinstance(action, AlreadyComplete):
        changes = _describe_changes(source, target.complete or [action.layout])
        return NothingToDo(action.layout, changes)
    if start is not None and not source.continues(start.input):
        _check_may_start_over(spec, state)
        start = None
    _open_table(table, spec, source)
    count = source.count(start.ends if start else NOTHING)
    merged = table is not None or rewriting_writer_for(spec.write) is not None
    sizing = sizing_of(source, spec.read, count, merged=merged)
    with storage_errors_as_bad_output(spec.write):
        missing = _missing_rows(source, start)
        attempt, start = _begin(spec, state, action, start, source, request)
        first_file = _first_file_number(spec, target)
    return AttemptRun(source, count, sizing, attempt, start, missing, table, first_file)


def _open_table(table: Table | None, spec: BatchInferenceSpec, source: JobInput) -> None:
    """Raise BadOutput if a table cannot take the rows, as far as their columns are known before
    they are computed."""
    if table is not None:
        columns = columns_after_all(spec.steps, known_columns(source))
        names = FileLayout.of(spec.write).written(columns.names)
        table.open(pa.schema(map(columns.field, names)))


def request_of(spec: BatchInferenceSpec, job: str, *, own_only: bool = False) -> Request:
    """Return what a job requests of its output. The hashes of its code are computed."""
    code, work = code_of(spec), work_of(spec)
    retry = spec.errors.retry
    return Request(spec.write, spec.resume, retry, job, code, work, own_only=own_only)


def _missing_rows(source: JobInput, start: Snapshot | None) -> MissingRows | None:
    """Return the rows of the input that are not committed; None if none of its rows is."""
    if start is None and len(source):
        return None
    return start.missing_rows(len(source), source.rows_each) if start else {}


def _first_file_number(spec: BatchInferenceSpec, target: OutputTarget) -> int:
    """Return the number of input files of earlier appends, from which row numbers continue."""
    if not (isinstance(spec.write, WriteOrdered) and spec.write.row_number):
        return 0
    return sum(read_table(pa.BufferReader(file.read())).num_rows for file in target.earlier)


def _decide(layout: Layout, request: Request, table: Table | None) -> tuple[OutputState, Action]:
    """Return the state of the output, and what the job does about it. Raises BadOutput like
    `decide`."""
    state = load_state(layout, request, table)
    action = decide(state, request)
    if isinstance(action, FinishTableCommit) and state.lease is not None:
        with storage_errors_as_bad_output(request.write):
            end = Snapshot.read(layout.end, layout.key)
            Attempt(layout, state.lease).complete(end, finished_report(layout, end))
        return _decide(layout, request, table)
    if isinstance(action, FinishReplacement):
        with storage_errors_as_bad_output(request.write):
            publish(layout, request.job)
        return _decide(layout, replace(request, continues=True), table)
    if isinstance(action, Replace):
        with storage_errors_as_bad_output(request.write):
            discard_replaced(layout)
        return _decide(layout.replacement, request, table)
    return state, action


def _load_committed(
    request: Request, state: OutputState, action: Action, table: Table | None
) -> Snapshot | None:
    """Return the snapshot of the rows that count; None if the job starts over or does nothing.

    Raises BadOutput if another run is writing to the output, or if the snapshot is damaged."""
    if not isinstance(action, Start | Resume | RetryFailed):
        return None
    layout, lease = state.layout, state.lease
    with storage_errors_as_bad_output(request.write):
        ensure_not_running(layout, lease, request.job)
        _check_replacement(layout, request.write, request.job)
        if state.changed_code:  # an earlier run may have committed its first rows meanwhile
            decide(load_state(layout, request, table), request)
        if isinstance(action, Start) or lease is None:
            return None
        committed = Attempt(layout, lease).load_committed()
        retries = isinstance(action, RetryFailed)
        return without_failed(committed, layout.errors) if retries else committed


def _check_replacement(layout: Layout, write: Write, job: str) -> None:
    """Raise BadOutput if another run writes rows that this job would delete, or if it replaces the
    output, so that it would delete the rows of this job."""
    others = layout.whole.appended() if write.mode == "overwrite" else []
    if not layout.is_replacement:
        others.append(layout.replacement)
    for other in others:
        ensure_not_running(other, read_lease(other), job)


def _open_input(
    spec: BatchInferenceSpec, target: OutputTarget, layout: Layout, start: Snapshot | None
) -> JobInput:
    """Return the input of the job, with the files of the output to resume."""
    earlier = _earlier_input(spec, target, layout, start)
    return open_input(spec.read, earlier, spec.errors.failing_warnings)


def _earlier_input(
    spec: BatchInferenceSpec, target: OutputTarget, layout: Layout, start: Snapshot | None
) -> ResumedInput | ProcessedFiles | None:
    """Return the input snapshot of the output to resume, or the files whose rows are in other
    outputs of the work; None if all files are read."""
    if not isinstance(spec.read, ReadFiles):
        return None
    storage = spec.read.storage
    if start is None:
        processed = [read_snapshot(place, storage) for place in target.processed]
        return ProcessedFiles(processed) if processed else None
    frozen = read_snapshot(layout.input, storage, start.input)
    return ResumedInput(frozen, lambda rows_each: start.missing_rows(len(frozen), rows_each))


def _begin(
    spec: BatchInferenceSpec,
    state: OutputState,
    action: Action,
    start: Snapshot | None,
    source: JobInput,
    request: Request,
) -> tuple[Attempt, Snapshot]:
    """Claim the output if it starts over, and begin the next attempt. Return the attempt, and
    the snapshot of the rows that count."""
    layout, lease = state.layout, state.lease
    starts_over = start is None or lease is None
    if start is None or lease is None:
        series = action.series if isinstance(action, Start) else ""
        overwrite = spec.write.mode == "overwrite"
        lease = Claim(layout, lease, overwrite, request.job, series).put()
        content = source.serialized()
        layout.input.write(content)
        start = Snapshot(layout.key, digest(content))
    # users fix the code before they retry failed rows
    if starts_over or isinstance(action, RetryFailed) or not layout.code.exists():
        write_code(layout.code, request.code)
    layout.spec.write(json.dumps(without_secrets(spec), indent=2).encode())
    return Attempt.begin(layout, lease, start, request.job), start


def _check_may_start_over(spec: BatchInferenceSpec, state: OutputState) -> None:
    """Raise BadInput if a retry of failed rows would start a complete output over."""
    layout, lease = state.layout, state.lease
    retried = layout.end.exists() and Snapshot.read(layout.end, layout.key).attempt
    if layout.success.exists() or (lease is not None and retried and retried < lease.attempt):
        raise BadInput(
            f"errors.retry: read.format '{spec.read.format}' cannot read only the failed rows, "
            "because it is unknown whether the source has changed. The output was not changed. "
            "Remove errors.retry, or process all rows again with write.mode: overwrite"
        )


def _describe_changes(source: JobInput, complete: Sequence[Layout]) -> str:
    """Return a remark if the input differs from the input of the complete output, else empty."""
    contents = [layout.input.read() for layout in complete if layout.input.exists()]
    if not contents:
        return ""
    try:
        before = np.unique(np.concatenate([_hashes_of_parts(content) for content in contents]))
    except pa.ArrowInvalid:
        return "its input.parquet is damaged, so it is unknown whether the input has changed"
    now = np.unique(_hashes_of_parts(source.serialized()))
    if np.array_equal(before, now):
        return ""
    return (
        f"the input has changed since ({len(before)} parts then, {len(now)} now), and its new "
        "rows are not in the output. Set write.mode to append to add the rows of new files"
    )


def _parts(content: bytes) -> Iterator[tuple[object, ...]]:
    """Yield the identity of each part of an input: its values, without statistics."""
    table = read_table(pa.BufferReader(content))
    table = table.drop_columns([name for name in STATS.names if name in table.column_names])
    for batch in table.to_batches(max_chunksize=PARTS_AT_ONCE):
        yield from zip(*batch.to_pydict().values(), strict=True)


def _hashes_of_parts(content: bytes) -> np.ndarray:
    """Return a hash of each part of an input, because millions of parts take gigabytes."""
    return np.fromiter(map(hash, _parts(content)), np.int64)


def _check_previous_versions(spec: BatchInferenceSpec, source: JobInput, job: str) -> None:
    """Raise BadOutput if this job, before its spec changed, added rows of the same files."""
    with storage_errors_as_bad_output(spec.write):
        previous = [(other, other.input.read()) for other in previous_versions_of(spec, job)]
    paths = {part[0] for part in _parts(source.serialized())} if previous else set()
    for other, content in previous:
        known = (part[0] for part in _parts(content))
        if (path := next((path for path in known if path in paths), None)) is not None:
            raise BadOutput(
                f"spec.write.path: '{other.output.uri}' holds rows of '{path}' by this job as it "
                "was before its spec changed. Choose another path, set write.mode to overwrite, or "
                "give the job another metadata.name to have both"
            )


def check_paths(read: Read, layout: Layout) -> None:
    """Raise BadOutput if an output path holds a path of the input: advice about the content of the
    output, such as to append to it, would be wrong then. Also if it has a variable of a shell, so
    that a directory with its name would be created."""
    variable = unexpanded_variable(layout.output.uri) if layout.output.local else ""
    if variable and not layout.output.exists():
        raise BadOutput(
            f"spec.write.path: '{layout.output.uri}' has the variable {variable}, and variables "
            "are not expanded. Begin the path with ~, or use a parameter of the job"
        )
    if not isinstance(read, ReadFiles):
        return
    for path in read.paths:
        source = Location(path, read.storage)
        for place in (layout.output, layout.errors):
            is_same = source.path.rstrip("/") == place.path.rstrip("/")
            if place.holds(source) or (is_same and source.in_store_of(place)):
                raise BadOutput(
                    f"'{place.uri}' is an output path and contains the input '{source.uri}'. "
                    "Choose another write.path or errors.path"
                )


def check_input(spec: BatchInferenceSpec, source: JobInput, layout: Layout) -> None:
    """Raise BadOutput if an input file is in an output path, where attempts remove files, and
    BadInput if a step reads a column that does not exist or has an unsuitable type, or if the job
    does not accept that files are ignored."""
    for place in (layout.output, layout.errors):
        if (inside := source.below(place)) is not None:
            raise BadOutput(
                f"'{place.uri}' is an output path and contains an input file ({inside}). Choose "
                "another write.path or errors.path"
            )
    source.ignored.check(spec.errors.warnings)
    problems = list(check_columns(spec, source.columns()))
    if not problems:
        problems = list(
            type_problems(spec.steps, source.types(), source.why_text)
            if isinstance(source, FileInput)
            else type_problems(spec.steps, {})
        )
    if problems:
        raise BadInput("; ".join(map(str, problems)))


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
