"""One attempt of a job: its input, the missing rows, and how it ends."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.manifest import RowCounts
from batchinference.pipeline.commit.snapshot import Snapshot, without_missing_files
from batchinference.pipeline.input.base import JobInput
from batchinference.pipeline.input.planning import RowCount, Sizing
from batchinference.pipeline.output.error_records import bad_row
from batchinference.pipeline.output.tables import Table
from batchinference.pipeline.row_ids import MissingRows


@dataclass(frozen=True)
class AttemptEnd:
    """What an attempt has left: the snapshot of the output, the input rows that are missing, and
    the notes of the steps (step, JSON)."""

    snapshot: Snapshot
    missing: MissingRows
    notes: list[tuple[str, str]]


@dataclass(frozen=True)
class AttemptRun:
    """An attempt that is ready to run. `missing` are the input rows that the output lacks; None
    means all rows. `table` is the table that the job writes, if any."""

    input: JobInput
    count: RowCount | None
    sizing: Sizing
    attempt: Attempt
    start: Snapshot
    missing: MissingRows | None = None
    table: Table | None = None
    first_file: int = 0
    """The number of the first input file, for the numbers of rows."""

    @property
    def is_repeatable(self) -> bool:
        """Whether missing rows can be read and written again without the other rows."""
        return self.input.repeatable and self.table is None

    def counts(self) -> RowCounts:
        """Return the counts of the committed rows."""
        return self.start.counts + self.attempt.counts()

    def bad_row(self) -> str:
        """Return a description of one failed row."""
        entries = itertools.chain(self.start.entries, self.attempt.failed_entries())
        return bad_row(self.attempt.layout, entries)

    def close(self) -> AttemptEnd:
        """Close the attempt for commits and return what it has left. Fetches all manifests.

        Raises BadOutput if another run has taken over the output."""
        self.attempt.close()
        manifests = self.attempt.manifests()
        snapshot = without_missing_files(self.attempt.layout, self.start.with_commits(manifests))
        missing = snapshot.missing_rows(len(self.input), self.input.rows_each)
        return AttemptEnd(snapshot, missing, [note for one in manifests for note in one.notes])

    def next_attempt(self, end: AttemptEnd) -> AttemptRun:
        """Open the next attempt, for the rows that are still missing, and return it."""
        lease = self.attempt.lease
        attempt = Attempt.open(self.attempt.layout, lease.attempt + 1, end.snapshot, lease.job)
        return replace(self, attempt=attempt, start=end.snapshot, missing=end.missing)
