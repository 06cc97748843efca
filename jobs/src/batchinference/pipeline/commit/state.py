"""The state of an output: what is there, and whether and how an attempt at it begins."""

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
    """An output to which something is to be written. `lease` has written to it, if anybody has;
    `resumes` if what that run has committed counts, and `retries` if that is without the rows that
    have failed. `series` is that of the next attempt."""

    write: Write
    layout: Layout
    lease: Lease | None
    resumes: bool = False
    retries: bool = False
    series: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def attempts(self) -> int:
        """How many there were."""
        return self.lease.attempt if self.lease else 0

    @property
    def replaces(self) -> bool:
        """Whether `clear` removes the files of a complete output. A table is replaced in one
        commit at the end."""
        lease = self.lease
        return not self.layout.is_table and lease is not None and lease.is_complete(self.layout)

    def load_committed(self) -> Snapshot | None:
        """What counts of the output; None when it is begun anew.

        Raises BadOutput when that cannot be told."""
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
            if end.attempt == lease.attempt:  # files that were written anew at the end differ
                return end
        start = Snapshot.read(start_of(self.layout, lease), self.layout.key)
        return start.with_commits(Attempt(self.layout, lease).manifests())

    def claim_and_clear(self, job: str = "") -> OutputState:
        """Claim an output that is begun anew, and remove what is there of it. The work that it was
        of stands there until nothing is left of its rows, so that clearing can be taken up again,
        and that it counts no more.

        Raises BadOutput when another run has begun there."""
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
        """The claim while there are rows of another work. Of which, nothing tells where rows were
        added to no output."""
        if self.lease is not None:
            return replace(claim, key=self.lease.key, errors=self.lease.errors)
        return replace(claim, key="") if self.write.mode == "overwrite" else claim

    def _remove(self) -> None:
        """The rows that are there, and what was added to them."""
        # the mark of completeness goes first, so that half an output never looks whole
        self.layout.success.delete()
        for added in self.layout.appended() if self.write.mode == "overwrite" else ():
            if (other := read_lease(added)) is not None:
                self._remove_files(added, other)
            added.state.delete_directory()
        if self.lease is not None:
            self._remove_files(self.layout, self.lease)

    def _remove_files(self, layout: Layout, lease: Lease) -> None:
        """Remove the data and error files of a work, as far as they are the output's."""
        errors = lease.errors_in(layout.output, self.layout.errors)
        for place in (errors, layout.data) if lease.key else ():
            if place is not None:
                remove_parts(place, lease.key)

    def begin_attempt(self, start: Snapshot, job: str = "") -> Attempt:
        """The next attempt. What `start` does not name does not count.

        Raises BadOutput when another run has begun there."""
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
    """What is to be done about an output; None when there is nothing to do: it is complete already,
    or something is there and the mode is ignore. Nothing is removed. Without `resume`, what an
    earlier run has left unfinished is not gone on with; with `retry`, rows that have failed are
    tried again. `job` is by what this one is told from others that want the output.

    Raises BadOutput when the path holds something that this job must not touch, or cannot be used.
    """
    with storage_errors_as_bad_output(write):
        if layout.whole != layout and _is_same_work(layout):
            return None
        with table_errors_as_bad_output() if table is not None else nullcontext():
            return _look(write, layout, table, resume=resume, retry=retry, job=job)


@contextmanager
def storage_errors_as_bad_output(write: Write) -> Iterator[None]:
    """Turn trouble of its storage into a BadOutput that names the path."""
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
    """Whether a complete output has bad rows."""
    return Snapshot.read(layout.end, layout.key).counts.failed > 0


def _leave(write: Write, layout: Layout) -> None:
    """Raises BadOutput unless the mode is to leave what is there."""
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
    """Whether an attempt that was taken for dead has put its rows into the table when the one of
    `lease` had begun. Raises BadOutput unless they are to be replaced: which of its rows had failed
    is not known any more."""
    if table is None or not table.commits(lease.series_mark):
        return False
    if not replaces:
        raise BadOutput(
            f"the table of write.path '{layout.output.uri}' has got the rows of an attempt that "
            "was held up, after another one had begun, so that its bad rows are not known: set "
            "write.mode to overwrite, or remove its rows and write.path"
        )
    return True


def _check_errors(layout: Layout) -> None:
    """Raise BadOutput when readers of the output would take bad rows for it. They pass over names
    that begin with an underscore or a dot."""
    output, errors = layout.output, layout.errors
    place, within = output.path.rstrip("/") + "/", f"{errors.path}/"
    if not (within.startswith(place) and errors.in_store_of(output)):
        return
    if not any(part.startswith(("_", ".")) for part in within.removeprefix(place).split("/")):
        raise BadOutput(
            f"errors.path '{errors.uri}' lies in write.path '{output.uri}', so that readers would "
            "take bad rows for output: choose another one, or leave it out"
        )


def _is_same_work(layout: Layout) -> bool:
    """Whether the output to add to is of the very same work, whose rows would be there twice.

    Raises BadOutput when it is not complete yet.
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
    """Whether something is there that the mode does not allow to add to or to replace."""
    if table is not None:
        return write.mode in ("error", "ignore") and table.holds_rows()
    # a run that dies as it claims the output leaves this alone
    if write.mode == "append":
        return False
    infos = layout.output.files(recursive=True)
    if write.mode == "overwrite" and (added := list(map(read_lease, layout.appended()))):
        return any(_is_strange(layout, info.path, added) for info in infos)
    return any(remnant_of(base_name(info.path)) != base_name(layout.job.path) for info in infos)


def _is_strange(layout: Layout, path: str, owners: Sequence[Lease | None]) -> bool:
    """Whether a file is none of those that these have put."""
    ours = any(lease is not None and is_part(path, lease.key) for lease in owners)
    return not ours and not layout.state.holds(layout.output.at(path))


def _refuse(write: Write, layout: Layout) -> None:
    """Raises BadOutput unless the mode is to leave what is there."""
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
