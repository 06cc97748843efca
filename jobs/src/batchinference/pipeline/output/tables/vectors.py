"""Vectors of one length, as stores with a search by similarity have them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.errors import BadOutput, UnwritableValue
from batchinference.spec.write import WriteVectors

FLOATS = pa.list_(pa.float32())


@dataclass(frozen=True)
class Vectors:
    """The column with the vectors, their length, and whether they are compared by their direction,
    which a vector of zeros does not have."""

    column: str
    dimensions: int
    by_direction: bool = False

    def cast(self, table: pa.Table) -> pa.Table:
        """Return the table with the vectors as lists of float32. A fraction becomes the nearest
        one. Raises BadOutput if the column has other values than lists of numbers."""
        if self.column not in table.column_names:
            return table
        index = table.column_names.index(self.column)
        column = table.column(index)
        try:
            return table.set_column(index, self.column, column.cast(FLOATS))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise BadOutput(
                f"write.vectorColumn: column '{self.column}' is {column.type}, which is no vector "
                f"of float32 ({error}). Name a column with lists of numbers"
            ) from None

    def unwritable(self, table: pa.Table) -> dict[int, UnwritableValue]:
        """Return the error of each row without a suitable vector, by row index."""
        if self.column not in table.column_names:
            raise BadOutput(
                f"write.vectorColumn: there is no column '{self.column}', only "
                f"{', '.join(table.column_names)}. Name one of these"
            )
        vectors = self.cast(table).column(self.column).combine_chunks()
        lengths = pc.fill_null(pc.list_value_length(vectors), -1).to_numpy(zero_copy_only=False)
        errors = {
            int(row): self._length(lengths[row])
            for row in np.flatnonzero(lengths != self.dimensions)
        }
        rows = np.flatnonzero(lengths == self.dimensions)
        numbers = vectors.take(pa.array(rows)).flatten().to_numpy(zero_copy_only=False)
        numbers = numbers.reshape(len(rows), self.dimensions)
        for row in rows[~np.isfinite(numbers).all(axis=1)]:
            errors[int(row)] = self._error("has a number that is null, NaN or infinite in float32")
        for row in rows[~numbers.any(axis=1)] if self.by_direction else ():
            errors[int(row)] = self._error(
                "is all zeros, which have no direction (distance cosine)"
            )
        return errors

    def _length(self, length: int) -> UnwritableValue:
        problem = "is null" if length < 0 else f"has {length} numbers, not {self.dimensions}"
        return self._error(problem)

    def _error(self, problem: str) -> UnwritableValue:
        return UnwritableValue(f"the vector in column '{self.column}' {problem}")


def new_vectors(write: WriteVectors, name: str, existing: Vectors | None = None) -> Vectors | None:
    """Return the vectors that a job writes to `name`; None if it writes none. `existing` are those
    that it has. Raises BadOutput if their length is unknown, or is not that of the job."""
    if write.vector_column is None:
        return None
    if existing is None and write.dimensions is None:
        raise BadOutput(
            f"write.dimensions: '{name}' does not have the length of its vectors yet. Set it"
        )
    if existing is None:
        by_direction = getattr(write, "distance", "dot") in (None, "cosine")
        return Vectors(write.vector_column, write.dimensions or 0, by_direction)
    if write.dimensions not in (None, existing.dimensions):
        raise BadOutput(
            f"write.dimensions: '{name}' has vectors with {existing.dimensions} numbers, not "
            f"{write.dimensions}. Use a model with as many, or choose another name"
        )
    return existing
