"""Whether manifests cover the input: each row of each file once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from batchinference.pipeline.failures import Incomplete
from batchinference.pipeline.manifest import Manifest
from batchinference.pipeline.rows import WHOLE

SHOWN = 3


def check_coverage(manifests: Iterable[Manifest], files: int, rows_each: int | None = None) -> None:
    """Raises Incomplete that names the first gaps or overlaps, when there are any.

    `files` is the number of files of the input, and `rows_each` how many rows each has, where that
    is known beforehand and not told by END rows.
    """
    ranges: dict[int, list[tuple[int, int]]] = defaultdict(list)
    parts: dict[tuple[int, int], int] = defaultdict(int)
    ends: dict[int, int] = {}
    for manifest in manifests:
        for file, first, after in manifest.ranges:
            ranges[file].append((first, after))
        for file, row, share in manifest.shares:
            parts[file, row] += share
        ends |= dict(manifest.ends)
    for file, row in _whole(parts):
        ranges[file].append((row, row + 1))
    faults = [_twice(*place) for place in parts if parts[place] < WHOLE and _covered(place, ranges)]
    faults += [
        fault
        for file in range(files)
        if (fault := _fault(file, sorted(ranges[file]), ends.get(file, rows_each))) is not None
    ]
    if faults:
        more = f" and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        raise Incomplete(
            f"the output does not hold each input row once: {'; '.join(faults[:SHOWN])}{more}"
        )


def rows_covered(manifests: Iterable[Manifest], files: int, rows_each: int | None = None) -> int:
    """Rows of the input, once coverage is checked; arguments as there."""
    if rows_each is not None:
        return files * rows_each
    return sum(dict(end for manifest in manifests for end in manifest.ends).values())


def _whole(parts: dict[tuple[int, int], int]) -> Iterator[tuple[int, int]]:
    """The rows whose parts are all there, once; twice those of which there is more."""
    for place, share in parts.items():
        if share >= WHOLE:
            yield place
        if share > WHOLE:
            yield place


def _covered(place: tuple[int, int], ranges: dict[int, list[tuple[int, int]]]) -> bool:
    file, row = place
    return any(first <= row < after for first, after in ranges[file])


def _twice(file: int, row: int) -> str:
    return f"row {row} of file {file} is there as a whole and in part"


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
