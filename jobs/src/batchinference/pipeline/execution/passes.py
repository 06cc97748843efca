"""Decides whether another pass over the missing rows follows a pass."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from batchinference.pipeline.commit.row_coverage import format_missing_rows
from batchinference.pipeline.errors import Incomplete, JobFailure
from batchinference.pipeline.execution.attempt_run import AttemptEnd, AttemptRun
from batchinference.pipeline.execution.isolation import Death

MAX_PASSES, MAX_STALLED = 50, 4
"""Maximum number of passes over missing rows, and of consecutive passes that commit nothing and in
which no process dies at a row. If rows are still missing afterwards, the job fails."""


@dataclass
class Passes:
    """The passes of a run at one output so far.

    One pass is enough unless a node is lost, a device fails, or processes die at a row."""

    number: int = 0
    stalled: int = 0
    """The number of passes since the last one that committed rows or knew of further deaths."""

    def after(
        self,
        run: AttemptRun,
        end: AttemptEnd,
        deaths: Collection[Death],
        losses: Sequence[JobFailure] = (),
        *,
        excluded: bool = False,
    ) -> AttemptRun:
        """Begin the next pass after a pass that has left rows, and return it. `deaths` are those of
        processes that computed rows, and `losses` says why tasks were lost. With `excluded`, the
        next pass leaves out more faulty nodes.

        Raises the last loss, or Incomplete, if another pass would be in vain."""
        advanced = bool(deaths) or len(end.snapshot.entries) > len(run.start.entries)
        self.number, self.stalled = self.number + 1, 0 if advanced else self.stalled + 1
        exhausted = self.number == MAX_PASSES or self.stalled == MAX_STALLED
        if losses and not advanced and (exhausted or not excluded):
            raise losses[-1]
        if exhausted or not run.input.repeatable:
            raise Incomplete(
                "the output does not contain each input row once. Missing: "
                f"{format_missing_rows(end.missing)}. Run the job again to compute them"
            )
        return run.next_pass(end, deaths)
