"""The command `status`, for an output or for a job on a cluster."""

from __future__ import annotations

from typing import Any

from batchinference.api.outputs import OutputStatus, status_of
from batchinference.api.progress import observed_job, observed_output
from batchinference.api.targets import Target
from batchinference.api.workers import read_job
from batchinference.cli.printing import Format, as_data, print_data, print_table
from batchinference.cli.targets import exit_on_cluster_error, read_output


def show_status(target: Target, form: Format) -> None:
    """Print the status of a job on a cluster, or of an output."""
    if target.is_job:
        with exit_on_cluster_error("status"):
            job, workers = read_job(target.cluster(), target.text)
        if form is Format.TEXT:
            print_table(observed_job(job, workers).lines)
        else:
            print_data(job.raw, form)
        return
    found: list[OutputStatus] = read_output("status", target, status_of)
    if form is not Format.TEXT:
        print_data([_data_of(each) for each in found], form)
        return
    for each in found:
        print_table(observed_output(each.output, [each]).lines)


def _data_of(status: OutputStatus) -> dict[str, Any]:
    data, progress, counts = as_data(status), status.progress, status.counts
    del data["progress"], data["counts"]
    rows = {"rows": progress.rows, "total": progress.total, "percent": progress.percent}
    counted = counts.model_dump(by_alias=True, exclude_none=True, exclude={"read", "warned"})
    return data | rows | counted
