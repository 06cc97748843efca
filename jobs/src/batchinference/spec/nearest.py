"""Search for each row among the rows of a finished output."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from batchinference.spec.base import ColumnName, Columns, SpecModel, rules
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage
from batchinference.spec.uris import Uri

SIMILARITY = "similarity"
_OWN_COLUMN = f"each match has '{SIMILARITY}' anyway: leave it out of 'columns'"
MAX_FOUND = 1000
"""Rows that one search may find."""


class Nearest(SpecModel):
    """The rows of a finished output that are most similar to each row, by the cosine of their
    embeddings."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (f"!has(self.columns) || !('{SIMILARITY}' in self.columns)", _OWN_COLUMN)
        )
    )

    path: Uri
    """The output: the `write.path` of a job that has ended well, in parquet or json."""
    storage: Storage = FROM_ENVIRONMENT
    """How the object store that holds the output is reached."""
    index_column: ColumnName | None = None
    """Its column of embeddings. Needed when it has several such columns."""
    columns: Columns | None = None
    """Its columns to bring along; all but embeddings and tensors by default."""
    column: ColumnName
    """The column of this job that holds embeddings of the same model."""
    k: Annotated[int, Field(ge=1, le=MAX_FOUND)] = 5
    """How many rows to find."""
    output: ColumnName
    """The column that takes what was found: a list, the most similar first, of structs of
    `similarity` (-1 to 1) and those columns. Null for a row without an embedding."""

    @model_validator(mode="after")
    def _check(self) -> Nearest:
        if SIMILARITY in (self.columns or []):
            raise PydanticCustomError(
                "nearest_columns", _OWN_COLUMN, {}
            )  # fmt: skip
        return self
