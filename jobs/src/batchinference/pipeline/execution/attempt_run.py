"""One attempt of a job: its input, the missing rows, and its final snapshot."""

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
    """An attempt that is ready to run. `gaps` are the input rows that are missing from the output;
    None means all rows."""

    input: JobInput
    count: RowCount | None
    sizing: Sizing
    attempt: Attempt
    start: Snapshot
    gaps: MissingRows | None = None

    @property
    def is_repeatable(self) -> bool:
        """Whether missing rows can be read and written again without the other rows."""
        return self.input.repeatable and not self.attempt.layout.is_table

    def counts(self) -> RowCounts:
        """Return the counts of the committed rows."""
        return self.start.counts + self.attempt.counts()

    def bad_row(self) -> str:
        """Return a description of one failed row."""
        made = (entry for manifest in self.attempt.manifests() for entry in manifest.entries)
        return bad_row(self.attempt.layout, [*self.start.entries, *made])

    def close_and_snapshot(self) -> Snapshot:
        """Close the attempt for commits and return the snapshot of the output."""
        made = self.start.with_commits(self.attempt.close())
        return without_missing_files(self.attempt.layout, made)

    def missing(self, snapshot: Snapshot) -> MissingRows:
        return snapshot.gaps(len(self.input), self.input.rows_each)

    def next_attempt(self, start: Snapshot) -> AttemptRun:
        """Open the next attempt, for the rows that are still missing, and return it."""
        lease = self.attempt.lease
        attempt = Attempt.open(self.attempt.layout, lease.attempt + 1, start, lease.job)
        return replace(self, attempt=attempt, start=start, gaps=self.missing(start))
