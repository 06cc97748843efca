"""Verifies that each input row was written, failed or filtered exactly once, and that the files of
an output are as committed. Reports all defects."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property

from batchinference.pipeline.commit.manifest import ManifestEntry, Range, rows_in, warnings_of
from batchinference.pipeline.commit.output_paths import Layout, part_prefix
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.commit.warning_counts import with_paths
from batchinference.pipeline.error_classification import raise_storage_error
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.input.listing import list_existing
from batchinference.pipeline.storage.location import Location, base_name
from batchinference.pipeline.storage.retry import with_retries
from batchinference.pipeline.verify.file_check import DAMAGE, Checked, Listed, StoredFiles, sizes_in
from batchinference.pipeline.verify.findings import (
    Committed,
    Defect,
    JobReport,
    Kind,
    Position,
    VerificationReport,
    findings_of,
)
from batchinference.pipeline.verify.row_check import (
    AccountedRows,
    InputRows,
    Lister,
    input_rows,
    wrong_errors,
)
from batchinference.pipeline.verify.stored_jobs import StoredJob, stored_job, stored_layouts
from batchinference.spec.progress import Counts
from batchinference.spec.read import ReadFiles, ReadVersioned
from batchinference.spec.report import JobState, Report
from batchinference.spec.write import WriteTable
from batchinference.text import counted

_PART = re.compile(r"part-[0-9a-f]{8,16}-\d{4,}-\d{8,}-[0-9a-f]{8}\b")
"""Matches the names of the files that jobs write."""
THREADS = 8
_ADDITION = re.compile(r"append-([0-9a-f]{8})-\d+$")


def verify(output: Location, *, quick: bool = False, trusted: bool = False) -> VerificationReport:
    """Compare input and output, and return the report. With `quick`, files are not read completely.
    Endpoints in the state of the output are only used if the output is `trusted`. Raises BadInput
    if there is no output, or if the output or the input cannot be read. Raises OSError or
    JobFailure if storage fails."""
    layouts, listed, listed_input = stored_layouts(output), cache(sizes_in), cache(list_existing)
    reports = [
        _job_report(layout, listed, listed_input, quick=quick, trusted=trusted)
        for layout in layouts
    ]
    defects = itertools.chain(_read_twice(layouts, reports), _unknown_files(layouts, reports))
    return VerificationReport(output.uri, reports, findings_of(defects))


def _job_report(
    layout: Layout, listed: Listed, listed_input: Lister, *, quick: bool, trusted: bool
) -> JobReport:
    """Return the report on the job whose state is in this layout."""
    try:
        job = stored_job(layout, trusted=trusted)
        if job is None:
            return JobReport(layout.state.uri)
        committed = job.committed()
        rows = input_rows(job, committed, listed_input, quick=quick)
        return JobCheck(job, committed, rows, listed, quick).report()
    except BadOutput as failure:
        defect = Kind.STATE, Position(layout.state.uri, detail=failure.message), 1
        finished = layout.success.exists()
        return JobReport(layout.state.uri, finished, findings=findings_of([defect]))


def _read_twice(layouts: Sequence[Layout], reports: Sequence[JobReport]) -> Iterator[Defect]:
    """Yield the input files that an addition and an earlier run of the same job have both read."""
    seen: dict[str, set[str]] = defaultdict(set)
    for layout, report in zip(layouts, reports, strict=True):
        addition = _ADDITION.match(base_name(layout.state.path))
        known = seen[addition[1] if addition else report.key[:8]]
        yield from ((Kind.INPUT_TWICE, Position(name), 1) for name in report.names if name in known)
        known.update(report.names)


def _unknown_files(layouts: Sequence[Layout], reports: Sequence[JobReport]) -> Iterator[Defect]:
    """Yield files that no job has written, but that readers of the output or of error records read.
    Yield none if the state of any job could not be read. If the first job appended to existing
    data, no files in the directory of rows are reported, because they may be this data. A directory
    of error records outside of the state may be shared with jobs of other outputs. Files there that
    are named like the files of any job are not reported."""
    first, known = layouts[0], [report.layout for report in reports if report.layout]
    if len(known) < len(reports):
        return
    prefixes = tuple(part_prefix(layout.key) for layout in known)
    exclusive = {first.output.path, *((layout.state / "errors").path for layout in known)}
    for directory in _visible_directories(known, mixed=first != first.main):
        shared = directory.path not in exclusive
        for info in directory.visible_files(but=first.output):
            name = base_name(info.path)
            if not name.startswith(prefixes) and not (shared and _PART.match(name)):
                yield Kind.UNKNOWN_FILES, Position(directory.at(info.path).uri), 1


def _visible_directories(layouts: Sequence[Layout], *, mixed: bool) -> list[Location]:
    """Return the distinct directories of rows and of error records. Leaves out tables, which track
    their own files, and rows that are `mixed` with other data."""
    rows = [layout.output for layout in layouts if not layout.is_table and not mixed]
    directories = [*rows, *(layout.errors for layout in layouts)]
    return list({directory.path: directory for directory in directories}.values())


def report_defects(file: Location, committed: Counts, rows: int | None) -> Iterator[Defect]:
    """Yield differences between the report in `file` and the counts of the output. `rows` is the
    number of input rows; None if it is unknown."""
    try:
        report = Report.parse(file.read())
    except (ValueError, FileNotFoundError):
        yield Kind.STATE, Position(file.uri, detail="it is gone or damaged"), 1
        return
    if report.state is not JobState.SUCCEEDED or report.counts is None:
        ended = report.state is JobState.SUCCEEDED
        detail = "it has no counts" if ended else f"it says that the job is {report.state}"
        yield Kind.REPORT, Position(file.uri, detail=detail), 1
        return
    for name, actual in (committed.model_dump() | {"read": rows}).items():
        reported = getattr(report.counts, name)
        if actual is not None and reported != actual:
            detail = f"it says {reported} {name} instead of {actual}"
            yield Kind.REPORT, Position(file.uri, detail=detail), 1


@dataclass(frozen=True)
class Commits:
    """The files of an output, and the checks of its manifest entries. `data` is None for a finished
    table, which tracks its own files."""

    job: StoredJob
    data: StoredFiles | None
    errors: StoredFiles

    @classmethod
    def of(cls, job: StoredJob, listed: Listed, *, quick: bool) -> Commits:
        """Return the files of an output, with their checks."""
        layout, write = job.layout, job.spec.write
        in_table = layout.is_table and job.finished
        data = None if in_table else StoredFiles.of_rows(layout, write, listed, quick=quick)
        return cls(job, data, StoredFiles.of_errors(layout, listed, quick=quick))

    def check(self, entries: Sequence[ManifestEntry]) -> Iterator[Defect]:
        """Yield all defects of these manifest entries and their files."""
        with ThreadPoolExecutor(THREADS) as pool:
            if self.data is not None:
                checked = pool.map(self.data.check, (f for entry in entries for f in entry.data))
                for entry in entries:
                    files = list(itertools.islice(checked, len(entry.data)))
                    yield from self._data_defects(entry, files)
            failures = pool.map(self._error_defects, entries)
            for entry, defects in zip(entries, failures, strict=True):
                yield from defects
                yield from self._row_defects(entry)

    def orphans(self, entries: Sequence[ManifestEntry]) -> Iterator[Defect]:
        """Yield orphan files, which are files of the job that none of these entries names."""
        named = {file.name for entry in entries for file in entry.files}
        prefix = part_prefix(self.job.lease.key)
        for stored in filter(None, (self.data, self.errors)):
            yield from stored.orphans(named, prefix)

    def _data_defects(self, entry: ManifestEntry, checked: list[Checked]) -> Iterator[Defect]:
        defects = [defect for _, defect in checked if defect]
        yield from defects
        counts = [rows for rows, _ in checked if rows is not None]
        stored = sum(counts) - sum(rows for origin in entry.removed for _, rows in origin.rows)
        if not defects and len(counts) == len(checked) and stored != entry.counts.written:
            yield self._miscounted(entry, counted(stored, "row"), entry.counts.written)

    def _error_defects(self, entry: ManifestEntry) -> list[Defect]:
        failed = entry.counts.failed
        if entry.errors is None:
            return [self._miscounted(entry, "no failed rows", failed)] if failed else []
        rows, defect = self.errors.check(entry.errors)
        file = self.errors.directory / entry.errors.name
        if defect:
            return [defect]
        defects: list[Defect] = []
        if entry.removed:  # the end of the job deletes records of removed rows
            return defects
        if rows != failed:
            defects.append(self._miscounted(entry, counted(rows or 0, "failed row"), failed))
        try:
            wrong = with_retries(lambda: wrong_errors(entry, file))
        except DAMAGE as error:
            raise_storage_error(error)
            return [(Kind.DAMAGED, Position(file.uri, detail="it is not a list of failed rows"), 1)]
        return [*defects, (Kind.WRONG_ERRORS, Position(file.uri), wrong)] if wrong else defects

    def _row_defects(self, entry: ManifestEntry) -> Iterator[Defect]:
        """Yield a defect if the counts of an entry do not match its row ranges."""
        counts = entry.counts
        named = rows_in(entry.row_ranges)
        if named != counts.read:
            yield self._miscounted(entry, f"{counted(named, 'row')} of the input", counts.read)
        elif named > (rows := counts.written + counts.failed + counts.filtered):
            detail = f"{rows} rows were written, failed or filtered, and {counts.read} were read"
            yield Kind.MISCOUNTED, Position(self._name(entry), detail=detail), 1

    def _miscounted(self, entry: ManifestEntry, actual: str, committed: int) -> Defect:
        detail = f"{actual}, and {committed} were committed"
        return Kind.MISCOUNTED, Position(self._name(entry), detail=detail), 1

    def _name(self, entry: ManifestEntry) -> str:
        """Return the address of an entry's first file, which identifies the entry in findings."""
        if entry.data and self.data is not None:
            return (self.data.directory / entry.data[0].name).uri
        if entry.errors:
            return (self.errors.directory / entry.errors.name).uri
        return self.job.layout.state.uri


@dataclass(frozen=True)
class JobCheck:
    """Compares the input and the output of a job. `committed` is the snapshot of the output."""

    job: StoredJob
    committed: Snapshot
    input: InputRows
    listed: Listed
    quick: bool

    def report(self) -> JobReport:
        """Read the output and return the report on the job."""
        finished = self.job.finished
        is_files = isinstance(self.job.spec.read, ReadFiles | ReadVersioned)
        warnings = with_paths(warnings_of(self.committed.entries), self.input.name)
        return JobReport(
            state=self.job.layout.state.uri,
            finished=finished,
            rows=self.input.sizes.total,
            accounted=self._accounted_rows.rows,
            input_files=self.input.sizes.files,
            input_files_counted=self.input.counted,
            committed=self._committed_files,
            missing=[] if finished else [position for position, _ in self._missing_rows()],
            findings=findings_of(self._defects()),
            unproven=list(self._unproven()),
            layout=self.job.layout,
            names=self.input.kept_names if is_files else (),
            warnings=self.input.ignored.warnings() + warnings,
        )

    def _defects(self) -> Iterator[Defect]:
        yield from self.input.defects
        for rows in self._accounted_rows.repeated:
            yield Kind.DUPLICATED, self._position(rows), rows[2] - rows[1]
        for rows in self._accounted_rows.beyond(self.input.sizes):
            yield Kind.UNKNOWN_ROWS, self._position(rows), rows[2] - rows[1]
        commits = Commits.of(self.job, self.listed, quick=self.quick)
        if self.job.finished:
            yield from ((Kind.MISSING, position, count) for position, count in self._missing_rows())
            yield from self._final_defects()
            yield from commits.orphans(self.committed.entries)
        yield from commits.check(self.committed.entries)

    @cached_property
    def _accounted_rows(self) -> AccountedRows:
        return AccountedRows.of(self.committed.entries)

    @cached_property
    def _committed_files(self) -> Committed:
        return Committed.of(self.committed.entries)

    def _missing_rows(self) -> Iterator[tuple[Position, int]]:
        """Yield missing row ranges and their numbers of rows (1 if the file end is unknown)."""
        for number, gaps in self._accounted_rows.missing(self.input.sizes).items():
            for first, after in gaps:
                if after is None:
                    yield Position(self.input.name(number), (first, None)), 1
                else:
                    yield self._position((number, first, after)), after - first

    def _position(self, rows: Range) -> Position:
        number, first, after = rows
        return Position(self.input.name(number), (first, after - 1))

    def _final_defects(self) -> Iterator[Defect]:
        """Yield defects of the report and of the table commit of a finished job."""
        files, write = self._committed_files, self.job.spec.write
        yield from report_defects(self.job.layout.report, files.counts, self.input.sizes.total)
        # a job without rows may not have created the table
        if isinstance(write, WriteTable) and files.data and not self._foreign_catalog:
            from batchinference.pipeline.verify.table_check import commit_defects

            yield from commit_defects(self.job, write, files.counts.written)

    @property
    def _foreign_catalog(self) -> bool:
        """Whether the address of the table's catalog or database is known only from the state of an
        output that the user does not trust. A connection could run code or send credentials."""
        return bool(self.job.spec.write.connection) and not self.job.trusted

    def _unproven(self) -> Iterator[str]:
        """Yield what could not be verified, as text."""
        read, write = self.job.spec.read, self.job.spec.write
        if not isinstance(read, ReadFiles | ReadVersioned):
            yield f"the rows of a source of {read.format}, which are not read a second time"
        elif self.input.counted < self.input.sizes.files:
            yield "the rows of files of the input that were not read again"
        if self._committed_files.counts.filtered:
            yield "that the filtered rows are the rows that the job's filters remove"
        if self._foreign_catalog:
            yield (
                "the commit in the table, because only the output says where its catalog or "
                "database is. Pass --trust-output to check the commit"
            )
        elif self.job.merges:
            yield "the values of the rows in the table, because only their keys were checked"
        elif isinstance(write, WriteTable):
            yield "the rows in the table, because only its commit was checked"
        if self.quick:
            yield "the content of files that were not read"
