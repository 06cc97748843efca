"""Decides what a job does with its output, such as to start or to resume.

`decide` reads no files. It gets all it needs from `output_state`."""

from __future__ import annotations

from enum import Enum

from batchinference.pipeline.commit.lease import Lease, is_cluster_job, without_uid
from batchinference.pipeline.commit.output_state import OutputState, Request
from batchinference.pipeline.commit.table_commit import has_rows_error
from batchinference.pipeline.errors import RESTART, RETRY, BadOutput
from batchinference.spec.write import WriteTable


class Action(Enum):
    """What a job does with its output."""

    START = "claim the output, and delete the contents of earlier runs"
    START_IN_SERIES = "like START, but as a further attempt to commit the same rows to a table"
    REPLACE = "write a replacement; the output keeps its rows until the replacement is complete"
    FINISH_REPLACEMENT = "swap in a complete replacement whose driver died, then decide again"
    RESUME = "process the missing rows"
    RETRY_FAILED = "process the missing rows, and the failed rows again"
    RECOMPUTE = "replace the rows of files that have changed or are gone"
    ALREADY_COMPLETE = "do nothing"
    FINISH_TABLE_COMMIT = "complete an output whose driver died after the commit of its table"

    @property
    def discards_rows(self) -> bool:
        """Whether the job discards all committed rows."""
        return self in (Action.START, Action.START_IN_SERIES)

    @property
    def begins_pass(self) -> bool:
        """Whether the job begins a pass at this output."""
        return self.discards_rows or self in (Action.RESUME, Action.RETRY_FAILED, Action.RECOMPUTE)


def decide(state: OutputState, request: Request) -> Action:
    """Return what a job does with an output in this state. Raises BadOutput if the job must not
    change the output or cannot finish it."""
    layout, write = state.layout, request.write
    where = f"spec.write.path: '{layout.output.uri}'"
    if (replacement := state.replaced_by) is not None:
        if replacement.key == layout.key and layout.state == layout.main.state:
            return Action.FINISH_REPLACEMENT
        raise BadOutput(
            f"{where}: {replacement.job} was interrupted while it replaced the output. Run that "
            "job again to finish this, or choose another path"
        )
    action = Action.START
    if state.lease is not None and state.lease.key == layout.key:
        action = _decide_own_work(state, state.lease, request)
        action = _action_after_code_change(state, request, action)
    elif state.lease is not None and not _may_replace(state, state.lease, request):
        raise BadOutput(f"{where}: {_describe_other_work(state, state.lease, request)}")
    if action.discards_rows:
        _check_start(state, request)
    if action.begins_pass:
        _check_rows_of_others(state, request)
    has_rows = state.complete or (state.lease is None and state.has_appended_rows)
    replaces = write.mode == "overwrite" and has_rows and state.table is None
    return Action.REPLACE if replaces and action.discards_rows else action


def _decide_own_work(state: OutputState, lease: Lease, request: Request) -> Action:
    """Return what a job does with an output of the same work."""
    overwrite, table = request.write.mode == "overwrite", state.table
    if state.complete:
        if request.resumes(lease) and table is None and lease.begun:
            if request.retry and state.has_failed_rows:
                return Action.RETRY_FAILED
            if request.recompute or request.retry:
                return Action.RECOMPUTE if request.recompute else Action.ALREADY_COMPLETE
        continues = request.has_completed and request.resume and not state.code_change
        by_this_run = continues or request.is_earlier_attempt(lease)
        return Action.START if overwrite and not by_this_run else Action.ALREADY_COMPLETE
    if table is not None and table.pass_committed:
        return Action.FINISH_TABLE_COMMIT
    if table is not None and table.series_committed:
        # overwriting or merging the same rows again changes nothing
        if overwrite or request.write.mode == "merge":
            return Action.START
        raise BadOutput(
            "a delayed attempt has already committed the rows to the table of write.path "
            f"'{state.layout.output.uri}', but the list of its failed rows is lost. Set write.mode "
            f"to overwrite, or delete these rows and '{state.layout.state.uri}'"
        )
    if lease.begun and request.resumes(lease):
        return Action.RETRY_FAILED if request.retry else Action.RESUME
    return Action.START_IN_SERIES


def _action_after_code_change(state: OutputState, request: Request, action: Action) -> Action:
    """Return the action. It becomes START_IN_SERIES if the code has changed and no row is
    committed. Raises BadOutput if the action would keep rows of the old code, except in a retry."""
    # a retry of failed rows is allowed, because users normally correct the code before it
    keeps_rows = action in (Action.RESUME, Action.ALREADY_COMPLETE)
    if not state.code_change or request.retry or not keeps_rows:
        return action
    if action is Action.RESUME and not state.has_commits:
        return Action.START_IN_SERIES
    raise BadOutput(f"{state.code_change}. {_advice_after_code_change(state, request)}")


def _advice_after_code_change(state: OutputState, request: Request) -> str:
    retry = ""
    if state.has_failed_rows:
        retry = f"Run `{RETRY}` to compute only the failed rows again, with the current code. "
    if not request.write.adds:
        local = not is_cluster_job(request.job)
        restart = restart_advice("resume to false and write.mode to overwrite", command=local)
    elif state.complete:
        restart = "Remove resume: false to add only new files"
    else:
        restart = "Set resume to false for one run, to compute the rows again"
    return f"{retry}{restart}, or restore what changed"


def _describe_other_work(state: OutputState, lease: Lease, request: Request) -> str:
    """Return why a job must not replace other work: another job owns it, or the spec differs."""
    if not request.owns(lease, state.layout.key):
        same_name = without_uid(lease.job) == without_uid(request.job)
        changes = f" ({state.spec_change})" if same_name and state.spec_change else ""
        owner = f"another job{changes}" if same_name else f"another job, {lease.job}"
        return f"it holds the output of {owner}. Choose another path or set write.mode to overwrite"
    differs = f": {state.spec_change}" if state.spec_change else ""
    begun = f"this output was begun with another spec{differs}"
    if request.write.adds:
        return f"{begun}. Choose another path"
    # --restart refuses tables with rows, because other jobs may have written them
    by_command = state.table is None and not is_cluster_job(request.job)
    return f"{begun}. {restart_advice(command=by_command)}, or choose another path"


def restart_advice(setting: str = "", *, command: bool) -> str:
    """Return the advice to compute all rows again, with a command or with a change of `setting`."""
    how = f"Run `{RESTART}`" if command else f"Set {setting or 'write.mode to overwrite'}"
    return f"{how} to compute all rows again"


def _may_replace(state: OutputState, lease: Lease, request: Request) -> bool:
    """Return whether the job is allowed to replace the output of other work."""
    # any job may start a replacement over, because it is not visible until it is complete
    is_own = state.layout.is_replacement or request.owns(lease, state.layout.key)
    return request.write.mode == "overwrite" and (is_own or not request.own_only)


def _check_start(state: OutputState, request: Request) -> None:
    """Raise BadOutput if the job must neither replace nor add to the existing files."""
    if state.appended_by:
        raise BadOutput(
            f"spec.write.path: '{state.layout.output.uri}' holds rows that {state.appended_by} has "
            "appended. Set write.mode to overwrite to replace them as well, or choose another path"
        )
    if state.has_foreign_files and not request.write.adds:
        fix = (
            "The mode overwrite deletes only files that BatchInference has written. Remove the "
            "others yourself, or choose another path"
            if request.write.mode == "overwrite"
            else "Choose another path, empty it, or set write.mode to append"
        )
        raise BadOutput(
            f"spec.write.path: '{state.layout.output.uri}' holds files that no BatchInference "
            f"has written. {fix}"
        )


def _check_rows_of_others(state: OutputState, request: Request) -> None:
    """Raise BadOutput if the table has rows that this job must neither replace nor add to."""
    write = request.write
    own_work = state.lease is not None and state.lease.key == state.layout.key
    needs_empty = write.mode == "error" or (request.own_only and not own_work)
    if isinstance(write, WriteTable) and needs_empty and state.table and state.table.has_rows:
        raise has_rows_error(write)
