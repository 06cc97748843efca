"""Looks at the output of a job, decides what the job does about it, and begins its first attempt.

A replacement whose driver died at its very end is finished when it is looked at."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from batchinference.pipeline.commit.append import OutputTarget
from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.claim import Claim, discard_replaced, publish
from batchinference.pipeline.commit.code_hashes import write_code
from batchinference.pipeline.commit.decision import (
    Action,
    AlreadyComplete,
    FinishReplacement,
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
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.lease import Lease, ensure_not_running
from batchinference.pipeline.commit.manifest import digest
from batchinference.pipeline.commit.output_reader import OutputReader
from batchinference.pipeline.commit.retry_errors import without_failed
from batchinference.pipeline.commit.snapshot import Snapshot, StoredFiles
from batchinference.pipeline.commit.table_commit import CommittedTable
from batchinference.pipeline.errors import BadInput, BadOutput
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.secrets import without_secrets


@dataclass(frozen=True)
class OutputPlan:
    """The state of an output, and what the job does about it. `start` is the snapshot of the rows
    that count, and `files` are the files that were listed for it; None if the job starts over or
    does nothing."""

    state: OutputState
    action: Action
    start: Snapshot | None = None
    files: StoredFiles | None = None

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
        start_over = Start(lease.series if lease is not None else "")
        return replace(self, action=start_over, start=None, files=None)


def look_at_output(
    target: OutputTarget, request: Request, table: CommittedTable | None
) -> OutputPlan:
    """Return what a job does about its output.

    Raises BadOutput if the job must not change the output, and BadOutput if another run is
    writing to it, or if its state is damaged."""
    reader, ended = target.reader, set[Lease | None]()
    while True:
        state, action = _decide(target.layout, request, table, reader)
        if isinstance(action, AlreadyComplete) and table is not None:
            _delete_staged(state)
        if not isinstance(action, Start | Resume | RetryFailed):
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
    if isinstance(action, Start) or state.lease is None:
        return OutputPlan(state, action)
    start, files = Attempt(state.layout, state.lease).load_committed_files()
    if isinstance(action, RetryFailed):
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
        if isinstance(action, FinishReplacement):
            publish(layout, request.job)
            request = replace(request, continues=True)
        elif isinstance(action, Replace):
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
    starts_over = start is None or lease is None
    if start is None or lease is None:
        series = plan.action.series if isinstance(plan.action, Start) else ""
        overwrite = request.write.mode == "overwrite"
        lease = Claim(layout, lease, overwrite, request.job, series).put()
        content = serialized()
        layout.input.write(content)
        start = Snapshot(layout.key, digest(content))
    # users fix the code before they retry failed rows
    if starts_over or isinstance(plan.action, RetryFailed) or not layout.code.exists():
        write_code(layout.code, request.code)
    layout.spec.write(json.dumps(without_secrets(spec), indent=2).encode())
    return Attempt.begin(layout, lease, start, request.job, plan.files), start
