"""Finds the columns of a batch that the user's code returned: a dict, a pandas DataFrame, or an
Arrow table."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.storage.arrow_files import UnsafeColumn, checked

if TYPE_CHECKING:
    import pandas as pd


def columns_of(step: str, result: Any) -> dict[str, Any]:
    """Return the columns of a returned batch by name. Raises JobFailure if it is no batch, or if
    its names are not unique texts."""
    columns = _columns_of(result)
    if not columns:
        got = type(result).__name__ if columns is None else f"an empty {type(result).__name__}"
        raise JobFailure(
            f"step '{step}' must return a dict of column name to array, a pandas DataFrame or an "
            f"Arrow table, got {got}"
        )
    for name, count in Counter(name for name, _ in columns).items():
        if not isinstance(name, str):
            raise JobFailure(
                f"step '{step}' returned the column {name!r}: the name of a column must be text"
            )
        if count > 1:
            raise JobFailure(f"step '{step}' returned {count} columns with the name '{name}'")
    try:
        checked(_arrow_schema(result, columns))
    except UnsafeColumn as error:
        raise JobFailure(f"step '{step}' returned a table whose {error}") from None
    return dict(columns)


def _arrow_schema(result: Any, columns: list[tuple[Any, Any]]) -> pa.Schema:
    """Return the schema of the returned Arrow data."""
    if isinstance(result, pa.Table | pa.RecordBatch):
        return result.schema
    arrays = pa.Array | pa.ChunkedArray
    return pa.schema(
        [(name, values.type) for name, values in columns if isinstance(values, arrays)]
    )


def _columns_of(result: Any) -> list[tuple[Any, Any]] | None:
    """Return the names and values of a returned batch; None if it is no batch."""
    if isinstance(result, dict):
        return list(result.items())
    if isinstance(result, pa.Table | pa.RecordBatch):
        return list(zip(result.schema.names, result.columns, strict=True))
    if _is_frame(result):
        return [(name, _series(result.iloc[:, at])) for at, name in enumerate(result.columns)]
    return None


def _is_frame(result: Any) -> bool:
    pandas = sys.modules.get("pandas")  # code that returns a DataFrame has imported it
    return pandas is not None and isinstance(result, pandas.DataFrame)


def _series(series: pd.Series) -> Any:
    """Return the values of a column. Missing values become null. Objects and texts are converted
    like those of a dict, so arrays become tensors."""
    text = isinstance(series.dtype, sys.modules["pandas"].StringDtype)
    if series.dtype != object and not text:
        return pa.Array.from_pandas(series)
    values = series.to_numpy(dtype=object, copy=True)
    values[series.isna().to_numpy()] = None
    return list(values)
