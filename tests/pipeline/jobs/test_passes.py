"""Whether another pass over the missing rows follows a pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from batchinference.pipeline.errors import Incomplete, WorkerCrashed
from batchinference.pipeline.execution.isolation import CrashNote
from batchinference.pipeline.execution.passes import MAX_PASSES, MAX_STALLED, Passes

DEATH = (CrashNote("own", ((1, 2),)),)
LOST = WorkerCrashed("died")


def run_of(entries: int = 1, *, repeatable: bool = True) -> Any:
    source = SimpleNamespace(repeatable=repeatable)
    start = SimpleNamespace(entries=[None] * entries)
    return SimpleNamespace(input=source, start=start, next_pass=lambda end, deaths: "next")


def end_of(entries: int) -> Any:
    return SimpleNamespace(
        snapshot=SimpleNamespace(entries=[None] * entries), missing={0: [(1, 2)]}
    )


@pytest.mark.parametrize(
    ("entries", "deaths", "lost"),
    [(2, [], None), (2, [], LOST), (1, [DEATH], LOST), (1, [], None)],
    ids=["rows were committed", "and a task was lost", "a death is known", "nothing happened"],
)
def test_another_pass_follows(entries: int, deaths: list[Any], lost: BaseException | None) -> None:
    assert Passes().after(run_of(), end_of(entries), deaths, lost) == "next"


def test_lost_task_without_progress_fails_the_job() -> None:
    with pytest.raises(WorkerCrashed):
        Passes().after(run_of(), end_of(1), [], LOST)


def test_source_that_cannot_be_read_again_has_one_pass() -> None:
    with pytest.raises(Incomplete):
        Passes().after(run_of(repeatable=False), end_of(2), [], None)


def test_number_of_passes_is_limited() -> None:
    passes = Passes()
    for _ in range(MAX_PASSES - 1):
        passes.after(run_of(), end_of(2), [DEATH], None)
    with pytest.raises(Incomplete):
        passes.after(run_of(), end_of(2), [DEATH], None)


def test_passes_without_progress_end_sooner() -> None:
    passes = Passes()
    for advances in (False, True, *[False] * (MAX_STALLED - 1)):
        passes.after(run_of(), end_of(2 if advances else 1), [], None)
    with pytest.raises(Incomplete):
        passes.after(run_of(), end_of(1), [], None)
