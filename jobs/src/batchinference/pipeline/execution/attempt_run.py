"""One attempt at a job: its input, what of it is missing, and how it ends."""

from __future__ import annotations

from dataclasses import dataclass, replace

from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.manifest_entry import RowCounts
from batchinference.pipeline.commit.missing_files import without_missing_files
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.input.base import JobInput
from batchinference.pipeline.input.planning import RowCount, Sizing
from batchinference.pipeline.output.error_records import bad_row
from batchinference.pipeline.row_ids import MissingRows


@dataclass(frozen=True)
class AttemptRun:
    """A job that can begin, or go on. `gaps` are the rows of the input that its output lacks; None
    stands for all."""

    input: JobInput
    count: RowCount | None
    sizing: Sizing
    attempt: Attempt
    start: Snapshot
    gaps: MissingRows | None = None

    @property
    def is_repeatable(self) -> bool:
        """Whether what is missing can be read and written again by itself."""
        return self.input.repeatable and not self.attempt.layout.is_table

    def counts(self) -> RowCounts:
        """Rows that are done."""
        return self.start.counts + self.attempt.counts()

    def bad_row(self) -> str:
        """One of the bad rows in words."""
        made = (piece for manifest in self.attempt.manifests() for piece in manifest.pieces)
        return bad_row(self.attempt.layout, [*self.start.pieces, *made])

    def close_and_snapshot(self) -> Snapshot:
        """What counts of the output once the attempt has come to its end."""
        made = self.start.with_commits(self.attempt.close())
        return without_missing_files(self.attempt.layout, made)

    def missing(self, snapshot: Snapshot) -> MissingRows:
        return snapshot.gaps(len(self.input), self.input.rows_each)

    def next_attempt(self, start: Snapshot) -> AttemptRun:
        """The next attempt, at what is missing still."""
        lease = self.attempt.lease
        attempt = Attempt.open(self.attempt.layout, lease.attempt + 1, start, lease.job)
        return replace(self, attempt=attempt, start=start, gaps=self.missing(start))
