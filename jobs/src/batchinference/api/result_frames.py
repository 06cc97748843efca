"""Converts the rows of results and previews to DataFrames of pandas and Polars."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from batchinference.pipeline.errors import not_installed

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa


class Rows(ABC):
    """Rows that can be converted to a table or a DataFrame."""

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """Return all rows as an Arrow table."""

    def to_pandas(self) -> pd.DataFrame:
        """Return all rows as a pandas DataFrame. pandas stores integers with nulls as floats. If
        floats would round an integer, the column gets Python objects."""
        table = self.to_arrow()
        frame = table.to_pandas()
        for name, column in zip(table.column_names, table.columns, strict=True):
            if _would_be_rounded(column):
                frame[name] = column.to_pandas(integer_object_nulls=True)
        return frame

    def to_polars(self) -> pl.DataFrame:
        """Return all rows as a Polars DataFrame. Raises ModuleNotFoundError without Polars."""
        try:
            import polars as pl
        except ModuleNotFoundError:
            raise ModuleNotFoundError(not_installed("to_polars", "polars"), name="polars") from None

        frame = pl.from_arrow(self.to_arrow())
        assert isinstance(frame, pl.DataFrame)  # noqa: S101 - from_arrow returns a Series for an array
        return frame


def _would_be_rounded(column: pa.ChunkedArray) -> bool:
    """Return whether a column has nulls, and integers that float64 may round."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_integer(column.type) and column.null_count):
        return False
    return any(abs(limit or 0) > 2**53 for limit in pc.min_max(column).as_py().values())
