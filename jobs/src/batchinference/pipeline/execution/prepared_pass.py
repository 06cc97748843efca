"""A pass before it runs, its end, and the decision whether another pass follows. Needs no Ray.

An attempt consists of passes. Each pass computes the rows that are missing when it begins."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.pipeline.commit.manifest import warnings_of
from batchinference.pipeline.commit.row_coverage import format_missing_rows
from batchinference.pipeline.commit.snapshot import ListedFiles, Snapshot, without_missing_files
from batchinference.pipeline.commit.warning_counts import WarningTracker, with_paths
from batchinference.pipeline.errors import Incomplete, JobFailure
from batchinference.pipeline.execution.crash_isolation import NO_DEATHS, Death, Isolation
from batchinference.pipeline.input import JobInput, RowCount
from batchinference.pipeline.input.input_snapshot import paths_of
from batchinference.pipeline.input.planning import Sizing
from batchinference.pipeline.output.error_records import bad_row
from batchinference.pipeline.output.tables import Table
from batchinference.pipeline.row_batch import MissingRows
from batchinference.spec.progress import Counts
from batchinference.spec.warnings import WarningCount

MAX_PASSES, MAX_STALLED = 50, 4
"""Maximum number of passes, and of consecutive passes without progress. A pass makes progress if it
commits rows, or if a process dies while it computes rows: the next pass isolates these rows. A pass
that isolates a row is not counted. It has enough restarts for only about four such rows, and
`errors` limits their number."""


@dataclass(frozen=True)
class PassEnd:
    """The result of a pass. `missing` are the missing input rows, and `notes` the notes of the
    steps (step, JSON). `files` are the files of the output if they were listed."""

    snapshot: Snapshot
    missing: MissingRows
    notes: list[tuple[str, str]]
    files: ListedFiles | None = None


@dataclass(frozen=True)
class PreparedPass:
    """A pass that is ready to run. `missing` are the input rows that the output lacks; None means
    all rows. `table` is the table that the job writes, if any."""

    input: JobInput
    count: RowCount | None
    sizing: Sizing
    job_pass: JobPass
    start: Snapshot
    missing: MissingRows | None = None
    table: Table | None = None
    first_file: int = 0
    """The number of the first input file, for `write.rowNumber`."""
    isolation: Isolation = NO_DEATHS
    """The rows on which processes died in earlier passes."""
    kind: str = ""
    """What the run does with the output, as the run history says it."""
    is_sample: bool = False
    """Whether this pass computes only a sample, for the gate and the cascades (see `first_rows`).
    Then `missing`, `count` and `sizing` describe the sample."""

    @property
    def share(self) -> float:
        """The fraction of the rows in `count` that the output lacks; 1.0 for a sample."""
        return 1.0 if self.is_sample else self.input.share(self.missing)

    def counts(self) -> Counts:
        """Return the counts of the committed rows, including those of earlier passes."""
        return self.start.counts + self.job_pass.counts()

    @cached_property
    def _warnings(self) -> WarningTracker:
        return WarningTracker(self.job_pass, warnings_of(self.start.entries))

    @property
    def paths(self) -> pa.ChunkedArray:
        """The addresses of the input files, by file number."""
        return paths_of(self.job_pass.layout.input, self.start.input)

    def warnings(self, counts: Counts) -> list[WarningCount]:
        """Return the warnings about files and committed rows. New manifests with warnings are
        fetched if the current `counts` show that there are any."""
        return self._described(self._warnings.update(counts.warned))

    def final_warnings(self, end: Snapshot) -> list[WarningCount]:
        """Return the warnings about files and the rows of a snapshot."""
        return self._described(warnings_of(end.entries))

    def _described(self, warnings: list[WarningCount]) -> list[WarningCount]:
        paths = self.paths
        about_rows = with_paths(warnings, lambda file: str(paths[file].as_py()))
        return [*self.input.ignored.warnings(), *about_rows]

    def bad_row(self) -> str:
        """Return a description of one failed row."""
        entries = itertools.chain(self.start.entries, self.job_pass.failed_entries())
        return bad_row(self.job_pass.layout, entries)

    def close(self) -> PassEnd:
        """Stop commits of this pass and return its result. Fetches all manifests. Raises BadOutput
        if another run has taken over the output."""
        self.job_pass.stop_commits()
        manifests = self.job_pass.manifests()
        layout = self.job_pass.layout
        committed, files = self.start.with_commits(manifests), ListedFiles.of(layout)
        snapshot = without_missing_files(layout, committed, files)
        missing = snapshot.missing_rows(len(self.input), self.input.rows_each)
        notes = [note for manifest in manifests for note in manifest.notes]
        return PassEnd(snapshot, missing, notes, files)

    def begin_next_pass(self, end: PassEnd, deaths: Iterable[Death] = ()) -> PreparedPass:
        """Begin the next pass, over the rows that are still missing, and return it. `deaths` are
        the deaths in the ended pass. Raises BadOutput if another run has begun."""
        layout, lease = self.job_pass.layout, self.job_pass.lease
        job_pass = JobPass.begin(layout, lease, end.snapshot, lease.job, end.files)
        isolation = self.isolation.after(deaths)
        start, missing = end.snapshot, end.missing
        return replace(self, job_pass=job_pass, start=start, missing=missing, isolation=isolation)


@dataclass
class Passes:
    """Counts the passes of a run at one output. Another pass follows a sample, a measurement, a
    lost node, a failed device, or a row that kills its process."""

    number: int = 0
    """The number of passes that have isolated no row."""
    stalled: int = 0
    """The number of consecutive passes that made no progress."""

    def begin_next(
        self,
        run: PreparedPass,
        end: PassEnd,
        deaths: Collection[Death],
        losses: Sequence[JobFailure] = (),
        *,
        excluded: bool = False,
    ) -> PreparedPass:
        """Begin and return the next pass, after the pass `run` has left rows missing. `deaths` are
        the deaths in the steps of `run`, and `losses` the causes of its lost tasks. `excluded` says
        whether the next pass avoids more faulty nodes than `run`. Raises the last loss, or
        Incomplete, if another pass would not help."""
        advanced = bool(deaths) or len(end.snapshot.entries) > len(run.start.entries)
        isolates = len(run.isolation.after(deaths).crashed) > len(run.isolation.crashed)
        self.number += 0 if isolates else 1
        self.stalled = 0 if advanced else self.stalled + 1
        exhausted = self.number == MAX_PASSES or self.stalled == MAX_STALLED
        if losses and not advanced and (exhausted or not excluded):
            raise losses[-1]
        if exhausted or not run.input.repeatable:
            raise Incomplete(
                f"input rows are missing in the output: {format_missing_rows(end.missing)}. "
                "Run the job again to compute them"
            )
        return run.begin_next_pass(end, deaths)
