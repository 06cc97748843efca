"""Compares the keys of the rows that a job has merged with those in the table."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from batchinference.pipeline.output.tables import Table
from batchinference.pipeline.output.tables.keys import Keys, MergingTable
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.verify.findings import Defect, Kind, Spot
from batchinference.text import counted


def key_defects(table: Table, stored: Location, rows: int) -> Iterator[Defect]:
    """Yield the keys of a job with this number of rows that a table does not have, or has more than
    once. Raises BadOutput if the stored keys are damaged."""
    existing = table.existing()
    if not isinstance(table, MergingTable) or existing is None:
        return
    keys = Keys.stored(stored)
    if (number := keys.table.num_rows) != rows:
        detail = f"it has {counted(number, 'key')}, and {rows} rows were committed"
        yield Kind.STATE, Spot(stored.uri, detail=detail), 1
        return
    counts = np.bincount(keys.numbers(table.keys_of(existing, keys.table)), minlength=number)
    for kind, chosen in ((Kind.MISSING_KEYS, counts == 0), (Kind.REPEATED_KEYS, counts > 1)):
        if count := int(chosen.sum()):
            yield kind, Spot(stored.uri, detail=keys.examples(chosen)), count
