"""Whether manifests cover the input: each row of each file once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from batchinference.pipeline.failures import Incomplete
from batchinference.pipeline.manifest import Manifest

SHOWN = 3


def check_coverage(manifests: Iterable[Manifest], files: int) -> None:
    """Raise Incomplete that names the first gaps or overlaps, when there are any.

    `files` is the number of files of the input.
    """
    ranges: dict[int, list[tuple[int, int]]] = defaultdict(list)
    ends: dict[int, int] = {}
    for manifest in manifests:
        for file, first, after in manifest.ranges:
            ranges[file].append((first, after))
        ends |= dict(manifest.ends)
    faults = [
        fault
        for file in range(files)
        if (fault := _fault(file, sorted(ranges[file]), ends.get(file))) is not None
    ]
    if faults:
        more = f" and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        raise Incomplete(
            f"the output does not hold each input row once: {'; '.join(faults[:SHOWN])}{more}"
        )


def _fault(file: int, ranges: list[tuple[int, int]], rows: int | None) -> str | None:
    if rows is None:
        return f"the end of file {file} was not written"
    expected = 0
    for first, after in ranges:
        if first > expected:
            return f"rows {expected} to {first - 1} of file {file} are missing"
        if first < expected:
            return f"rows {first} to {min(after, expected) - 1} of file {file} are there twice"
        expected = after
    if expected != rows:
        return f"file {file} has {rows} rows and {expected} were written"
    return None
