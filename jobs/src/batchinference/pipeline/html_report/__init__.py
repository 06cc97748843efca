"""The report of a job as one HTML page, which needs no network and no scripts."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.manifest import ManifestEntry
from batchinference.pipeline.html_report.errors import error_groups
from batchinference.pipeline.html_report.page import PageData, render
from batchinference.pipeline.html_report.samples import sample_of
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.report import JobState, Report


def write_page(
    layout: Layout, spec: BatchInferenceSpec, report: Report, entries: Iterable[ManifestEntry]
) -> None:
    """Write the page of a report next to its report.json. `entries` name the files of the output.

    The page is optional, so no error raised here fails a job."""
    with suppress(Exception):
        named, failed = list(entries), report.counts is not None and report.counts.failed
        errors = error_groups(layout, named) if failed else []
        succeeded = report.state is JobState.SUCCEEDED
        sample = sample_of(spec.write, layout, named) if succeeded else []
        page = render(PageData(report, spec, errors, sample))
        layout.report_page.write(page.encode())
