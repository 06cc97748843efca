"""Claims an output for a job that starts over, and deletes the contents of earlier runs."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from batchinference.pipeline.commit.heartbeat import heartbeat_file, keep_heartbeat
from batchinference.pipeline.commit.job_pass import work_files_in
from batchinference.pipeline.commit.lease import Lease, check_unchanged, guard_of, read_lease
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.storage.location import base_name, delete_all


@dataclass(frozen=True)
class Claim:
    """The claim of an output by a job that starts over."""

    layout: Layout
    before: Lease | None
    """The lease of the output when the job decided to start over."""
    overwrite: bool
    """Whether rows that jobs have appended to the output are deleted as well."""
    job: str = ""
    series: str = ""
    """The series of table commits to continue; empty to begin a new series."""

    def claim_and_clear(self) -> Lease:
        """Claim and clear the output like `lease_of_cleared_output`, and return the new lease."""
        with self.lease_of_cleared_output() as lease:
            return lease

    @contextmanager
    def lease_of_cleared_output(self) -> Iterator[Lease]:
        """Claim the output, delete its contents, and yield the new lease. The heartbeat of the
        claim is written until the block ends. Raises BadOutput if another run has begun in the
        output. During the deletion, the lease has the key of the previous work, so that the
        deletion can be repeated. `begun` is false in this lease: the previous rows are invalid."""
        layout, last_pass = self.layout, self.before.pass_number if self.before else 0
        series = self.series or uuid.uuid4().hex
        new = Lease.new(layout, last_pass, begun=False, job=self.job, series=series)
        deleting = new
        if self.before is not None:
            deleting = replace(new, key=self.before.key, errors=self.before.errors)
        elif self.overwrite:  # without a lease, the output has only appended rows
            deleting = replace(new, key="")
        deleting.write_if_unchanged(layout, self.before)
        try:
            with keep_heartbeat(layout, new):
                self._delete_rows(deleting)
                new.write_if_unchanged(layout, deleting)
                self._delete_state(new)
                yield new
        finally:
            with suppress(OSError):
                heartbeat_file(layout, new).delete()

    def _delete_rows(self, current: Lease) -> None:
        """Delete the rows of the output. With `overwrite`, also delete all appended rows."""
        # the completion marker first: readers must not see a partial output as complete
        guard = guard_of(self.layout, current)
        self.layout.success.delete_if(guard)
        self.layout.errors_jsonl.delete_if(guard)
        for appended in self.layout.all_appended() if self.overwrite else ():
            if (lease := read_lease(appended)) is not None:
                self._delete_files(appended, lease, current)
            appended.state.delete_directory_if(guard)
        if self.before is not None:
            self._delete_files(self.layout, self.before, current)

    def _delete_state(self, current: Lease) -> None:
        """Delete the state of earlier runs, but not the lease."""
        layout, guard = self.layout, guard_of(self.layout, current)
        for directory in (layout.passes, layout.state / "errors"):
            directory.delete_directory_if(guard)
        present = {base_name(info.path) for info in layout.state.files()}
        files = [layout.report, layout.report_page, layout.spec, layout.input, layout.code]
        for file in (*files, layout.final_snapshot):
            if base_name(file.path) in present:
                file.delete_if(guard)

    def _delete_files(self, layout: Layout, old: Lease, current: Lease) -> None:
        """Delete the data files of the work of the lease `old`, and its error files if that is
        allowed (see `Lease.deletable_errors`). Raises BadOutput if the output has another lease
        than `current`. This is checked after the listing of the files, to keep later files of
        another run."""
        errors = old.deletable_errors(layout.output, self.layout.errors)
        directories = [errors, layout.data] if errors is not None else [layout.data]
        listed = (work_files_in(directory, old.key) for directory in directories if old.key)
        files = list(itertools.chain.from_iterable(listed))
        check_unchanged(self.layout, current)
        delete_all(files)
