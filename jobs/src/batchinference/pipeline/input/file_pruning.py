"""Leaves out files and row groups whose bounds show that a condition holds for no row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq


class Bounds(NamedTuple):
    """Bounds of the values of a column; None if unknown. `nulls` tells if a value may be null."""

    low: Any
    high: Any
    nulls: bool = True


FileBounds = Mapping[str, Bounds]


def matching(
    condition: pc.Expression, schema: pa.Schema, bounds: Sequence[FileBounds]
) -> list[int]:
    """Return the indexes of the files or row groups in which the condition may hold for a row.
    `bounds` has the bounds of each."""
    form, local = pads.ParquetFileFormat(), pafs.LocalFileSystem()
    files = [
        form.make_fragment(str(index), local, partition_expression=_known(file, schema))
        for index, file in enumerate(bounds)
    ]

    def indexes_of(part: Sequence[pads.Fragment]) -> list[int]:
        dataset = pads.FileSystemDataset(part, schema, form, local)
        try:
            return [int(fragment.path) for fragment in dataset.get_fragments(condition)]
        except pa.ArrowException:  # such as a bound of another type: return the file
            if len(part) == 1:
                return [int(part[0].path)]
        return [index for file in part for index in indexes_of([file])]

    return indexes_of(files)


def _known(file: FileBounds, schema: pa.Schema) -> pc.Expression:
    """Return a condition that holds for all rows of a file or row group with these bounds."""
    known = pc.scalar(True)
    for name, bounds in file.items():
        kind = schema.field(name).type if name in schema.names else pa.null()
        # no bounds of floats, because NaN is not within the bounds of its column
        if not (pa.types.is_nested(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
            try:
                known = known & _within(name, kind, bounds)
            except (pa.ArrowException, TypeError, ValueError):  # a bound of another type
                continue
    return known


def _within(name: str, kind: pa.DataType, bounds: Bounds) -> pc.Expression:
    column, low, high = pc.field(name), _scalar(bounds.low, kind), _scalar(bounds.high, kind)
    if low is None and high is None:
        return pc.scalar(True)
    if low is not None and low == high:
        inside = column == low
    else:
        limits = [*([column >= low] * (low is not None)), *([column <= high] * (high is not None))]
        inside = limits[0] & limits[-1]
    return inside | column.is_null() if bounds.nulls else inside


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar | None:
    return None if value is None else pa.scalar(value).cast(kind)


def bounds_of_group(footer: pq.FileMetaData, group: int, names: Iterable[str]) -> FileBounds:
    """Return the known bounds of the columns with these names in a row group."""
    rows: Any = footer.row_group(group)
    columns = map(rows.column, range(rows.num_columns))
    known = {column.path_in_schema: column.statistics for column in columns}
    bounds = {}
    for name in names:
        if "." not in name and (stats := known.get(name)) is not None and stats.has_min_max:
            nulls = not stats.has_null_count or stats.null_count > 0
            with suppress(OverflowError):  # Python has no dates after the year 9999
                bounds[name] = Bounds(stats.min, stats.max, nulls)
    return bounds
