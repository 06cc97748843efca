"""Writes the error file of a batch that has ended early, with the lines that did not run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from batchinference.json_text import to_json
from batchinference.pipeline.commit.layout import STATE_DIRECTORY, Layout
from batchinference.pipeline.commit.manifest import ManifestEntry
from batchinference.pipeline.commit.row_coverage import RowSet
from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.exact_json import load_unique
from batchinference.pipeline.input.readers import BadRow
from batchinference.pipeline.input.readers.openai_batch import BadLine, OpenaiBatchReader
from batchinference.pipeline.output.openai_errors import write_error_file
from batchinference.pipeline.output.writers.openai_batch import as_line, request_id
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.verify.jobs import stored_job, stored_layouts
from batchinference.spec.read.base import RowOptions


def committed_entries(output: Location) -> list[ManifestEntry]:
    """Return the committed entries of an output. Raises JobFailure or ValueError if its state was
    changed: tenants can write there, so nothing else of it is used."""
    try:
        (layout,) = stored_layouts(output)
    except BadInput:  # no run has begun
        return []
    job = stored_job(layout)
    return job.committed().entries if job else []


def write_unrun(output: Location, source: Location | None, error: Mapping[str, str]) -> None:
    """Write the error file of an output: its failed rows, and with an error each line of the input
    file `source`, if there is one, that is not committed."""
    entries, state = committed_entries(output), output / STATE_DIRECTORY
    layout = Layout("", output, state, state / "errors")
    lines = _lines(source, RowSet.of(entries), error) if source else ()
    write_error_file(layout, "custom_id", entries, 0, lines)


def _lines(source: Location, held: RowSet, error: Mapping[str, str]) -> Iterator[tuple[int, bytes]]:
    """Yield the row and the line of each request that is not in a set."""
    row = 0
    for chunk in OpenaiBatchReader(RowOptions()).read(source):
        if isinstance(chunk, BadRow):
            known = chunk.error.values if isinstance(chunk.error, BadLine) else None
            ids = [load_unique(known)["custom_id"] if known else None] * chunk.rows
        else:
            ids = chunk.column("custom_id").to_pylist()
        missing = ~held.holds(np.arange(row, row + len(ids)))
        for at in np.flatnonzero(missing).tolist():
            about = {"id": request_id(row + at), "custom_id": ids[at], "response": None}
            yield row + at, as_line(to_json({**about, "error": error})).encode()
        row += len(ids)
