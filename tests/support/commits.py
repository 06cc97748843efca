"""Outputs, attempts and commits without a job that makes them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from batchinference.pipeline.attempt import Attempt
from batchinference.pipeline.frozen import digest
from batchinference.pipeline.inputs import freeze_input
from batchinference.pipeline.intact import intact
from batchinference.pipeline.layout import Layout
from batchinference.pipeline.pieces import Counts, Piece, Range, Share
from batchinference.pipeline.sink import Commit
from batchinference.pipeline.snapshot import Snapshot
from batchinference.pipeline.storage import Address
from batchinference.pipeline.writers.cut import Cut
from batchinference.pipeline.writers.parquet import ParquetWriter
from batchinference.spec.report import JobState, Report

OURS, THEIRS = "a" * 64, "b" * 64
"""The keys of two works."""


def layout_of(output: Path | str, key: str = OURS, errors: Path | None = None) -> Layout:
    """Where everything lies below a directory."""
    address = Address(str(output))
    state = address / "_batchinference"
    return Layout(key, address, state, Address(str(errors)) if errors else state / "errors")


def begun(layout: Layout, source: Path, number: int = 1) -> Attempt:
    """An attempt over the files of a directory of which nothing is done."""
    content = freeze_input([str(source)], []).serialized()
    layout.input.write(content)
    return Attempt.open(layout, number, Snapshot(layout.key, digest(content)))


def commit(attempt: Attempt, table: pa.Table, task: int = 0) -> None:
    """Commit rows as a write task does."""
    Commit(attempt, ParquetWriter("snappy"), Cut()).put(table, task)


def ended(attempt: Attempt, start: Snapshot | None = None) -> Snapshot:
    """What counts once the attempt has come to its end."""
    before = start or Snapshot(attempt.layout.key, "")
    return intact(attempt.layout, before.with_commits(attempt.close()))


def cleaned(attempt: Attempt) -> Snapshot:
    """The same, and nothing else is left of what tasks have put."""
    end = ended(attempt)
    attempt.remove_all_but(end.pieces)
    return end


def piece(ranges: Iterable[Range] = (), shares: Iterable[Share] = ()) -> Piece:
    """One that holds these rows, in no file."""
    held = list(ranges)
    rows = sum(after - first for _, first, after in held)
    return Piece(Counts(rows, rows), held, list(shares), [], [], None)


def report_of(layout: Layout) -> Report:
    """That of a job that has succeeded."""
    now = "2026-01-01T00:00:00Z"
    times = {"startedAt": now, "updatedAt": now}
    return Report(
        name="job", state=JobState.SUCCEEDED, output=layout.output.uri, version="0", **times
    )
