"""One attempt of a job that is ready to run, and its end. Neither needs Ray."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.manifest import RowCounts, WarnedRows, warnings_of
from batchinference.pipeline.commit.snapshot import Snapshot, StoredFiles, without_missing_files
from batchinference.pipeline.commit.warning_counts import WarningTracker, counts_of_warnings
from batchinference.pipeline.execution.isolation import NO_DEATHS, Death, Isolation
from batchinference.pipeline.input import JobInput, RowCount
from batchinference.pipeline.input.planning import Sizing
from batchinference.pipeline.input.snapshot import paths_of
from batchinference.pipeline.output.error_records import bad_row
from batchinference.pipeline.output.tables import Table
from batchinference.pipeline.row_batch import MissingRows
from batchinference.spec.warnings import WarningCount


@dataclass(frozen=True)
class AttemptEnd:
    """The result of an attempt: the snapshot of the output, the input rows that are missing, the
    notes of the steps (step, JSON), and the files of the output, if they were listed."""

    snapshot: Snapshot
    missing: MissingRows
    notes: list[tuple[str, str]]
    files: StoredFiles | None = None


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
    isolation: Isolation = NO_DEATHS
    """The rows at which processes died in earlier passes."""

    def counts(self) -> RowCounts:
        """Return the counts of the committed rows."""
        return self.start.counts + self.attempt.counts()

    @cached_property
    def _warnings(self) -> WarningTracker:
        return WarningTracker(self.attempt, warnings_of(self.start.entries))

    def warnings(self, counts: RowCounts) -> list[WarningCount]:
        """Return the warnings about files, and about the committed rows, of which there are
        `counts`. Fetches manifests with warnings."""
        return self._described(self._warnings.update(counts.warned))

    def final_warnings(self, end: Snapshot) -> list[WarningCount]:
        """Return the warnings about files, and about the rows of a snapshot."""
        return self._described(warnings_of(end.entries))

    def _described(self, warnings: list[WarnedRows]) -> list[WarningCount]:
        paths = paths_of(self.attempt.layout.input)
        about_rows = counts_of_warnings(warnings, lambda file: str(paths[file].as_py()))
        return [*self.input.ignored.warnings(), *about_rows]

    def bad_row(self) -> str:
        """Return a description of one failed row."""
        entries = itertools.chain(self.start.entries, self.attempt.failed_entries())
        return bad_row(self.attempt.layout, entries)

    def close(self) -> AttemptEnd:
        """Close the attempt for commits and return its result. Fetches all manifests.

        Raises BadOutput if another run has taken over the output."""
        self.attempt.close()
        manifests = self.attempt.manifests()
        layout = self.attempt.layout
        committed, files = self.start.with_commits(manifests), StoredFiles.of(layout)
        snapshot = without_missing_files(layout, committed, files)
        missing = snapshot.missing_rows(len(self.input), self.input.rows_each)
        notes = [note for manifest in manifests for note in manifest.notes]
        return AttemptEnd(snapshot, missing, notes, files)

    def next_pass(self, end: AttemptEnd, deaths: Iterable[Death] = ()) -> AttemptRun:
        """Begin the next pass, over the rows that are still missing after these deaths of
        processes, and return it. Raises BadOutput if another run has begun in the output."""
        layout, lease = self.attempt.layout, self.attempt.lease
        attempt = Attempt.begin(layout, lease, end.snapshot, lease.job, end.files)
        isolation = self.isolation.after(deaths)
        start, missing = end.snapshot, end.missing
        return replace(self, attempt=attempt, start=start, missing=missing, isolation=isolation)
