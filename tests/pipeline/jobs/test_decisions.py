"""What a job does about an output, as a table of all cases: mode, state, resume and retry."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from batchinference.pipeline.commit.lease import Lease
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.commit.output_state import OutputState, Request, TableState
from batchinference.pipeline.commit.start_or_resume import Action, decide
from batchinference.pipeline.errors import BadOutput
from support.documents.parsed_write import write_of
from support.outputs.builders import THEIRS, layout_of

MODES = ("error", "append", "overwrite")
LAYOUT = layout_of("out")
TABLE = replace(LAYOUT, is_table=True)
SERIES = "5" * 32


def lease(layout: Layout = LAYOUT, *, begun: bool = True, job: str = "job") -> Lease:
    return Lease.new(layout, 3, begun=begun, job=job, series=SERIES)


def state(layout: Layout = LAYOUT, *, begun: bool = True, **fields: object) -> OutputState:
    """Return the state of an output that this work has begun."""
    return replace(OutputState(layout, lease(begun=begun)), **fields)


EMPTY = OutputState(LAYOUT)
FOREIGN = OutputState(LAYOUT, has_foreign_files=True)
OTHER = OutputState(LAYOUT, replace(lease(), key=THEIRS))
CLAIMED, UNFINISHED = state(begun=False), state()
COMPLETE = state(complete=True)
COMPLETE_WITH_FAILED = state(complete=True, has_failed_rows=True)
DONE, CONTINUE = Action.ALREADY_COMPLETE, Action.START_IN_SERIES

CASES = {
    # state: the actions with resume in the modes error, append and overwrite
    "empty": (EMPTY, [Action.START] * 3),
    "only added to": (
        OutputState(LAYOUT, has_appended_rows=True),
        [Action.START, Action.START, Action.REPLACE],
    ),
    "foreign": (
        FOREIGN,
        ["no BatchInference", Action.START, "no BatchInference"],
    ),
    "other": (OTHER, ["of another job"] * 2 + [Action.START]),
    "other complete": (replace(OTHER, complete=True), ["of another job"] * 2 + [Action.REPLACE]),
    "replaced by this job": (
        OutputState(LAYOUT, replaced_by=lease()),
        [Action.FINISH_REPLACEMENT] * 3,
    ),
    "replaced by another job": (
        OutputState(LAYOUT, replaced_by=OTHER.lease),
        ["was interrupted"] * 3,
    ),
    "claimed": (CLAIMED, [CONTINUE] * 3),
    "unfinished": (UNFINISHED, [Action.RESUME] * 3),
    "complete": (COMPLETE, [DONE, DONE, Action.REPLACE]),
    "complete with failed rows": (COMPLETE_WITH_FAILED, [DONE, DONE, Action.REPLACE]),
}
TABLES = {
    "empty": (OutputState(TABLE, table=TableState()), [Action.START] * 3),
    "with rows": (
        OutputState(TABLE, table=TableState(has_rows=True)),
        ["has rows already", Action.START, Action.START],
    ),
    "claimed": (state(TABLE, begun=False, table=TableState()), [CONTINUE] * 3),
    "unfinished": (state(TABLE, table=TableState()), [Action.RESUME] * 3),
    "unfinished, with rows of others": (
        state(TABLE, table=TableState(has_rows=True)),
        ["has rows already", Action.RESUME, Action.RESUME],
    ),
    "committed": (
        state(TABLE, table=TableState(pass_committed=True)),
        [Action.FINISH_TABLE_COMMIT] * 3,
    ),
    "committed by a delayed attempt": (
        state(TABLE, table=TableState(series_committed=True)),
        ["a delayed attempt has"] * 2 + [Action.START],
    ),
    "complete": (
        state(TABLE, complete=True, table=TableState()),
        [DONE] * 2 + [Action.START],
    ),
    "other": (
        replace(OTHER, layout=TABLE, table=TableState()),
        ["of another job"] * 2 + [Action.START],
    ),
}  # fmt: skip


def check(expected: object, result: OutputState, mode: str, **request: object) -> None:
    format_ = "delta" if result.table is not None else "parquet"
    wanted = Request(write_of(format_, "out", mode=mode), **request)  # type: ignore[arg-type]
    if isinstance(expected, str):
        with pytest.raises(BadOutput, match=expected):
            decide(result, wanted)
    else:
        assert decide(result, wanted) == expected


def table_of(cases: dict[str, tuple[OutputState, list[object]]]) -> pytest.MarkDecorator:
    rows = [
        pytest.param(case, mode, action, id=f"{name}-{mode}")
        for name, (case, actions) in cases.items()
        for mode, action in zip(MODES, actions, strict=True)
    ]
    return pytest.mark.parametrize(("state", "mode", "expected"), rows)


@table_of(CASES)
def test_decision_for_files(state: OutputState, mode: str, expected: object) -> None:
    check(expected, state, mode)


@pytest.mark.parametrize("retry", [False, True])
@table_of(CASES)
def test_decision_for_files_without_resume(
    state: OutputState, mode: str, expected: object, retry: bool
) -> None:
    """Only the commits of an unfinished run are affected, and nothing is retried."""
    wanted = CONTINUE if expected == Action.RESUME else expected
    check(wanted, state, mode, retry=retry, resume=False)


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ("team/job (uid-1)", Action.RESUME),
        ("team/job (uid-2)", CONTINUE),
        ("job on laptop", CONTINUE),
    ],
)
def test_resource_starts_over_once(job: str, expected: Action) -> None:
    assert UNFINISHED.lease is not None
    lease = replace(UNFINISHED.lease, job=job if "uid-2" not in job else "team/job (uid-1)")
    check(expected, replace(UNFINISHED, lease=lease), "error", resume=False, job=job)


@table_of(CASES)
def test_decision_for_files_with_retry(state: OutputState, mode: str, expected: object) -> None:
    """A complete output is retried even if the mode is overwrite."""
    if state.lease is not None and state.lease.key == LAYOUT.key and state.lease.begun:
        expected = Action.RETRY_FAILED if state.has_failed_rows or not state.complete else DONE
    check(expected, state, mode, retry=True)


@table_of(CASES)
def test_decision_for_files_that_have_changed(
    state: OutputState, mode: str, expected: object
) -> None:
    """Only a complete output of this work is opened again."""
    own = state.lease is not None and state.lease.key == LAYOUT.key and state.complete
    check(Action.RECOMPUTE if own else expected, state, mode, recompute=True)


@pytest.mark.parametrize("mode", MODES)
def test_changed_files_and_failed_rows_are_replaced_together(mode: str) -> None:
    both = {"recompute": True, "retry": True}
    check(Action.RETRY_FAILED, COMPLETE_WITH_FAILED, mode, **both)
    check(Action.RECOMPUTE, COMPLETE, mode, **both)
    check(DONE if mode != "overwrite" else Action.REPLACE, COMPLETE, mode, resume=False, **both)


@pytest.mark.parametrize("resume", [True, False])
@table_of(TABLES)
def test_decision_for_tables(state: OutputState, mode: str, expected: object, resume: bool) -> None:
    """Without `resume`, the series continues: the table takes the rows of one of its passes."""
    starts_over = expected == Action.RESUME and not resume
    check(CONTINUE if starts_over else expected, state, mode, resume=resume)


@pytest.mark.parametrize("mode", MODES)
def test_complete_table_is_never_retried(mode: str) -> None:
    """Its rows are visible, so a second commit would add rows twice."""
    complete, actions = TABLES["complete"]
    check(actions[MODES.index(mode)], complete, mode, retry=True)


def changed(result: OutputState, *, committed: bool = True) -> OutputState:
    return replace(result, code_change="a.py changed", has_commits=committed)


CHANGED_CODE: dict[str, tuple[OutputState, list[object]]] = {
    "claimed": (CLAIMED, [CONTINUE] * 3),
    "unfinished": (changed(UNFINISHED), ["a.py changed"] * 3),
    "unfinished, without commits": (
        changed(UNFINISHED, committed=False),
        [CONTINUE] * 3,
    ),
    "complete": (
        changed(COMPLETE),
        ["a.py changed", "a.py changed", Action.REPLACE],
    ),
}  # fmt: skip


@table_of(CHANGED_CODE)
def test_output_of_changed_code(state: OutputState, mode: str, expected: object) -> None:
    """Rows of both versions are never mixed. Before the first commit, there are none to mix."""
    check(expected, state, mode)


@table_of(CHANGED_CODE)
def test_retry_accepts_changed_code(state: OutputState, mode: str, expected: object) -> None:
    """A correction of the code is often its reason."""
    if state.lease != CLAIMED.lease:
        expected = DONE if state.complete else Action.RETRY_FAILED
    check(expected, state, mode, retry=True)


@pytest.mark.parametrize(
    ("state", "mode", "remedy"),
    [
        (UNFINISHED, "error", "Run `batchinference run FILE --restart`"),
        (UNFINISHED, "append", "Set resume to false for one run"),
        (COMPLETE, "append", "Remove resume: false"),
    ],
)
def test_message_about_changed_code_has_a_remedy_that_the_mode_allows(
    state: OutputState, mode: str, remedy: str
) -> None:
    check(rf"a\.py changed\. {remedy}", changed(state), mode)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, DONE), ({"resume": False}, Action.REPLACE), ({"retry": True}, Action.RETRY_FAILED)],
)
def test_overwrite_that_finished_a_replacement(fields: dict[str, bool], expected: object) -> None:
    """It has done its work, unless more is requested or the code has changed."""
    check(expected, COMPLETE_WITH_FAILED, "overwrite", has_completed=True, **fields)
    check(Action.REPLACE, changed(COMPLETE), "overwrite", has_completed=True)


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ("team/job (uid-1)", DONE),
        ("team/job (uid-2)", Action.REPLACE),
        ("job on laptop", Action.REPLACE),
    ],
)
def test_resource_overwrites_its_own_output_once(job: str, expected: object) -> None:
    """A job file that is run again overwrites its output again."""
    own = job if expected == DONE or "laptop" in job else "team/job (uid-1)"
    result = replace(COMPLETE, lease=lease(job=own))
    check(expected, result, "overwrite", job=job)


SAME_NAME = replace(OTHER, lease=replace(lease(job="embed on here"), key=THEIRS))
OTHER_NAME = lease(job="other on here")
AS_NAMED: dict[str, Any] = {"job": "embed on here"}


@pytest.mark.parametrize("mode", ["error", "append"])
def test_output_of_the_job_before_its_spec_changed_names_the_change(mode: str) -> None:
    result = replace(SAME_NAME, spec_change="steps was [], is 1")
    check(r"another spec: steps was \[\], is 1\. ", result, mode, **AS_NAMED)
    unknown = "another spec. (Run `batchinference run FILE --restart`|Choose)"
    check(unknown, SAME_NAME, mode, **AS_NAMED)
    check("job, embed on here. Choose another path", result, mode, job="other on here")


def test_advice_for_another_spec_is_possible() -> None:
    """There is no --restart on a cluster, and a table with rows refuses it."""
    table = replace(SAME_NAME, layout=TABLE, table=TableState())
    on_cluster = replace(SAME_NAME, lease=replace(lease(job="a/embed (1)"), key=THEIRS))
    check("spec. Run `batchinference run FILE --restart`", SAME_NAME, "error", **AS_NAMED)
    check("spec. Set write.mode to overwrite", table, "error", **AS_NAMED)
    check("spec. Set write.mode to overwrite", on_cluster, "error", job="a/embed (2)")


def test_an_unnamed_job_may_be_the_one_that_has_changed() -> None:
    unnamed = replace(SAME_NAME, lease=replace(lease(job="job on here"), key=THEIRS))
    result = replace(unnamed, spec_change="steps was [], is 1")
    check(r"another job \(steps was \[\], is 1\)\. Choose", result, "error", job="job on here")


def test_changed_code_of_failed_rows_can_be_retried() -> None:
    check("Run `batchinference run FILE --retry-errors`", changed(COMPLETE_WITH_FAILED), "error")
    check(r"a\.py changed\. Run `batchinference run FILE --restart`", changed(COMPLETE), "error")


RESTARTED = {
    "empty": (EMPTY, Action.START),
    "only added to by the job": (OutputState(LAYOUT, has_appended_rows=True), Action.REPLACE),
    "only added to by another": (
        OutputState(LAYOUT, has_appended_rows=True, appended_by="other"),
        "rows that other has appended",
    ),
    "foreign": (FOREIGN, "no BatchInference"),
    "other": (OTHER, "of another job"),
    "other complete": (replace(OTHER, complete=True), "of another job"),
    "of another spec": (SAME_NAME, Action.START),
    "of another spec, complete": (replace(SAME_NAME, complete=True), Action.REPLACE),
    "unfinished": (replace(UNFINISHED, lease=OTHER_NAME), CONTINUE),
    "complete": (replace(COMPLETE, lease=OTHER_NAME), Action.REPLACE),
    "complete, added to by another": (replace(COMPLETE, appended_by="other"), "has appended"),
    "replaced by another job": (OutputState(LAYOUT, replaced_by=OTHER.lease), "was interrupted"),
    "unfinished replacement of another": (replace(OTHER, layout=LAYOUT.replacement), Action.START),
    "table with rows": (OutputState(TABLE, table=TableState(has_rows=True)), "has rows already"),
    "table with rows, of another spec": (
        replace(SAME_NAME, layout=TABLE, complete=True, table=TableState(has_rows=True)),
        "has rows already",
    ),
    "empty table, of another spec": (
        replace(SAME_NAME, layout=TABLE, complete=True, table=TableState()),
        Action.START,
    ),
    "own table with rows": (state(TABLE, table=TableState(has_rows=True)), CONTINUE),
    "complete table": (state(TABLE, complete=True, table=TableState()), Action.START),
    "table of another": (replace(OTHER, layout=TABLE, table=TableState()), "of another job"),
}


@pytest.mark.parametrize(("state", "expected"), RESTARTED.values(), ids=RESTARTED)
def test_restart_replaces_only_output_of_the_job(state: OutputState, expected: object) -> None:
    """The job is known by the key of its work, and by its name if its spec has changed."""
    restart: dict[str, Any] = {"resume": False, "own_only": True, "job": "embed on here"}
    check(expected, state, "overwrite", **restart)


@pytest.mark.parametrize(
    ("job", "owns"),
    [("job on here", False), ("", False), ("embed on here", True), ("job-2 on here", True)],
)
def test_the_default_name_identifies_no_job(job: str, owns: bool) -> None:
    """All jobs of the Python API without a name have it."""
    request = Request(write_of("parquet", "out"), job=job)
    assert request.owns(replace(lease(job=job), key=THEIRS), LAYOUT.key) == owns
    assert request.owns(lease(job="other on here"), LAYOUT.key)
