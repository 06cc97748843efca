"""Similarity search in a finished output for each row."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from batchinference.spec.base import ColumnName, SpecModel, StepColumns, rules
from batchinference.spec.step_facts import Place, StepFacts
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage
from batchinference.spec.uris import Uri

SIMILARITY = "similarity"
_OWN_COLUMN = f"each match has '{SIMILARITY}' anyway: leave it out of 'columns'"
MAX_FOUND = 1000
"""Maximum number of rows that a search returns."""


class Nearest(SpecModel):
    """The rows of a finished output that are most similar to each row, by the cosine similarity of
    their embeddings."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (f"!has(self.columns) || !('{SIMILARITY}' in self.columns)", _OWN_COLUMN)
        )
    )

    path: Uri
    """The output to search: the `write.path` of a succeeded job with `format: parquet`."""
    storage: Storage = FROM_ENVIRONMENT
    """How to access the object store of the output."""
    index_column: ColumnName | None = None
    """The column with embeddings in the output. Required if several columns have embeddings."""
    columns: StepColumns | None = None
    """The columns of the output to return. All except embeddings and tensors by default."""
    column: ColumnName
    """The column of this job with embeddings from the same model."""
    k: Annotated[int, Field(ge=1, le=MAX_FOUND)] = 5
    """Number of rows to return."""
    output: ColumnName
    """The column for the result: a list of structs with `similarity` (-1 to 1) and `columns`, the
    most similar first. Null for a row without an embedding."""

    @property
    def facts(self) -> StepFacts:
        return StepFacts(
            reads={self.column},
            adds={self.output: None},
            result=self.output,
            why_in_tasks="a nearest step runs wherever a CPU is free",
            places={"path": Place(self.path, escaped=True)},
        )

    @model_validator(mode="after")
    def _check(self) -> Nearest:
        if SIMILARITY in (self.columns or []):
            raise PydanticCustomError(
                "nearest_columns", _OWN_COLUMN, {}
            )  # fmt: skip
        return self
