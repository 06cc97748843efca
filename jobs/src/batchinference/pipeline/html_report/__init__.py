"""The report of a job as one HTML page, which needs no network and no scripts."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from batchinference.pipeline.commit.manifest import ManifestEntry
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.html_report.page import PageData, render
from batchinference.pipeline.output.error_groups import ErrorGroup, Record, group_errors
from batchinference.pipeline.output.error_records import read_error_records
from batchinference.spec.history import RunRecord
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.report import JobState, Report

MAX_RECORDS, MAX_FILES, MAX_GROUPS = 10_000, 32, 20
"""Maximum numbers of error records and error files that are read, and of groups on the page."""
_COLUMNS = ("path", "row", "step", "error", "traceback", "values")


def write_page(
    layout: Layout,
    spec: BatchInferenceSpec,
    report: Report,
    entries: Iterable[ManifestEntry],
    runs: Sequence[RunRecord] = (),
) -> str | None:
    """Write the HTML page of a report next to report.json. Return its address, or None if this
    fails. Raises no error, because a job succeeds without the page. `entries` name the files of the
    output, and `runs` are its last runs."""
    # imported here because it imports all writers, and `ui` needs none
    from batchinference.pipeline.html_report.sample_rows import sample_rows_of

    try:
        entries, failed = list(entries), report.counts is not None and report.counts.failed
        errors = sample_errors(layout, entries) if failed else []
        succeeded = report.state is JobState.SUCCEEDED
        sample = sample_rows_of(spec.write, layout, entries) if succeeded else []
        page = render(PageData(report, spec, errors, sample, runs))
        layout.report_page.write(page.encode())
    except Exception:  # noqa: BLE001 - values of rows and storage may raise any error
        return None
    return layout.report_page.uri


def sample_errors(layout: Layout, entries: Iterable[ManifestEntry]) -> list[ErrorGroup]:
    """Return the first error records of manifest entries, grouped by step and cause."""
    return group_errors(islice(_records(layout, entries), MAX_RECORDS))[:MAX_GROUPS]


def _records(layout: Layout, entries: Iterable[ManifestEntry]) -> Iterator[Record]:
    failed = (entry for entry in entries if entry.errors is not None)
    for table in read_error_records(layout, islice(failed, MAX_FILES)):
        known = [column for column in _COLUMNS if column in table.column_names]
        yield from table.select(known).to_pylist()
