"""Claims an output that starts over, and deletes what earlier runs have left in it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

from batchinference.pipeline.commit.attempt import check_unchanged, remove_parts
from batchinference.pipeline.commit.heartbeat import heartbeat_file, keep_heartbeat
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.lease import Lease, read_lease


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
        check_unchanged(layout, self.before)
        series = self.series or uuid.uuid4().hex
        claim = Lease.new(layout, attempts, begun=False, job=self.job, series=series)
        self._as_before(claim).write(layout)
        with keep_heartbeat(heartbeat_file(layout, claim)):
            self._remove_rows()
            claim.write(layout)
            for directory in (layout.attempts, layout.state / "errors"):
                directory.delete_directory()
            for file in (layout.report, layout.spec, layout.input, layout.code, layout.end):
                file.delete()
        heartbeat_file(layout, claim).delete()
        return claim

    def _as_before(self, claim: Lease) -> Lease:
        """Return the claim to store while rows of the previous work exist: with the key of that
        work. The key is empty if an overwritten output has no lease. Then jobs may have appended
        rows to it, but no job has created it."""
        if self.before is not None:
            return replace(claim, key=self.before.key, errors=self.before.errors)
        return replace(claim, key="") if self.overwrite else claim

    def _remove_rows(self) -> None:
        # delete the completion marker first, so that a partial output never looks complete
        self.layout.success.delete()
        for added in self.layout.appended() if self.overwrite else ():
            if (other := read_lease(added)) is not None:
                self._remove_files(added, other)
            added.state.delete_directory()
        if self.before is not None:
            self._remove_files(self.layout, self.before)

    def _remove_files(self, layout: Layout, lease: Lease) -> None:
        """Delete the data files of the work of a lease, and its error files if this output may
        delete them (see `Lease.errors_in`)."""
        errors = lease.errors_in(layout.output, self.layout.errors)
        for place in (errors, layout.data) if lease.key else ():
            if place is not None:
                remove_parts(place, lease.key)
