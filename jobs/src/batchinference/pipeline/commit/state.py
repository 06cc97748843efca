"""The state of an output: what it holds, and whether and how an attempt at it begins."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace

from batchinference.pipeline.commit.attempt import (
    Attempt,
    is_part,
    remove_parts,
    start_of,
)
from batchinference.pipeline.commit.heartbeat import heartbeat_file, is_resource, keep_heartbeat
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.lease import Lease, read_lease
from batchinference.pipeline.commit.missing_files import retyped_by, without_missing_files
from batchinference.pipeline.commit.retry_errors import without_failed
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.commit.table_commit import (
    CommittedTable,
    table_errors_as_bad_output,
    table_has_rows,
)
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.location import base_name, remnant_of
from batchinference.spec.write import Write, WriteTable


@dataclass(frozen=True)
class OutputState:
    """An output that is to be written. `lease` is the lease of the last run that wrote to it, if
    any. `resumes` is true if the commits of that run count. `retries` is true if its failed rows do
    not count, so that they are processed again. `series` is the series of the next attempt."""

    write: Write
    layout: Layout
    lease: Lease | None
    resumes: bool = False
    retries: bool = False
    series: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def attempts(self) -> int:
        """The number of attempts so far."""
        return self.lease.attempt if self.lease else 0

    @property
    def replaces(self) -> bool:
        """Whether `claim_and_clear` deletes the files of a complete output. A table is replaced in
        one commit at the end."""
        lease = self.lease
        return not self.layout.is_table and lease is not None and lease.is_complete(self.layout)

    def load_committed(self) -> Snapshot | None:
        """Return the snapshot of what counts of the output; None if the job starts over.

        Raises BadOutput if that cannot be determined."""
        if not self.resumes or self.lease is None:
            return None
        found = without_missing_files(
            self.layout,
            self._committed(self.lease),
            retyped_by(Attempt(self.layout, self.lease)),
        )
        return without_failed(found, self.layout.errors) if self.retries else found

    def _committed(self, lease: Lease) -> Snapshot:
        if self.layout.end.exists():
            end = Snapshot.read(self.layout.end, self.layout.key)
            if end.attempt == lease.attempt:  # it lists rewritten files as they are now
                return end
        start = Snapshot.read(start_of(self.layout, lease), self.layout.key)
        return start.with_commits(Attempt(self.layout, lease).manifests())

    def claim_and_clear(self, job: str = "") -> OutputState:
        """Claim an output that starts over, delete its contents, and return its new state. The
        lease keeps the key of the previous work until all of its rows are deleted. So an
        interrupted deletion can be repeated, and the previous rows no longer count.

        Raises BadOutput if another run has begun in the output."""
        self._check_unchanged()
        claim = Lease.new(self.layout, self.attempts, begun=False, job=job, series=self.series)
        self._as_before(claim).write(self.layout)
        with keep_heartbeat(lambda: heartbeat_file(self.layout, claim)):
            self._remove()
            claim.write(self.layout)
            for directory in (self.layout.attempts, self.layout.state / "errors"):
                directory.delete_directory()
            for file in (self.layout.report, self.layout.spec, self.layout.input, self.layout.end):
                file.delete()
        heartbeat_file(self.layout, claim).delete()
        return replace(self, lease=claim)

    def _as_before(self, claim: Lease) -> Lease:
        """Return the claim to store while rows of the previous work exist: with the key of that
        work. The key is empty if an overwritten output has no lease. Then jobs may have appended
        rows to it, but no job has created it."""
        if self.lease is not None:
            return replace(claim, key=self.lease.key, errors=self.lease.errors)
        return replace(claim, key="") if self.write.mode == "overwrite" else claim

    def _remove(self) -> None:
        """Delete the rows of the output, and in overwrite mode everything that was added to it."""
        # delete the completion marker first, so that a partial output never looks complete
        self.layout.success.delete()
        for added in self.layout.appended() if self.write.mode == "overwrite" else ():
            if (other := read_lease(added)) is not None:
                self._remove_files(added, other)
            added.state.delete_directory()
        if self.lease is not None:
            self._remove_files(self.layout, self.lease)

    def _remove_files(self, layout: Layout, lease: Lease) -> None:
        """Delete the data files of the work of a lease, and its error files if this output may
        delete them (see `Lease.errors_in`)."""
        errors = lease.errors_in(layout.output, self.layout.errors)
        for place in (errors, layout.data) if lease.key else ():
            if place is not None:
                remove_parts(place, lease.key)

    def begin_attempt(self, start: Snapshot, job: str = "") -> Attempt:
        """Begin the next attempt and return it. Rows that `start` does not name do not count.

        Raises BadOutput if another run has begun in the output."""
        self._check_unchanged()
        self.layout.success.delete()
        return Attempt.open(self.layout, self.attempts + 1, start, job, self.series)

    def _check_unchanged(self) -> None:
        if read_lease(self.layout) != self.lease:
            raise BadOutput(
                f"another run has begun in write.path '{self.layout.output.uri}' while this one "
                "was being prepared: choose another path, or wait until that has ended"
            )


def inspect_output(
    write: Write,
    layout: Layout,
    table: CommittedTable | None = None,
    *,
    resume: bool = True,
    retry: bool = False,
    job: str = "",
) -> OutputState | None:
    """Return the state of an output that is to be written. Return None if there is nothing to do:
    the output is already complete, or the path is in use and the mode is ignore. Nothing is
    deleted. Without `resume`, the commits of an unfinished run are not used. With `retry`, failed
    rows are processed again. `job` identifies this job among others that want the output.

    Raises BadOutput if the path holds something that this job must not touch, or cannot be used.
    """
    with storage_errors_as_bad_output(write):
        if layout.whole != layout and _is_same_work(layout):
            return None
        with table_errors_as_bad_output() if table is not None else nullcontext():
            return _look(write, layout, table, resume=resume, retry=retry, job=job)


@contextmanager
def storage_errors_as_bad_output(write: Write) -> Iterator[None]:
    """Convert storage errors into a BadOutput that names the path."""
    try:
        yield
    except OSError as error:
        raise BadOutput(f"write.path '{write.path}' cannot be used: {error}") from error


def _look(
    write: Write,
    layout: Layout,
    table: CommittedTable | None,
    *,
    resume: bool,
    retry: bool,
    job: str,
) -> OutputState | None:
    _check_errors(layout)
    lease, replaces = read_lease(layout), write.mode == "overwrite"
    state = OutputState(write, layout, lease)
    if lease is not None and lease.key != layout.key and not replaces:
        _leave(write, layout)
        return None
    if lease is not None and lease.key == layout.key:
        done, retries = _is_done(layout, table, lease), retry and table is None and lease.begun
        if done and retries:
            return replace(state, resumes=True, retries=True) if has_failed(layout) else None
        own = lease.job == job and is_resource(job)
        if done and (own or not replaces):
            return None
        resumes = resume and table is None and lease.begun and not done
        state = replace(state, resumes=resumes, retries=retries)
        if not done and not _is_late(layout, table, lease, replaces=replaces):
            state = replace(state, series=lease.series)
    if (lease is None or table is not None) and _is_taken(write, layout, table):
        _refuse(write, layout)
        return None
    return state


def has_failed(layout: Layout) -> bool:
    """Return whether a complete output has failed rows."""
    return Snapshot.read(layout.end, layout.key).counts.failed > 0


def _leave(write: Write, layout: Layout) -> None:
    """Raise BadOutput unless the mode is to ignore existing data."""
    if write.mode != "ignore":
        raise BadOutput(
            f"write.path '{layout.output.uri}' holds the output of another job: choose another "
            "path, or set write.mode to overwrite, or to append"
        )


def _is_done(layout: Layout, table: CommittedTable | None, lease: Lease) -> bool:
    if table is not None and not lease.is_complete(layout) and table.commits(lease.mark):
        Attempt(layout, lease).complete_committed()
    return lease.is_complete(layout)


def _is_late(layout: Layout, table: CommittedTable | None, lease: Lease, *, replaces: bool) -> bool:
    """Return whether an attempt that was considered dead put its rows into the table after the
    attempt of `lease` had begun. Raises BadOutput unless these rows are to be replaced, because it
    is no longer known which rows of that attempt failed."""
    if table is None or not table.commits(lease.series_mark):
        return False
    if not replaces:
        raise BadOutput(
            f"the table of write.path '{layout.output.uri}' has the rows of a delayed attempt that "
            "committed after a later attempt had started, so its failed rows are unknown. Set "
            "write.mode to overwrite, or remove its rows and write.path"
        )
    return True


def _check_errors(layout: Layout) -> None:
    """Raise BadOutput if readers of the output would read error records as output. Readers skip
    names that begin with an underscore or a dot."""
    output, errors = layout.output, layout.errors
    place, within = output.path.rstrip("/") + "/", f"{errors.path}/"
    if not (within.startswith(place) and errors.in_store_of(output)):
        return
    if not any(part.startswith(("_", ".")) for part in within.removeprefix(place).split("/")):
        raise BadOutput(
            f"errors.path '{errors.uri}' is below write.path '{output.uri}', so readers would "
            "read error records as output. Choose another errors.path, or remove the field"
        )


def _is_same_work(layout: Layout) -> bool:
    """Return whether the output to append to belongs to the same work, whose rows would then exist
    twice.

    Raises BadOutput if that output is not complete yet.
    """
    lease = read_lease(layout.whole)
    if lease is None or lease.key != layout.key:
        return False
    if not lease.is_complete(layout.whole):
        raise BadOutput(
            f"write.path '{layout.output.uri}' holds unfinished output of the same work: finish it "
            "with the mode with which it was begun"
        )
    return True


def _is_taken(write: Write, layout: Layout, table: CommittedTable | None) -> bool:
    """Return whether there is something that the mode does not allow to append to or to replace."""
    if table is not None:
        return write.mode in ("error", "ignore") and table.holds_rows()
    if write.mode == "append":
        return False
    infos = layout.output.files(recursive=True)
    if write.mode == "overwrite" and (added := list(map(read_lease, layout.appended()))):
        return any(_is_strange(layout, info.path, added) for info in infos)
    # a run that died while it claimed the output leaves only a temporary file of the lease
    return any(remnant_of(base_name(info.path)) != base_name(layout.job.path) for info in infos)


def _is_strange(layout: Layout, path: str, owners: Sequence[Lease | None]) -> bool:
    """Return whether a file is neither state nor written by any of these runs."""
    ours = any(lease is not None and is_part(path, lease.key) for lease in owners)
    return not ours and not layout.state.holds(layout.output.at(path))


def _refuse(write: Write, layout: Layout) -> None:
    """Raise BadOutput unless the mode is to ignore existing data."""
    if write.mode != "ignore":
        raise _foreign(write, layout)


def _foreign(write: Write, layout: Layout) -> BadOutput:
    if isinstance(write, WriteTable):
        return table_has_rows(write)
    way_out = (
        "overwrite only replaces such output. Remove them yourself, or choose another path"
        if write.mode == "overwrite"
        else "choose another path, empty it, or set write.mode to append"
    )
    return BadOutput(
        f"write.path '{layout.output.uri}' holds files that are no output of a BatchInference: "
        f"{way_out}"
    )
