"""Plans the first pass of a run at an output, and begins this pass.

The plan says what the job does with the output (`start_or_resume`), and from which snapshot."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from batchinference.pipeline.commit.code_and_spec_changes import serialized_code
from batchinference.pipeline.commit.heartbeat import ensure_not_running
from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.pipeline.commit.lease import Lease, guard_of
from batchinference.pipeline.commit.manifest import digest
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.commit.output_state import (
    CachedReader,
    OutputState,
    Request,
    load_state,
    storage_errors_as_bad_output,
)
from batchinference.pipeline.commit.output_targets import OutputTarget
from batchinference.pipeline.commit.replacement import delete_old_replacement, swap_in_replacement
from batchinference.pipeline.commit.retry_failed_rows import without_failed_rows
from batchinference.pipeline.commit.snapshot import ListedFiles, Snapshot
from batchinference.pipeline.commit.start_or_resume import Action, decide
from batchinference.pipeline.commit.start_over import Claim
from batchinference.pipeline.commit.table_commit import CommittedTable
from batchinference.pipeline.errors import BadInput, BadOutput
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.secrets import without_secrets


@dataclass(frozen=True)
class PassPlan:
    """What a job does with an output in this state."""

    state: OutputState
    action: Action
    start: Snapshot | None = None
    """The snapshot of the rows that remain valid. None if the job starts over or does nothing."""
    files: ListedFiles | None = None
    """The listing of files that `start` is based on."""
    relisted: bool = False
    """Whether the input snapshot of the job differs from the stored one."""

    def restarted(self, source: str) -> PassPlan:
        """Return the plan to start over, because an input of the format `source` cannot be resumed.
        Raises BadInput if failed rows of a complete output should be retried."""
        layout, lease = self.state.layout, self.state.lease
        final = layout.final_snapshot
        retried = final.exists() and Snapshot.read(final, layout.key).pass_number
        if layout.success.exists() or (lease and retried and retried < lease.pass_number):
            raise BadInput(
                f"errors.retryFailedRows: read.format '{source}' cannot read only the failed rows, "
                "because it is unknown whether the source has changed. The output was not changed. "
                "Remove errors.retryFailedRows, or process all rows again with write.mode: "
                "overwrite"
            )
        return replace(self, action=Action.START_IN_SERIES, start=None, files=None)


def plan_pass(target: OutputTarget, request: Request, table: CommittedTable | None) -> PassPlan:
    """Return what a job does with an output. If necessary, first swap in a complete replacement,
    and wait for a heartbeat of another run. Raises BadOutput if the job must not change the output,
    another run is writing to the output, or the state is damaged."""
    reader, ended = target.reader, set[Lease | None]()
    while True:
        state, action = _decide(target.layout, request, table, reader)
        if action is Action.ALREADY_COMPLETE and table is not None and state.lease is not None:
            with suppress(BadOutput, OSError):  # another run may have begun since
                JobPass(state.layout, state.lease).delete_staged_files()
        if not action.begins_pass:
            return PassPlan(state, action)
        with storage_errors_as_bad_output(request.write):
            if not _has_waited(state, request, reader, ended):
                return _with_rows(state, action, request, table)
        reader = CachedReader()  # another run may have changed the output meanwhile


def _with_rows(
    state: OutputState, action: Action, request: Request, table: CommittedTable | None
) -> PassPlan:
    """Return the plan for an action that begins a pass, with the rows that remain valid."""
    if state.code_change:  # decide again: another run may have committed its first rows
        decide(load_state(state.layout, request, table), request)
    if action.discards_rows or state.lease is None:
        return PassPlan(state, action)
    start, files = JobPass(state.layout, state.lease).load_committed_files()
    if state.complete:
        start = replace(start, recomputed=[], removed=[])
    if action is Action.RETRY_FAILED:
        start = without_failed_rows(start, state.layout.errors)
    return PassPlan(state, action, start, files)


def _decide(
    layout: Layout, request: Request, table: CommittedTable | None, reader: CachedReader
) -> tuple[OutputState, Action]:
    """Return the state of the output to write, and what the job does with it. First swap in a
    complete replacement, if there is one. Raises BadOutput like `decide`."""
    state = load_state(layout, request, table, reader)
    action = decide(state, request)
    with storage_errors_as_bad_output(request.write):
        if action is Action.FINISH_REPLACEMENT:
            swap_in_replacement(layout, request.job)
            request = replace(request, has_completed=True)
        elif action is Action.REPLACE:
            delete_old_replacement(layout)
            layout = layout.replacement
        else:
            return state, action
    return _decide(layout, request, table, CachedReader())  # the cache is out of date


def _has_waited(
    state: OutputState, request: Request, reader: CachedReader, ended: set[Lease | None]
) -> bool:
    """Return whether the job has waited for the heartbeat of another run. Then `reader` may be out
    of date. The lease of the other run is added to `ended`: the job does not wait for it again.
    Raises BadOutput if another run writes to the output or to its replacement, or appends rows that
    this job would delete."""
    layout = state.layout
    others = reader.all_appended(layout.main) if request.write.mode == "overwrite" else []
    if not layout.is_replacement:
        others = [*others, layout.replacement]
    for output in [layout, *others]:
        lease = state.lease if output is layout else reader.lease(output)
        if lease not in ended and ensure_not_running(output, lease, request.job):
            ended.add(lease)
            return True
    return False


def begin_pass(
    spec: BatchInferenceSpec, plan: PassPlan, request: Request, serialized: Callable[[], bytes]
) -> tuple[JobPass, Snapshot]:
    """Begin the next pass, after a claim of the output if the job starts over. Return the pass, and
    the snapshot of the rows that remain valid. `serialized` returns the input snapshot. Raises
    BadOutput if another run has begun in the output."""
    layout, lease, start = plan.state.layout, plan.state.lease, plan.start
    code = serialized_code(request.code)
    state = {"code": code, "spec": json.dumps(without_secrets(spec), indent=2).encode()}
    if start is None or lease is None:
        # keep the heartbeat of the claim: to store the snapshot of a large input may take long
        with _claim_of(plan, request).lease_of_cleared_output() as claim:
            content = serialized()
            for name, value in {"input": content, **state}.items():
                getattr(layout, name).write_if(guard_of(layout, claim), value)
            start = Snapshot(layout.key, digest(content))
            return JobPass.begin(layout, claim, start, request.job, plan.files), start
    # replace the hashes of the code, because users normally correct the code before a retry
    changed = {
        name: content
        for name, content in state.items()
        if getattr(layout, name).read_if_exists() != content
    }
    if plan.relisted:
        changed["input"] = serialized()
        start = replace(start, input=digest(changed["input"]))
    return JobPass.begin(layout, lease, start, request.job, plan.files, changed), start


def _claim_of(plan: PassPlan, request: Request) -> Claim:
    layout, lease = plan.state.layout, plan.state.lease
    in_series = plan.action is Action.START_IN_SERIES
    series = lease.series if lease is not None and in_series else ""
    return Claim(layout, lease, request.write.mode == "overwrite", request.job, series)
