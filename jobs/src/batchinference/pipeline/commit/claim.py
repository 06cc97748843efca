"""Claims an output that starts over, and deletes what earlier runs have left in it."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from batchinference.pipeline.commit.attempt import parts_in
from batchinference.pipeline.commit.changes import parse_code
from batchinference.pipeline.commit.heartbeat import (
    ensure_not_running,
    heartbeat_file,
    keep_heartbeat,
)
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.lease import Lease, check_unchanged, read_lease, this_process
from batchinference.pipeline.commit.manifest import digest
from batchinference.pipeline.commit.snapshot import Snapshot, without_missing_files
from batchinference.pipeline.errors import BadOutput, Incomplete
from batchinference.pipeline.storage.local_files import LinkedPath
from batchinference.pipeline.storage.location import Location, delete_all
from batchinference.pipeline.storage.state_json import damaged_state, load_json


@dataclass(frozen=True)
class Claim:
    """The claim of an output by a job. `before` is the lease that the output had when the job
    decided to start over. With `overwrite`, everything that was added to the output is deleted as
    well. `series` is the series of attempts to continue; empty for a new one."""

    layout: Layout
    before: Lease | None
    overwrite: bool
    job: str = ""
    series: str = ""

    def put(self) -> Lease:
        """Claim the output, delete its contents, and return the lease. The lease keeps the key of
        the previous work until all of its rows are deleted. So an interrupted deletion can be
        repeated, and the previous rows no longer count.

        Raises BadOutput if another run has begun in the output."""
        layout, attempts = self.layout, self.before.attempt if self.before else 0
        series = self.series or uuid.uuid4().hex
        claim = Lease.new(layout, attempts, begun=False, job=self.job, series=series)
        first = self._with_previous_key(claim)
        first.put(layout, self.before)
        with keep_heartbeat(heartbeat_file(layout, claim)):
            self._remove_rows(first)
            claim.put(layout, first)
            for directory in (layout.attempts, layout.state / "errors"):
                directory.delete_directory()
            for file in (
                layout.report,
                layout.report_page,
                layout.spec,
                layout.input,
                layout.code,
                layout.end,
            ):
                file.delete()
        heartbeat_file(layout, claim).delete()
        return claim

    def _with_previous_key(self, claim: Lease) -> Lease:
        """Return the claim to store while rows of the previous work exist: with the key of that
        work. The key is empty if an overwritten output has no lease. Then jobs may have appended
        rows to it, but no job has created it."""
        if self.before is not None:
            return replace(claim, key=self.before.key, errors=self.before.errors)
        return replace(claim, key="") if self.overwrite else claim

    def _remove_rows(self, claim: Lease) -> None:
        # delete the completion marker first, so that readers never see a partial output as complete
        self.layout.success.delete()
        self.layout.error_file.delete()
        for added in self.layout.appended() if self.overwrite else ():
            if (other := read_lease(added)) is not None:
                self._remove_files(added, other, claim)
            added.state.delete_directory()
        if self.before is not None:
            self._remove_files(self.layout, self.before, claim)

    def _remove_files(self, layout: Layout, lease: Lease, claim: Lease) -> None:
        """Delete the data files of the work of a lease, and its error files if this output may
        delete them (see `Lease.errors_in`).

        Raises BadOutput if another run has begun. Its files are never deleted: the files are listed
        before the lease is checked."""
        errors = lease.errors_in(layout.output, self.layout.errors)
        places = [errors, layout.data] if errors is not None else [layout.data]
        files = (
            [part for place in places for part in parts_in(place, lease.key)] if lease.key else []
        )
        check_unchanged(self.layout, claim)
        delete_all(files)


MOVE_THREADS = 16
_STATE_FILES = ("spec", "input", "code", "report", "end")


def discard_replaced(layout: Layout) -> None:
    """Delete what is left of a replacement that has taken the place of this output, or of one whose
    deletion was interrupted."""
    new, current = read_lease(layout.replacement), read_lease(layout)
    if new is None or (current is not None and new.run == current.run):
        layout.replacement.state.delete_directory()


def swap_in_replacement(layout: Layout, job: str = "") -> None:
    """Put the complete replacement of an output in its place. An interrupted call can be repeated.

    Raises BadOutput if another run is writing to the output."""
    new, current = read_lease(layout.replacement), read_lease(layout)
    if new is None or new.key != layout.key:
        return  # another run has put it in place
    staged = layout.replacement
    ensure_not_running(layout, current, job)
    moving = replace(new, begun=False, errors=layout.errors.uri, process=this_process())
    if current is None or current.run != new.run:
        for added in layout.appended():  # the claim deletes its rows
            ensure_not_running(added, read_lease(added), job)
        _check_staged(layout, current)
        current = Claim(layout, current, overwrite=True, job=job).put()
    if current.run != new.run or not current.is_complete(layout):
        moving.put(layout, current)  # from now on, nothing in the output is deleted
        with keep_heartbeat(heartbeat_file(layout, moving)):
            _move_files(staged, layout)
        heartbeat_file(layout, moving).delete()
        replace(moving, begun=True).put(layout, moving)
        new.complete(layout)
    staged.success.delete()  # first, so that the rest is not published again
    staged.state.delete_directory()


def _check_staged(layout: Layout, current: Lease | None) -> None:
    """Raise Incomplete if files of the replacement are missing or damaged. Then it is no longer
    complete: the next run computes the missing rows again."""
    staged = layout.replacement
    try:
        end = Snapshot.read(staged.end, staged.key)
        _state_files(staged, end)
        if len(without_missing_files(staged, end).entries) == len(end.entries):
            return
    except LinkedPath:
        raise
    except BadOutput:  # a state file is missing or damaged
        pass
    check_unchanged(layout, current)  # another run may have moved the files
    staged.success.delete()
    staged.end.delete()
    raise Incomplete(
        f"files of the new output in '{staged.state.uri}' are missing or damaged. The old output "
        "is unchanged. Run the job again to compute the missing rows"
    )


def _move_files(staged: Layout, layout: Layout) -> None:
    end = Snapshot.read(staged.end, staged.key)
    state = _state_files(staged, end)
    data = [file.name for entry in end.entries for file in entry.data]
    errors = [entry.errors.name for entry in end.entries if entry.errors]
    _move_all(staged.data, layout.data, data)
    _move_all(staged.errors, layout.errors, errors)
    if staged.error_file.exists():
        staged.error_file.move(layout.error_file)
    if len(without_missing_files(layout, end).entries) < len(end.entries):
        raise Incomplete(f"files of the new output in '{staged.state.uri}' are missing")
    for name, content in state.items():
        getattr(layout, name).write(content)


def _state_files(staged: Layout, end: Snapshot) -> dict[str, bytes]:
    """Return the content of the state files of a replacement.

    Raises BadOutput if one is missing, damaged or of other work. Others may have written it."""
    from batchinference.spec.job import BatchInferenceSpec  # only drivers need the specification
    from batchinference.spec.report import Report

    try:
        state = {name: getattr(staged, name).read() for name in _STATE_FILES}
        BatchInferenceSpec.model_validate(load_json(state["spec"]))
        Report.parse(state["report"])
        parse_code(state["code"])
        if digest(state["input"]) == end.input:
            return state
    except (ValueError, FileNotFoundError):  # pydantic's ValidationError is a ValueError
        pass
    raise damaged_state(staged.state)


def _move_all(source: Location, target: Location, names: list[str]) -> None:
    present = {source.below(info.path) for info in source.data_files()}
    with ThreadPoolExecutor(MOVE_THREADS) as pool:
        moves = ((source / name, target / name) for name in names if name in present)
        list(pool.map(lambda move: move[0].move(move[1]), moves))
