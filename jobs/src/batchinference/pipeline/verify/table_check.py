"""Checks that a table has exactly one commit of a job, and one row for each key of a merge."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from batchinference.pipeline.commit.table_commit import table_errors_as_bad_output
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output.tables import Table
from batchinference.pipeline.output.tables.keys import Keys, MergingTable
from batchinference.pipeline.output.tables.kinds import table_for
from batchinference.pipeline.storage.arrow_files import read_table
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.verify.findings import Defect, Kind, Position
from batchinference.pipeline.verify.stored_jobs import StoredJob
from batchinference.spec.write import WriteTable
from batchinference.text import counted


def commit_defects(job: StoredJob, write: WriteTable, rows: int) -> Iterator[Defect]:
    """Yield defects of the table commit of a finished job that has written `rows` rows."""
    output, lease = job.layout.output, job.lease
    try:
        with table_errors_as_bad_output():
            settings = {"path": output.uri, "storage": output.storage}
            table = table_for(write.model_copy(update=settings))
            if not table.commit_count(lease.commit_id):
                yield Kind.NO_COMMIT, Position(output.uri), 1
            elif (commits := table.commit_count(lease.series_id)) > 1:
                detail = f"{commits} commits of the same rows, the later ones by delayed attempts"
                yield Kind.DUPLICATED, Position(output.uri, detail=detail), (commits - 1) * rows
            elif job.merges:
                yield from _key_defects(table, job.layout.keys, rows)
    except BadOutput as failure:
        yield Kind.NO_COMMIT, Position(output.uri, detail=failure.message), 1


def _key_defects(table: Table, stored: Location, rows: int) -> Iterator[Defect]:
    """Yield a defect if the table lacks keys of a job or has them more than once. Also yield one if
    the stored keys are gone or damaged, or if their number is not `rows`."""
    existing = table.existing()
    if not isinstance(table, MergingTable) or existing is None:
        return
    content = stored.read_if_exists() or b""
    try:
        keys = Keys(read_table(pa.BufferReader(content)))
    except (pa.ArrowException, OSError):
        yield Kind.STATE, Position(stored.uri, detail="it is gone or damaged"), 1
        return
    if (number := keys.table.num_rows) != rows:
        detail = f"it has {counted(number, 'key')}, and {rows} rows were committed"
        yield Kind.STATE, Position(stored.uri, detail=detail), 1
        return
    matched = keys.matched_numbers(table.find_keys(existing, keys.table))
    counts = np.bincount(matched, minlength=number)
    for kind, chosen in ((Kind.MISSING_KEYS, counts == 0), (Kind.REPEATED_KEYS, counts > 1)):
        if count := int(chosen.sum()):
            yield kind, Position(stored.uri, detail=keys.examples(chosen)), count
