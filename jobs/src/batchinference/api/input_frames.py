"""Stores a frame (a DataFrame of pandas or Polars, or an Arrow table) as the input of a job.

A frame becomes a Parquet file next to the output. The name of the file is a hash of the frame. So
equal frames are the same input in all processes, and a changed frame is a new input."""

from __future__ import annotations

import hashlib
import io
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchinference.api.job_files import beside, is_root
from batchinference.pipeline.row_hashes import row_hashes
from batchinference.pipeline.storage.arrow_files import CHUNK_ROWS, refuse_pickles
from batchinference.pipeline.storage.location import Location
from batchinference.spec.problems import Problem, SpecError
from batchinference.spec.read.base import ReadFiles, ReadModel
from batchinference.text import counted, with_article

if TYPE_CHECKING:
    import pandas as pd
ROW_GROUP_BYTES = 64 << 20
"""Uncompressed bytes of a row group: the smallest part of a file that a task can read."""
_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
"""The types that replace Arrow's view types, which other libraries cannot read."""


@dataclass(frozen=True)
class Frame:
    """The rows of a frame as a Parquet file, and a hash of their column names and values."""

    content: bytes = field(repr=False)
    digest: str

    @classmethod
    def of(cls, data: Any) -> Frame:
        """Return the rows of a frame. Raises SpecError if `data` cannot be stored unchanged."""
        pandas = sys.modules.get("pandas")
        if pandas is not None and isinstance(data, pandas.DataFrame):
            return cls._from_table(_pandas_to_table(data))
        if hasattr(data, "to_arrow"):  # Polars; its Arrow stream has view types
            return cls._from_table(data.to_arrow())
        if isinstance(data, pa.RecordBatchReader):  # a second job would get no rows
            raise _read_error("a RecordBatchReader is read only once. Pass data.read_all()")
        if hasattr(data, "__arrow_c_stream__"):
            try:
                table = pa.table(data)
            except pa.ArrowInvalid as error:  # for example, `data` is a Series
                raise _read_error(f"{error}. Pass a DataFrame or an Arrow table") from None
            return cls._from_table(table)
        kind = with_article(type(data).__name__)
        raise _read_error(
            f"{kind} is neither a mapping nor a table. Pass a DataFrame of pandas or Polars, an "
            "Arrow table, or the fields of read"
        )

    @classmethod
    def _from_table(cls, table: Any) -> Frame:
        content, names = _to_parquet(table), table.column_names
        # row hashes include the column types; without rows, the types are hashed here
        kinds = [] if table.num_rows else [[str(column.type) for column in table.schema]]
        digest = hashlib.sha256(json.dumps([*names, *kinds]).encode())
        for start in range(0, table.num_rows, CHUNK_ROWS):
            digest.update(b"".join(row_hashes(table.slice(start, CHUNK_ROWS))))
        return cls(content, digest.hexdigest()[:32])

    def read_for(self, write: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields `read` with which a job reads the file of this frame. The file is next
        to the output in `write`. Raises SpecError if the output is a root (see `is_root`)."""
        output = str(write.get("path") or "out")
        if is_root(output):
            problem = f"a frame is stored next to it, and nothing can be next to a root ({output})"
            raise SpecError([Problem("spec.write.path", f"{problem}. Write below it")])
        path = f"{beside(output, 'input')}/{self.digest}.parquet"
        storage = {"storage": write["storage"]} if "storage" in write else {}
        return {"format": "parquet", "paths": [path], **storage}

    def store(self, read: ReadModel) -> None:
        """Write this frame to the file in `read` if the file does not exist."""
        assert isinstance(read, ReadFiles)  # noqa: S101 - `read_for` has made it
        (path,) = read.locations.values()
        file = Location(path, read.storage)
        if not file.exists():
            file.write(self.content)


def _to_parquet(table: pa.Table) -> bytes:
    """Return a table as a Parquet file. Raises SpecError if it cannot be stored."""
    if not isinstance(table, pa.Table):
        raise _read_error(f"{type(table).__name__} is not a table. Pass a DataFrame or Arrow table")
    names = table.column_names
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise _read_error(f"several columns have the name '{duplicates[0]}'. Rename them")
    fields = [column.with_type(_VIEWS.get(column.type, column.type)) for column in table.schema]
    table = table.cast(pa.schema(fields)).combine_chunks()
    groups = max(1, table.nbytes // ROW_GROUP_BYTES)
    sink = io.BytesIO()
    try:
        pq.write_table(refuse_pickles(table), sink, row_group_size=max(1, table.num_rows // groups))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _read_error(f"{error}. Convert the column") from None
    return sink.getvalue()


def _pandas_to_table(frame: pd.DataFrame) -> pa.Table:
    """Return a DataFrame as a table with null for missing values. Raises SpecError if its index
    would be lost, a column name is not a text, or a value would change."""
    _check_index(frame.index)
    for name in frame.columns:
        if not isinstance(name, str):
            fix = "data.columns = data.columns.map(str)"
            raise _read_error(f"the name of a column is not a text ({name!r}). Write {fix}")
    columns = [_series_to_array(frame.iloc[:, at]) for at in range(frame.shape[1])]
    return pa.Table.from_arrays(columns, names=list(frame.columns))


def _check_index(index: pd.Index) -> None:
    """Raise SpecError if an index has a name or other values than the row numbers."""
    if index.name is not None or not index.equals(sys.modules["pandas"].RangeIndex(len(index))):
        names = ", ".join(str(name) for name in index.names if name is not None)
        fixes = ["data.reset_index(drop=True)", "data.reset_index() to keep it as a column"]
        first, second = fixes[::-1] if names else fixes
        raise _read_error(
            f"the index of the DataFrame{f' ({names})' if names else ''} would be lost. Write "
            f"{first}, or {second}"
        )


def _series_to_array(series: pd.Series[Any]) -> pa.Array:
    try:
        column = pa.Array.from_pandas(series)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        problem = f"column '{series.name}' cannot be stored ({error})"
        raise _read_error(f"{problem}. Convert its values to one type") from None
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column.type, pa.BaseExtensionType):
        problem = f"column '{series.name}' has type {series.dtype}, which other tools do not read"
        raise _read_error(f"{problem}. Convert it, for example with .astype(str)")
    if series.dtype == object:
        _check_values(series, column)
    return column


def _check_values(series: pd.Series[Any], column: pa.Array) -> None:
    """Raise SpecError if a value of a Series of objects has changed in its Arrow column."""
    changed = [
        (row, before, after)
        for row, (before, after) in enumerate(zip(series, column.to_pylist(), strict=True))
        if not _is_same(before, after)
    ]
    if changed:
        row, before, after = changed[0]
        raise _read_error(
            f"{counted(len(changed), 'value')} of column '{series.name}' would change: in row "
            f"{row}, from {before!r:.60} to {after!r:.60}. Convert the values to one type"
        )


def _is_same(before: Any, after: Any) -> bool:
    """Return whether Arrow has kept a value. Missing values and fields may become null."""
    if hasattr(before, "tolist"):
        before = before.tolist()  # an array or a number of NumPy
    if isinstance(before, dict) and isinstance(after, dict):
        return all(_is_same(before.get(name), each) for name, each in after.items())
    if isinstance(before, list | tuple) and isinstance(after, list):
        return len(before) == len(after) and all(map(_is_same, before, after))
    if after is None:
        missing = before is None or type(before).__name__ in ("NAType", "NaTType")
        return missing or (isinstance(before, float) and math.isnan(before))
    if hasattr(before, "utcoffset") and hasattr(after, "utcoffset"):
        return bool(before == after and before.utcoffset() == after.utcoffset())
    return bool(before == after)


def _read_error(problem: str) -> SpecError:
    return SpecError([Problem("spec.read", problem)])
