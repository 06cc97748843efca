"""Writes the error file of a batch that has ended early, including the lines that did not run."""

from collections.abc import Iterator, Mapping

import numpy as np

from batchinference.json_text import to_json
from batchinference.pipeline.commit.manifest import ManifestEntry
from batchinference.pipeline.commit.output_paths import STATE_DIRECTORY, Layout
from batchinference.pipeline.commit.row_coverage import RowSet
from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.exact_json import load_unique
from batchinference.pipeline.input.readers import BadRow
from batchinference.pipeline.input.readers.openai_batch import BadLine, OpenaiBatchReader
from batchinference.pipeline.output.openai_errors import write_error_file
from batchinference.pipeline.output.writers.openai_batch import as_line, request_id
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.verify.stored_jobs import stored_job, stored_layouts
from batchinference.spec.read.base import RowOptions


def committed_entries(output: Location) -> list[ManifestEntry]:
    """Return the committed manifest entries of an output. The entries are untrusted, because
    tenants can write to the state. Raises JobFailure or ValueError if the state is invalid."""
    try:
        (layout,) = stored_layouts(output)
    except BadInput:  # no run has begun
        return []
    job = stored_job(layout)
    return job.committed().entries if job else []


def write_lines_not_run(
    output: Location, source: Location | None, error: Mapping[str, str]
) -> None:
    """Write the error file of an output. It has the failed rows, and a line with `error` for each
    request in the input file `source` that is not committed. `source` may be None."""
    entries, state = committed_entries(output), output / STATE_DIRECTORY
    layout = Layout("", output, state, state / "errors")
    lines = _lines(source, RowSet.of(entries), error) if source else ()
    write_error_file(layout, "custom_id", entries, 0, lines)


def _lines(
    source: Location, committed: RowSet, error: Mapping[str, str]
) -> Iterator[tuple[int, bytes]]:
    """Yield the row number and the error line of each uncommitted request."""
    row = 0
    for chunk in OpenaiBatchReader(RowOptions()).read(source):
        if isinstance(chunk, BadRow):
            known = chunk.error.values if isinstance(chunk.error, BadLine) else None
            ids = [load_unique(known)["custom_id"] if known else None] * chunk.rows
        else:
            ids = chunk.column("custom_id").to_pylist()
        missing = ~committed.contains(np.arange(row, row + len(ids)))
        for at in np.flatnonzero(missing).tolist():
            about = {"id": request_id(row + at), "custom_id": ids[at], "response": None}
            yield row + at, as_line(to_json({**about, "error": error})).encode()
        row += len(ids)
