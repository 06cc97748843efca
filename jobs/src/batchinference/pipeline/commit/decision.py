"""The state of an output, and the decision what a job does about it.

`load_state` reads everything that the decision needs. `decide` is pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any

from batchinference.pipeline.commit.attempt import Attempt, is_part
from batchinference.pipeline.commit.changes import changed_code, changed_spec
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.lease import Lease, is_resource, lease_in, name_of
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.commit.table_commit import (
    CommittedTable,
    table_errors_as_bad_output,
    table_has_rows,
)
from batchinference.pipeline.errors import RESTART, RETRY, BadOutput
from batchinference.pipeline.storage.location import Location, base_name, remnant_of
from batchinference.spec.job import DEFAULT_NAME
from batchinference.spec.write import Write, WriteTable


@dataclass(frozen=True)
class TableState:
    """The state of the table of an output that is not complete."""

    committed: bool = False
    """Whether the attempt of the lease has committed its rows."""
    series_committed: bool = False
    """Whether another attempt of its series has."""
    has_rows: bool = False
    """Only read if the mode allows no existing rows."""


@dataclass(frozen=True)
class OutputState:
    """What is stored at an output."""

    layout: Layout
    lease: Lease | None = None
    """The lease of the last run that wrote to it, if any."""
    complete: bool = False
    """Whether that run has completed it."""
    failed_rows: bool = False
    """Only read for a retry or if the code has changed."""
    foreign_files: bool = False
    """Only read if there is no lease."""
    replaced_by: Lease | None = None
    """The lease of a complete replacement that has not replaced the output yet."""
    added: bool = False
    """Whether rows were added to the output; only read for overwrite."""
    added_by: str = ""
    """Another job that has added rows, if any; only read with `own_only`."""
    changed_code: str = ""
    """How the code or the models have changed since the output was begun; empty if not."""
    changed_spec: str = ""
    """How the spec differs from that of other work at the output."""
    committed: bool = True
    """Whether rows of the unfinished output count; only read if the code has changed."""
    table: TableState | None = None


@dataclass(frozen=True)
class Request:
    """What a job requests of its output."""

    write: Write
    resume: bool = True
    """Whether commits of an unfinished run are used. A resource always uses its own (`resumes`)."""
    retry: bool = False
    """Whether failed rows are processed again; not without `resume`."""
    job: str = ""
    """The identity of the job, which distinguishes it from others that want the output."""
    code: Mapping[str, str] = field(default_factory=dict)
    """The hashes of its code and models."""
    work: Mapping[str, Any] = field(default_factory=dict)
    """Its work as plain data."""
    recompute: bool = False
    """Whether the rows of changed files in a complete output are replaced."""
    continues: bool = False
    """Whether the run has put the complete replacement of an interrupted run in place."""
    own_only: bool = False
    """Whether the mode overwrite replaces only output of this job."""

    def resumes(self, lease: Lease) -> bool:
        """Return whether the commits of a lease are used. A resource starts over once: its later
        attempts resume."""
        return self.resume or self.is_resource_of(lease)

    def is_resource_of(self, lease: Lease) -> bool:
        """Return whether an earlier attempt of the same resource has this lease."""
        return lease.job == self.job and is_resource(self.job)

    def owns(self, lease: Lease, key: str) -> bool:
        """Return whether a lease is of this job: of the work with this key, or of a job with the
        same name, whose spec may have changed since. The default name identifies no job."""
        name = name_of(self.job)
        is_named = name != "" and not name.startswith(f"{DEFAULT_NAME} on ")
        return lease.key == key or (is_named and name_of(lease.job) == name)


class Action(Enum):
    """What a job does about its output."""

    START = "claim the output, and delete what earlier runs have left in it"
    START_AGAIN = "start, and continue the series of attempts"
    REPLACE = "write a replacement; the output keeps its rows until this is complete"
    FINISH_REPLACEMENT = "put a complete replacement, whose driver died, in place; decide again"
    RESUME = "process the missing rows"
    RETRY_FAILED = "process the missing rows, and the failed rows again"
    RECOMPUTE = "replace the rows of files that have changed or are gone"
    ALREADY_COMPLETE = "do nothing"
    FINISH_TABLE_COMMIT = "complete an output whose driver died after the commit of its table"

    @property
    def starts(self) -> bool:
        """Whether no committed row is used."""
        return self in (Action.START, Action.START_AGAIN)

    @property
    def begins(self) -> bool:
        """Whether an attempt begins."""
        return self.starts or self in (Action.RESUME, Action.RETRY_FAILED, Action.RECOMPUTE)


def decide(state: OutputState, request: Request) -> Action:
    """Return what a job does about an output in this state.

    Raises BadOutput if the job must not change the output, or cannot finish it."""
    layout, write = state.layout, request.write
    where = f"spec.write.path: '{layout.output.uri}'"
    if (replacement := state.replaced_by) is not None:
        if replacement.key == layout.key and layout.state == layout.whole.state:
            return Action.FINISH_REPLACEMENT
        raise BadOutput(
            f"{where}: {replacement.job} was interrupted while it replaced the output. Run that "
            "job again to finish this, or choose another path"
        )
    action = Action.START
    if state.lease is not None and state.lease.key == layout.key:
        action = _decide_own_work(state, state.lease, request)
        action = _check_code(state, request, action)
    elif state.lease is not None and not _may_replace(state, state.lease, request):
        raise BadOutput(f"{where}: {_describe_other_work(state, state.lease, request)}")
    if action.starts:
        _check_start(state, request)
    if action.begins:
        _check_rows_of_others(state, request)
    keeps = state.complete or (state.lease is None and state.added)
    replaces = write.mode == "overwrite" and keeps and state.table is None
    return Action.REPLACE if replaces and action.starts else action


def _decide_own_work(state: OutputState, lease: Lease, request: Request) -> Action:
    """Return what a job does about an output of the same work."""
    overwrite, table = request.write.mode == "overwrite", state.table
    if state.complete:
        if request.resumes(lease) and table is None and lease.begun:
            if request.retry and state.failed_rows:
                return Action.RETRY_FAILED
            if request.recompute or request.retry:
                return Action.RECOMPUTE if request.recompute else Action.ALREADY_COMPLETE
        continues = request.continues and request.resume and not state.changed_code
        by_this_run = continues or request.is_resource_of(lease)
        return Action.START if overwrite and not by_this_run else Action.ALREADY_COMPLETE
    if table is not None and table.committed:
        return Action.FINISH_TABLE_COMMIT
    if table is not None and table.series_committed:
        if overwrite or request.write.mode == "merge":  # to merge rows twice changes nothing
            return Action.START
        raise BadOutput(
            f"the table of write.path '{state.layout.output.uri}' has the rows of a delayed "
            "attempt that committed after a later attempt had started, so its failed rows are "
            "unknown. Set write.mode to overwrite, or remove its rows and write.path"
        )
    if lease.begun and request.resumes(lease):
        return Action.RETRY_FAILED if request.retry else Action.RESUME
    return Action.START_AGAIN


def _check_code(state: OutputState, request: Request, action: Action) -> Action:
    """Return the action, unless it would combine rows of changed code. Starts again if no rows are
    committed.

    Raises BadOutput if rows of the earlier code are committed."""
    # users fix the code before they retry failed rows
    if (
        not state.changed_code
        or request.retry
        or action not in (Action.RESUME, Action.ALREADY_COMPLETE)
    ):
        return action
    if action is Action.RESUME and not state.committed:
        return Action.START_AGAIN
    raise BadOutput(f"{state.changed_code}. {_remedy_of_changed_code(state, request)}")


def _remedy_of_changed_code(state: OutputState, request: Request) -> str:
    retry = ""
    if state.failed_rows:
        retry = f"Run `{RETRY}` to compute only the failed rows again, with the code of now. "
    if not request.write.adds:
        local = not is_resource(request.job)
        restart = restart_of("resume to false and write.mode to overwrite", command=local)
    elif state.complete:
        restart = "Remove resume: false to add only new files"
    else:
        restart = "Set resume to false for one run, to compute its rows again"
    return f"{retry}{restart}, or restore what changed"


def _describe_other_work(state: OutputState, lease: Lease, request: Request) -> str:
    """Return why other work must not be replaced: the job is another one, or its spec differs."""
    if not request.owns(lease, state.layout.key):
        same_name = name_of(lease.job) == name_of(request.job)
        changes = f" ({state.changed_spec})" if same_name and state.changed_spec else ""
        whose = f"another job{changes}" if same_name else f"another job, {lease.job}"
        return (
            f"it holds the output of {whose}. Choose another path, or set write.mode to overwrite"
        )
    differs = f": {state.changed_spec}" if state.changed_spec else ""
    begun = f"this output was begun with another spec{differs}"
    if request.write.adds:
        return f"{begun}. Choose another path"
    # a restart is refused if the table has rows, because they may belong to others
    by_command = state.table is None and not is_resource(request.job)
    return f"{begun}. {restart_of(command=by_command)}, or choose another path"


def restart_of(setting: str = "", *, command: bool) -> str:
    """Return how all rows are computed again: by a `command` on a machine, or by a setting."""
    how = f"Run `{RESTART}`" if command else f"Set {setting or 'write.mode to overwrite'}"
    return f"{how} to compute all rows again"


def _may_replace(state: OutputState, lease: Lease, request: Request) -> bool:
    """Return whether the mode allows replacing the output of other work."""
    if request.write.mode != "overwrite":
        return False
    # an unfinished replacement is not the output of any job yet
    return (
        not request.own_only or state.layout.is_replacement or request.owns(lease, state.layout.key)
    )


def _check_start(state: OutputState, request: Request) -> None:
    """Raise BadOutput if the mode does not allow adding to or replacing the existing content."""
    if state.added_by:
        raise BadOutput(
            f"spec.write.path: '{state.layout.output.uri}' holds rows that {state.added_by} has "
            "appended. Set write.mode to overwrite to replace them as well, or choose another path"
        )
    if state.foreign_files and not request.write.adds:
        fix = (
            "Overwriting only replaces such output. Remove them yourself, or choose another path"
            if request.write.mode == "overwrite"
            else "Choose another path, empty it, or set write.mode to append"
        )
        raise BadOutput(
            f"spec.write.path: '{state.layout.output.uri}' holds files that are no output of a "
            f"BatchInference. {fix}"
        )


def _check_rows_of_others(state: OutputState, request: Request) -> None:
    """Raise BadOutput if the mode does not allow adding to or replacing the rows that a table
    has before the rows of this work are in it."""
    write = request.write
    own_work = state.lease is not None and state.lease.key == state.layout.key
    blocks = write.mode == "error" or (request.own_only and not own_work)
    if isinstance(write, WriteTable) and blocks and state.table and state.table.has_rows:
        raise table_has_rows(write)


class OutputReader:
    """What was found at the outputs of one work. It is as old as its first use: the write of a
    lease compares the lease again, and whatever else may have changed needs another reader."""

    def __init__(self) -> None:
        self._lease, self._marker = cache(lease_in), cache(Location.read_if_exists)
        self._directories = cache(Location.directories)

    def lease(self, layout: Layout) -> Lease | None:
        """Return the lease of an output. Raises BadOutput if it is damaged."""
        return self._lease(layout.job)

    def has_marker(self, layout: Layout) -> bool:
        """Return whether any run has written the completion marker of an output."""
        return self._marker(layout.success) is not None

    def has_ended(self, layout: Layout) -> bool:
        """Return whether the run that has the lease of an output has completed it."""
        lease = self.lease(layout)
        return lease is not None and lease.is_marker(self._marker(layout.success))

    def is_of_work(self, layout: Layout) -> bool:
        """Return whether the lease of an output is of the work of this layout."""
        lease = self.lease(layout)
        return lease is not None and lease.key == layout.key

    def is_complete(self, layout: Layout) -> bool:
        """Return whether the work of this layout is complete, with its output at this layout."""
        return self.is_of_work(layout) and self.has_ended(layout)

    def appended(self, layout: Layout) -> list[Layout]:
        """Return the layouts of everything that was added to an output."""
        return layout.appended(self._directories(layout.state))

    def additions(self, layout: Layout) -> list[Layout]:
        """Return the layouts of the additions to the output of this work that have begun."""
        return layout.additions(self._directories(layout.whole.state))


def load_state(
    layout: Layout,
    request: Request,
    table: CommittedTable | None = None,
    reader: OutputReader | None = None,
) -> OutputState:
    """Return the state of an output, partly as `reader` has found it. Nothing is changed.

    Raises BadOutput if the state is damaged, or cannot be read."""
    reader = reader or OutputReader()
    with storage_errors_as_bad_output(request.write):
        lease = reader.lease(layout)
        if layout.is_replacement:
            changed = _changed_code(layout, lease, request)
            committed = _has_commits(layout, lease, changed)
            return OutputState(layout, lease, changed_code=changed, committed=committed)
        if reader.has_ended(layout.replacement):
            return OutputState(layout, replaced_by=reader.lease(layout.replacement))
        return _load_output(layout, request, table, reader)


def _load_output(
    layout: Layout, request: Request, table: CommittedTable | None, reader: OutputReader
) -> OutputState:
    lease, complete = reader.lease(layout), reader.has_ended(layout)
    same_work = lease is not None and lease.key == layout.key
    changed = _changed_code(layout, lease, request, complete=complete)
    return OutputState(
        layout,
        lease,
        complete,
        failed_rows=same_work
        and complete
        and bool(request.retry or changed)
        and has_failed_rows(layout),
        foreign_files=table is None
        and lease is None
        and _has_foreign_files(layout, request.write.mode, reader),
        added=request.write.mode == "overwrite" and bool(reader.appended(layout)),
        added_by=_added_by(layout, request, reader),
        changed_code=changed,
        changed_spec=_changed_spec(layout, lease, request),
        committed=complete or _has_commits(layout, lease, changed),
        table=_load_table(table, layout, lease, request, complete=complete) if table else None,
    )


def _changed_code(
    layout: Layout, lease: Lease | None, request: Request, *, complete: bool = False
) -> str:
    if lease is None or lease.key != layout.key or not lease.begun:
        return ""
    overwrite = request.write.mode == "overwrite"
    starts_over = not request.resumes(lease) and (overwrite or not complete)
    return "" if starts_over else changed_code(layout.code, request.code)


def _changed_spec(layout: Layout, lease: Lease | None, request: Request) -> str:
    is_other = lease is not None and lease.key != layout.key
    replaces = request.write.mode == "overwrite" and not request.own_only
    return changed_spec(layout.spec, request.work) if is_other and not replaces else ""


def _has_commits(layout: Layout, lease: Lease | None, changed: str) -> bool:
    """Return whether rows of an unfinished output of changed code count; True if it is unknown."""
    if lease is None or not changed:
        return True
    return bool(Attempt(layout, lease).load_committed().entries)


@table_errors_as_bad_output()
def _load_table(
    table: CommittedTable, layout: Layout, lease: Lease | None, request: Request, *, complete: bool
) -> TableState:
    same_work = lease if lease is not None and lease.key == layout.key else None
    if complete and same_work is not None:
        return TableState()
    if same_work is not None and table.commits(same_work.commit_id):
        return TableState(committed=True)
    # the output of other work is refused without reading the table, unless it may be replaced
    refuses_rows = request.write.mode == "error" and same_work == lease
    reads_rows = refuses_rows or request.own_only
    return TableState(
        series_committed=same_work is not None and table.commits(same_work.series_id) > 0,
        has_rows=reads_rows and table.holds_rows(),
    )


def has_failed_rows(layout: Layout) -> bool:
    """Return whether a complete output has failed rows."""
    return Snapshot.read(layout.end, layout.key).counts.failed > 0


def _added_by(layout: Layout, request: Request, reader: OutputReader) -> str:
    """Return another job that has added rows to the output; empty if there is none, or if its rows
    may be replaced."""
    for added in reader.appended(layout) if request.own_only else ():
        key = layout.addition(added.addition_number).key if added.addition_number else layout.key
        lease = reader.lease(added)
        if lease is not None and not request.owns(lease, key):
            return lease.job
    return ""


def _has_foreign_files(layout: Layout, mode: str, reader: OutputReader) -> bool:
    """Return whether an output without a lease contains files that the mode does not allow adding
    to or replacing."""
    if mode == "append":
        return False
    paths = [info.path for info in layout.output.files(recursive=True)]
    if mode == "overwrite" and (added := list(map(reader.lease, reader.appended(layout)))):
        keys = {lease.key for lease in added if lease is not None}
        state = layout.state.path.rstrip("/") + "/"
        return any(
            not path.startswith(state) and not any(is_part(path, key) for key in keys)
            for path in paths
        )
    # a run that died while it claimed the output leaves only a temporary file of the lease
    return any(remnant_of(base_name(path)) != base_name(layout.job.path) for path in paths)


@contextmanager
def storage_errors_as_bad_output(write: Write) -> Iterator[None]:
    """Convert storage errors into a BadOutput that names the path."""
    try:
        yield
    except OSError as error:
        raise BadOutput(f"spec.write.path: '{write.path}' cannot be used: {error}") from error
