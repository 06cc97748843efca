"""How many rows may fail, and where they go."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from batchinference.spec.base import SpecModel
from batchinference.spec.uris import Uri


class ErrorPolicy(SpecModel):
    """Bad rows. A row that cannot be decoded, or on which a step raises, is set aside with its
    error and the others go on, up to a limit. Without a limit the first bad row fails the job."""

    max_rows: Annotated[int, Field(ge=0, le=10**15)] | None = None
    """Bad rows that the job may have."""
    max_percent: Annotated[float, Field(ge=0, le=100)] | None = None
    """Bad rows that the job may have, as a percentage of the rows of the input. Where the number of
    those is an estimate, the job ends early only when clearly more are bad."""
    path: Uri | None = None
    """The directory, or the prefix in an object store, that takes them (parquet: id, path, row,
    step, error, traceback, values), outside of the output. By default `_batchinference/errors`
    under it."""
    values: bool = False
    """Whether an error record has the values of its row, as the failed step got them: a JSON object
    of the columns, in which long values are shortened. It is null without this."""
    retry: bool = False
    """Whether rows that have failed in earlier runs are tried again, those of files that were added
    included. Without it they stay where they are, and a complete output is left alone. Not for
    tables."""

    @property
    def tolerant(self) -> bool:
        """Whether any bad row may be set aside."""
        return bool(self.max_rows) or bool(self.max_percent)
