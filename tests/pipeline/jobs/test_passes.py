"""Whether another pass over the missing rows follows a pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from batchinference.pipeline.errors import DeviceFailed, Incomplete, JobFailure, WorkerCrashed
from batchinference.pipeline.execution.crash_isolation import NO_DEATHS, CrashNote, Isolation
from batchinference.pipeline.execution.prepared_pass import MAX_PASSES, MAX_STALLED, Passes

DEATH = (CrashNote("own", ((1, 2),)),)
LOST = WorkerCrashed("died")
FAULT = DeviceFailed("CUDA error", "a")


def run_of(entries: int = 1, *, repeatable: bool = True, isolation: Isolation = NO_DEATHS) -> Any:
    source = SimpleNamespace(repeatable=repeatable)
    start = SimpleNamespace(entries=[None] * entries)
    begin_next = {"begin_next_pass": lambda end, deaths: "next", "isolation": isolation}
    return SimpleNamespace(input=source, start=start, **begin_next)


def end_of(entries: int) -> Any:
    return SimpleNamespace(
        snapshot=SimpleNamespace(entries=[None] * entries), missing={0: [(1, 2)]}
    )


@pytest.mark.parametrize(
    ("entries", "deaths", "losses", "excluded"),
    [
        (2, [], [], False),
        (2, [], [LOST], False),
        (1, [DEATH], [LOST], False),
        (1, [], [FAULT], True),
        (1, [], [], False),
    ],
)
def test_another_pass_follows(
    entries: int, deaths: list[Any], losses: list[JobFailure], *, excluded: bool
) -> None:
    passes, end = Passes(), end_of(entries)
    assert passes.begin_next(run_of(), end, deaths, losses, excluded=excluded) == "next"


def test_lost_task_without_progress_fails_the_job() -> None:
    with pytest.raises(WorkerCrashed):
        Passes().begin_next(run_of(), end_of(1), [], [LOST])


def test_passes_that_only_find_faulty_devices_end() -> None:
    passes = Passes()
    for _ in range(MAX_STALLED - 1):
        passes.begin_next(run_of(), end_of(1), [], [FAULT], excluded=True)
    with pytest.raises(DeviceFailed):
        passes.begin_next(run_of(), end_of(1), [], [FAULT], excluded=True)


def test_source_that_cannot_be_read_again_has_one_pass() -> None:
    with pytest.raises(Incomplete):
        Passes().begin_next(run_of(repeatable=False), end_of(2), [])


def test_number_of_passes_is_limited() -> None:
    passes = Passes()
    for _ in range(MAX_PASSES - 1):
        passes.begin_next(run_of(), end_of(2), [DEATH])
    with pytest.raises(Incomplete):
        passes.begin_next(run_of(), end_of(2), [DEATH])


def test_number_of_rows_that_kill_their_process_is_not_limited_by_passes() -> None:
    """`errors` limits it. A replica dies too often after a few of these rows."""
    passes, isolation = Passes(), NO_DEATHS
    for row in range(0, 4 * MAX_PASSES, 2):
        deaths = [(CrashNote("own", ((row, row + 1),)),)] * 2
        passes.begin_next(run_of(isolation=isolation), end_of(1), deaths, [LOST])
        isolation = isolation.after(deaths)
    assert len(isolation.crashed) == 2 * MAX_PASSES


def test_passes_without_progress_end_sooner() -> None:
    passes = Passes()
    for advances in (False, True, *[False] * (MAX_STALLED - 1)):
        passes.begin_next(run_of(), end_of(2 if advances else 1), [])
    with pytest.raises(Incomplete):
        passes.begin_next(run_of(), end_of(1), [])
