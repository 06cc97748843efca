"""The report of a job as one HTML page, which needs no network and no scripts."""

from __future__ import annotations

from collections.abc import Iterable

from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.manifest import ManifestEntry
from batchinference.pipeline.html_report.errors import sample_errors
from batchinference.pipeline.html_report.page import PageData, render
from batchinference.pipeline.html_report.samples import sample_of
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.report import JobState, Report


def write_page(
    layout: Layout, spec: BatchInferenceSpec, report: Report, entries: Iterable[ManifestEntry]
) -> str | None:
    """Write the page of a report next to its report.json, and return its address.

    `entries` name the files of the output. The page is optional, so no error raised here fails a
    job: without a page, the result is None."""
    try:
        named, failed = list(entries), report.counts is not None and report.counts.failed
        errors = sample_errors(layout, named) if failed else []
        succeeded = report.state is JobState.SUCCEEDED
        sample = sample_of(spec.write, layout, named) if succeeded else []
        page = render(PageData(report, spec, errors, sample))
        layout.report_page.write(page.encode())
    except Exception:  # noqa: BLE001 - values of rows and storage may raise any error
        return None
    return layout.report_page.uri
