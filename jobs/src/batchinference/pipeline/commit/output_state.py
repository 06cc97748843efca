"""Reads the state of an output: its lease, whether it is complete, and what else is stored there.

`start_or_resume` decides from this state what a job does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

from batchinference.pipeline.commit.code_and_spec_changes import (
    describe_code_change,
    describe_spec_change,
)
from batchinference.pipeline.commit.job_pass import JobPass, is_work_file
from batchinference.pipeline.commit.lease import Lease, is_cluster_job, read_lease_file, without_uid
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.commit.table_commit import CommittedTable, table_errors_as_bad_output
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.location import Location, base_name, remnant_of
from batchinference.spec.job import DEFAULT_NAME
from batchinference.spec.write import Write


@dataclass(frozen=True)
class TableState:
    """The state of an output table. All fields are False if the output is complete."""

    pass_committed: bool = False
    """Whether the pass with the lease has committed its rows."""
    series_committed: bool = False
    """Whether another pass with the same `Lease.series_id` has committed."""
    has_rows: bool = False
    """Whether the table has rows. Only read for mode `error` or with `own_only`."""


@dataclass(frozen=True)
class OutputState:
    """What is stored at an output."""

    layout: Layout
    lease: Lease | None = None
    """The lease of the last run that wrote to the output, if any."""
    complete: bool = False
    """Whether the run with this lease has completed the output."""
    has_failed_rows: bool = False
    """Whether a complete output has failed rows. Only read for a retry or after a code change."""
    has_foreign_files: bool = False
    """Whether there are files that the write mode forbids. Only read if there is no lease."""
    replaced_by: Lease | None = None
    """The lease of a complete replacement that is not swapped in yet."""
    has_appended_rows: bool = False
    """Whether jobs have appended rows to the output. Only read for mode `overwrite`."""
    appended_by: str = ""
    """The identity of another job that has appended rows, or empty. Only read with `own_only`."""
    code_change: str = ""
    """How the code or models have changed since the output was begun; empty if they have not."""
    spec_change: str = ""
    """How the spec differs from the spec of the output; empty if both define the same work."""
    has_commits: bool = True
    """Whether the output has committed rows. Only read after a code change, and otherwise True."""
    table: TableState | None = None


@dataclass(frozen=True)
class Request:
    """What a job wants from its output."""

    write: Write
    resume: bool = True
    """Whether to use the commits of an unfinished run (see also `resumes`)."""
    retry: bool = False
    """Whether to process failed rows again. Requires `resume`."""
    job: str = ""
    """The identity of the job (see `lease.identity_of`)."""
    code: Mapping[str, str] = field(default_factory=dict)
    """The hashes of the code and the models of the job."""
    work: Mapping[str, Any] = field(default_factory=dict)
    """The fields of the spec that determine the rows (see `output_paths.work_of`)."""
    recompute: bool = False
    """Whether to replace the rows of changed input files in a complete output."""
    has_completed: bool = False
    """Whether this run has just completed the output of an interrupted run: by swapping in a
    complete replacement, or because the table has the commit."""
    own_only: bool = False
    """Whether mode `overwrite` must not replace the output of another job."""

    def resumes(self, lease: Lease) -> bool:
        """Return whether to use the commits of the runs with this lease. A BatchInference object
        always uses those of its earlier attempts."""
        return self.resume or self.is_earlier_attempt(lease)

    def is_earlier_attempt(self, lease: Lease) -> bool:
        """Return whether the lease is of an earlier attempt of the same BatchInference object."""
        return lease.job == self.job and is_cluster_job(self.job)

    def owns(self, lease: Lease, key: str) -> bool:
        """Return whether a lease belongs to this job: it has the key `key`, or its job has the name
        of this job. The default name does not count."""
        name = without_uid(self.job)
        is_named = name != "" and not name.startswith(f"{DEFAULT_NAME} on ")
        return lease.key == key or (is_named and without_uid(lease.job) == name)


class CachedReader:
    """Reads outputs, and caches leases and markers until `forget`. A stale lease does no harm,
    because `Lease.write_if_unchanged` compares it with the stored lease."""

    def __init__(self) -> None:
        self._known: dict[Location, Any] = {}
        self._directories = cache(Location.directories)

    def forget(self, *layouts: Layout) -> None:
        """Forget the leases and markers of outputs, which runs may have changed."""
        for file in (file for one in layouts for file in (one.lease_file, one.success)):
            self._known.pop(file, None)

    def lease(self, layout: Layout) -> Lease | None:
        """Return the lease of an output. Raises BadOutput if it is damaged."""
        return cast(Lease | None, self._read(layout.lease_file, read_lease_file))

    def _read(self, file: Location, read: Callable[[Location], Any]) -> Any:
        if file not in self._known:
            self._known[file] = read(file)
        return self._known[file]

    def has_success_marker(self, layout: Layout) -> bool:
        """Return whether any run has completed an output."""
        return self._read(layout.success, Location.read_if_exists) is not None

    def is_completed_by_lease(self, layout: Layout) -> bool:
        """Return whether the run with the lease of an output has completed the output."""
        if (lease := self.lease(layout)) is None:
            return False
        return lease.is_success_marker(self._read(layout.success, Location.read_if_exists))

    def is_of_work(self, layout: Layout) -> bool:
        """Return whether the lease of an output has the key of the layout."""
        lease = self.lease(layout)
        return lease is not None and lease.key == layout.key

    def is_complete(self, layout: Layout) -> bool:
        """Return whether an output is complete, and its lease has the key of the layout."""
        return self.is_of_work(layout) and self.is_completed_by_lease(layout)

    def all_appended(self, layout: Layout) -> list[Layout]:
        """Return the layouts of all rows that any jobs have appended to an output."""
        return layout.all_appended(self._directories(layout.state))

    def own_additions(self, layout: Layout) -> list[Layout]:
        """Return the layouts of the additions that the work of this layout has begun."""
        return layout.own_additions(self._directories(layout.main.state))


def load_state(
    layout: Layout,
    request: Request,
    table: CommittedTable | None = None,
    reader: CachedReader | None = None,
) -> OutputState:
    """Return the state of an output, without changing it. Uses what `reader` has cached. Raises
    BadOutput if the state is damaged or cannot be read."""
    reader = reader or CachedReader()
    with storage_errors_as_bad_output(request.write):
        lease = reader.lease(layout)
        if layout.is_replacement:
            change = _code_change(layout, lease, request, complete=False)
            committed = _has_commits(layout, lease, change)
            return OutputState(layout, lease, code_change=change, has_commits=committed)
        if reader.is_completed_by_lease(layout.replacement):
            return OutputState(layout, replaced_by=reader.lease(layout.replacement))
        return _load_output(layout, request, table, reader)


def _load_output(
    layout: Layout, request: Request, table: CommittedTable | None, reader: CachedReader
) -> OutputState:
    lease, complete = reader.lease(layout), reader.is_completed_by_lease(layout)
    same_work = lease is not None and lease.key == layout.key
    change = _code_change(layout, lease, request, complete=complete)
    needs_failed = same_work and complete and bool(request.retry or change)
    needs_foreign = table is None and lease is None
    return OutputState(
        layout,
        lease,
        complete,
        has_failed_rows=needs_failed and has_failed_rows(layout),
        has_foreign_files=needs_foreign and _has_foreign_files(layout, request.write.mode, reader),
        has_appended_rows=request.write.mode == "overwrite" and bool(reader.all_appended(layout)),
        appended_by=_appended_by(layout, request, reader),
        code_change=change,
        spec_change=_spec_change(layout, lease, request),
        has_commits=complete or _has_commits(layout, lease, change),
        table=_load_table(table, layout, lease, request, complete=complete) if table else None,
    )


def _code_change(layout: Layout, lease: Lease | None, request: Request, *, complete: bool) -> str:
    if lease is None or lease.key != layout.key or not lease.begun:
        return ""
    overwrite = request.write.mode == "overwrite"
    starts_over = not request.resumes(lease) and (overwrite or not complete)
    change = "" if starts_over else describe_code_change(layout.code, request.code)
    # the run that has the lease may have died before it copied new hashes to the output
    copied = JobPass(layout, lease).changed_code
    return describe_code_change(copied, request.code) if change and copied.exists() else change


def _spec_change(layout: Layout, lease: Lease | None, request: Request) -> str:
    is_other = lease is not None and lease.key != layout.key
    replaces = request.write.mode == "overwrite" and not request.own_only
    return describe_spec_change(layout.spec, request.work) if is_other and not replaces else ""


def _has_commits(layout: Layout, lease: Lease | None, code_change: str) -> bool:
    """Return whether an unfinished output has committed rows. True if the code is unchanged."""
    if lease is None or not code_change:
        return True
    return bool(JobPass(layout, lease).load_committed().entries)


@table_errors_as_bad_output()
def _load_table(
    table: CommittedTable, layout: Layout, lease: Lease | None, request: Request, *, complete: bool
) -> TableState:
    own_lease = lease if lease is not None and lease.key == layout.key else None
    if complete and own_lease is not None:
        return TableState()
    if own_lease is not None and table.commit_count(own_lease.commit_id):
        return TableState(pass_committed=True)
    # `decide` refuses an output with a lease of other work anyway
    refuses_rows = request.write.mode == "error" and own_lease == lease
    reads_rows = refuses_rows or request.own_only
    return TableState(
        series_committed=own_lease is not None and table.commit_count(own_lease.series_id) > 0,
        has_rows=reads_rows and table.holds_rows(),
    )


def has_failed_rows(layout: Layout) -> bool:
    """Return whether a complete output has failed rows."""
    return Snapshot.read(layout.final_snapshot, layout.key).counts.failed > 0


def _appended_by(layout: Layout, request: Request, reader: CachedReader) -> str:
    """Return which job has appended rows that this job must not replace; empty if there is none."""
    for appended in reader.all_appended(layout) if request.own_only else ():
        number = appended.addition_number
        key = layout.addition(number).key if number else layout.key
        lease = reader.lease(appended)
        if lease is not None and not request.owns(lease, key):
            return lease.job
    return ""


def _has_foreign_files(layout: Layout, mode: str, reader: CachedReader) -> bool:
    """Return whether an output without a lease has foreign files that the write mode forbids."""
    if mode == "append":
        return False
    paths = [info.path for info in layout.output.files(recursive=True)]
    if mode == "overwrite" and (leases := list(map(reader.lease, reader.all_appended(layout)))):
        keys = {lease.key for lease in leases if lease is not None}
        state = layout.state.path.rstrip("/") + "/"
        return any(
            not path.startswith(state) and not any(is_work_file(path, key) for key in keys)
            for path in paths
        )
    # the temporary file of a lease does not count. It remains from a run that died during its claim
    return any(remnant_of(base_name(path)) != base_name(layout.lease_file.path) for path in paths)


@contextmanager
def storage_errors_as_bad_output(write: Write) -> Iterator[None]:
    """Convert storage errors into a BadOutput that names the path."""
    try:
        yield
    except OSError as error:
        raise BadOutput(f"spec.write.path: '{write.path}' cannot be used: {error}") from error
