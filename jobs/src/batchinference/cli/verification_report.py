"""Prints the report of `verify`."""

from __future__ import annotations

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

SHOWN_POSITIONS = 5
WIDTH = 13
_RESULT_TEXTS = {
    Result.PROVEN: "proven: each row of the input is in the output or among the errors, once",
    Result.NOT_PROVEN: "NOT PROVEN",
}
Line = tuple[str, str]


def show(proof: VerificationReport) -> None:
    """Print what was verified, one line for each result."""
    for name, text in _lines(proof):
        echo(f"{name.ljust(WIDTH)}{text}".rstrip())


def _lines(proof: VerificationReport) -> Iterator[Line]:
    yield "output", proof.output
    for work in proof.jobs:
        yield from _job_lines(work, named=len(proof.jobs) > 1)
    for finding in proof.findings:
        yield from _finding_lines(finding)
    if len(proof.jobs) > 1 or proof.findings:
        warnings = sum_warnings(warning for work in proof.jobs for warning in work.warnings)
        yield "overall", _with_warnings(proof.result, warnings)


def _job_lines(work: JobReport, *, named: bool) -> Iterator[Line]:
    if named:
        yield "job", work.state
    yield "result", _result(work)
    counts, made = work.committed.counts, work.committed
    total = counts.written + counts.failed + counts.filtered
    prefix = f"{total} = " if work.accounted == total else ""
    parts = f"{counts.written} written + {counts.failed} failed + {counts.filtered} filtered"
    yield "rows", prefix + parts
    rows = "" if work.rows is None else f"{counted(work.rows, 'row')} in "
    yield (
        "input",
        f"{rows}{counted(work.input_files, 'file')}, {work.input_files_counted} counted again",
    )
    errors = counted(len(made.errors), "error file")
    yield "committed", f"{len(made.data)} data and {errors}, {made.bytes} B"
    if work.missing:
        yield from _position_lines("to be done", work.missing, len(work.missing))
    for finding in work.findings:
        yield from _finding_lines(finding)
    yield from named_lines("warnings", work.warnings)
    yield from named_lines("not shown", work.unproven)


def _result(work: JobReport) -> str:
    if work.finished or work.result is not Result.UNFINISHED:
        return _with_warnings(work.result, work.warnings)
    return f"unfinished: {work.accounted} of {'?' if work.rows is None else work.rows} rows"


def _with_warnings(result: Result, warnings: Iterable[WarningCount]) -> str:
    numbers = summarize(warnings)
    text = _RESULT_TEXTS.get(result, result.value)
    return f"{text}; warnings: {numbers}" if numbers else text


def _finding_lines(finding: Finding) -> Iterator[Line]:
    yield finding.kind.value, f"{finding.count} {finding.kind.meaning}"
    yield from _position_lines("", finding.positions, len(finding.positions))
    yield "", f"-> {finding.kind.fix}"


def _position_lines(name: str, positions: list[Position], count: int) -> Iterator[Line]:
    for number, position in enumerate(positions[:SHOWN_POSITIONS]):
        yield "" if number else name, f"  {position}"
    if count > SHOWN_POSITIONS:
        yield "", f"  and {count - SHOWN_POSITIONS} more"
