"""Verifies that an output holds each row of its input once, and reports all contradictions."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

from batchinference.pipeline.commit.layout import Layout, part_prefix
from batchinference.pipeline.commit.manifest import ManifestEntry, Range, warnings_of
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.commit.warning_counts import with_paths
from batchinference.pipeline.error_classification import raise_storage_error
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.location import Location, base_name
from batchinference.pipeline.storage.retry import with_retries
from batchinference.pipeline.verify.file_check import DAMAGE, Checked, StoredFiles
from batchinference.pipeline.verify.findings import (
    Committed,
    Defect,
    JobReport,
    Kind,
    Spot,
    VerificationReport,
    findings_of,
)
from batchinference.pipeline.verify.jobs import StoredJob, stored_job, stored_layouts
from batchinference.pipeline.verify.row_check import (
    AccountedRows,
    InputRows,
    input_rows,
    wrong_errors,
)
from batchinference.spec.progress import Counts
from batchinference.spec.read import ReadFiles, ReadVersioned
from batchinference.spec.report import JobState, Report
from batchinference.spec.write import WriteTable
from batchinference.text import counted

_PART = re.compile(r"part-[0-9a-f]{8,16}-\d{4,}-\d{8,}-[0-9a-f]{8}\b")
"""The file names of any job. Several jobs may store their error records in one directory."""
THREADS = 8
_ADDITION = re.compile(r"append-([0-9a-f]{8})-\d+$")


def verify(output: Location, *, quick: bool = False, trusted: bool = False) -> VerificationReport:
    """Read input and output, compare them, and return the report. With `quick`, perform only checks
    that cover many rows at once.

    Endpoints that the output names are used only if it is trusted. Raises BadInput if there is no
    output or the input cannot be read, and OSError or JobFailure if storage is unavailable."""
    places = stored_layouts(output)
    reports = [_job_report(place, quick=quick, trusted=trusted) for place in places]
    defects = itertools.chain(_read_twice(places, reports), _unknown_files(places, reports))
    return VerificationReport(output.uri, reports, findings_of(defects))


def _job_report(place: Layout, *, quick: bool, trusted: bool) -> JobReport:
    """Return the report on the work of one job, whose state is at `place`."""
    try:
        work = stored_job(place, trusted=trusted)
        end = work.committed() if work else None
        if work is None or end is None:
            return JobReport(place.state.uri)
        rows = input_rows(work, end, quick=quick)
        return JobCheck(work, end, rows, quick).report()
    except BadOutput as failure:
        findings = findings_of([(Kind.STATE, Spot(place.state.uri, detail=failure.message), 1)])
        return JobReport(place.state.uri, place.success.exists(), findings=findings)


def _read_twice(places: Sequence[Layout], reports: Sequence[JobReport]) -> Iterator[Defect]:
    """Yield input files that the same job has read twice: first when it began, and again as new
    files. Other jobs that have appended to the output may read any files."""
    seen: dict[str, set[str]] = defaultdict(set)
    for place, report in zip(places, reports, strict=True):
        added = _ADDITION.match(base_name(place.state.path))
        known = seen[added[1] if added else report.key[:8]]
        yield from ((Kind.INPUT_TWICE, Spot(name), 1) for name in report.names if name in known)
        known.update(report.names)


def _unknown_files(places: Sequence[Layout], reports: Sequence[JobReport]) -> Iterator[Defect]:
    """Yield files that readers of the output or the errors would read, but that none of the jobs
    has written. If the first job appended to existing data, files in the output may belong to
    anybody and are not reported."""
    whole, layouts = places[0], [report.layout for report in reports if report.layout]
    if len(layouts) < len(reports):
        return
    known = tuple(part_prefix(layout.key) for layout in layouts)
    exclusive = {whole.output.path, *((layout.state / "errors").path for layout in layouts)}
    for place in _read_places(layouts, mixed=whole != whole.whole):
        shared = place.path not in exclusive
        for info in place.visible_files(but=whole.output):
            name = base_name(info.path)
            if not name.startswith(known) and not (shared and _PART.match(name)):
                yield Kind.UNKNOWN_FILES, Spot(place.at(info.path).uri), 1


def _read_places(layouts: Sequence[Layout], *, mixed: bool) -> list[Location]:
    """Return the directories of the rows and of the errors, without duplicates. The directory of
    the rows is excluded if others may have written rows there. It is also excluded for a table,
    which tracks its own files."""
    rows = [layout.output for layout in layouts if not layout.is_table and not mixed]
    places = [*rows, *(layout.errors for layout in layouts)]
    return list({place.path: place for place in places}.values())


def of_report(place: Location, made: Counts, rows: int | None) -> Iterator[Defect]:
    """Yield differences between the report and the counts of the output. `rows` is the number of
    input rows; None if it is unknown."""
    try:
        report = Report.parse(place.read())
    except (ValueError, FileNotFoundError):
        yield Kind.STATE, Spot(place.uri, detail="it is gone or damaged"), 1
        return
    if report.state is not JobState.SUCCEEDED or report.counts is None:
        yield Kind.REPORT, Spot(place.uri, detail=f"it says that the job is {report.state}"), 1
        return
    for name, actual in (made.model_dump() | {"read": rows}).items():
        reported = getattr(report.counts, name)
        if actual is not None and reported != actual:
            detail = f"it says {reported} {name}, and it is {actual}"
            yield Kind.REPORT, Spot(place.uri, detail=detail), 1


@dataclass(frozen=True)
class Commits:
    """The files of an output that its manifest entries name. `data` is None for the table of a
    finished job, which has its own files."""

    work: StoredJob
    data: StoredFiles | None
    errors: StoredFiles

    @classmethod
    def of(cls, work: StoredJob, *, quick: bool) -> Commits:
        layout, write = work.layout, work.spec.write
        in_table = layout.is_table and work.finished
        data = None if in_table else StoredFiles.of_rows(layout, write, quick=quick)
        return cls(work, data, StoredFiles.of_errors(layout, quick=quick))

    def check(self, entries: Sequence[ManifestEntry]) -> Iterator[Defect]:
        """Yield all defects of these manifest entries and their files."""
        with ThreadPoolExecutor(THREADS) as pool:
            if self.data is not None:
                checked = pool.map(self.data.check, (f for entry in entries for f in entry.data))
                for entry in entries:
                    yield from self._of_data(entry, [*itertools.islice(checked, len(entry.data))])
            for entry, found in zip(entries, pool.map(self._of_errors, entries), strict=True):
                yield from found
                yield from self._of_rows(entry)

    def orphans(self, entries: Sequence[ManifestEntry]) -> Iterator[Defect]:
        """Yield orphan files: files of the same work that none of these entries names."""
        named = {file.name for entry in entries for file in entry.files}
        prefix = part_prefix(self.work.lease.key)
        for stored in filter(None, (self.data, self.errors)):
            yield from stored.orphans(named, prefix)

    def _of_data(self, entry: ManifestEntry, checked: list[Checked]) -> Iterator[Defect]:
        found = [defect for _, defect in checked if defect]
        yield from found
        counts = [rows for rows, _ in checked if rows is not None]
        stored = sum(counts) - sum(rows for one in entry.removed for _, rows in one.rows)
        if not found and len(counts) == len(checked) and stored != entry.counts.written:
            yield self._miscounted(entry, counted(stored, "row"), entry.counts.written)

    def _of_errors(self, entry: ManifestEntry) -> list[Defect]:
        failed = entry.counts.failed
        if entry.errors is None:
            return [self._miscounted(entry, "no failed rows", failed)] if failed else []
        (rows, defect), file = (
            self.errors.check(entry.errors),
            self.errors.place / entry.errors.name,
        )
        if defect:
            return [defect]
        found: list[Defect] = []
        if entry.removed:  # its error records are removed when the output is completed
            return found
        if rows != failed:
            found.append(self._miscounted(entry, counted(rows or 0, "failed row"), failed))
        try:
            wrong = with_retries(lambda: wrong_errors(entry, file))
        except DAMAGE as error:
            raise_storage_error(error)
            return [(Kind.DAMAGED, Spot(file.uri, detail="it is not a list of failed rows"), 1)]
        return [*found, (Kind.WRONG_ERRORS, Spot(file.uri), wrong)] if wrong else found

    def _of_rows(self, entry: ManifestEntry) -> Iterator[Defect]:
        """Yield a defect if the counts of an entry do not match the rows that it names."""
        counts = entry.counts
        named = sum(after - first for _, first, after in entry.row_ranges)
        if named != counts.read:
            yield self._miscounted(entry, f"{counted(named, 'row')} of the input", counts.read)
        elif named > counts.written + counts.failed + counts.filtered:
            yield self._miscounted(entry, "fewer rows than were read", counts.read)

    def _miscounted(self, entry: ManifestEntry, actual: str, committed: int) -> Defect:
        detail = f"{actual}, and {committed} were committed"
        return Kind.MISCOUNTED, Spot(self._name(entry), detail=detail), 1

    def _name(self, entry: ManifestEntry) -> str:
        """Return the file that identifies an entry in findings: its first file."""
        if entry.data and self.data is not None:
            return (self.data.place / entry.data[0].name).uri
        if entry.errors:
            return (self.errors.place / entry.errors.name).uri
        return self.work.layout.state.uri


@dataclass(frozen=True)
class JobCheck:
    """Compares the input and the output of a job. `end` is the snapshot of the
    output."""

    work: StoredJob
    end: Snapshot
    input: InputRows
    quick: bool

    def report(self) -> JobReport:
        """Read the output and return the report on the job."""
        finished = self.work.finished
        return JobReport(
            state=self.work.layout.state.uri,
            finished=finished,
            rows=self.input.sizes.total,
            accounted=self._holdings.rows,
            input_files=self.input.sizes.files,
            input_files_counted=self.input.counted,
            committed=self._committed,
            missing=[] if finished else [spot for spot, _ in self._gaps()],
            findings=findings_of(self._defects()),
            unproven=list(self._unproven()),
            layout=self.work.layout,
            names=self.input.names
            if isinstance(self.work.spec.read, ReadFiles | ReadVersioned)
            else (),
            warnings=[
                *self.input.ignored.warnings(),
                *with_paths(warnings_of(self.end.entries), self.input.name),
            ],
        )

    def _defects(self) -> Iterator[Defect]:
        yield from self.input.found
        yield from self._rows()
        commits, entries = Commits.of(self.work, quick=self.quick), self.end.entries
        if self.work.finished:
            yield from ((Kind.MISSING, spot, count) for spot, count in self._gaps())
            yield from self._end()
            yield from commits.orphans(entries)
        yield from commits.check(entries)

    @cached_property
    def _holdings(self) -> AccountedRows:
        return AccountedRows.of(self.end.entries)

    @cached_property
    def _committed(self) -> Committed:
        return Committed.of(self.end.entries)

    def _rows(self) -> Iterator[Defect]:
        """Yield rows that are held but should not be."""
        for rows in self._holdings.twice:
            yield Kind.DUPLICATED, self._spot(rows), rows[2] - rows[1]
        for rows in self._holdings.beyond(self.input.sizes):
            yield Kind.UNKNOWN_ROWS, self._spot(rows), rows[2] - rows[1]

    def _gaps(self) -> Iterator[tuple[Spot, int]]:
        """Yield missing row ranges and their number of rows: 1 if the end of the file is
        unknown."""
        for part, gaps in self._holdings.missing(self.input.sizes).items():
            for first, after in gaps:
                if after is None:
                    yield Spot(self.input.name(part), (first, None)), 1
                else:
                    yield self._spot((part, first, after)), after - first

    def _spot(self, rows: Range) -> Spot:
        part, first, after = rows
        return Spot(self.input.name(part), (first, after - 1))

    def _end(self) -> Iterator[Defect]:
        """Yield defects of the report and of the table commit of a finished job."""
        yield from of_report(
            self.work.layout.report, self._committed.counts, self.input.sizes.total
        )
        write = self.work.spec.write
        # if nothing was written, there may be no table that holds the commit
        if isinstance(write, WriteTable) and self._committed.data and not self._foreign_catalog:
            from batchinference.pipeline.verify.table_check import commit_defects

            yield from commit_defects(self.work, write, self._committed.counts.written)

    @property
    def _foreign_catalog(self) -> bool:
        """Whether only an untrusted output names the catalog or database of the table. A connection
        to it can run code and send credentials there."""
        return bool(self.work.spec.write.connection) and not self.work.trusted

    def _unproven(self) -> Iterator[str]:
        """Yield what could not be verified, as text."""
        read, write = self.work.spec.read, self.work.spec.write
        if not isinstance(read, ReadFiles | ReadVersioned):
            yield f"the rows of a source of {read.format}, which are not read a second time"
        elif self.input.counted < self.input.sizes.files:
            yield "the rows of files of the input that were not read again"
        if self._committed.counts.filtered:
            yield "that the filtered rows are the rows that the job's filters remove"
        if self._foreign_catalog:
            yield (
                "the commit in the table, whose catalog or database only the output names: "
                "--trust-output checks it"
            )
        elif self.work.merges:
            yield "the values of the rows in the table, because only their keys were checked"
        elif isinstance(write, WriteTable):
            yield "the rows in the table, because only its commit was checked"
        if self.quick:
            yield "the content of files that were not read"
