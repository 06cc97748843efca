"""Prints the report of `verify`."""

from collections.abc import Iterable, Iterator

from batchinference.cli.printing import echo
from batchinference.pipeline.verify.findings import (
    Finding,
    JobReport,
    Position,
    Result,
    VerificationReport,
)
from batchinference.spec.warnings import WarningCount, sum_warnings, summarize
from batchinference.text import counted, named_lines

MAX_POSITIONS = 5
"""Maximum number of positions that are printed for one finding."""
WIDTH = 13
"""Number of characters of the column of names."""
_RESULT_TEXTS = {
    Result.PROVEN: "proven: each input row was written, failed or filtered, exactly once",
    Result.NOT_PROVEN: "NOT PROVEN",
}
Line = tuple[str, str]


def show(report: VerificationReport) -> None:
    """Print a report as lines with a name and a text."""
    for name, text in _lines(report):
        echo(f"{name.ljust(WIDTH)}{text}".rstrip())


def _lines(report: VerificationReport) -> Iterator[Line]:
    yield "output", report.output
    for job in report.jobs:
        yield from _job_lines(job, named=len(report.jobs) > 1)
    for finding in report.findings:
        yield from _finding_lines(finding)
    if len(report.jobs) > 1 or report.findings:
        warnings = sum_warnings(warning for job in report.jobs for warning in job.warnings)
        yield "overall", _with_warnings(report.result, warnings)


def _job_lines(job: JobReport, *, named: bool) -> Iterator[Line]:
    if named:
        yield "job", job.state
    yield "result", _result(job)
    committed, counts = job.committed, job.committed.counts
    total = counts.written + counts.failed + counts.filtered
    prefix = f"{total} = " if job.accounted == total else ""
    parts = f"{counts.written} written + {counts.failed} failed + {counts.filtered} filtered"
    yield "rows", prefix + parts
    rows = "" if job.rows is None else f"{counted(job.rows, 'row')} in "
    files = counted(job.input_files, "file")
    yield "input", f"{rows}{files}, {job.input_files_counted} of them recounted"
    data = counted(len(committed.data), "data file")
    errors = counted(len(committed.errors), "error file")
    yield "committed", f"{data}, {errors}, {committed.bytes} B"
    yield from _position_lines("missing", job.missing)
    for finding in job.findings:
        yield from _finding_lines(finding)
    yield from named_lines("warnings", job.warnings)
    yield from named_lines("not verified", job.unproven)


def _result(job: JobReport) -> str:
    if job.finished or job.result is not Result.UNFINISHED:
        return _with_warnings(job.result, job.warnings)
    return f"unfinished: {job.accounted} of {'?' if job.rows is None else job.rows} rows"


def _with_warnings(result: Result, warnings: Iterable[WarningCount]) -> str:
    numbers = summarize(warnings)
    text = _RESULT_TEXTS.get(result, result.value)
    return f"{text}; warnings: {numbers}" if numbers else text


def _finding_lines(finding: Finding) -> Iterator[Line]:
    yield finding.kind.value, f"{finding.count} {finding.kind.meaning}"
    yield from _position_lines("", finding.positions)
    yield "", f"-> {finding.kind.fix}"


def _position_lines(name: str, positions: list[Position]) -> Iterator[Line]:
    yield from named_lines(name, [f"  {position}" for position in positions[:MAX_POSITIONS]])
    if len(positions) > MAX_POSITIONS:
        yield "", f"  and {len(positions) - MAX_POSITIONS} more"
