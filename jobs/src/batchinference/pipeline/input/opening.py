"""Opens the input of a job at its output: without the files whose rows other outputs have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from batchinference.pipeline.commit.append import OutputTarget
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.look import Found
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.input import JobInput
from batchinference.pipeline.input.files import open_input
from batchinference.pipeline.input.snapshot import (
    STATS,
    ProcessedFiles,
    ResumedInput,
    read_snapshot,
)
from batchinference.pipeline.storage.arrow_files import read_table
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.read import ReadFiles

PARTS_AT_ONCE = 10_000
"""Parts of an input that are Python objects at the same time."""


def open_at_output(spec: BatchInferenceSpec, target: OutputTarget, found: Found) -> JobInput:
    """Return the input of the job: the files of the output to resume, or those whose rows are not
    in other outputs of the work.

    Raises BadInput and NoNewFiles like `open_input`."""
    read, start = spec.read, found.start
    earlier: ResumedInput | ProcessedFiles | None = None
    if isinstance(read, ReadFiles) and start is not None:
        frozen = read_snapshot(found.state.layout.input, read.storage, start.input)
        earlier = ResumedInput(frozen, lambda each: start.missing_rows(len(frozen), each))
    elif isinstance(read, ReadFiles) and (places := target.processed):
        earlier = ProcessedFiles([read_snapshot(place, read.storage) for place in places])
    return open_input(read, earlier, spec.errors.failing_warnings)


def describe_changes(source: JobInput, complete: Sequence[Layout]) -> str:
    """Return a remark if the input differs from the input of the complete output, else empty."""
    read = (layout.input.read_if_exists() for layout in complete)
    contents = [content for content in read if content is not None]
    if not contents:
        return ""
    try:
        before = np.unique(np.concatenate([_hashes_of_parts(content) for content in contents]))
    except pa.ArrowInvalid:
        return "its input.parquet is damaged, so it is unknown whether the input has changed"
    now = np.unique(_hashes_of_parts(source.serialized()))
    if np.array_equal(before, now):
        return ""
    return (
        f"the input has changed since ({len(before)} parts then, {len(now)} now), and its new "
        "rows are not in the output. Set write.mode to append to add the rows of new files"
    )


def check_previous_versions(source: JobInput, previous: Sequence[Layout]) -> None:
    """Raise BadOutput if a job, before its spec changed, added rows of the same files to one of
    these outputs."""
    paths = {part[0] for part in _parts(source.serialized())} if previous else set()
    for other in previous:
        known = (part[0] for part in _parts(other.input.read()))
        if (path := next((path for path in known if path in paths), None)) is not None:
            raise BadOutput(
                f"spec.write.path: '{other.output.uri}' holds rows of '{path}' by this job as it "
                "was before its spec changed. Choose another path, set write.mode to overwrite, or "
                "give the job another metadata.name to have both"
            )


def _parts(content: bytes) -> Iterator[tuple[object, ...]]:
    """Yield the identity of each part of an input: its values, without statistics."""
    table = read_table(pa.BufferReader(content))
    table = table.drop_columns([name for name in STATS.names if name in table.column_names])
    for batch in table.to_batches(max_chunksize=PARTS_AT_ONCE):
        yield from zip(*batch.to_pydict().values(), strict=True)


def _hashes_of_parts(content: bytes) -> np.ndarray:
    """Return a hash of each part of an input, because millions of parts take gigabytes."""
    return np.fromiter(map(hash, _parts(content)), np.int64)
