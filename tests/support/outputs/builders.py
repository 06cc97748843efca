"""Creates outputs, passes and commits with the product's code, without a job or without Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from batchinference.pipeline.commit.committer import Committer
from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.pipeline.commit.lease import Lease, identity_of, read_lease
from batchinference.pipeline.commit.manifest import ManifestEntry, Range, Share, digest
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.commit.output_targets import output_targets
from batchinference.pipeline.commit.snapshot import Snapshot, without_missing_files
from batchinference.pipeline.execution.executor import Executor
from batchinference.pipeline.execution.prepared_pass import PreparedPass
from batchinference.pipeline.execution.row_files import OutputFiles
from batchinference.pipeline.execution.step_runner import ErrorHandling
from batchinference.pipeline.input.listing import snapshot_input
from batchinference.pipeline.output.file_split import FileSplit
from batchinference.pipeline.output.writers import Writer
from batchinference.pipeline.output.writers.kinds import writer_for
from batchinference.pipeline.output.writers.parquet import ParquetWriter
from batchinference.pipeline.pass_start import prepare_pass
from batchinference.pipeline.row_batch import RowBatch, merged, unpack_ids
from batchinference.pipeline.storage.location import Location
from batchinference.plan import plan_for_machine
from batchinference.spec import parse
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.progress import Counts
from batchinference.spec.report import JobState, Report
from batchinference.spec.write import WriteTable
from support.documents.minimal import Document

OURS, THEIRS = "a" * 64, "b" * 64
"""The keys of two different jobs."""
NOW = "2026-01-01T00:00:00Z"
GOOD, FAILED, FILTERED = range(3)
Outcomes = Callable[[np.ndarray], np.ndarray]
"""Maps row numbers within a file to the outcomes of these rows."""


# --- passes and commits ---------------------------------------------------------------


def layout_of(output: Path | str, key: str = OURS, errors: Path | None = None) -> Layout:
    address = Location(str(output))
    state = address / "_batchinference"
    return Layout(key, address, state, Location(str(errors)) if errors else state / "errors")


def begin_pass(layout: Layout, source: Path, number: int = 1) -> JobPass:
    """Begin a pass over the files of a directory."""
    content = snapshot_input([str(source)], []).serialized()
    layout.input.write(content)
    before = Lease.new(layout, number - 1, begun=False)
    before.write_if_unchanged(layout, read_lease(layout))
    return JobPass.begin(layout, before, Snapshot(layout.key, digest(content)))


def committing(
    job_pass: JobPass,
    writer: Writer | None = None,
    layout: FileSplit | None = None,
    *,
    tolerant: bool = True,
) -> Committer:
    """Return what commits rows as tasks do."""
    writer, layout = writer or ParquetWriter("snappy"), layout or FileSplit()
    errors = ErrorHandling(tolerant, job_pass.layout.input)
    return Committer(job_pass, OutputFiles(writer, layout, errors))


def commit_rows(job_pass: JobPass, batch: RowBatch, task: int = 0) -> None:
    """Commit rows as a task does."""
    committing(job_pass).put(batch, task)


def close_pass(job_pass: JobPass, start: Snapshot | None = None) -> Snapshot:
    """Close the pass and return the snapshot of the committed rows."""
    before = start or Snapshot(job_pass.layout.key, "")
    job_pass.stop_commits()
    return without_missing_files(job_pass.layout, before.with_commits(job_pass.manifests()))


def close_and_clean(job_pass: JobPass) -> Snapshot:
    """Close the pass and remove its orphan files. Return the snapshot of the committed rows."""
    end = close_pass(job_pass)
    job_pass.remove_orphans(end.entries)
    return end


def entry(row_ranges: Iterable[Range] = (), shares: Iterable[Share] = ()) -> ManifestEntry:
    """Return a manifest entry that covers these rows and has no files."""
    kept = list(row_ranges)
    rows = sum(after - first for _, first, after in kept)
    return ManifestEntry(Counts(read=rows, written=rows), kept, list(shares), [], [], None)


def succeeded_report(output: str, **fields: Any) -> Report:
    """Return the report of a job that has succeeded."""
    times = {"startedAt": NOW, "updatedAt": NOW}
    given = {"name": "job", "state": JobState.SUCCEEDED, "output": output, "version": "0"}
    return Report.model_validate({**given, **times, **fields})


def begin_job(job: Document) -> PreparedPass:
    """Begin or resume the output of a job, as its driver does."""
    parsed = parse(job)
    target = next(output_targets(parsed.spec, Layout.of(parsed.spec)))
    prepared = prepare_pass(parsed.spec, target, identity_of(parsed))
    assert isinstance(prepared, PreparedPass)
    return prepared


def last_pass(job: Document) -> JobPass:
    """Return the pass that has the lease of the output of a job."""
    layout = Layout.of(parse(job).spec)
    lease = read_lease(layout)
    assert lease is not None
    return JobPass(layout, lease)


# --- outputs of jobs without steps ------------------------------------------------------


def all_good(numbers: np.ndarray) -> np.ndarray:
    return np.full(len(numbers), GOOD)


def every_tenth(numbers: np.ndarray) -> np.ndarray:
    """Return outcomes that fail the fourth and filter the eighth of every ten rows."""
    return np.select([numbers % 10 == 3, numbers % 10 == 7], [FAILED, FILTERED], GOOD)


def make_output(
    job: Document, outcomes: Outcomes = all_good, *, tasks: int = 3, complete: bool = True
) -> Layout:
    """Write the output of a job in this many commits, or omit the last commit."""
    spec, prepared = parse(job).spec, begin_job(job)
    reads = prepared.input.read_tasks(tasks, prepared.missing)
    batches = [merged(_with_outcomes(batch, outcomes) for batch in read()) for read in reads]
    _put(spec, prepared, batches if complete else batches[:-1])
    if complete:
        left = prepared.close()
        assert left.missing == {}
        end = left.snapshot
        prepared.job_pass.remove_orphans(end.entries)
        names = ("read", "written", "failed", "filtered")
        counts = {name: getattr(end.counts, name) for name in names}
        report = succeeded_report(spec.write.path, counts=counts)
        if isinstance(spec.write, WriteTable) and prepared.table is not None:
            plan = plan_for_machine(spec, gpus=0)
            placed = Executor(spec, plan, prepared).place_files(prepared.table, end)
            prepared.job_pass.commit_table(spec.write, prepared.table, placed, end, report)
        prepared.job_pass.mark_complete(end, report)
    return prepared.job_pass.layout


def _with_outcomes(batch: RowBatch, outcomes_of: Outcomes) -> RowBatch:
    outcomes = outcomes_of(unpack_ids(batch.ids)[1])
    handling = ErrorHandling(tolerant=True, input=Location("/nowhere"))
    failed = [
        (index, handling.failed_row("own", int(batch.ids[index]), ValueError("no"), batch.table))
        for index in np.flatnonzero(outcomes == FAILED).tolist()
    ]
    good = outcomes == GOOD
    return batch.derived(batch.table.filter(pa.array(good)), np.flatnonzero(good), failed)


def _put(spec: BatchInferenceSpec, prepared: PreparedPass, batches: list[RowBatch]) -> None:
    writer = prepared.table or writer_for(spec.write)
    commits = committing(prepared.job_pass, writer, FileSplit.of(spec.write))
    for task, batch in enumerate(batches):
        commits.put(batch, task)
