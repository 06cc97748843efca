"""Checks vectors for stores with similarity search, which accept only vectors of one length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.arrow import tensors_to_lists
from batchinference.pipeline.errors import BadOutput, UnwritableValue
from batchinference.spec.write import WriteVectors

FLOATS = pa.list_(pa.float32())


@dataclass(frozen=True)
class Vectors:
    """The column with the vectors, their length, and the distance by which searches compare."""

    column: str
    dimensions: int
    distance: str = ""

    def cast(self, table: pa.Table) -> pa.Table:
        """Return the table with the vectors as lists of float32, rounded if necessary. If there is
        no vector column, change nothing. Raises BadOutput if the column has no lists of numbers."""
        if self.column not in table.column_names:
            return table
        column = table.column(self.column)
        try:
            index = table.column_names.index(self.column)
            return table.set_column(index, self.column, column.cast(FLOATS))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise BadOutput(
                f"write.vectorColumn: column '{self.column}' is {column.type}, and not a vector of "
                f"float32 ({error}). Name a column with lists of numbers"
            ) from None

    def unwritable(self, table: pa.Table) -> dict[int, UnwritableValue]:
        """Return an error for each row whose vector cannot be stored, by row index."""
        if self.column not in table.column_names:
            raise BadOutput(
                f"write.vectorColumn: there is no column '{self.column}', only "
                f"{', '.join(table.column_names)}. Name one of these"
            )
        lists = self.cast(tensors_to_lists(table.select([self.column]))).column(0).combine_chunks()
        lengths = pc.fill_null(pc.list_value_length(lists), -1).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(lengths == self.dimensions)
        numbers = lists.take(pa.array(rows)).flatten().to_numpy(zero_copy_only=False)
        numbers = numbers.reshape(len(rows), self.dimensions)
        zeros = ~numbers.any(axis=1) & (self.distance == "cosine")
        other_length = (lengths >= 0) & (lengths != self.dimensions)
        finite = np.isfinite(numbers).all(axis=1)
        problems = {
            "is null": np.flatnonzero(lengths < 0),
            f"does not have {self.dimensions} numbers": np.flatnonzero(other_length),
            "has a number that is null, NaN or infinite in float32": rows[~finite],
            "is all zeros, which has no direction for distance cosine": rows[zeros],
        }
        return {
            int(row): UnwritableValue(f"the vector in column '{self.column}' {problem}")
            for problem, rows in problems.items()
            for row in rows
        }


def vectors_of(write: WriteVectors, name: str, existing: Vectors | None) -> Vectors | None:
    """Return the vectors that a job writes to the table `name`; None if it writes no vectors.
    `existing` are the vectors of an existing table. Raises BadOutput if the job requests another
    length or distance, or no length for a new table."""
    if (column := write.vector_column) is None:
        return None
    dimensions, distance = write.dimensions, getattr(write, "distance", "")
    if existing is None:
        if dimensions is None:
            problem = f"the length of the vectors in '{name}' is unknown. Set it"
            raise BadOutput(f"write.dimensions: {problem}")
        return Vectors(column, dimensions, "cosine" if distance is None else distance)
    wanted = (dimensions or existing.dimensions, distance or existing.distance)
    if wanted != (existing.dimensions, existing.distance):
        raise BadOutput(
            f"write: '{name}' has vectors with {existing.dimensions} numbers"
            f"{existing.distance and f' and the distance {existing.distance}'}, and the job "
            f"requests {' and '.join(map(str, filter(None, (dimensions, distance))))}. Use the "
            "same, or choose another name"
        )
    return existing
