"""Replaces an output by its complete replacement, which a job with mode `overwrite` has written.

The old output is deleted, and the new files are moved to its paths. If the process dies meanwhile,
the next run of the job moves the remaining files."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from batchinference.pipeline.commit.code_and_spec_changes import parse_code
from batchinference.pipeline.commit.heartbeat import (
    ensure_not_running,
    heartbeat_file,
    keep_heartbeat,
)
from batchinference.pipeline.commit.lease import Lease, guard_of, read_lease, this_process
from batchinference.pipeline.commit.manifest import digest
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.commit.snapshot import Snapshot, without_missing_files
from batchinference.pipeline.commit.start_over import Claim
from batchinference.pipeline.errors import BadOutput, Incomplete
from batchinference.pipeline.storage.local_files import LinkedPath
from batchinference.pipeline.storage.location import Guard, Location
from batchinference.pipeline.storage.state_json import damaged_state, load_json

MOVE_THREADS = 16
_STATE_FILES = ("spec", "input", "code", "report", "final_snapshot")


def delete_old_replacement(layout: Layout) -> None:
    """Delete the files of a replacement that was already swapped in, or that has no lease."""
    new, current = read_lease(layout.replacement), read_lease(layout)
    if new is None or (current is not None and new.run == current.run):
        layout.replacement.state.delete_directory_if(guard_of(layout.replacement, new))


def swap_in_replacement(layout: Layout, job: str = "") -> None:
    """Replace an output by its complete replacement. An interrupted call can be repeated. Raises
    BadOutput if another run is writing to the output, and Incomplete if files are missing."""
    new, current = read_lease(layout.replacement), read_lease(layout)
    if new is None or new.key != layout.key:
        return  # another run has swapped it in
    replacement = layout.replacement
    ensure_not_running(layout, current, job)
    moving = replace(new, begun=False, errors=layout.errors.uri, process=this_process())
    if current is None or current.run != new.run:
        for appended in layout.all_appended():  # the claim deletes appended rows too
            ensure_not_running(appended, read_lease(appended), job)
        _check_files(layout, current)
        current = Claim(layout, current, overwrite=True, job=job).claim_and_clear()
    if current.run != new.run or not current.has_completed(layout):
        # with this lease, a repeated call deletes nothing, and only moves the remaining files
        moving.write_if_unchanged(layout, current)
        with keep_heartbeat(layout, moving):
            _move_files(replacement, layout, guard_of(layout, moving))
        heartbeat_file(layout, moving).delete()
        moved = replace(moving, begun=True)
        moved.write_if_unchanged(layout, moving)
        moved.write_success_marker(layout)
    with suppress(BadOutput):  # another run may have begun a new replacement
        guard = guard_of(replacement, new)
        replacement.success.delete_if(guard)  # first, so that it is not swapped in again
        replacement.state.delete_directory_if(guard)


def _check_files(layout: Layout, current: Lease | None) -> None:
    """Raise Incomplete if files of the replacement are missing or damaged. Then also delete its
    completion marker and final snapshot. So the next run computes the missing rows."""
    replacement = layout.replacement
    try:
        final = Snapshot.read(replacement.final_snapshot, replacement.key)
        _state_files(replacement, final)
        if len(without_missing_files(replacement, final).entries) == len(final.entries):
            return
    except BadOutput as error:  # a state file is missing or damaged
        if isinstance(error, LinkedPath):
            raise
    guard = guard_of(layout, current)  # another run may have moved the files
    replacement.success.delete_if(guard)
    replacement.final_snapshot.delete_if(guard)
    raise Incomplete(
        f"files of the new output in '{replacement.state.uri}' are missing or damaged. The old "
        "output is unchanged. Run the job again to compute the missing rows"
    )


def _move_files(replacement: Layout, layout: Layout, guard: Guard) -> None:
    final = Snapshot.read(replacement.final_snapshot, replacement.key)
    state = _state_files(replacement, final)
    data = [file.name for entry in final.entries for file in entry.data]
    errors = [entry.errors.name for entry in final.entries if entry.errors]
    _move_all(replacement.data, layout.data, data)
    _move_all(replacement.errors, layout.errors, errors)
    if replacement.errors_jsonl.exists():
        layout.errors_jsonl.write_if(guard, replacement.errors_jsonl.read())
    if len(without_missing_files(layout, final).entries) < len(final.entries):
        raise Incomplete(f"files of the new output in '{replacement.state.uri}' are missing")
    for name, content in state.items():
        getattr(layout, name).write_if(guard, content)


def _state_files(replacement: Layout, final: Snapshot) -> dict[str, bytes]:
    """Return the contents of the state files of a replacement, by attribute of `Layout`. The files
    are untrusted. Raises BadOutput if a file is missing, damaged or from other work."""
    # imported here, because write tasks do not need the models of the spec
    from batchinference.spec.job import BatchInferenceSpec
    from batchinference.spec.report import Report

    try:
        state = {name: getattr(replacement, name).read() for name in _STATE_FILES}
        BatchInferenceSpec.model_validate(load_json(state["spec"]))
        Report.parse(state["report"])
        parse_code(state["code"])
        if digest(state["input"]) == final.input:
            return state
    except (ValueError, FileNotFoundError):  # pydantic's ValidationError is a ValueError
        pass
    raise damaged_state(replacement.state)


def _move_all(source: Location, target: Location, names: list[str]) -> None:
    """Move the files with these names. Files that an earlier call has moved are left out."""
    present = {source.relative(info.path) for info in source.data_files()}
    with ThreadPoolExecutor(MOVE_THREADS) as pool:
        remaining = [name for name in names if name in present]
        list(pool.map(lambda name: (source / name).move(target / name), remaining))
