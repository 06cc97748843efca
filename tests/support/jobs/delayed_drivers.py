"""Drivers that are delayed right before their commit to a table, or die right after it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from batchinference.pipeline.commit import job_pass
from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.pipeline.commit.table_commit import Fence

Check = Callable[[], None]


def delay_driver(
    monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[Check], object], after: int = 0
) -> None:
    """Call `meanwhile` in place of one check of the next driver, after so many checks. It receives
    the real check as its argument."""

    def fence(mark: str, series: str, check: Check, follows: bool) -> Fence:
        monkeypatch.setattr(job_pass, "Fence", Fence)
        checks = count()

        def next_check() -> None:
            if next(checks) == after:
                meanwhile(check)
            else:
                check()

        return Fence(mark, series, next_check, follows)

    monkeypatch.setattr(job_pass, "Fence", fence)


def kill_after_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next driver fail right after its commit."""
    real = JobPass.commit_table

    def die(self: JobPass, *arguments: Any) -> None:
        monkeypatch.setattr(JobPass, "commit_table", real)
        real(self, *arguments)
        raise OSError("killed")

    monkeypatch.setattr(JobPass, "commit_table", die)
