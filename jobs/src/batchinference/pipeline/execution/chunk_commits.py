"""Commits the rows of a task in chunks. So a task needs less memory, and loses few rows if it
dies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from batchinference.pipeline.commit.committer import Committer
from batchinference.pipeline.commit.manifest import Manifest
from batchinference.pipeline.commit.row_coverage import RowSet, resolve_overlaps
from batchinference.pipeline.errors import BadOutput, Incomplete
from batchinference.pipeline.execution.report_notes import process_notes, with_sums
from batchinference.pipeline.execution.task_sizing import SMALL_COMMIT_SECONDS
from batchinference.pipeline.input.planning import FILE_BYTES
from batchinference.pipeline.row_batch import WRITE_STEP, RowBatch, merged

MAX_FILE_SIZE = 4
"""A chunk with fewer than `rowsPerFile` rows may grow to this multiple of `file_bytes`."""
COMMIT_SECONDS = 30.0
"""A task with enough rows for a file commits at least this often."""
SMALL_COMMIT_SHARE = 0.25
"""A chunk with too few rows for a file is committed when its age is at least this share of the time
since its task began. A long task therefore makes few small commits."""


@dataclass(frozen=True)
class CommitRules:
    """Says when a task commits a chunk. A chunk with at least `rows` input rows, enough for a file,
    is committed after `commit_seconds`. A smaller chunk is committed after `small_commit_seconds`
    or later (SMALL_COMMIT_SHARE). A chunk of `file_bytes` is committed at once. With fewer rows
    than `rows_per_file` (0 if not configured), it may grow to MAX_FILE_SIZE times `file_bytes`."""

    rows: int
    small_commit_seconds: float = SMALL_COMMIT_SECONDS
    rows_per_file: int = 0
    commit_seconds: float = COMMIT_SECONDS
    file_bytes: int = FILE_BYTES


class ChunkCommits:
    """Collects the rows of the task with the number `task`, and commits them in chunks. A thread
    commits a chunk while the next rows are computed. `notes` returns the new notes of the process
    for the report. After an error in the `with` block, the rows added before are still committed,
    but not if another run has taken over the output."""

    def __init__(
        self,
        committer: Committer,
        rules: CommitRules,
        task: int,
        notes: Callable[[], Iterable[tuple[str, str]]] = tuple,
    ) -> None:
        self._committer, self._rules, self._task, self._notes = committer, rules, task, notes
        self._number = 0
        self._pool = ThreadPoolExecutor(1)
        self._pending_commit: Future[None] | None = None
        self._began = time.monotonic()
        self._start_chunk()

    def _start_chunk(self) -> None:
        self._batches: list[RowBatch] = []
        self._rows = self._bytes = 0
        self._since = time.monotonic()

    def add_results(
        self,
        rows: Iterator[RowBatch],
        run: Callable[[Iterator[RowBatch]], Iterator[RowBatch]],
        *,
        retried: bool,
        isolated: bool,
    ) -> None:
        """Commit the results that `run` yields for `rows`. If the task is `retried`, rows that it
        committed before are left out. If `isolated`, the next row may kill the process. Each batch
        is therefore committed, until `small_commit_seconds` have passed. By then, the process has
        probably survived that row."""
        earlier = self._committer.job_pass.manifests(self._task) if retried else []
        self._number = max((manifest.number + 1 for manifest in earlier), default=0)
        isolated_until = inf if isolated else -inf
        for batch in run(_without_committed(rows, earlier)):
            self.add(batch)
            now = time.monotonic()
            if len(batch.input_ids):  # a reader may need long to reach the first missing row
                isolated_until = min(isolated_until, now + self._rules.small_commit_seconds)
            if now < isolated_until:
                self.finish()
        self.finish()

    def add(self, batch: RowBatch) -> None:
        """Add rows, and commit the chunk if it is large or old enough. Raises JobFailure if the
        columns of the rows cannot be written."""
        self._committer.encoder.check_columns(batch.table.column_names)
        self._batches.append(batch)
        self._rows += len(batch.input_ids)
        self._bytes += batch.nbytes
        factor = MAX_FILE_SIZE if self._rows < self._rules.rows_per_file else 1
        if self._bytes >= factor * self._rules.file_bytes or self._is_due():
            self.flush()

    def _is_due(self) -> bool:
        """Return whether the chunk must be committed because of its age."""
        now = time.monotonic()
        age, enough = now - self._since, self._rows >= self._rules.rows
        small = max(self._rules.small_commit_seconds, SMALL_COMMIT_SHARE * (now - self._began))
        return age >= (self._rules.commit_seconds if enough else small)

    def flush(self) -> None:
        """Wait until the previous chunk is committed, and begin to commit the current one."""
        self.wait()
        if not self._batches:
            return
        chunk, run = merged(self._batches), self._committer.job_pass.lease.run
        own = (*self._notes(), *process_notes(run, WRITE_STEP))
        chunk = replace(chunk, notes=with_sums((*chunk.notes, *own)))
        put = partial(self._committer.put, chunk, self._task, self._number)
        self._pending_commit = self._pool.submit(put)
        self._number += 1
        self._start_chunk()

    def finish(self) -> None:
        """Commit the last chunk and wait for it. Raises the error of a commit."""
        self.flush()
        self.wait()

    def wait(self) -> None:
        """Wait for the running commit. Raises its error."""
        if self._pending_commit is not None:
            self._pending_commit.result()

    def __enter__(self) -> ChunkCommits:
        """Raises BadOutput if another run has taken over the output."""
        self._committer.job_pass.check_lease()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, BadOutput):
            with suppress(Exception):  # the error of the block is more important
                self.finish()
        self._pool.shutdown()


def _without_committed(read: Iterator[RowBatch], earlier: list[Manifest]) -> Iterator[RowBatch]:
    """Yield the rows that no earlier commit of the task contains. Raises Incomplete if the input is
    shorter now. A commit contains all or none of the rows that the task made from an input row."""
    if not earlier:
        yield from read
        return
    entries = [entry for manifest in earlier for entry in manifest.entries]
    shared = [entry for entry in entries if entry.shares]
    complete = resolve_overlaps([entry for entry in entries if not entry.shares])
    committed = RowSet.of([*complete, *shared])
    problem = "its end was reached"
    for batch in read:
        if batch.errors.num_rows:
            problem = batch.errors.column("error")[-1].as_py()
        for file, end in batch.ends:
            if committed.has_rows_from(file, end):
                raise Incomplete(
                    f"file {file} of the input could be read only up to row {end}, although later "
                    f"rows were committed before: {problem}. Run the job again to compute the "
                    "missing rows"
                )
        yield batch.select_inputs(batch.input_ids[~committed.contains(batch.input_ids)])
