"""Chooses the outputs of a job, decides what the job does about each, and begins its first attempt.

An addition of new input files is a separate output inside the output of the work. It has its own
input snapshot, which lists only the new files, its own attempts and its own completion marker. A
replacement whose driver died at its very end is finished when it is looked at."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.changes import write_code
from batchinference.pipeline.commit.claim import Claim, discard_replaced, swap_in_replacement
from batchinference.pipeline.commit.decision import (
    Action,
    OutputReader,
    OutputState,
    Request,
    decide,
    has_failed_rows,
    load_state,
    storage_errors_as_bad_output,
)
from batchinference.pipeline.commit.heartbeat import ensure_not_running
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.lease import Lease, name_of
from batchinference.pipeline.commit.manifest import digest
from batchinference.pipeline.commit.retry_errors import without_failed
from batchinference.pipeline.commit.snapshot import Snapshot, StoredFiles
from batchinference.pipeline.commit.table_commit import CommittedTable
from batchinference.pipeline.errors import BadInput, BadOutput
from batchinference.pipeline.storage.location import Location
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.read import ReadFiles, ReadVersioned
from batchinference.spec.secrets import without_secrets

HasChanges = Callable[[Layout], bool]


@dataclass(frozen=True)
class OutputTarget:
    """An output that a run of a job writes, at `layout`. `others` are the other outputs of the same
    work. `complete` are the outputs of the work that are already complete. `reader` has found
    them. `recompute` is whether the rows of files that have changed or are gone are replaced."""

    layout: Layout
    others: tuple[Layout, ...] = ()
    complete: tuple[Layout, ...] = ()
    reader: OutputReader = field(default_factory=OutputReader, compare=False, repr=False)
    recompute: bool = False

    @property
    def processed(self) -> list[Location]:
        """The input snapshots of the other outputs, whose files are processed already. Empty if
        this output is complete, because it then has its own input snapshot."""
        others = () if self.layout in self.complete else self.others
        return [layout.input for layout in others if layout.input.exists()]

    @property
    def earlier(self) -> list[Location]:
        """The input snapshots of the outputs to which this one is an addition."""
        number = self.layout.addition_number
        earlier = [layout for layout in self.others if layout.addition_number < number]
        return [layout.input for layout in earlier if layout.input.exists()]

    def previous_versions(self, job: str) -> list[Layout]:
        """Return the outputs that a job has appended to the same path with a different spec. `job`
        is the identity of the job."""
        current = {self.layout.key, *(layout.key for layout in self.others)}
        whole = self.layout.whole
        return [
            output
            for output in (whole, *self.reader.appended(whole))
            if (lease := self.reader.lease(output)) is not None
            and lease.key not in current
            and name_of(lease.job) == name_of(job)
            and output.input.exists()
        ]


def plan_outputs(
    spec: BatchInferenceSpec, layout: Layout, has_changes: HasChanges = lambda _: False
) -> Iterator[OutputTarget]:
    """Yield the outputs that a run of a job writes, one after the other. `layout` is that of the
    job. Each one is determined after the previous ones are complete. Most runs have one output. If
    failed rows are retried, or the rows of changed files are replaced, the outputs are the first
    output and the additions that have such rows, followed by the addition for new files.
    `has_changes` returns whether a complete output has rows of changed files.

    Raises BadOutput if the state of the existing outputs cannot be determined."""
    if not isinstance(spec.read, ReadFiles | ReadVersioned) or spec.write.mode == "overwrite":
        reader = OutputReader()
        with storage_errors_as_bad_output(spec.write):
            first = _first_output(spec, layout, reader)
        yield OutputTarget(first, reader=reader)
        return
    reopened = 0
    resumes = _adds_new_files(spec) and spec.resume
    replaces = resumes and isinstance(spec.read, ReadFiles) and spec.read.replaces_rows is not None
    reopens = spec.errors.retry_failed_rows or replaces
    changed = has_changes if replaces else lambda _: False
    for target in _reopened_targets(spec, layout, changed) if reopens else ():
        reopened += 1
        yield target
    if not reopened or _adds_new_files(spec):
        with storage_errors_as_bad_output(spec.write):
            target = _next_target(spec, layout, OutputReader())
        yield target


def _adds_new_files(spec: BatchInferenceSpec) -> bool:
    # a job with a limit or a version is complete once it has its rows, and reads no new files
    read = spec.read
    limited = isinstance(read, ReadFiles | ReadVersioned) and read.options.limit is not None
    pinned = isinstance(read, ReadVersioned) and read.is_pinned
    return spec.write.adds and not limited and not pinned


def _first_output(spec: BatchInferenceSpec, layout: Layout, reader: OutputReader) -> Layout:
    """Return the output to which additions are made: the output of the work, in whichever mode it
    was begun."""
    places: tuple[Layout, ...] = (layout,)
    if spec.write.mode != "overwrite":
        places = (layout, layout.whole, layout.first_append)
    return next(filter(reader.is_of_work, places), layout)


def _was_complete(reader: OutputReader, layout: Layout) -> bool:
    """Return whether an output is complete, or was complete before a retry of its failed rows that
    has not finished."""
    return reader.is_of_work(layout) and (reader.has_marker(layout) or layout.end.exists())


def _reopened_targets(
    spec: BatchInferenceSpec, layout: Layout, has_changes: HasChanges
) -> Iterator[OutputTarget]:
    reader, retries = OutputReader(), spec.errors.retry_failed_rows
    with storage_errors_as_bad_output(spec.write):
        first = _first_output(spec, layout, reader)
        outputs = (first, *reader.additions(layout))
    for output in outputs:
        with storage_errors_as_bad_output(spec.write):
            complete = reader.is_complete(output)
            changed = complete and has_changes(output)
            failed = complete and retries and has_failed_rows(output)
            reopened = changed or failed or (not complete and _was_complete(reader, output))
            target = _target(layout, output, first, reader) if reopened else None
        if target is not None:
            yield replace(target, recompute=changed)
            reader = OutputReader()  # the run has changed the output


def _next_target(spec: BatchInferenceSpec, layout: Layout, reader: OutputReader) -> OutputTarget:
    """Return the unfinished or the next addition if new files are to be added; otherwise the first
    output."""
    first = _first_output(spec, layout, reader)
    target = _target(layout, first, first, reader)
    unfinished = [output for output in target.others if output not in target.complete]
    # without resume, an unfinished addition starts over, and no new addition is started
    if not (first in target.complete and _adds_new_files(spec) and (spec.resume or unfinished)):
        return target
    chosen = next(iter(unfinished), layout.addition(len(target.others) + 1))
    return _target(layout, chosen, first, reader)


def _target(layout: Layout, chosen: Layout, first: Layout, reader: OutputReader) -> OutputTarget:
    outputs = (first, *reader.additions(layout))
    complete = tuple(output for output in outputs if reader.is_complete(output))
    others = tuple(output for output in outputs if output != chosen)
    return OutputTarget(chosen, others, complete, reader)


@dataclass(frozen=True)
class OutputPlan:
    """The state of an output, and what the job does about it. `start` is the snapshot of the rows
    that count, and `files` are the files that were listed for it; None if the job starts over or
    does nothing."""

    state: OutputState
    action: Action
    start: Snapshot | None = None
    files: StoredFiles | None = None
    relisted: bool = False
    """Whether the input snapshot differs from the one that the output has stored."""

    def without_rows(self, source: str) -> OutputPlan:
        """Return what the job does if its rows cannot be resumed: it starts over. `source` is the
        format of its input.

        Raises BadInput if a retry of failed rows would start a complete output over."""
        layout, lease = self.state.layout, self.state.lease
        retried = layout.end.exists() and Snapshot.read(layout.end, layout.key).attempt
        if layout.success.exists() or (lease is not None and retried and retried < lease.attempt):
            raise BadInput(
                f"errors.retryFailedRows: read.format '{source}' cannot read only the failed rows, "
                "because it is unknown whether the source has changed. The output was not changed. "
                "Remove errors.retryFailedRows, or process all rows again with write.mode: "
                "overwrite"
            )
        return replace(self, action=Action.START_AGAIN, start=None, files=None)


def look_at_output(
    target: OutputTarget, request: Request, table: CommittedTable | None
) -> OutputPlan:
    """Return what a job does about its output.

    Raises BadOutput if the job must not change the output, and BadOutput if another run is
    writing to it, or if its state is damaged."""
    reader, ended = target.reader, set[Lease | None]()
    while True:
        state, action = _decide(target.layout, request, table, reader)
        if action is Action.ALREADY_COMPLETE and table is not None:
            _delete_staged(state)
        if not action.begins:
            return OutputPlan(state, action)
        with storage_errors_as_bad_output(request.write):
            if not _has_waited(state, request, reader, ended):
                return _with_rows(state, action, request, table)
        reader = OutputReader()  # another run may have changed the output meanwhile


def _with_rows(
    state: OutputState, action: Action, request: Request, table: CommittedTable | None
) -> OutputPlan:
    """Return what a job does about its output, with the rows that count if it uses them."""
    if state.changed_code:  # read again: an earlier run may have committed its first rows
        decide(load_state(state.layout, request, table), request)
    if action.starts or state.lease is None:
        return OutputPlan(state, action)
    start, files = Attempt(state.layout, state.lease).load_committed_files()
    if state.complete:
        start = replace(start, recomputed=[], removed=[])
    if action is Action.RETRY_FAILED:
        start = without_failed(start, state.layout.errors)
    return OutputPlan(state, action, start, files)


def _delete_staged(state: OutputState) -> None:
    """Delete the staged files that the driver of a complete table has left. Those of a run that has
    begun since are kept."""
    if state.lease is not None:
        attempt = Attempt(state.layout, state.lease)
        with suppress(BadOutput, OSError):
            attempt.check_lease()
            attempt.delete_staged()


def _decide(
    layout: Layout, request: Request, table: CommittedTable | None, reader: OutputReader
) -> tuple[OutputState, Action]:
    """Return the state of the output, and what the job does about it. Raises BadOutput like
    `decide`."""
    state = load_state(layout, request, table, reader)
    action = decide(state, request)
    with storage_errors_as_bad_output(request.write):
        if action is Action.FINISH_REPLACEMENT:
            swap_in_replacement(layout, request.job)
            request = replace(request, continues=True)
        elif action is Action.REPLACE:
            discard_replaced(layout)
            layout = layout.replacement
        else:
            return state, action
    return _decide(layout, request, table, OutputReader())  # the output has changed


def _has_waited(
    state: OutputState, request: Request, reader: OutputReader, ended: set[Lease | None]
) -> bool:
    """Return whether the job has waited for the heartbeat of another run. Then what `reader` has
    found is old. Runs without a heartbeat are added to `ended`, and not awaited again.

    Raises BadOutput if another run writes to the output, or writes rows that this job would
    delete, or if it replaces the output, so that it would delete the rows of this job."""
    layout = state.layout
    others = reader.appended(layout.whole) if request.write.mode == "overwrite" else []
    if not layout.is_replacement:
        others = [*others, layout.replacement]
    for place in [layout, *others]:
        lease = state.lease if place is layout else reader.lease(place)
        if lease not in ended and ensure_not_running(place, lease, request.job):
            ended.add(lease)
            return True
    return False


def begin_attempt(
    spec: BatchInferenceSpec, plan: OutputPlan, request: Request, serialized: Callable[[], bytes]
) -> tuple[Attempt, Snapshot]:
    """Claim the output if it starts over, and begin the next attempt. Return the attempt, and the
    snapshot of the rows that count. `serialized` returns the input snapshot.

    Raises BadOutput if another run has begun in the output."""
    layout, lease, start = plan.state.layout, plan.state.lease, plan.start
    starts_over, changed_input = start is None or lease is None, None
    if start is None or lease is None:
        series = lease.series if lease is not None and plan.action is Action.START_AGAIN else ""
        overwrite = request.write.mode == "overwrite"
        lease = Claim(layout, lease, overwrite, request.job, series).put()
        content = serialized()
        layout.input.write(content)
        start = Snapshot(layout.key, digest(content))
    elif plan.relisted:
        changed_input = serialized()
        start = replace(start, input=digest(changed_input))
    # users fix the code before they retry failed rows
    reopens = plan.action in (Action.RETRY_FAILED, Action.RECOMPUTE)
    if starts_over or reopens or not layout.code.exists():
        write_code(layout.code, request.code)
    layout.spec.write(json.dumps(without_secrets(spec), indent=2).encode())
    return Attempt.begin(layout, lease, start, request.job, plan.files, changed_input), start
