"""Verifies the input and the output of one job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from batchinference.pipeline.commit.manifest_entry import Range
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.commit.table_commit import table_errors_as_bad_output
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output.tables import Table, table_for
from batchinference.pipeline.verify.accounted_rows import AccountedRows
from batchinference.pipeline.verify.commit_check import Commits
from batchinference.pipeline.verify.findings import Findings, Found, Kind, Spot
from batchinference.pipeline.verify.input_check import InputRows
from batchinference.pipeline.verify.jobs import Work
from batchinference.pipeline.verify.report_check import of_report
from batchinference.pipeline.verify.verification_report import Committed, Input, JobReport
from batchinference.spec.read import ReadFiles
from batchinference.spec.write import WriteIceberg, WriteImages, WriteSql, WriteTable


@dataclass(frozen=True)
class Proving:
    """The input and the output of some work, which are compared. `end` is the snapshot of the
    output."""

    work: Work
    end: Snapshot
    input: InputRows
    quick: bool

    def proof(self) -> JobReport:
        """Read the output and return the report on the job."""
        findings, finished = Findings(), self.work.finished
        findings.add(self.input.found)
        findings.add(self._rows())
        if finished:
            findings.add((Kind.MISSING, spot, count) for spot, count in self._gaps())
            findings.add(self._end())
        commits = Commits.of(self.work, quick=self.quick)
        findings.add(commits.check(self.end.entries))
        if finished:
            findings.add(commits.orphans(self.end.entries))
        return JobReport(
            state=self.work.layout.state.uri,
            finished=finished,
            rows=self.input.sizes.total,
            held=self._holdings.rows,
            input=Input(self.input.sizes.files, self.input.counted),
            committed=self._committed,
            missing=[] if finished else [spot for spot, _ in self._gaps()],
            findings=findings.listed(),
            unproven=list(self._unproven()),
            layout=self.work.layout,
            names=self.input.names if isinstance(self.work.spec.read, ReadFiles) else (),
        )

    @cached_property
    def _holdings(self) -> AccountedRows:
        return AccountedRows.of(self.end.entries)

    @cached_property
    def _committed(self) -> Committed:
        return Committed.of(self.end.entries)

    def _rows(self) -> Iterator[Found]:
        """Yield rows that are held but should not be."""
        for each in self._holdings.twice:
            yield Kind.DUPLICATED, self._spot(each), each[2] - each[1]
        for each in self._holdings.beyond(self.input.sizes):
            yield Kind.UNKNOWN, self._spot(each), each[2] - each[1]

    def _gaps(self) -> Iterator[tuple[Spot, int]]:
        """Yield missing row ranges and their number of rows: 1 if the end of the file is
        unknown."""
        for part, gaps in self._holdings.gaps(self.input.sizes).items():
            for first, after in gaps:
                if after is None:
                    yield Spot(self.input.name(part), (first, None)), 1
                else:
                    yield self._spot((part, first, after)), after - first

    def _spot(self, rows: Range) -> Spot:
        part, first, after = rows
        return Spot(self.input.name(part), (first, after - 1))

    def _end(self) -> Iterator[Found]:
        """Yield defects of the report and of the table commit of a finished job."""
        yield from of_report(
            self.work.layout.report, self._committed.counts, self.input.sizes.total
        )
        output, write = self.work.layout.output, self.work.spec.write
        # if nothing was written, there may be no table that holds the commit
        if isinstance(write, WriteTable) and self._committed.data and not self._foreign_catalog:
            there = write.model_copy(update={"path": output.uri, "storage": output.storage})
            try:
                with table_errors_as_bad_output():
                    yield from self._of_commits(table_for(there))
            except BadOutput as failure:
                yield Kind.NO_COMMIT, Spot(output.uri, detail=failure.message), 1

    @property
    def _foreign_catalog(self) -> bool:
        """Whether only an untrusted output names the catalog or database of the table. A connection
        to it can run code and send credentials there."""
        return isinstance(self.work.spec.write, WriteIceberg | WriteSql) and not self.work.trusted

    def _of_commits(self, table: Table) -> Iterator[Found]:
        lease, place = self.work.lease, self.work.layout.output.uri
        if not table.commits(lease.mark):
            yield Kind.NO_COMMIT, Spot(place), 1
        elif (made := table.commits(lease.series_mark)) > 1:
            detail = f"attempts that were held up have put them there, {made} in all"
            rows = (made - 1) * self._committed.counts.written
            yield Kind.DUPLICATED, Spot(place, detail=detail), rows

    def _unproven(self) -> Iterator[str]:
        """Yield what could not be verified, as text."""
        read, write = self.work.spec.read, self.work.spec.write
        if not isinstance(read, ReadFiles):
            yield f"the rows of a source of {read.format}, which are not read a second time"
        elif self.input.counted < self.input.sizes.files:
            yield "the rows of files of the input that were not read again"
        if self._committed.counts.skipped:
            yield "that the filtered rows are the rows that the job's filters remove"
        if self._foreign_catalog:
            yield (
                "the commit in the table, whose catalog or database only the output names: "
                "--trust-output looks for it"
            )
        elif isinstance(write, WriteTable):
            yield "the rows in the table, of which only the commit was looked for"
        elif isinstance(write, WriteImages):
            yield "which rows have no picture, and so no file"
        if self.quick:
            yield "the content of files that were not read"
